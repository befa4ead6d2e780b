"""Encoding: nothing that a strict server refuses, and earlier bytes never change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core.message import Block, Image, Message, Provider, Text, Thinking, ToolCall, ToolResult, user
from latchstep.errors import DefinitionError
from latchstep.model import history
from latchstep.model.base import Request, ToolSpec
from latchstep.model.chat_request import Dialect, Encoder
from latchstep.model.history import NO_OUTPUT, NO_RESULT, legal_name
from tests.model.strict_chat import refusal

ORIGIN = "openai-chat:m"


class View(Sequence[Message]):
    """A read-only view of the first `count` messages of a list that only grows."""

    def __init__(self, base: list[Message], count: int | None = None) -> None:
        self.base = base
        self._count = len(base) if count is None else count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: Any) -> Any:
        return self.base[: self._count][at] if isinstance(at, slice) else self.base[at]


def assistant(*blocks: Block, origin: str = "") -> Message:
    return Message("assistant", blocks, origin=origin)


def result(id: str, content: Any = "ok", name: str = "echo") -> Message:
    return Message("tool", (ToolResult(id, name, content),))


def request(messages: Sequence[Message], **fields: Any) -> Request:
    return Request(request_id="r", messages=messages, **fields)


def encode(*messages: Message, dialect: Dialect = Dialect(), **fields: Any) -> Any:  # noqa: B008 - frozen
    body = Encoder("m", origin=ORIGIN, dialect=dialect).encode(request(messages, **fields))
    if messages:
        assert refusal(body) is None, refusal(body)
    return json.loads(body)


def test_a_conversation() -> None:
    picture = Image("image/png", "aGk=")
    call = ToolCall("c1", "echo", {"text": "é\u2028"})
    body = encode(
        Message("user", (Text("look"), picture)),
        assistant(Thinking("hm"), Text("a"), call, Text("b")),
        result("c1"),
        user("and"),
        system="Be brief.",
        tools=(ToolSpec("echo", "Say it.", {"type": "object", "properties": {}}), ToolSpec("fs.read", "", {})),
        max_output=7,
        options={"temperature": 0},
    )
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
            ],
        },
        {
            "role": "assistant",
            "content": "ab",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": '{"text":"é\u2028"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "user", "content": "and"},
    ]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["echo", legal_name("fs.read")]
    rest = {key: value for key, value in body.items() if key not in ("messages", "tools")}
    assert rest == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 7,
        "temperature": 0,
    }


def test_dialects() -> None:
    body = encode(user("x"), max_output=7, dialect=Dialect(max_tokens="max_completion_tokens", usage=False))
    assert body["max_completion_tokens"] == 7
    assert "stream_options" not in body
    exchange = (assistant(ToolCall("call_abc", "echo"), ToolCall("Abc123xyz", "echo")), result("Abc123xyz"))
    ids = [call["id"] for call in encode(*exchange, dialect=Dialect(short_ids=True))["messages"][0]["tool_calls"]]
    assert ids[1] == "Abc123xyz"
    assert len(ids[0]) == 9
    assert ids[0].isalnum()


def test_b40_blank_text_is_left_out_and_empty_results_are_said() -> None:
    body = encode(
        user("a"),
        assistant(Text("\n"), ToolCall("c1", "echo", {"text": ""})),
        result("c1", ""),
        assistant(Text("")),
        user("   "),
        Message("user", (Text("b"), Text(" \u2003"), Text("c"))),
    )
    assert [message["content"] for message in body["messages"]] == ["a", None, NO_OUTPUT, "b\n\nc"]


def test_thinking_goes_back_to_its_maker_only() -> None:
    blocks = (Thinking("a", {"field": "reasoning_content"}), Text("b"), Thinking("c", {"field": "reasoning_content"}))
    assert encode(assistant(*blocks, origin=ORIGIN))["messages"][0]["reasoning_content"] == "ac"
    assert encode(assistant(*blocks, origin="other:m"))["messages"] == [{"role": "assistant", "content": "b"}]
    details = [{"type": "reasoning.encrypted", "data": "x"}]
    open_router = assistant(
        Thinking("a", {"field": "reasoning", "reasoning_details": details}), Text("b"), origin=ORIGIN
    )
    sent = encode(open_router)["messages"][0]
    assert sent == {"role": "assistant", "content": "b", "reasoning_details": details}
    mistral = assistant(Thinking("a", {"field": "content"}), Text("b"), origin=ORIGIN)
    content = json.loads(Encoder("m", origin=ORIGIN).encode(request([mistral])))["messages"][0]["content"]
    assert [part["type"] for part in content] == ["thinking", "text"]


def test_pictures_of_results_follow_all_results() -> None:
    picture = Image("image/png", "aGk=")
    body = encode(
        assistant(ToolCall("c1", "shot"), ToolCall("c2", "shot")),
        result("c2", (picture,), "shot"),
        result("c1", (Text("seen"), picture), "shot"),
    )
    _, first, second, shown = body["messages"]
    assert first == {"role": "tool", "tool_call_id": "c1", "content": "seen\n(1 image in the next user message)"}
    assert second["content"] == "(1 image in the next user message)"
    assert [part["type"] for part in shown["content"]] == ["text", "image_url"] * 2


def test_calls_and_results_are_paired_whatever_comes() -> None:
    body = encode(
        result("orphan"),
        assistant(ToolCall("same", "echo"), ToolCall("same", "echo"), ToolCall("", "echo"), ToolCall("écho:0", "écho")),
        result("écho:0", "4"),
        result("ghost"),
        result("same", "old"),
        result("same", "1"),
        result("same", "2"),
        assistant(ToolCall("same", "echo")),
        result("same", "5"),
        result("same", "6"),
    )
    messages = body["messages"]
    assert [message.get("content") for message in messages] == [None, "1", "2", NO_RESULT, "4", None, "6"]
    ids = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert len(set(ids)) == 5
    assert ids[0] == "same"


def test_names_are_made_legal_and_stay_distinct() -> None:
    names = ["read", "fs.read", "fs/read", "écho", "", "n" * 70, "n" * 71, "echo<|channel|>commentary"]
    legal = [legal_name(name) for name in names]
    assert legal[0] == "read"
    assert len(set(legal)) == len(names)
    assert all(history._LEGAL.fullmatch(name) for name in legal)


def test_dirty_text_is_cleaned() -> None:
    dirty = "a\ud83d\0\\u0000"
    body = encode(
        Message("user", (Text(dirty),)),
        assistant(ToolCall("c", dirty, {dirty: [dirty]})),
        result("c", dirty, dirty),
        system=dirty,
        tools=(ToolSpec("x", dirty, {"type": "object", "description": dirty}),),
    )
    assert body["messages"][1]["content"] == "a\ufffd␀\\u0000"


def test_options_that_cannot_be_sent() -> None:
    for option in ("messages", "stream", "model", "tools", "n"):
        with pytest.raises(DefinitionError, match=option):
            encode(user("x"), options={option: 1})
    with pytest.raises(DefinitionError, match="not JSON"):
        encode(user("x"), options={"seed": object()})


texts = st.sampled_from(["", " ", "a", "\u2003", "b\nc", "\0", "\ud83d", "é🦀", "\\u0000"])
ids = st.sampled_from(["", "c1", "c2", "call|x", "é", "x" * 50])
names = st.sampled_from(["echo", "fs.read", "", "n" * 80])
pictures = st.just(Image("image/png", "aGk="))
contents = texts | st.lists(st.builds(Text, texts) | pictures, max_size=2).map(tuple)
blocks: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, texts),
    st.builds(Thinking, texts, st.none() | st.just({"field": "reasoning"})),
    st.builds(ToolCall, ids, names, st.dictionaries(texts, texts, max_size=2), texts),
    st.builds(ToolResult, ids, names, contents),
    pictures,
    st.just(Provider("x", {})),
)
messages = st.builds(
    Message,
    st.sampled_from(["user", "assistant", "tool"]),
    st.lists(blocks, max_size=4).map(tuple),
    st.just(""),
    st.just(ORIGIN),
)


@given(st.lists(messages, max_size=6), texts)
@settings(max_examples=300, deadline=None)
def test_whatever_the_messages_are_the_body_is_accepted(history: list[Message], system: str) -> None:
    tools = (ToolSpec("fs.read", system, {"type": "object"}),)
    body = Encoder("m", origin=ORIGIN).encode(request([user("go"), *history], system=system, tools=tools))
    assert refusal(body) is None


@given(st.lists(messages, min_size=1, max_size=8), st.data())
@settings(max_examples=200, deadline=None)
def test_i4_what_was_kept_gives_the_same_bytes(history: list[Message], data: st.DataObject) -> None:
    """However a history grew, its body is the one that a fresh encoder makes of it; whole exchanges are a prefix."""
    encoder, base, before = Encoder("m", origin=ORIGIN), [user("go")], b""
    for message in history:
        base.append(message)
        if data.draw(st.booleans()):
            body = encoder.encode(request(View(base)))
            assert body == Encoder("m", origin=ORIGIN).encode(request(tuple(base)))
            if message.role == "user" and message.text.strip(" \0\u2003"):
                end = body.index(b'],"stream"')
                assert body.startswith(before)
                before = body[:end]


def test_only_new_messages_are_read() -> None:
    read: list[int] = []

    class Watched(View):
        def __getitem__(self, at: Any) -> Any:
            read.append(at)
            return super().__getitem__(at)

    encoder = Encoder("m")
    base = [user(f"message {at}") for at in range(1_000)]
    encoder.encode(request(Watched(base)))
    base += [assistant(ToolCall("c", "echo")), result("c")]
    read.clear()
    body = encoder.encode(request(Watched(base)))
    assert len(read) <= 5
    assert body == Encoder("m").encode(request(base))
    shorter = encoder.encode(request(View(base, 10)))  # a view of less than was kept
    assert shorter == Encoder("m").encode(request(base[:10]))


def test_kept_histories_are_bounded() -> None:
    encoder = Encoder("m")
    cache = encoder._history
    histories = [[user("x" * 1_000), user("y")] for _ in range(history.MAX_CACHED + 10)]
    for grown in histories:
        encoder.encode(request(View(grown)))
    assert len(cache._kept) == history.MAX_CACHED
    assert cache._kept_bytes == sum(kept.size for kept in cache._kept.values())
    big = [user("x" * history.MAX_CACHED_BYTES), user("y")]
    encoder.encode(request(View(big)))
    encoder.encode(request(View(histories[0])))
    assert cache._kept_bytes <= history.MAX_CACHED_BYTES
