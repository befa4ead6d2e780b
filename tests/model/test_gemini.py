"""Gemini end to end, on loopback: the address, the key, whole conversations, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from latchstep.core.chunk import Chunk, Completed
from latchstep.core.message import Message, Text, ToolCall, ToolResult, user
from latchstep.errors import DefinitionError, ModelError
from latchstep.http import Deadlines
from latchstep.model.base import Model, Request, ToolSpec
from latchstep.model.catalog import model as from_catalog
from latchstep.model.gemini import build
from tests.model.strict_gemini import SIGNATURE, call, call_answer, chunk, refusal, strict_gemini, text_answer
from tests.model.test_catalog import no_keys  # noqa: F401 - a fixture
from tests.model.test_chat_answer import recorded_events
from tests.model.vectors import recorded

KEY = "AIza-very-secret"
TOOLS = tuple(ToolSpec(name, "", {"type": "object", "properties": {}}) for name in ("echo", "count", "fs.read", "1st"))
HELLO = (Text("hello"),)


def ask(*messages: Message, **fields: Any) -> Request:
    return Request(request_id="request-001", messages=messages or (user("hi"),), tools=TOOLS, **fields)


async def collect(model: Model, request: Request) -> list[Chunk]:
    return [chunk async for chunk in model.stream(request)]


def last(script: Any, **options: Any) -> Any:
    """The `Completed` of one script, or the ModelError it raised."""
    with strict_gemini([script]) as server:
        try:
            return asyncio.run(collect(build("m", server.url, KEY, **options), ask()))[-1]
        except ModelError as error:
            return error


def test_the_address_and_the_key() -> None:
    with strict_gemini([text_answer("hello")] * 4) as server:
        for name, base in [
            ("gemini-x", server.url),
            ("gemini-x", f"{server.url}/models/"),
            ("tunedModels/a b", f"{server.url}?v=1"),
            ("publishers/google/models/x@1", server.url),
        ]:
            model = build(name, base, KEY)
            assert KEY not in repr(model)
            done = asyncio.run(collect(model, ask()))[-1]
            assert isinstance(done, Completed)
            assert done.blocks == HELLO
        assert server.paths == [
            "/v1/models/gemini-x:streamGenerateContent?alt=sse",
            "/v1/models/gemini-x:streamGenerateContent?alt=sse",
            "/v1/tunedModels/a%20b:streamGenerateContent?v=1&alt=sse",
            "/v1/publishers/google/models/x@1:streamGenerateContent?alt=sse",
        ]
        assert {headers["x-goog-api-key"] for headers in server.headers} == {KEY}
        assert not any("authorization" in headers for headers in server.headers)
    refused = last(["#STATUS 400", json.dumps({"error": {"code": 400, "message": f"bad key {KEY}"}})])
    assert refused.message == "bad key ***"
    with pytest.raises(DefinitionError, match="candidateCount"):
        build("m", "https://host/v1beta", options={"candidate_count": 2})


def test_the_catalogue(no_keys: None, request: pytest.FixtureRequest) -> None:  # noqa: F811
    import os

    with pytest.raises(ModelError, match="GEMINI_API_KEY"):
        from_catalog("gemini:m")
    with strict_gemini([text_answer("hello")] * 3) as server:
        os.environ["GEMINI_BASE_URL"] = server.url
        request.addfinalizer(lambda: os.environ.pop("GEMINI_BASE_URL", None))
        for key in ("", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
            os.environ.update({key: key.lower()} if key else {})
            asyncio.run(collect(from_catalog("gemini:m", temperature=0), ask()))
        sent = [headers.get("x-goog-api-key") for headers in server.headers]
        assert sent == [None, "google_api_key", "gemini_api_key"]
        assert server.requests[0]["generationConfig"] == {"temperature": 0}


@pytest.mark.parametrize(
    "script",
    [
        call_answer(call("echo", {"text": "x"}, id="g1", signature=SIGNATURE), call("count", {}, id="g2")),
        call_answer(call("echo", {"text": "x"}), call("echo", {"text": "y"}), call("count")),
        call_answer(call("count", {}, id="same"), call("count", {}, id="same")),
        [chunk({"text": "let me see", "thought": True}), chunk({"text": "", "thoughtSignature": SIGNATURE}),
         chunk(call("count", {}), finish="STOP")],
        [chunk({"functionCall": {"name": "echo", "willContinue": True}}), chunk({"functionCall": {}}, finish="STOP")],
        call_answer(call("no such tool", {}), call("1st", {})),
    ],
)  # fmt: skip
def test_answers_with_calls_can_be_answered(script: Any) -> None:
    """The calls of each answer, with results, make a request the strict server takes; earlier contents stay."""
    with strict_gemini([script, text_answer("hello")]) as server:
        model = build("m", server.url, KEY)

        async def two() -> list[Chunk]:
            first = (await collect(model, ask()))[-1]
            assert isinstance(first, Completed)
            calls = [block for block in first.blocks if isinstance(block, ToolCall)]
            assert calls
            results = [Message("tool", (ToolResult(call.id, call.name, ""),)) for call in calls]
            return await collect(
                model, ask(user("hi"), Message("assistant", first.blocks, origin=model.name), *results)
            )

        done = asyncio.run(two())[-1]
        assert isinstance(done, Completed)
        assert done.blocks == HELLO
        assert server.refused == []
        before, after = (request["contents"] for request in server.requests)
        assert after[: len(before)] == before


def test_names_that_the_api_cannot_carry_come_back_as_they_are() -> None:
    with strict_gemini() as server:
        with pytest.raises(ModelError):
            asyncio.run(collect(build("m", server.url), ask()))
        sent = [declared["name"] for declared in server.requests[0]["tools"][0]["functionDeclarations"]]
    done = last(call_answer(*(call(name, {}) for name in sent)))
    assert [block.name for block in done.blocks] == ["echo", "count", "fs.read", "1st"]


def test_b31_b33_ends_and_errors_of_the_stream() -> None:
    half, done = text_answer("hello")[:1], text_answer("hello")
    assert last([*half, "#EOF"]).kind == "protocol"
    assert last([*half, "#RST"]).kind == "network"
    assert last([*half, "#STALL"], deadlines=Deadlines(connect=5, first=5, between=0.2)).kind == "timeout"
    for ending in (["#EOF"], ["#RST"], ["not json"], ["[DONE]"]):
        assert last([*done, *ending]).blocks == HELLO, ending
    error = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    for shape in (error, [error]):
        assert last([*half, shape]).kind == "overloaded"
        assert last(json.dumps(shape)).kind == "overloaded"
        assert last(["#STATUS 503", json.dumps(shape)]).kind == "overloaded"
    assert last([*half, json.dumps(error, indent=1).replace("\n", "\ndata: ")]).kind == "overloaded"


def test_a_whole_answer_from_a_server_that_does_not_stream() -> None:
    events = text_answer("hello")
    assert last(json.dumps(events, indent=1)).blocks == HELLO
    assert last(json.dumps(chunk({"text": "hello"}, finish="STOP"))).blocks == HELLO
    assert last(json.dumps(events[:1])).kind == "protocol"


def test_a_blocked_prompt() -> None:
    done = last([{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}])
    assert (done.blocks, done.stop_reason, done.raw_stop_reason) == ((), "filtered", "PROHIBITED_CONTENT")


def test_the_strict_server_refuses() -> None:
    """The check itself must be able to fail."""
    signed = call("echo", {}, signature=SIGNATURE)
    answered = {"functionResponse": {"name": "echo", "response": {}}}

    def good() -> dict[str, Any]:
        contents = [
            {"role": "user", "parts": [{"text": "x"}]},
            {"role": "model", "parts": [signed, call("echo", {}, id="i")]},
            {"role": "user", "parts": [answered, {"functionResponse": {"id": "i", "name": "echo", "response": {}}}]},
        ]
        copied: dict[str, Any] = json.loads(json.dumps({"contents": contents}))
        return copied

    spoiled: list[Callable[[Any, Any], Any]] = [
        lambda body, contents: contents.clear(),
        lambda body, contents: contents.pop(),
        lambda body, contents: contents.pop(0),
        lambda body, contents: contents.append(contents[2]),
        lambda body, contents: contents.insert(2, contents[0]),
        lambda body, contents: contents.insert(1, {"role": "model", "parts": [{"text": "x"}]}),
        lambda body, contents: contents[2]["parts"].reverse(),
        lambda body, contents: contents[2]["parts"].pop(),
        lambda body, contents: contents[2]["parts"][0]["functionResponse"].update(name="x"),
        lambda body, contents: contents[2]["parts"][0]["functionResponse"].update(response="x"),
        lambda body, contents: contents[1]["parts"][0].pop("thoughtSignature"),
        lambda body, contents: contents[1]["parts"][0].update(thoughtSignature="not base64!"),
        lambda body, contents: contents[1]["parts"][0].update(text="x"),
        lambda body, contents: contents[1]["parts"][0]["functionCall"].update(name="a b"),
        lambda body, contents: contents[1]["parts"][0]["functionCall"].update(args="{}"),
        lambda body, contents: contents[1].update(role="assistant"),
        lambda body, contents: contents[0].update(parts=[]),
        lambda body, contents: contents[0].update(extra=1),
        lambda body, contents: contents[0]["parts"].append({}),
        lambda body, contents: contents[0]["parts"][0].update(text=" "),
        lambda body, contents: contents[0]["parts"][0].update(text="\ud83d"),
        lambda body, contents: body.update(temperature=0),
        lambda body, contents: body.update(generationConfig={"n": 1}),
        lambda body, contents: body.update(tools=[]),
    ]
    assert refusal(json.dumps(good()).encode()) is None
    for at, spoil in enumerate(spoiled):
        body = good()
        spoil(body, body["contents"])
        assert refusal(json.dumps(body).encode()) is not None, at
    assert refusal(b'{"contents":[{"role":"user","parts":[{"text":"\xff"}]}]}') is not None


def test_recorded_streams_through_the_wire() -> None:
    rows = [row for row in recorded("gemini") if row["stream"] and "response" in row]
    assert len(rows) > 10
    for row in rows:
        done = last(row["response"].encode())
        assert isinstance(done, Completed), row["source"]
        assert len(recorded_events(row)) >= 1
