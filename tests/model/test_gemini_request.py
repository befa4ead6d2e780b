"""Encoding for Gemini: nothing that the strict server refuses, and earlier bytes never change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core.message import Block, Image, Message, Provider, Text, Thinking, ToolCall, ToolResult, user
from latchstep.errors import DefinitionError
from latchstep.model.base import ToolSpec
from latchstep.model.gemini_request import GO_ON, RESERVED, UNSIGNED, Encoder, legal_function
from latchstep.model.history import NO_OUTPUT, NO_RESULT
from tests.model.strict_gemini import NAME, SIGNATURE, refusal
from tests.model.test_chat_request import View, assistant, request, result

ORIGIN = "gemini:m"
SIGNED = {"thoughtSignature": SIGNATURE}


def encode(*messages: Message, **fields: Any) -> Any:
    body = Encoder(origin=ORIGIN).encode(request(messages, **fields))
    assert refusal(body) is None, refusal(body)
    return json.loads(body)


def own(*blocks: Block) -> Message:
    return assistant(*blocks, origin=ORIGIN)


def answered(*results: tuple[str, str]) -> dict[str, Any]:
    parts = [{"functionResponse": {"name": name, "response": {"output": text}}} for name, text in results]
    return {"role": "user", "parts": parts}


def test_a_conversation() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "exclusiveMinimum": 0}}, "$defs": {}}
    body = encode(
        Message("user", (Text("look"), Image("image/png", "aGk="))),
        own(Thinking("hm"), Text("a"), ToolCall("c1", "echo", {"text": "é\u2028"}, opaque={**SIGNED, "id": "g1"})),
        result("c1"),
        user("and"),
        system="Be brief.",
        tools=(ToolSpec("echo", "Say it.", schema), ToolSpec("fs.read", "", {})),
        max_output=7,
        options={
            "temperature": 0,
            "top_p": 1,
            "thinking_config": {"includeThoughts": True},
            "tool_config": {"x": 1},
            "tools": [{"googleSearch": {}}],
        },
    )
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "look"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}]},
        {
            "role": "model",
            "parts": [
                {"text": "hm", "thought": True},
                {"text": "a"},
                {"functionCall": {"id": "g1", "name": "echo", "args": {"text": "é\u2028"}}, **SIGNED},
            ],
        },
        {"role": "user", "parts": [{"functionResponse": {"id": "g1", "name": "echo", "response": {"output": "ok"}}}]},
        {"role": "user", "parts": [{"text": "and"}]},
    ]
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    declared, search = body["tools"]
    assert declared["functionDeclarations"][0] == {
        "name": "echo",
        "description": "Say it.",
        "parametersJsonSchema": schema,
    }
    assert declared["functionDeclarations"][1]["name"] == legal_function("fs.read")
    assert search == {"googleSearch": {}}
    assert body["toolConfig"] == {"x": 1}
    assert body["generationConfig"] == {
        "maxOutputTokens": 7,
        "temperature": 0,
        "topP": 1,
        "thinkingConfig": {"includeThoughts": True},
    }
    assert encode(user("x")) == {"contents": [{"role": "user", "parts": [{"text": "x"}]}]}
    assert list(encode(user("x"), tools=(ToolSpec("t", "", {}),))) == ["tools", "contents"]


def test_signatures_go_back_on_their_part_to_their_maker_only() -> None:
    blocks = (
        Thinking("why", SIGNED),
        Text("a", SIGNED),
        Text("b"),
        Text("", SIGNED),
        Thinking("", SIGNED),
        Provider("gemini.executableCode", {"executableCode": {"code": "1", "language": "PYTHON"}, **SIGNED}),
        ToolCall("c1", "echo", opaque={**SIGNED, "id": "g"}),
        ToolCall("c2", "echo"),
    )
    results = (result("c2", "2"), result("c1", "1"))
    sent = encode(user("x"), own(*blocks), *results)["contents"]
    assert sent[1]["parts"] == [
        {"text": "why", "thought": True, **SIGNED},
        {"text": "a", **SIGNED},
        {"text": "b"},
        {"text": "", **SIGNED},
        {"text": "", "thought": True, **SIGNED},
        {"executableCode": {"code": "1", "language": "PYTHON"}, **SIGNED},
        {"functionCall": {"id": "g", "name": "echo", "args": {}}, **SIGNED},
        {"functionCall": {"name": "echo", "args": {}}},
    ]
    assert sent[2]["parts"] == [
        {"functionResponse": {"id": "g", "name": "echo", "response": {"output": "1"}}},
        {"functionResponse": {"name": "echo", "response": {"output": "2"}}},
    ]
    for origin in ("gemini:other", "openai:m", ""):
        sent = encode(user("x"), assistant(*blocks, origin=origin), *results)["contents"]
        assert sent[1]["parts"] == [
            {"text": "a"},
            {"text": "b"},
            {"functionCall": {"name": "echo", "args": {}}, "thoughtSignature": UNSIGNED},
            {"functionCall": {"name": "echo", "args": {}}},
        ]
        assert sent[2] == answered(("echo", "1"), ("echo", "2"))


def test_b17d_ids_that_are_missing_or_repeated() -> None:
    """Without ids the order decides; an id that is not one of a kind is left out on both sides."""
    again = ToolCall("c", "count", opaque={"id": "call_0"})
    body = encode(
        user("x"),
        own(again, ToolCall("d", "echo", {"text": "x"}, opaque={"id": "call_0"})),
        result("c", "1", "count"),
        result("d", "2"),
        own(again),
        result("c", "3", "count"),
        own(ToolCall("", "count"), ToolCall("", "echo")),
        result("", "4", "count"),
        result("", "5"),
    )["contents"]
    first = {"functionResponse": {"id": "call_0", "name": "count", "response": {"output": "1"}}}
    assert body[2]["parts"] == [first, *answered(("echo", "2"))["parts"]]
    assert [body[4], body[6]] == [answered(("count", "3")), answered(("count", "4"), ("echo", "5"))]


def test_b40_blank_text_is_left_out_and_empty_results_are_said() -> None:
    body = encode(
        user("a"),
        assistant(Text("\n"), ToolCall("c1", "echo", {"text": ""})),
        result("c1", ""),
        assistant(Text("")),
        user("   "),
        Message("user", (Text("b"), Text(" \u2003"), Text("c"))),
        system=" \n",
    )
    assert "systemInstruction" not in body
    texts = [[part.get("text") for part in content["parts"]] for content in body["contents"]]
    assert texts == [["a"], [None], [None], ["b", "c"]]
    assert body["contents"][2] == answered(("echo", NO_OUTPUT))


def test_b44_a_history_of_another_provider() -> None:
    ids = ["call_abc|fc_" + "0123456789" * 6, "functions.read:0", "écho"]
    calls = [ToolCall(id, "fs.read", {}, opaque={"id": id, "signature": "EqQBCg"}) for id in ids]
    foreign = assistant(
        Thinking("secret", {"signature": "x"}),
        Provider("openai.reasoning", {"encrypted": "y"}),
        Text("hi", {"id": "msg_1"}),
        *calls,
        origin="openai:gpt",
    )
    body = json.dumps(encode(user("x"), foreign, *(result(id, id) for id in reversed(ids)), user("go on")))
    for word in ("secret", "signature:", "openai.reasoning", "msg_1", "EqQBCg", "fc_0123"):
        assert (word in body) == (word == "fc_0123"), word  # only as the text of a result
    assert body.count(UNSIGNED) == 1
    assert body.count('"id"') == 0


def test_calls_and_results_are_paired_whatever_comes() -> None:
    failed = Message("tool", (ToolResult("c2", "other", "no such file", "error", True),))
    body = encode(
        user("x"),
        result("orphan"),
        own(ToolCall("c1", "a"), ToolCall("c2", "b"), ToolCall("c3", "c")),
        failed,
        result("ghost"),
        result("c1", "old"),
        result("c1", "new"),
    )["contents"]
    responses = [part["functionResponse"] for part in body[2]["parts"]]
    assert [(one["name"], one["response"]) for one in responses] == [
        ("a", {"output": "new"}),
        ("b", {"error": "no such file"}),
        ("c", {"error": NO_RESULT}),
    ]


def test_a_turn_of_calls_always_follows_a_users_turn() -> None:
    calls = (own(ToolCall("c", "echo")), result("c"))
    body = encode(*calls, own(Text("a")), user(" "), *calls, *calls, own(Text("b")), own(Text("c")))
    roles = [(content["role"], content["parts"][0].get("text")) for content in body["contents"]]
    turn = [("model", None), ("user", None)]
    assert roles == [
        ("user", GO_ON), *turn, ("model", "a"), ("user", GO_ON), *turn, *turn, ("model", "b"), ("model", "c"),
    ]  # fmt: skip


def test_pictures_of_results_follow_all_results() -> None:
    picture = Image("image/png", "aGk=")
    body = encode(
        user("x"),
        assistant(ToolCall("c1", "shot"), ToolCall("c2", "shot")),
        result("c2", (picture, picture), "shot"),
        result("c1", (Text("seen"), picture), "shot"),
        assistant(ToolCall("c3", "shot")),
    )["contents"]
    note, two = "(1 image in the next user message)", "(2 images in the next user message)"
    assert body[2] == answered(("shot", f"seen\n{note}"), ("shot", two))
    assert body[3]["role"] == "user"
    assert [next(iter(part)) for part in body[3]["parts"]] == ["text", "inlineData", "text", "inlineData", "inlineData"]


def test_names_are_made_legal_and_stay_distinct() -> None:
    names = ["read", "fs.read", "fs/read", "écho", "", "1", "-x", "_x", "t_1", "1" * 64, "n" * 71, "default_api:x"]
    legal = [legal_function(name) for name in names]
    assert (legal[0], legal[7], legal[8]) == ("read", "_x", "t_1")
    assert len(set(legal)) == len(names)
    assert all(NAME.fullmatch(name) for name in legal)


def test_dirty_text_is_cleaned() -> None:
    dirty = "a\ud83d\0\\u0000"
    body = encode(
        Message("user", (Text(dirty),)),
        own(ToolCall("c", dirty, {dirty: [dirty]}, opaque={"id": dirty})),
        result("c", dirty, dirty),
        system=dirty,
        tools=(ToolSpec("x", dirty, {"type": "object", "description": dirty}),),
    )
    assert body["contents"][0]["parts"] == [{"text": "a\ufffd␀\\u0000"}]


def test_options() -> None:
    for option in (*RESERVED, "system_instruction"):
        for options in ({option: 1}, {"generationConfig": {option: 1}}):
            with pytest.raises(DefinitionError, match=option[:6]):
                encode(user("x"), options=options)
    for odd in ({"generation_config": 1}, {"tools": {}}):
        with pytest.raises(DefinitionError, match="generationConfig is an object"):
            encode(user("x"), options=odd)
    with pytest.raises(DefinitionError, match="not JSON"):
        encode(user("x"), options={"seed": object()})
    encoder = Encoder(origin=ORIGIN, options={"top_p": 1, "seed": 1, "labels": {}})
    body = json.loads(encoder.encode(request([user("x")], options={"generationConfig": {"topP": 0}})))
    assert (body["generationConfig"], body["labels"]) == ({"topP": 0, "seed": 1}, {})
    given = {"generationConfig": {"top_k": 1, "seed": 2}, "seed": 3, "maxOutputTokens": 9}
    assert encode(user("x"), options=given, max_output=7)["generationConfig"] == {
        "maxOutputTokens": 9,
        "topK": 1,
        "seed": 3,
    }


texts = st.sampled_from(["", " ", "a", "\u2003", "b\nc", "\0", "\ud83d", "é🦀", "\\u0000"])
ids = st.sampled_from(["", "c1", "c2", "call|x", "é", "x" * 50])
names = st.sampled_from(["echo", "fs.read", "", "1", "n" * 80])
opaque = st.none() | st.sampled_from([SIGNED, {"id": "g"}, {"id": ""}, {"id": 7}, {**SIGNED, "id": "h"}, {}])
pictures = st.just(Image("image/png", "aGk="))
contents = texts | st.lists(st.builds(Text, texts) | pictures, max_size=2).map(tuple)
blocks: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, texts, opaque),
    st.builds(Thinking, texts, opaque),
    st.builds(ToolCall, ids, names, st.dictionaries(texts, texts, max_size=2), texts, opaque),
    st.builds(ToolResult, ids, names, contents, st.just("ok"), st.booleans()),
    pictures,
    st.sampled_from([Provider("x", {}), Provider("gemini.fileData", {"fileData": {"fileUri": "u"}})]),
)
messages = st.builds(
    Message,
    st.sampled_from(["user", "assistant", "tool"]),
    st.lists(blocks, max_size=4).map(tuple),
    st.just(""),
    st.sampled_from([ORIGIN, "openai:m"]),
)


@given(st.lists(messages, max_size=6), texts)
@settings(max_examples=300, deadline=None)
def test_whatever_the_messages_are_the_body_is_accepted(history: list[Message], system: str) -> None:
    tools = (ToolSpec("fs.read", system, {"type": "object"}),)
    body = Encoder(origin=ORIGIN).encode(request([*history, user("go")], system=system, tools=tools))
    assert refusal(body) is None


@given(st.lists(messages, min_size=1, max_size=8), st.data())
@settings(max_examples=200, deadline=None)
def test_i4_what_was_kept_gives_the_same_bytes(history: list[Message], data: st.DataObject) -> None:
    """However a history grew, its body is the one that a fresh encoder makes of it; whole exchanges are a prefix."""
    encoder, base, before = Encoder(origin=ORIGIN), list[Message](), b""
    for message in history:
        base.append(message)
        if data.draw(st.booleans()):
            body = encoder.encode(request(View(base)))
            assert body == Encoder(origin=ORIGIN).encode(request(tuple(base)))
            if message.role == "user" and message.text.strip(" \0\u2003"):
                assert body.startswith(before)
                before = body[:-2]
