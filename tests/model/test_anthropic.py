"""Anthropic's wire end to end, on loopback: what is sent, vectors by id, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from latchstep.core.chunk import Chunk, Completed
from latchstep.core.message import Message, Text, ToolCall, ToolResult, Usage, user
from latchstep.errors import DefinitionError, ModelError
from latchstep.model.anthropic import build
from latchstep.model.base import Model, Request
from latchstep.model.catalog import SERVICES, model
from latchstep.model.wire import endpoint
from tests.model.strict_anthropic import sign, started, streamed, strict_anthropic
from tests.model.strict_chat import split
from tests.model.test_openai_chat import KEY, TOOLS, collect, run
from tests.model.vectors import vector

HELLO = (Text("hello"),)
TEXT = streamed({"type": "text", "text": "hello"})


def ask(*messages: Message, **fields: Any) -> Request:
    return Request(request_id="request-001", messages=messages or (user("hi"),), tools=TOOLS, **fields)


def answer(script: Any) -> Any:
    """The `Completed` of one script, or the ModelError it raised."""
    with strict_anthropic([script]) as server:
        try:
            *_, last = run(collect(build("m", server.url, KEY), ask()))
        except ModelError as error:
            return error
        finally:
            server.wait(lambda: server.open == 0)
        return last


def events(id: str) -> list[list[Any]]:
    return [script for script in split(vector(id, "sse-anthropic")) if script]


def in_two_steps(first: Any) -> tuple[Completed, Any]:
    """(the first answer, the second request's messages): its calls are answered, and the server must take that."""
    with strict_anthropic([first, TEXT]) as server:
        wire = build("m", server.url, KEY)

        async def two() -> tuple[Completed, Chunk]:
            *_, completed = await collect(wire, ask())
            assert isinstance(completed, Completed)
            calls = [block for block in completed.blocks if isinstance(block, ToolCall)]
            said = Message("assistant", completed.blocks, origin=wire.name)
            found = [Message("tool", (ToolResult(call.id, call.name, "ok"),)) for call in calls]
            return completed, (await collect(wire, ask(user("hi"), said, *found, user("continue"))))[-1]

        completed, last = run(two())
        assert isinstance(last, Completed)
        assert last.blocks == HELLO
        assert server.refused == []
        return completed, server.requests[1]["messages"]


def test_what_is_sent() -> None:
    with strict_anthropic([TEXT]) as server:
        wire = build("claude", server.url, KEY, options={"betas": ["a-1", "b-2"], "output_config": {"effort": "low"}})
        assert run(collect(wire, ask(max_output=9)))[-1].blocks == HELLO
        sent, headers = server.requests[0], server.headers[0]
        assert server.paths == ["/v1/messages"]
    assert (headers["x-api-key"], headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert headers["anthropic-beta"] == "a-1,b-2"
    assert "authorization" not in headers
    assert (sent["model"], sent["max_tokens"], sent["output_config"]) == ("claude", 9, {"effort": "low"})
    assert wire.name == "anthropic:claude"
    assert KEY not in repr(wire)


@pytest.mark.parametrize("id", ["B01", "B22", "B24", "B39"])
def test_answers_can_be_answered(id: str) -> None:
    for script in events(id):
        in_two_steps(script)


def test_b17_ids_that_repeat() -> None:
    calls = [{"type": "tool_use", "id": "call_0", "name": "count", "input": {}}] * 2
    completed, sent = in_two_steps(streamed(*calls, stop="tool_use"))
    assert [block.id for block in completed.blocks if isinstance(block, ToolCall)] == ["call_0", "call_0"]
    assert len({block["id"] for block in sent[1]["content"]}) == 2


def test_b41_thinking_survives_the_round_trip() -> None:
    thinking = {"type": "thinking", "thinking": "one\u2028two \r\n ", "signature": sign("one\u2028two \r\n ")}
    call = {"type": "tool_use", "id": "c1", "name": "echo", "input": {"text": "x"}}
    redacted = {"type": "redacted_thinking", "data": "EmwK"}
    _, sent = in_two_steps(streamed(thinking, redacted, call, stop="tool_use"))
    assert sent[1]["content"] == [thinking, redacted, call]


def test_names_that_the_wire_cannot_carry_come_back_as_they_are() -> None:
    with strict_anthropic([TEXT]) as server:
        run(collect(build("m", server.url), ask()))
        (name,) = (tool["name"] for tool in server.requests[0]["tools"] if "fs" in tool["name"])
    completed = answer(streamed({"type": "tool_use", "id": "c", "name": name, "input": {}}, stop="tool_use"))
    assert completed.blocks == (ToolCall("c", "fs.read"),)


def test_b31_the_end_of_the_stream() -> None:
    for script in events("B31"):
        assert answer(script).kind == "protocol"
    assert answer([*TEXT[:-1], "#EOF"]).kind == "protocol"
    assert answer([*TEXT[:-1], "#RST"]).kind == "network"
    for ending in (["#RST"], ["#STALL"], ["#PING", "not json"]):
        assert answer([*TEXT, *ending]).blocks == HELLO


def test_b33_an_error_after_200() -> None:
    for script in events("B33"):
        assert answer(script).kind == "overloaded"


def test_what_was_counted_before_a_stream_broke_is_known() -> None:
    """The server counts the input as soon as it begins."""
    failed = answer([started(), {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}])
    assert isinstance(failed, ModelError)
    assert (failed.kind, failed.usage) == ("overloaded", Usage(3, 1))
    refused = answer(["#STATUS 500"])
    assert isinstance(refused, ModelError)
    assert refused.usage is None


def test_a_whole_answer_from_a_server_that_does_not_stream() -> None:
    message = started(content=[{"type": "text", "text": "hello"}], stop_reason="end_turn")["message"]
    assert answer(json.dumps(message)).blocks == HELLO
    assert answer('{"type":"error","error":{"type":"authentication_error","message":"x"}}').kind == "auth"
    assert answer('{"type":"unexpected"}').kind == "protocol"


@pytest.mark.parametrize(
    ("status", "type", "kind"),
    [
        (400, "invalid_request_error", "bad_request"),
        (401, "authentication_error", "auth"),
        (402, "billing_error", "quota"),
        (403, "permission_error", "permission"),
        (404, "not_found_error", "not_found"),
        (413, "request_too_large", "context_overflow"),
        (429, "rate_limit_error", "rate_limited"),
        (500, "api_error", "server"),
        (504, "timeout_error", "timeout"),
        (529, "overloaded_error", "overloaded"),
    ],
)
def test_a_status_and_its_body(status: int, type: str, kind: str) -> None:
    body = {"type": "error", "error": {"type": type, "message": f"words about {KEY}"}, "request_id": "req_1"}
    error = answer([f"#STATUS {status} retry-after=3", body])
    assert (error.kind, error.status, error.retry_after) == (kind, status, 3)
    assert error.message.startswith("words about ***")


def test_b45_overflow_and_what_is_not() -> None:
    for number, expected in ((0, True), (1, False)):
        for case in vector("B45", "json", number):
            if "body" not in case:
                continue
            error = answer([f"#STATUS {case['status']}", case["body"]])
            assert (error.kind == "context_overflow") is expected, case
    assert (
        answer(streamed({"type": "text", "text": "a"}, stop="model_context_window_exceeded")).kind == "context_overflow"
    )


def test_names_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelError, match="ANTHROPIC_API_KEY"):
        model("anthropic:claude")
    with pytest.raises(DefinitionError, match="system"):
        model("anthropic:claude", api_key="k", system="x")
    with pytest.raises(ModelError, match="position 2"):
        model("anthropic:claude", api_key="a b")
    with strict_anthropic([TEXT]) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url.removesuffix("/v1"))
        built: Model = model("anthropic:claude")
        assert run(collect(built, ask()))[-1].blocks == HELLO
        assert "x-api-key" not in server.headers[0]
    base = SERVICES["anthropic"].base_url
    for url in (base, f"{base}/", f"{base}/v1", f"{base}/v1/messages"):
        assert endpoint(url, "/v1/messages")[0] == "https://api.anthropic.com/v1/messages"
    assert endpoint("https://h/anthropic?x=1", "/v1/messages")[0] == "https://h/anthropic/v1/messages?x=1"
