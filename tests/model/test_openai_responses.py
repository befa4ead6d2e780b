"""The Responses wire end to end, on loopback: turns that follow each other, vectors by id, errors, names."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

import latchstep as ls
from latchstep.core.chunk import Chunk, Completed, Failed
from latchstep.core.message import Message, Text, ToolCall, ToolResult, user
from latchstep.errors import DefinitionError, ModelError
from latchstep.http import Deadlines
from latchstep.model.base import Model, Request, ToolSpec
from latchstep.model.catalog import model as named
from latchstep.model.openai_responses import build
from latchstep.model.responses_request import RESERVED
from tests.model.strict_chat import StrictChat
from tests.model.strict_responses import answer, call, reasoning, refusal, strict, text
from tests.model.test_openai_chat import run
from tests.model.vectors import vector

KEY = "sk-very-secret"
TOOLS = tuple(ToolSpec(name, "", {"type": "object", "properties": {}}) for name in ("echo", "read", "count", "fs.read"))


def ask(*messages: Message) -> Request:
    return Request(request_id="request-001", messages=messages or (user("hi"),), tools=TOOLS, system="Be brief.")


async def collect(model: Model, *messages: Message) -> list[Chunk]:
    return [chunk async for chunk in model.stream(ask(*messages))]


def outcome(script: Any, **options: Any) -> Any:
    """The `Completed` of one script, or the ModelError it raised."""
    with strict([script]) as server:
        try:
            return run(collect(build("m", server.url, KEY, **options)))[-1]
        except ModelError as error:
            return error
        finally:
            server.wait(lambda: server.open == 0)


def converse(*scripts: Any) -> tuple[StrictChat, list[Completed]]:
    """One script a turn; each call gets a result, a turn without one a next question."""
    with strict(scripts) as server:
        model = build("m", server.url, KEY)

        async def turns() -> list[Completed]:
            history: list[Message] = [user("hi")]
            seen = []
            for _ in scripts:
                last = (await collect(model, *history))[-1]
                assert isinstance(last, Completed)
                seen.append(last)
                history.append(Message("assistant", last.blocks, origin=model.name))
                made = [block for block in last.blocks if isinstance(block, ToolCall)]
                history += [Message("tool", (ToolResult(call.id, call.name, ""),)) for call in made]
                history += [] if made else [user("more")]
            return seen

        found: list[Completed] = run(turns())
        assert server.refused == []
        inputs = [request["input"] for request in server.requests]
        assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(inputs))
        return server, found


def test_b42_a_conversation_with_reasoning() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    server, found = converse(
        vector("B42", "sse-responses"),
        answer(reasoning("rs_2"), search, reasoning("rs_3"), text("so", "msg_2"), call("call_2")),
        answer(reasoning("rs_4"), text("done", "msg_3")),
        answer(text("more", "msg_4")),
    )
    assert [item["type"] for item in server.requests[-1]["input"][1:]] == [
        *("reasoning", "function_call", "function_call_output"),
        *("reasoning", "web_search_call", "reasoning", "message", "function_call", "function_call_output"),
        *("reasoning", "message", "message"),
    ]
    assert [turn.stop_reason for turn in found] == ["tool_calls", "tool_calls", "stop", "stop"]


def test_b42_reasoning_that_cannot_go_back() -> None:
    server, _ = converse(
        answer(reasoning("rs_1", None), text("a", "msg_1"), call("call_1")),
        answer(reasoning("rs_2", ""), call("call_2")),
        answer(text("done", "msg_2")),
    )
    assert "reasoning" not in json.dumps(server.requests[-1]["input"])


def test_b17_b18_calls_can_be_answered() -> None:
    for made in (
        [{**call("call_0", "count", ""), "id": "fc_1"}, {**call("call_0", "echo", '{"text":"x"}'), "id": "fc_2"}],
        [{**call("a", "count", None), "call_id": "", "id": ""}, {**call("b"), "call_id": None, "id": None}],
        [call("call_0", "count", " \n"), call("call|1.x", "count", {})],
    ):
        scripts = [answer(*made), answer(*made), answer(text("done"))]
        with strict(scripts, strict=False) as server:
            model = build("m", server.url)

            async def turns(model: Model = model, scripts: Any = scripts) -> None:
                history: list[Message] = [user("hi")]
                for _ in scripts:
                    last = (await collect(model, *history))[-1]
                    assert isinstance(last, Completed)
                    history.append(Message("assistant", last.blocks, origin=model.name))
                    made = [block for block in last.blocks if isinstance(block, ToolCall)]
                    history += [Message("tool", (ToolResult(call.id, call.name, "x"),)) for call in made]

            run(turns())
            assert [refusal(body) for body in server.bodies] == [None] * 3


def test_through_the_loop() -> None:
    """One id for two calls, an answer that was cut, an id again: what should run runs once, and nothing is refused."""
    ran: list[str] = []

    @ls.tool(effect="write")
    def echo(text: str) -> str:
        """Say it."""
        ran.append(text)
        return text

    def said(id: str, words: str) -> dict[str, Any]:
        return {**call("call_1", "echo", json.dumps({"text": words})), "id": id}

    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    scripts = [
        answer(reasoning("rs_1"), text("So", "msg_1", phase="commentary"), said("fc_1", "a"), said("fc_2", "b")),
        answer(reasoning("rs_2"), said("fc_3", "c"), **cut),
        answer(reasoning("rs_3"), said("fc_4", "d")),
        answer(reasoning("rs_4"), text("done", "msg_2")),
    ]
    with strict(scripts) as server:
        result = ls.Agent(build("m", server.url, KEY), tools=[echo], system="Be brief.").run_sync("go")
        assert (result.status, result.final_text, ran) == ("completed", "done", ["a", "b", "d"])
        assert server.refused == []
        ids = [item["id"] for item in server.requests[-1]["input"] if "id" in item]
        assert ids == ["rs_1", "msg_1", "fc_1", "fc_2", "rs_2", "fc_3", "rs_3", "fc_4"]


def test_the_strict_server_refuses() -> None:
    """The check itself must be able to fail."""
    turn = answer(reasoning(), text("a"), call("c"))

    async def post(items: list[Any], **fields: Any) -> int:
        with strict([turn]) as server:
            from latchstep.http import stream_post

            body = json.dumps({"model": "m", "store": False, "input": items, **fields}).encode()
            async with stream_post(f"{server.url}/responses", body, {}, Deadlines()) as got:
                return got.status

    said = {key: value for key, value in text("a").items() if key != "content"}
    part = {"type": "output_text", "text": "a", "annotations": []}
    good: list[Any] = [
        {"role": "user", "content": "x"},
        reasoning(),
        {**said, "content": [part]},
        call("c"),
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ]
    assert run(post(good)) == 200
    spoilt: list[Any] = [
        good[:-1],  # a call without its result
        [*good, good[-1]],  # a second result
        [good[0], good[-1]],  # a result without its call
        [good[0], *good[2:]],  # what follows reasoning, without it
        good[:2],  # reasoning without what follows it
        [good[0], good[1], good[0], *good[2:]],
        [*good, *good[1:]],  # ids again
        [*good[:-1], good[0], good[-1]],  # a question between call and result
        [good[0], {**good[1], "encrypted_content": None}, *good[2:]],
        [good[0], {**good[1], "encrypted_content": "changed"}, *good[2:]],
        [good[0], {**good[1], "id": "rs_9"}, *good[2:]],  # an id that was never issued
        [*good[:2], {**good[2], "odd": 1}, *good[3:]],
        [*good[:3], {**good[3], "arguments": {}}, good[4]],
        [*good[:3], {**good[3], "name": "a.b"}, good[4]],
        [*good[:4], {**good[4], "output": " "}],
        [{"role": "user", "content": "\n"}, *good[1:]],
        [{"role": "user", "content": "\ud83d"}, *good[1:]],
        [{"role": "user", "content": "\0"}, *good[1:]],
        [{"role": "user", "content": [part]}, *good[1:]],
        [{"role": "user", "content": float("nan")}],
        [{"type": "item_reference", "id": "rs_1"}],
        [*good, {"type": "custom_tool_call", "call_id": "x", "name": "n", "input": ""}],
        [],
    ]
    for items in spoilt:
        assert run(post(items)) == 400, items
    for fields in ({"store": True}, {"odd": 1}, {"tools": []}, {"include": ["x"]}, {"instructions": " "}):
        assert run(post(good, **fields)) == 400, fields
    assert run(post(good, model="gpt-4o", include=["reasoning.encrypted_content"])) == 400


def test_b31_b33_failures_are_typed() -> None:
    assert outcome(vector("B31", "sse-responses")).kind == "protocol"
    assert outcome(vector("B33", "sse-responses")).kind == "overloaded"
    assert outcome([*answer(text("hello"))[:3], "#RST"]).kind == "network"
    quota = {"code": "insufficient_quota", "message": "pay"}
    assert outcome([*answer()[:1], {"type": "error", "error": quota}, "#EOF"]).kind == "quota"
    for ending in (["#EOF"], ["#RST"], ["[DONE]", "#STALL"]):
        assert outcome([*answer(text("hello")), *ending]).blocks[0].text == "hello"


def test_b33_what_may_pass_is_asked_again_and_nothing_else() -> None:
    for code, requests in (("server_is_overloaded", 2), ("insufficient_quota", 1), ("invalid_prompt", 1)):
        error = {"code": code, "message": "x"}
        failed = {"type": "response.failed", "response": {"status": "failed", "error": error}}
        with strict([[*answer(text("Par"))[:3], failed], answer(text("hello"))]) as server:
            model = named("openai:m", base_url=server.url, api_key="k")
            chunks: list[Chunk] = []

            async def gather(model: Model = model, chunks: list[Chunk] = chunks) -> None:
                async for chunk in model.stream(ask()):
                    chunks.append(chunk)

            if requests == 1:
                with pytest.raises(ModelError):
                    run(gather())
            else:
                run(gather())
                assert any(isinstance(chunk, Failed) for chunk in chunks)
                assert chunks[-1].blocks[0].text == "hello"  # type: ignore[union-attr]
            assert len(server.bodies) == requests


def test_b22_a_cut_answer_is_said_to_be_cut() -> None:
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    found = outcome(answer(call("c", "count"), **cut))
    assert (found.stop_reason, found.raw_stop_reason) == ("length", "max_output_tokens")
    found = outcome(answer(text("a"), status="incomplete", incomplete_details={"reason": "content_filter"}))
    assert found.stop_reason == "filtered"


def test_a_whole_response_from_a_server_that_does_not_stream() -> None:
    whole = answer(text("hello"))[-1]["response"]
    assert isinstance(outcome(json.dumps(whole)).blocks[0], Text)
    assert outcome('{"error": {"message": "no", "code": "invalid_api_key"}}').kind == "auth"
    assert outcome('{"unexpected": 1}').kind == "protocol"
    assert outcome(json.dumps({**whole, "status": "queued"})).kind == "protocol"


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"code": "context_length_exceeded", "message": "x"}, "context_overflow"),
        (400, {"code": "unsupported_file", "type": "invalid_request_error", "message": "x"}, "bad_request"),
        (400, {"code": "model_not_found", "type": "invalid_request_error", "message": "x"}, "not_found"),
        (401, {"code": "invalid_api_key", "message": f"Incorrect API key provided: {KEY}."}, "auth"),
        (429, {"code": "insufficient_quota", "message": "x"}, "quota"),
        (429, {"code": "rate_limit_exceeded", "message": "x"}, "rate_limited"),
        (503, {"code": None, "message": "x"}, "overloaded"),
    ],
)
def test_http_errors(status: int, error: Any, kind: str) -> None:
    found = outcome([f"#STATUS {status} retry-after=2", {"error": error}])
    assert (found.kind, found.status, found.retry_after) == (kind, status, 2)
    assert KEY not in str(found)


def test_names_keys_and_addresses() -> None:
    with strict([], strict=False) as server:
        with pytest.raises(ModelError):
            run(collect(build("m", server.url, KEY, headers={"x-extra": "1"})))
        (sent,) = (tool["name"] for tool in server.requests[0]["tools"] if "fs" in tool["name"])
        assert server.paths == ["/v1/responses"]
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
        assert server.headers[0]["x-extra"] == "1"
    (found,) = outcome(answer(call("c", sent))).blocks
    assert (found.id, found.name) == ("c", "fs.read")
    built = build("m", "https://host/v1?api-version=1", KEY)
    assert built.name == "openai:m"
    assert KEY not in repr(built)
    for option in RESERVED:
        with pytest.raises(DefinitionError, match=option):
            build("m", "https://host/v1", options={option: 1})
