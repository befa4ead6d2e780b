"""Encoding for Anthropic: nothing that the API refuses, and earlier bytes never change but for the cache marks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core.message import Block, Image, Message, Provider, Text, Thinking, ToolCall, ToolResult, user
from latchstep.core.project import Projection
from latchstep.errors import DefinitionError
from latchstep.model.anthropic_request import BEGIN, GO_ON, MAX_TOKENS, Encoder
from latchstep.model.base import Request, ToolSpec
from latchstep.model.history import NO_OUTPUT, NO_RESULT, legal_name
from tests.model.strict_anthropic import refusal, sign
from tests.model.test_chat_request import View
from tests.model.vectors import vector

ORIGIN = "anthropic:m"
MARK = {"type": "ephemeral"}
ECHO = ToolSpec("echo", "Say it.", {"type": "object", "properties": {}})
SPLICED = b',"cache_control":{"type":"ephemeral"}'


def said(*blocks: Block, origin: str = ORIGIN) -> Message:
    return Message("assistant", blocks, origin=origin)


def result(id: str, content: Any = "ok", **fields: Any) -> Message:
    return Message("tool", (ToolResult(id, "echo", content, **fields),))


def signed(text: str) -> Thinking:
    return Thinking(text, {"signature": sign(text)})


def encode(*messages: Message, encoder: Encoder | None = None, **fields: Any) -> Any:
    body = (encoder or Encoder("m", origin=ORIGIN)).encode(Request(request_id="r", messages=messages, **fields))
    assert refusal(body) is None, refusal(body)
    return json.loads(body)


def contents(*messages: Message, **fields: Any) -> list[tuple[str, list[Any]]]:
    """(role, content without marks) of each message sent."""
    sent = encode(*messages, **fields)["messages"]
    for message in sent:
        for block in message["content"]:
            block.pop("cache_control", None)
    return [(message["role"], message["content"]) for message in sent]


def kinds(*messages: Message) -> list[list[str]]:
    return [[block["type"] for block in content] for _, content in contents(*messages)]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_a_conversation() -> None:
    body = encode(
        Message("user", (Text("look"), Image("image/png", "aGk="))),
        said(Text("a"), ToolCall("c1", "echo", {"text": "é\u2028"})),
        result("c1", (Text("seen"), Image("image/png", "aGk="), Image("image/bmp", "aGk=")), is_error=True),
        user("and"),
        system="Be brief.",
        tools=(ECHO, ToolSpec("fs.read", "", {})),
        options={"tool_choice": {"type": "auto"}, "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    )
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    shown = [text("seen"), picture, text("(a picture of type image/bmp, which cannot be shown)")]
    assert body.pop("messages") == [
        {"role": "user", "content": [text("look"), {**picture, "cache_control": MARK}]},
        {
            "role": "assistant",
            "content": [text("a"), {"type": "tool_use", "id": "c1", "name": "echo", "input": {"text": "é\u2028"}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": shown, "is_error": True},
                {**text("and"), "cache_control": MARK},
            ],
        },
    ]
    assert [tool["name"] for tool in body.pop("tools")] == ["web_search", "echo", legal_name("fs.read")]
    assert body == {
        "model": "m",
        "max_tokens": MAX_TOKENS,
        "tool_choice": {"type": "auto"},
        "stream": True,
        "system": [{**text("Be brief."), "cache_control": MARK}],
    }


def test_options() -> None:
    assert encode(user("x"), max_output=7)["max_tokens"] == 7
    assert encode(user("x"), max_output=7, options={"max_tokens": 9, "thinking": {"type": "adaptive"}}) == {
        "model": "m",
        "max_tokens": 9,
        "thinking": {"type": "adaptive"},
        "stream": True,
        "messages": [{"role": "user", "content": [{**text("x"), "cache_control": MARK}]}],
    }
    hour = {"type": "ephemeral", "ttl": "1h"}
    body = encode(user("x"), tools=(ECHO,), options={"cache_control": hour})
    assert body["tools"][0]["cache_control"] == body["messages"][0]["content"][0]["cache_control"] == hour
    body = encode(user("x"), system="s", tools=(ECHO,), options={"cache_control": None})
    assert "cache_control" not in json.dumps(body)
    for option in ("model", "messages", "stream", "system", "betas"):
        with pytest.raises(DefinitionError, match=option):
            encode(user("x"), options={option: 1})


def test_b01_b17_calls_and_results_are_paired_whatever_comes() -> None:
    turns = contents(
        user("go"),
        said(ToolCall("same", "echo"), ToolCall("same", "echo"), ToolCall("", "echo"), ToolCall("écho:0", "écho")),
        result("écho:0", "4"),
        result("ghost"),
        result("same", "old"),
        result("same", "1"),
        result("same", "2"),
        said(ToolCall("same", "echo")),
        result("same", "5"),
        result("same", "6"),
        said(ToolCall("open", "echo")),
        user("continue"),
    )
    results = [block["content"] for _, content in turns for block in content if block["type"] == "tool_result"]
    assert results == ["1", "2", NO_RESULT, "4", "6", NO_RESULT]
    ids = [block["id"] for _, content in turns for block in content if block["type"] == "tool_use"]
    assert len(set(ids)) == 6
    assert ids[0] == "same"
    assert turns[-1][1][-1] == text("continue")


def test_b04_text_after_a_call_moves_before_it() -> None:
    (_, *_), assistant, answered = contents(
        user("go"), said(Text("a"), ToolCall("c1", "echo"), Text("b")), result("c1")
    )
    assert [block.get("text", "call") for block in assistant[1]] == ["a", "b", "call"]
    assert answered[1][0]["tool_use_id"] == "c1"
    assert kinds(
        user("go"), said(ToolCall("c", "echo"), Text("b"), ToolCall("d", "echo")), result("c"), result("d")
    ) == [
        ["text"],
        ["tool_use"],
        ["tool_result"],
        ["text", "tool_use"],
        ["tool_result"],
    ]
    server = Provider(
        "anthropic.code_execution_tool_result", {"type": "code_execution_tool_result", "tool_use_id": "s"}
    )
    use = Provider("anthropic.server_tool_use", {"type": "server_tool_use", "id": "s", "name": "x", "input": {}})
    assert kinds(user("go"), said(use, ToolCall("c", "echo"), server, Text("b")), result("c"))[1] == [
        "server_tool_use",
        "text",
        "tool_use",
        "code_execution_tool_result",
    ]


def test_b05_results_come_first_in_the_next_message() -> None:
    calls = said(ToolCall("c1", "echo"), ToolCall("c2", "echo"))
    _, _, (_, last) = contents(user("go"), calls, user("use B"), result("c2"), result("c1"), user("instead"))
    assert [block.get("tool_use_id") or block["text"] for block in last] == ["c1", "c2", "use B", "instead"]


def test_b40_blank_text_is_left_out_and_empty_results_are_said() -> None:
    turns = contents(
        user("a"),
        said(Text("\n"), ToolCall("c1", "echo", {"text": ""})),
        result("c1", ""),
        said(Text("")),
        user("   "),
        Message("user", (Text("b"), Text(" \u2003"), Text("c"))),
    )
    assert [content[0]["type"] for _, content in turns] == ["text", "tool_use", "tool_result", "text"]
    assert turns[2][1][0]["content"] == NO_OUTPUT
    assert turns[3][1] == [text("b"), text("c")]


def test_b41_thinking_goes_back_unchanged_to_its_maker_only() -> None:
    odd = "one\u2028two \r\n  "
    redacted = Thinking("", {"redacted": "EmwK"})
    blocks = (signed(odd), ToolCall("c1", "echo"), signed(""), ToolCall("c2", "echo"), redacted)
    history = [user("go"), said(*blocks), result("c1"), result("c2")]
    projected = Projection().feed(history)
    sent = [block for _, content in contents(*projected) for block in content if "thinking" in block["type"]]
    assert sent == [
        {"type": "thinking", "thinking": odd, "signature": sign(odd)},
        {"type": "thinking", "thinking": "", "signature": sign("")},
        {"type": "redacted_thinking", "data": "EmwK"},
    ]
    for origin in ("", "openai:m", "anthropic:other"):
        turns = kinds(user("go"), said(*blocks, origin=origin), result("c1"), result("c2"))
        assert turns == [["text"], ["tool_use", "tool_use"], ["tool_result", "tool_result"]]
    unsigned = said(Thinking("cut off"), Thinking("x", {"signature": ""}), Text("a"), signed("at the end"))
    assert kinds(user("go"), unsigned, user("on")) == [["text"], ["text"], ["text"]]


def test_what_only_the_provider_understands_goes_to_all_its_models() -> None:
    cited = Text("a", {"citations": [{"type": "char_location"}]})
    use = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    call = ToolCall("c1", "echo", {}, opaque={"caller": {"type": "code_execution_20250825", "tool_id": "s1"}})
    blocks = (
        Provider("anthropic.server_tool_use", use),
        Provider("anthropic.web_search_tool_result", found),
        cited,
        call,
    )
    for origin in (ORIGIN, "anthropic:other"):
        _, (_, content), _ = contents(user("go"), said(*blocks, origin=origin), result("c1"))
        assert content[:3] == [use, found, {**text("a"), **(cited.opaque or {})}]
        assert content[3]["caller"] == (call.opaque or {})["caller"]
    _, (_, content), _ = contents(user("go"), said(*blocks, origin="openai:m"), result("c1"))
    assert content == [text("a"), {"type": "tool_use", "id": "c1", "name": "echo", "input": {}}]
    lost = Provider("anthropic.lost.tool_use", {"type": "tool_use", "id": "x", "name": "echo", "input": {}})
    assert kinds(user("go"), said(Provider("openai-chat.content", {"type": "x"}), lost, Text("a")), user("on"))[1] == [
        "text"
    ]
    renamed = ToolCall("c1", "echo", opaque={"provider_id": "call|1"})
    assert contents(user("go"), said(renamed), result("c1"))[1][1][0].keys() == {"type", "id", "name", "input"}
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
    with_mark = Provider("anthropic.document", {**document, "cache_control": MARK})
    assert contents(Message("user", (Text("read"), with_mark)))[0][1] == [text("read"), document]


def test_a_paused_turn_is_sent_back_as_it_is_and_a_cut_one_without_its_open_use() -> None:
    use = Provider("anthropic.server_tool_use", {"type": "server_tool_use", "id": "s1", "name": "w", "input": {}})
    paused = said(Text("searching"), use)
    assert kinds(user("go"), paused) == [["text"], ["text", "server_tool_use"]]
    done = Provider("anthropic.web_search_tool_result", {"type": "web_search_tool_result", "tool_use_id": "s1"})
    assert [
        block["type"] for block in encode_raw(user("go"), paused, said(done, Text("x")), user("on"))[1]["content"]
    ] == [
        "text",
        "server_tool_use",
    ]
    assert kinds(user("go"), paused, user("stop that")) == [["text"], ["text"], ["text"]]


def encode_raw(*messages: Message) -> Any:
    return json.loads(Encoder("m", origin=ORIGIN).encode(Request(request_id="r", messages=messages)))["messages"]


def test_a_conversation_begins_and_ends_with_the_user() -> None:
    assert contents() == [("user", [text(BEGIN)])]
    assert contents(said(Text("a"))) == [("user", [text(BEGIN)]), ("assistant", [text("a")]), ("user", [text(GO_ON)])]
    server = Provider("anthropic.server_tool_use", {"type": "server_tool_use", "id": "s", "name": "w", "input": {}})
    assert contents(user("a"), said(Text("b"), server, origin="openai:m"))[-1] == ("user", [text(GO_ON)])
    assert contents(result("ghost"), said(signed("x"))) == [("user", [text(BEGIN)])]


def test_b48_marks_move_forward_only_and_the_rest_of_the_bytes_stays() -> None:
    encoder, base, before, places = Encoder("m", origin=ORIGIN), [user("go")], b"", [-1]
    for step in range(30):
        body = encoder.encode(Request(request_id="r", messages=View(base), system="Be brief.", tools=(ECHO,)))
        sent = json.loads(body)["messages"]
        marked = [at for at, message in enumerate(sent) if "cache_control" in message["content"][-1]]
        assert marked[-1] == len(sent) - 1
        assert marked[:-1] == places[-1:] or not step  # where the request before this one ended
        assert body.count(b"cache_control") <= 4
        plain = body.replace(SPLICED, b"")
        assert plain.startswith(before)
        before, places = plain.removesuffix(b"]}"), marked
        base += [said(Text(f"step {step}"), ToolCall(f"c{step}", "echo")), result(f"c{step}")]
        if step % 7 == 3:
            base.append(user("steer"))


def test_dirty_text_is_cleaned() -> None:
    dirty = "a\ud83d\0\\u0000"
    sent = contents(
        Message("user", (Text(dirty),)),
        said(ToolCall("c", dirty, {dirty: [dirty]})),
        result("c", dirty),
        system=dirty,
        tools=(ToolSpec("x", dirty, {"type": "object", "description": dirty}),),
    )
    assert sent[0][1] == [text("a\ufffd␀\\u0000")]


SPOILS: list[Callable[[Any], Any]] = [
    lambda body: body.pop("max_tokens"),
    lambda body: body.update(max_tokens=0),
    lambda body: body.update(temperature=0),
    lambda body: body.update(system=" "),
    lambda body: body["messages"].pop(0),
    lambda body: body["messages"].pop(),
    lambda body: body["messages"].insert(2, {"role": "user", "content": "x"}),
    lambda body: body["messages"][0].update(content=[]),
    lambda body: body["messages"][0].update(content=" \n"),
    lambda body: body["messages"][0].update(role="system"),
    lambda body: body["messages"][0].update(name="x"),
    lambda body: body["messages"][1]["content"][0].update(thinking="changed"),
    lambda body: body["messages"][1]["content"][1].update(id="a b"),
    lambda body: body["messages"][1]["content"][1].update(input="{}"),
    lambda body: body["messages"][1]["content"].append({"type": "text", "text": "x"}),
    lambda body: body["messages"][1]["content"].append(body["messages"][1]["content"][1]),
    lambda body: body["messages"][2]["content"].insert(0, {"type": "text", "text": "x"}),
    lambda body: body["messages"][2]["content"].append(body["messages"][2]["content"][0]),
    lambda body: body["messages"][2]["content"][0].update(content=" "),
    lambda body: body["messages"].append({"role": "assistant", "content": "prefill"}),
    lambda body: body["messages"].append({"role": "user", "content": "\ud83d"}),
    lambda body: body["messages"][0].update(content=[{"type": "text", "text": "x", "cache_control": {}}] * 5),
]


@pytest.mark.parametrize("at", range(len(SPOILS)))
def test_the_strict_server_refuses(at: int) -> None:
    """The check itself must be able to fail."""
    body = encode(user("go"), said(signed("hm"), ToolCall("c", "echo")), result("c"))
    SPOILS[at](body)
    assert refusal(json.dumps(body).encode()) is not None


def test_b04_b40_the_histories_of_the_vectors() -> None:
    for id in ("B04", "B40"):
        history = []
        for entry in vector(id, "history"):
            blocks = entry.get("blocks") or [{"type": "text", "text": entry["text"]}]
            if entry["role"] == "tool":
                history.append(result(entry["id"], entry["text"]))
                continue
            made = (
                Text(block["text"]) if block["type"] == "text" else ToolCall(block["id"], block["name"], block["args"])
                for block in blocks
            )
            history.append(Message(entry["role"], tuple(made), origin=ORIGIN))
        encode(*history)
        encode(*Projection().feed(history))


texts = st.sampled_from(["", " ", "a", "\u2003", "b\nc", "\0", "\ud83d", "é🦀", "\\u0000"])
ids = st.sampled_from(["", "c1", "c2", "call|x", "é", "x" * 70])
names = st.sampled_from(["echo", "fs.read", "", "n" * 80])
pictures = st.sampled_from([Image("image/png", "aGk="), Image("image/tiff", "aGk=")])
contents_of_results = texts | st.lists(st.builds(Text, texts) | pictures, max_size=2).map(tuple)
PAIR: tuple[Block, ...] = (
    Provider("anthropic.server_tool_use", {"type": "server_tool_use", "id": "s1", "name": "x", "input": {}}),
    Provider("anthropic.x_tool_result", {"type": "x_tool_result", "tool_use_id": "s1", "content": []}),
)
providers = st.sampled_from(
    [
        Provider("anthropic.lost.tool_use", {"type": "tool_use", "id": "c1", "name": "x", "input": {}}),
        Provider("anthropic.", {}),
        Provider("anthropic.tool_use", {"type": "tool_use", "id": "c1", "name": "x", "input": {}}),
        Provider("x", {"type": "text"}),
    ]
)
blocks: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, texts),
    st.sampled_from(
        [signed(""), signed("é"), Thinking("x"), Thinking("", {"redacted": "x"}), Thinking("x", {"signature": 1})]
    ),
    st.builds(
        ToolCall,
        ids,
        names,
        st.dictionaries(texts, texts, max_size=2),
        texts,
        st.none() | st.just({"provider_id": "p"}),
    ),
    st.builds(ToolResult, ids, names, contents_of_results),
    pictures,
    providers,
)
messages = st.builds(
    Message,
    st.sampled_from(["user", "assistant", "tool"]),
    st.lists(blocks.map(lambda block: (block,)) | st.just(PAIR), max_size=5).map(lambda groups: sum(groups, ())),
    st.just(""),
    st.sampled_from([ORIGIN, "anthropic:other", "openai:m"]),
)


def for_user(message: Message) -> bool:
    return message.role != "user" or not any(isinstance(block, Provider) for block in message.blocks)


@given(st.lists(messages.filter(for_user), max_size=6), texts)
@settings(max_examples=300, deadline=None)
def test_whatever_the_messages_are_the_body_is_accepted(history: list[Message], system: str) -> None:
    tools = (ToolSpec("fs.read", system, {"type": "object"}),)
    encode(*history, system=system, tools=tools)


def in_order(history: list[Message]) -> bool:
    """No result comes after a user has spoken, as in every projected transcript: a late one would change bytes."""
    spoken = False
    for message in history:
        spoken = message.role == "user" or (spoken and message.role != "assistant")
        if spoken and any(isinstance(block, ToolResult) for block in message.blocks):
            return False
    return True


@given(st.lists(messages, min_size=1, max_size=8).filter(in_order), st.data())
@settings(max_examples=200, deadline=None)
def test_i4_what_was_kept_gives_the_same_bytes(history: list[Message], data: st.DataObject) -> None:
    """However a history grew, its body is the one that a fresh encoder makes of it; whole exchanges are a prefix."""
    encoder, base, before = Encoder("m", origin=ORIGIN), [user("go")], b""
    for message in history:
        base.append(message)
        if data.draw(st.booleans()):
            body = encoder.encode(Request(request_id="r", messages=View(base)))
            assert body == Encoder("m", origin=ORIGIN).encode(Request(request_id="r", messages=tuple(base)))
            plain = body.replace(SPLICED, b"")
            assert plain.startswith(before)
            if message.role == "user" and message.text.strip(" \0\u2003"):
                before = plain.removesuffix(b"]}]}")


def test_only_new_messages_are_read() -> None:
    read: list[int] = []

    class Watched(View):
        def __getitem__(self, at: Any) -> Any:
            read.append(at)
            return super().__getitem__(at)

    encoder, base = Encoder("m"), [user("go")]
    for at in range(1_000):
        base += [said(ToolCall(f"c{at}", "echo")), result(f"c{at}")]
    ask: Callable[[Sequence[Message]], bytes] = lambda view: encoder.encode(Request(request_id="r", messages=view))  # noqa: E731
    ask(Watched(base))
    base += [said(ToolCall("c", "echo")), result("c")]
    read.clear()
    body = ask(Watched(base))
    assert len(read) <= 6
    assert body == Encoder("m").encode(Request(request_id="r", messages=base))
