"""Requests to the Responses API: what is sent, what is left out, and that nothing a history holds is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core.message import Block, Image, Message, Provider, Text, Thinking, ToolCall, ToolResult, user
from latchstep.errors import DefinitionError
from latchstep.model.base import Request, ToolSpec
from latchstep.model.history import NO_OUTPUT, NO_RESULT, legal_name
from latchstep.model.responses_request import RESERVED, Encoder
from tests.model.strict_responses import reasoning, refusal
from tests.model.test_chat_request import View
from tests.model.vectors import vector

ORIGIN = "openai:m"
PICTURE = Image("image/png", "aGk=")
SENT_PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"}


def own(*blocks: Block) -> Message:
    return Message("assistant", blocks, origin=ORIGIN)


def other(*blocks: Block) -> Message:
    return Message("assistant", blocks, origin="anthropic:m")


def result(id: str, content: Any = "ok") -> Message:
    return Message("tool", (ToolResult(id, "echo", content),))


def said(text: str, id: str = "msg_1", **more: Any) -> Text:
    """A text as the decoder makes it."""
    head = {"type": "message", "id": id, "role": "assistant", "status": "completed", **more}
    return Text(text, {"message": head, "part": {"type": "output_text", "annotations": []}})


def thought(id: str = "rs_1", encrypted: str | None = "gAAA") -> Thinking:
    return Thinking("", reasoning(id, encrypted))


def called(id: str, name: str = "echo", **more: Any) -> ToolCall:
    return ToolCall(id, name, {"text": "x"}, opaque={"id": f"fc_{id}", "status": "completed", **more})


def request(messages: Sequence[Message], **fields: Any) -> Request:
    return Request(request_id="r", messages=messages, **fields)


def encode(*messages: Message, model: str = "m", **fields: Any) -> Any:
    body = Encoder(model, origin=ORIGIN).encode(request(messages, **fields))
    assert refusal(body) is None, refusal(body)
    return json.loads(body)


def items(*messages: Message) -> list[Any]:
    listed = encode(user("go"), *messages)["input"]
    assert listed[0] == {"type": "message", "role": "user", "content": "go"}
    return listed[1:]  # type: ignore[no-any-return]


def kinds(*messages: Message) -> list[str]:
    return [item["type"] for item in items(*messages)]


def test_a_conversation() -> None:
    body = encode(
        Message("user", (Text("look"), PICTURE)),
        other(Thinking("hm", {"signature": "x"}), Text("a"), ToolCall("c1", "echo", {"text": "é\u2028"}), Text("b")),
        result("c1"),
        user("and"),
        system="Be brief.",
        tools=(ToolSpec("echo", "Say it.", {"type": "object", "properties": {}}), ToolSpec("fs.read", "", {})),
        max_output=70,
        options={"temperature": 0},
    )
    assert body["instructions"] == "Be brief."
    assert body["input"] == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look"}, SENT_PICTURE]},
        {"type": "message", "role": "assistant", "content": "a"},
        {"type": "function_call", "call_id": "c1", "name": "echo", "arguments": '{"text":"é\u2028"}'},
        {"type": "message", "role": "assistant", "content": "b"},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        {"type": "message", "role": "user", "content": "and"},
    ]
    assert [tool["name"] for tool in body["tools"]] == ["echo", legal_name("fs.read")]
    assert body["tools"][1]["parameters"] == {"type": "object", "properties": {}}
    rest = {key: value for key, value in body.items() if key not in ("input", "tools", "instructions")}
    assert rest == {
        "model": "m",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 70,
        "temperature": 0,
    }
    assert set(encode(user("x"), system=" ")) == {"model", "input", "stream", "store", "include"}


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("gpt-5.4", True), ("o3", True), ("gpt-oss-20b", True), ("codex-mini-latest", True), ("qwen3:8b", True),
        ("gpt-4o", False), ("gpt-4.1-mini", False), ("ft:gpt-4o:org::id", False), ("openai/gpt-4o", False),
        ("gpt-3.5-turbo", False), ("chatgpt-4o-latest", False), ("gpt-5-chat-latest", False), ("gpt-5-chat", False),
    ],
)  # fmt: skip
def test_encrypted_reasoning_is_asked_of_models_that_reason(model: str, asked: bool) -> None:
    assert ("include" in encode(user("x"), model=model)) is asked
    assert encode(user("x"), model=model, options={"include": []})["include"] == []


def test_b42_reasoning_and_what_follows_it() -> None:
    exchange = (own(thought(), called("call_1")), result("call_1"))
    call = {
        "type": "function_call",
        "id": "fc_call_1",
        "status": "completed",
        "call_id": "call_1",
        "name": "echo",
        "arguments": '{"text":"x"}',
    }
    output = {"type": "function_call_output", "call_id": "call_1", "output": "ok"}
    assert items(*exchange) == [reasoning(), call, output]
    assert kinds(exchange[0]) == ["reasoning", "function_call", "function_call_output"]  # never answered
    assert kinds(own(thought())) == []
    assert kinds(own(thought("rs_1"), thought("rs_2"), said("a"))) == ["reasoning", "reasoning", "message"]
    assert kinds(own(thought("rs_1"), said("a"), thought("rs_2"))) == ["reasoning", "message"]
    assert kinds(own(thought("rs_1"), Text(" "), called("c"))) == ["function_call", "function_call_output"]
    odd = Provider("openai.custom_tool_call", {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": ""})
    assert kinds(own(thought("rs_1"), odd)) == []
    assert kinds(own(thought("rs_1"), Provider("anthropic.x", {"type": "x"}), said("a"))) == ["message"]


def test_b42_reasoning_that_is_not_encrypted_is_left_out_with_the_ids_that_name_it() -> None:
    for lost in (thought(encrypted=None), thought(encrypted=""), Thinking("hm"), Thinking("hm", {"signature": "x"})):
        assert items(own(lost, said("a", phase="commentary"), called("c", namespace="n"))) == [
            {"type": "message", "role": "assistant", "content": "a", "phase": "commentary"},
            {
                "type": "function_call",
                "status": "completed",
                "namespace": "n",
                "call_id": "c",
                "name": "echo",
                "arguments": '{"text":"x"}',
            },
            {"type": "function_call_output", "call_id": "c", "output": NO_RESULT},
        ]
    assert "id" in items(own(said("a")))[0]


def test_items_go_back_as_they_came_and_to_their_maker_only() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    program = {"type": "program", "id": "cm_1", "call_id": "call_p", "code": "x", "fingerprint": "gAAA"}
    caller = {"type": "program", "caller_id": "call_p"}
    blocks = (
        thought(),
        Provider("openai.web_search_call", search),
        said("a", phase="commentary"),
        said("b", "msg_2"),
        said("c", "msg_2"),
        Provider("openai.program", program),
        called("c", caller=caller, namespace="n", provider_id="call_0"),
    )
    sent = items(own(*blocks), result("c"))
    part = {"type": "output_text", "annotations": []}
    head = {"type": "message", "role": "assistant", "status": "completed"}
    assert sent[:5] == [
        reasoning(),
        search,
        {**head, "id": "msg_1", "phase": "commentary", "content": [{**part, "text": "a"}]},
        {**head, "id": "msg_2", "content": [{**part, "text": "b"}, {**part, "text": "c"}]},
        program,
    ]
    assert (sent[5]["caller"], sent[5]["namespace"], "provider_id" in sent[5]) == (caller, "n", False)
    assert sent[6] == {"type": "function_call_output", "call_id": "c", "output": "ok", "caller": caller}
    plain = items(other(*blocks), result("c"))
    assert [item.get("content") for item in plain] == ["a", "b", "c", None, None]
    assert not {"id", "caller", "namespace", "phase"} & {key for item in plain for key in item}


def test_a_message_without_an_id_goes_back_as_text() -> None:
    """Half an output message would be refused."""
    block = Text("a", {"message": {"type": "message", "role": "assistant", "phase": "commentary"}, "part": {"x": 1}})
    plain = {"type": "message", "role": "assistant", "content": "a", "phase": "commentary"}
    assert items(own(block, block)) == [plain, plain]


def test_a_refusal_goes_back_as_one() -> None:
    head = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    block = Text("I cannot", {"message": head, "part": {"type": "refusal"}})
    assert items(own(block))[0]["content"] == [{"type": "refusal", "refusal": "I cannot"}]
    assert items(other(block)) == [{"type": "message", "role": "assistant", "content": "I cannot"}]


def test_pictures_of_results() -> None:
    *_, first, second, third = items(
        other(ToolCall("c1", "shot"), ToolCall("c2", "shot"), ToolCall("c3", "shot")),
        result("c2", (PICTURE,)),
        result("c1", (Text("seen"), Text(" "), PICTURE)),
        result("c3", (Text("a"), Text("b"))),
    )
    assert first["output"] == [{"type": "input_text", "text": "seen"}, SENT_PICTURE]
    assert second["output"] == [SENT_PICTURE]
    assert third["output"] == "a\nb"


def neutral(entry: dict[str, Any]) -> Message:
    """One message of a `history` block."""
    if entry["role"] == "tool":
        return result(entry["id"], entry["text"])
    if "text" in entry:
        return Message(entry["role"], (Text(entry["text"]),), origin=ORIGIN if entry["role"] == "assistant" else "")
    blocks = [
        Text(block["text"]) if block["type"] == "text" else ToolCall(block["id"], block["name"], block["args"])
        for block in entry["blocks"]
    ]
    return Message(entry["role"], tuple(blocks), origin=ORIGIN)


def test_b40_blank_text_is_left_out_and_empty_results_are_said() -> None:
    sent = encode(*map(neutral, vector("B40", "history")))["input"]
    assert [item["type"] for item in sent] == ["message", "function_call", "function_call_output"]
    assert sent[2]["output"] == NO_OUTPUT


def test_b44_ids_of_another_maker() -> None:
    names = ["call_abc|fc_0123456789012345678901234567890123456789012345678901234567", "functions.read:0", "écho:0", ""]
    history = [other(Thinking("hm", {"signature": "s"}), *(ToolCall(id, "read") for id in names))]
    history += [result(id, f"result of {id}") for id in names]
    sent = items(*history)
    calls, outputs = sent[:4], sent[4:]
    assert [call["call_id"] for call in calls] == [output["call_id"] for output in outputs]
    assert [output["output"] for output in outputs] == [f"result of {id}" for id in names]
    assert items(*history, user("more"))[:8] == sent


def test_b17_calls_and_results_are_paired_whatever_comes() -> None:
    sent = items(
        result("orphan"),
        own(called("same"), called("same"), ToolCall("", "echo")),
        result("ghost"),
        result("same", "old"),
        result("same", "1"),
        result("same", "2"),
        user("then"),
        own(called("same")),
        result("same", "3"),
    )
    outputs = [item["output"] for item in sent if item["type"] == "function_call_output"]
    assert outputs == ["1", "2", NO_RESULT, "3"]
    assert [item.get("id") for item in sent if item["type"] == "function_call"] == ["fc_same", None, None, None]


def test_b18_arguments_are_always_an_object() -> None:
    sent = items(own(ToolCall("c", "count"), ToolCall("d", "echo", {}, "the arguments were cut off")))
    assert [item["arguments"] for item in sent[:2]] == ["{}", "{}"]


def test_dirty_text_is_cleaned() -> None:
    dirty = "a\ud83d\0\\u0000"
    body = encode(
        Message("user", (Text(dirty),)),
        own(said(dirty), called("c", dirty)),
        result("c", dirty),
        system=dirty,
        tools=(ToolSpec("x", dirty, {"type": "object", "description": dirty}),),
    )
    assert body["input"][0]["content"] == body["instructions"] == "a\ufffd␀\\u0000"


def test_tools_of_the_provider_come_first() -> None:
    search = {"type": "web_search"}
    tools = (ToolSpec("echo", "", {"type": "object"}),)
    for ours in ((), tools):
        made = Encoder("m", options={"tools": [search]}).encode(request([user("x")], tools=ours))
        assert [tool["type"] for tool in json.loads(made)["tools"]] == ["web_search", *["function" for _ in ours]]


def test_options_that_cannot_be_sent() -> None:
    for option in RESERVED:
        with pytest.raises(DefinitionError, match=option):
            encode(user("x"), options={option: 1})
    with pytest.raises(DefinitionError, match="not JSON"):
        encode(user("x"), options={"seed": object()})


# --- anything at all ---------------------------------------------------------------------------------

texts = st.sampled_from(["", " ", "a", "\u2003", "b\nc", "\0", "\ud83d", "é🦀"])
ids = st.sampled_from(["", "c1", "c2", "call|x", "é", "x" * 70])
names = st.sampled_from(["echo", "fs.read", "", "n" * 80])
contents = texts | st.lists(st.builds(Text, texts) | st.just(PICTURE), max_size=2).map(tuple)


def made(history: list[Message]) -> list[Message]:
    """The history with ids of reasoning and opaque items that are not used twice, as a provider makes them."""
    out = []
    for place, message in enumerate(history):
        blocks: list[Block] = []
        for at, block in enumerate(message.blocks):
            id = f"{place}_{at}"
            if isinstance(block, Thinking) and block.opaque:
                block = thought(f"rs_{id}", block.opaque["encrypted_content"])
            elif isinstance(block, Provider) and "id" in block.data:
                block = Provider(block.kind, {**block.data, "id": f"x_{id}"})
            blocks.append(block)
        out.append(Message(message.role, tuple(blocks), origin=message.origin))
    return out


blocks: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, texts),
    st.builds(said, texts, st.sampled_from(["msg_1", "msg_2"])),
    st.builds(thought, encrypted=st.sampled_from(["gAAA", "", None])),
    st.just(Thinking("hm")),
    st.builds(
        ToolCall, ids, names, st.dictionaries(texts, texts, max_size=2), texts, st.sampled_from([None, {"id": "fc_1"}])
    ),
    st.builds(ToolResult, ids, names, contents),
    st.just(PICTURE),
    st.sampled_from(
        [
            Provider("x", {}),
            Provider("openai.message", {"type": "message"}),
            Provider("openai.web_search_call", {"type": "web_search_call", "id": "x", "status": "completed"}),
            Provider("openai.custom_tool_call", {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": ""}),
        ]
    ),
)
messages = st.builds(
    Message,
    st.sampled_from(["user", "assistant", "tool"]),
    st.lists(blocks, max_size=5).map(tuple),
    st.just(""),
    st.sampled_from([ORIGIN, ORIGIN, "other:m"]),
)
histories = st.lists(messages, max_size=6).map(made)


@given(histories, texts)
@settings(max_examples=300, deadline=None)
def test_whatever_the_messages_are_the_body_is_accepted(history: list[Message], system: str) -> None:
    tools = (ToolSpec("fs.read", system, {"type": "object"}),)
    body = Encoder("m", origin=ORIGIN).encode(request([user("go"), *history], system=system, tools=tools))
    assert refusal(body) is None


@given(histories, st.data())
@settings(max_examples=150, deadline=None)
def test_i4_what_was_kept_gives_the_same_bytes(history: list[Message], data: st.DataObject) -> None:
    """However a history grew, its body is the one that a fresh encoder makes of it; whole exchanges are a prefix."""
    encoder, base, before = Encoder("m", origin=ORIGIN), [user("go")], b""
    tools = (ToolSpec("echo", "", {"type": "object"}),)
    for message in history:
        base.append(message)
        if data.draw(st.booleans()):
            body = encoder.encode(request(View(base), tools=tools, system="s"))
            assert body == Encoder("m", origin=ORIGIN).encode(request(tuple(base), tools=tools, system="s"))
            if message.role == "user" and message.text.strip(" \0\u2003"):
                assert body.startswith(before)
                before = body[: body.index(b'],"stream"')]
