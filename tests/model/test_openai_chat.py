"""The wire end to end, on loopback: vectors by id, deadlines, cancellation, errors, what is left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from latchstep import http
from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.core.message import Message, Text, ToolCall, ToolResult, user
from latchstep.errors import DefinitionError, ModelError
from latchstep.http import Deadlines
from latchstep.model import wire
from latchstep.model.base import Model, Request, ToolSpec
from latchstep.model.failure import retry_after
from latchstep.model.openai_chat import build
from latchstep.model.wire import check_key, endpoint
from tests.model.strict_chat import StrictChat, call_answer, split, text_answer
from tests.model.vectors import vector

KEY = "sk-very-secret"
TOOLS = tuple(ToolSpec(name, "", {"type": "object", "properties": {}}) for name in ("echo", "read", "count", "fs.read"))
QUICK = Deadlines(connect=5, first=0.3, between=0.3)
HELLO = (Text("hello"),)


def ask(messages: tuple[Message, ...] = (user("hi"),), **fields: Any) -> Request:
    return Request(request_id="request-001", messages=messages, tools=TOOLS, **fields)


async def collect(model: Model, request: Request | None = None) -> list[Chunk]:
    return [chunk async for chunk in model.stream(request or ask())]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """As `asyncio.run`, and nothing may be left over but the task itself."""

    async def watched() -> Any:
        try:
            return await work
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}

    try:
        return asyncio.run(watched())
    finally:
        gc.collect()  # a leaked socket becomes a ResourceWarning here, and that an error
        assert not http._clients
        assert not http._keepers


def answer(script: Any, **options: Any) -> Any:
    """The `Completed` of one script, or the ModelError it raised."""
    with StrictChat([script]) as server:
        model = build("m", server.url, KEY, **options)
        try:
            *_, last = run(collect(model))
        except ModelError as error:
            return error
        finally:
            server.wait(lambda: server.open == 0)
        return last


# --- answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["B13", "B14", "B16", "B17", "B18", "B19", "B23", "B27"])
def test_answers_with_calls_can_be_answered(id: str) -> None:
    """Each vector through the wire; the calls it gives, with results, make a request the strict server takes."""
    for script in split(vector(id)):
        with StrictChat([script, text_answer("hello")]) as server:
            model = build("m", server.url, KEY)

            async def two(model: Model = model) -> list[Chunk]:
                first = (await collect(model))[-1]
                assert isinstance(first, Completed)
                calls = [block for block in first.blocks if isinstance(block, ToolCall)]
                assert calls
                results = [Message("tool", (ToolResult(call.id, call.name, ""),)) for call in calls]
                said = Message("assistant", first.blocks, origin=model.name)
                return await collect(model, ask((user("hi"), said, *results)))

            *_, last = run(two())
            assert isinstance(last, Completed)
            assert last.blocks == HELLO
            assert server.refused == []
            first_sent, then_sent = (request["messages"] for request in server.requests)
            assert then_sent[: len(first_sent)] == first_sent


def test_the_strict_server_refuses() -> None:
    """The check itself must be able to fail."""
    bad: list[Callable[[list[Any]], None]] = [
        lambda messages: messages.pop(),
        lambda messages: messages.append(messages[-1]),
        lambda messages: messages.insert(2, {"role": "user", "content": "x"}),
        lambda messages: messages[0].update(content=" \n"),
        lambda messages: messages[0].update(content="\ud83d"),
        lambda messages: messages[0].update(content="\0"),
        lambda messages: messages[0].update(role="person"),
        lambda messages: messages[1]["tool_calls"][0].update(id="a b"),
        lambda messages: messages[1]["tool_calls"][0]["function"].update(arguments={}),
        lambda messages: messages[1]["tool_calls"][0]["function"].update(arguments="{"),
        lambda messages: messages[1]["tool_calls"][0]["function"].update(name="a.b"),
        lambda messages: messages[1]["tool_calls"].append(messages[1]["tool_calls"][0]),
        lambda messages: messages.append({"role": "user", "content": float("nan")}),
    ]
    for spoil in bad:
        call = {"id": "c", "type": "function", "function": {"name": "echo", "arguments": "{}"}}
        messages: list[Any] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ]
        assert run(post_raw(messages)) == 404  # well formed: no script left
        spoil(messages)
        assert run(post_raw(messages)) == 400


async def post_raw(messages: list[Any]) -> int:
    with StrictChat() as server:
        body = json.dumps({"model": "m", "messages": messages}).encode()
        async with http.stream_post(f"{server.url}/chat/completions", body, {}, Deadlines()) as got:
            return got.status


@pytest.mark.parametrize("field", ["extra_content", "provider_specific_fields"])
def test_what_rides_along_with_a_call_goes_back_with_it(field: str) -> None:
    """Gemini behind this API refuses a conversation whose calls have lost their thought signature."""
    first, end, over = call_answer(("c1", "echo", "{}"), ("c2", "count", "{}"))
    signed = {field: {"google": {"thought_signature": "SIG"}}}
    first["choices"][0]["delta"]["tool_calls"][0].update(signed)
    with StrictChat([[first, end, over], text_answer("hello"), text_answer("hello")]) as server:
        model = build("m", server.url, KEY)

        async def three() -> None:
            blocks = (await collect(model))[-1].blocks  # type: ignore[union-attr]
            results = [Message("tool", (ToolResult(call.id, call.name, "x"),)) for call in blocks]  # type: ignore[union-attr]
            for origin in (model.name, "openai-chat:other"):
                await collect(model, ask((user("hi"), Message("assistant", blocks, origin=origin), *results)))

        run(three())
        own, others = (request["messages"][1]["tool_calls"] for request in server.requests[1:])
        assert [call.get(field) for call in own] == [signed[field], None]
        assert [call.get(field) for call in others] == [None, None]
        assert server.refused == []


def test_names_that_the_wire_cannot_carry_come_back_as_they_are() -> None:
    with StrictChat(strict=False) as server:
        model = build("m", server.url)
        with pytest.raises(ModelError):
            run(collect(model))
        (sent,) = (tool["function"]["name"] for tool in server.requests[0]["tools"] if "fs" in tool["function"]["name"])
    completed = answer(call_answer(("c", sent, "{}")))
    assert completed.blocks == (ToolCall("c", "fs.read"),)


def test_b31_the_end_of_the_stream() -> None:
    half, done = text_answer("hello")[:1], text_answer("hello")[:2]
    assert answer([*half, "#EOF"]).kind == "protocol"
    assert answer([*half, "#RST"]).kind == "network"
    assert answer(["#RST"]).kind in ("network", "protocol")
    for ending in (["#EOF"], ["#RST"], ["not json"], ["[DONE]", "#EOF"], ["[DONE]", "#STALL"]):
        assert answer([*done, *ending]).blocks == HELLO, ending


def test_b33_an_error_after_200() -> None:
    assert answer(vector("B33")).kind == "server"
    assert answer([text_answer("Par")[0], {"error": {"type": "overloaded_error", "message": "x"}}]).kind == "overloaded"


def test_a_whole_answer_from_a_server_that_does_not_stream() -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}
    assert answer(f"\n {json.dumps(body, indent=1)}").blocks == HELLO
    assert answer(b"\xef\xbb\xbf" + json.dumps(body).encode()).blocks == HELLO
    assert answer('{"error": {"message": "no", "code": "invalid_api_key"}}').kind == "auth"
    assert answer('[{"error": {"message": "no", "code": 429}}]').kind == "rate_limited"
    assert answer('{"unexpected": 1}').kind == "protocol"
    assert answer('{"cho').kind == "protocol"
    assert answer("").kind == "protocol"


def test_an_answer_has_a_bound() -> None:
    error = answer(b"{" + b" " * 17 * 1024 * 1024)
    assert "MAX_EVENT" in error.message


# --- deadlines, cancellation, what is left -----------------------------------------------------------


def test_b35_silence_ends_within_its_deadline() -> None:
    half = text_answer("hello")[:1]
    for script, name in [
        (["#NOHEAD"], "first"),
        (["#STALL"], "first"),
        (["#PINGS 0.02"], "first"),
        ([{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}, "#PINGS 0.02"], "first"),
        ([*half, "#STALL"], "between"),
        ([*half, "#PINGS 0.02"], "between"),
    ]:
        error = answer(script, deadlines=QUICK)
        assert error.kind == "timeout", script
        assert f"`{name}`" in error.message
        assert "0.3 s" in error.message


def test_no_connection() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(ModelError, match=f"cannot connect to 127.0.0.1:{port}.*is the server running") as caught:
            run(collect(build("m", f"http://127.0.0.1:{port}/v1")))
        assert caught.value.kind == "network"


def test_a_connection_that_never_stands() -> None:
    """A listener whose queue is full does not answer a SYN: only the `connect` deadline ends that."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            model = build("m", f"http://127.0.0.1:{listener.getsockname()[1]}", deadlines=Deadlines(connect=0.2))
            with pytest.raises(ModelError, match="`connect`") as caught:
                run(collect(model))
            assert caught.value.kind == "timeout"
        finally:
            for filler in fillers:
                filler.close()


@pytest.mark.parametrize("over", [True, False])
def test_pings_after_a_whole_answer_are_not_waited_for(over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them comes within the wait for what is welcome, and only the deadline of an answer would end it."""
    monkeypatch.setattr(wire, "LINGER", 0.2)
    script = text_answer("hello")
    with StrictChat([[*(script if over else script[:2]), "#PINGS 0.02"]]) as server:
        model = build("m", server.url, deadlines=Deadlines(connect=5, first=5, between=0))
        assert run(asyncio.wait_for(collect(model), 10))[-1].blocks == HELLO


@pytest.mark.parametrize("status", [201, 206])
def test_any_success_is_one(status: int) -> None:
    body = "".join(
        f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in text_answer("hello")
    )
    assert answer([f"#STATUS {status} content-type=text/event-stream", body]).blocks == HELLO
    assert answer([f"#STATUS {status}"]).kind == "protocol"


def test_the_callers_own_time_does_not_count() -> None:
    script = [text_answer("a")[0]] * 3 + text_answer("b")

    async def slowly() -> list[Chunk]:
        seen = []
        async for chunk in model.stream(ask()):
            seen.append(chunk)
            await asyncio.sleep(0.12)
        return seen

    with StrictChat([script]) as server:
        model = build("m", server.url, deadlines=QUICK)
        assert isinstance(run(slowly())[-1], Completed)


def test_cancelling_closes_the_connection() -> None:
    half = text_answer("hello")[:1]
    for script in (["#NOHEAD"], ["#STALL"], [*half, "#STALL"], [*half, "#PINGS 0.02"]):
        with StrictChat([script]) as server:

            async def cancelled(server: StrictChat = server) -> None:
                task = asyncio.create_task(collect(build("m", server.url)))
                await asyncio.to_thread(server.wait, lambda: bool(server.bodies))
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await asyncio.to_thread(server.wait, lambda: server.open == 0)

            run(cancelled())


def test_leaving_in_the_middle_closes_the_connection() -> None:
    with StrictChat([[*text_answer("hello")[:1], "#STALL"]]) as server:

        async def leave() -> None:
            chunks: Any = build("m", server.url).stream(ask())
            async with aclosing(chunks):
                assert isinstance(await anext(chunks), Delta)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            await asyncio.to_thread(server.wait, lambda: server.open == 0)

        run(leave())


def test_one_client_a_loop_and_its_connection_is_used_again() -> None:
    scripts = [text_answer("hello") for _ in range(8)]
    with StrictChat(scripts) as server:
        model = build("m", server.url)

        async def four() -> None:
            for _ in range(4):
                assert (await collect(model))[-1].blocks == HELLO  # type: ignore[union-attr]
            assert len(http._clients) == 1

        run(four())
        run(four())
        assert server.connections == 2
        server.wait(lambda: server.open == 0)


def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    with StrictChat([text_answer("hello"), ["#DROP"], text_answer("hello"), ["#DROP"], ["#DROP"]]) as server:
        model = build("m", server.url)

        async def three() -> None:
            await collect(model)
            assert (await collect(model))[-1].blocks == HELLO  # type: ignore[union-attr]
            assert (server.connections, len(server.bodies)) == (2, 3)
            with pytest.raises(ModelError, match="broke") as caught:  # once, and not for ever
                await collect(model)
            assert caught.value.kind == "network"
            assert (server.connections, len(server.bodies)) == (3, 5)

        run(three())
    with StrictChat([["#DROP"], text_answer("hello")]) as server:
        with pytest.raises(ModelError, match="broke"):  # a new connection that breaks is an error
            run(collect(build("m", server.url)))
        assert len(server.bodies) == 1


def test_close_for_those_who_run_their_own_loop() -> None:
    with StrictChat([text_answer("hello")]) as server:
        loop = asyncio.new_event_loop()

        async def once() -> None:
            await collect(build("m", server.url))
            await http.close()

        loop.run_until_complete(once())
        loop.close()
        gc.collect()
        assert not http._clients


def test_several_loops_in_threads() -> None:
    with StrictChat([text_answer("hello") for _ in range(8)]) as server:
        model = build("m", server.url)
        seen: list[Any] = []
        threads = [threading.Thread(target=lambda: seen.append(asyncio.run(collect(model))[-1])) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert [completed.blocks for completed in seen] == [HELLO] * 8
    gc.collect()
    assert not http._clients


# --- errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (400, {"error": {"message": "bad\nthing", "type": "invalid_request_error"}}, "bad_request", "bad thing"),
        (400, {"error": {"message": "x", "code": "context_length_exceeded"}}, "context_overflow", "x"),
        (401, {"error": {"message": f"Incorrect API key provided: {KEY}."}}, "auth", "provided: ***."),
        (402, {"error": {"message": "Insufficient credits"}}, "quota", "credits"),
        (403, {"detail": "no"}, "permission", "no"),
        (404, {"error": {"message": "no such model", "code": "model_not_found"}}, "not_found", "base_url usually ends"),
        (408, {}, "timeout", "status 408"),
        (413, {"error": {"message": "x"}}, "context_overflow", "x"),
        (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, "bad_request", "field required"),
        (429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, "rate_limited", "slow down"),
        (429, {"error": {"message": "pay", "code": "insufficient_quota"}}, "quota", "pay"),
        (429, {"error": {"message": "x", "metadata": {"raw": "upstream says"}}}, "rate_limited", "upstream says"),
        (498, {}, "overloaded", "498"),
        (500, {"message": "oops"}, "server", "oops"),
        (503, {"error": "maximum context workers busy"}, "overloaded", "busy"),
        (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "overloaded", "Over"),
        (302, {}, "bad_request", "redirects to"),
    ],
)
def test_a_status_and_its_body(status: int, body: Any, kind: str, said: str) -> None:
    error = answer([f"#STATUS {status} location=https://elsewhere/v1", body])
    assert (error.kind, error.status) == (kind, status)
    assert said in error.message
    assert "\n" not in error.message
    assert KEY not in str(error) + repr(error) + repr(error.args)


@pytest.mark.parametrize(
    "words",
    [
        "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576).",
        "Input is too long for requested model.",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        "prompt token count of 130000 exceeds the limit of 128000",
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 270000)",
        "invalid params, context window exceeds limit (2013)",
        "Prompt exceeds max length",
        "prompt too long; exceeded max context length by 500 tokens",
        "Range of input length should be [1, 129024]",
        "Input length 40000 exceeds the maximum length 32768.",
        "Total tokens of image and text exceed max message tokens",
        "The number of tokens in the prompt (5000) exceeds the model's maximum (4096)",
        "the model is loaded with context length of only 4096 tokens, which is not enough",
        "the number of tokens to keep from the initial prompt is greater than the context length",
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20 `max_new_tokens`",
        "The conversation is too long, please try again with a shorter one",
    ],
)
def test_b45_a_context_that_is_full_is_known_by_many_words(words: str) -> None:
    assert answer(["#STATUS 400", {"error": {"message": words}}]).kind == "context_overflow"


@pytest.mark.parametrize(
    "words",
    [
        "max_tokens: 64001 > 64000, which is the maximum allowed number of output tokens for this model",
        "max_tokens is too large: 200000. This model supports at most 16384 completion tokens",
        "messages.1.content.0.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
        "tools.0.function.description: string too long. Expected a string with maximum length 1024, but got 1025",
        "This request would exceed your organization's rate limit of 40,000 input tokens per minute",
        "Unsupported parameter: context_window",
        "too many images: 101 > 100",
    ],
)
def test_b45_what_no_summary_can_help_is_no_full_context(words: str) -> None:
    assert answer(["#STATUS 400", {"error": {"message": words}}]).kind != "context_overflow"


def test_web_pages_are_said_to_be_such() -> None:
    page = "<!DOCTYPE html><html><body>Sign in</body></html>"
    for script, kind in [
        (page, "bad_request"),
        (["#STATUS 404 content-type=text/html", page], "bad_request"),
        (["#STATUS 502 content-type=text/html", page], "server"),
        (["#STATUS 503 content-type=text/html retry-after=3", page], "overloaded"),
    ]:
        error = answer(script)
        assert error.kind == kind
        assert "web page" in error.message
        assert "check base_url" in error.message
    assert error.retry_after == 3


def test_b36_retry_after() -> None:
    def asked(**headers: str) -> float | None:
        return retry_after({name.replace("_", "-"): value for name, value in headers.items()})

    assert asked(retry_after="2") == 2
    assert asked(retry_after=" 2.5 ") == 2.5
    assert asked(retry_after_ms="1500", retry_after="9") == 1.5
    assert asked(retry_after="Wed, 21 Oct 2015 07:28:00 GMT") == 0
    future = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 1_000))
    assert 900 < (asked(retry_after=future) or 0) < 1_100
    for junk in ("-5", "²", "NaN", "inf", "", " ", "9" * 400, "1e3", "soon", "0x10", "Wed, 99 Xyz 2026", "१"):
        assert asked(retry_after=junk) is None, junk
    error = answer(["#STATUS 429 retry-after=11180", {"error": {"message": "x"}}])
    assert error.retry_after == 11180


def test_keys_and_urls_are_checked_before_anything_is_sent() -> None:
    assert check_key(" key\n") == "key"
    for key in ("sk a", "sk\na", "ské", "sk\u200b"):
        with pytest.raises(ModelError, match="position 3") as caught:
            build("m", "http://h", key)
        assert caught.value.kind == "auth"
        assert key not in str(caught.value)
    assert KEY not in repr(build("m", "http://h", KEY))
    for base_url, posted, shown in [
        ("http://h:1/v1/", "http://h:1/v1/chat/completions", None),
        ("https://h/v1/chat/completions", "https://h/v1/chat/completions", None),
        (
            "https://u:p@h/x?api-version=1",
            "https://u:p@h/x/chat/completions?api-version=1",
            "https://h/x/chat/completions",
        ),
    ]:
        assert endpoint(base_url, "/chat/completions") == (posted, shown or posted)
    for base_url in ("", "h/v1", "ftp://h", "http://", "http://h:x/", "http://h /v1", "http://[", "http://hé"):
        with pytest.raises(DefinitionError, match="base_url"):
            endpoint(base_url, "/chat/completions")


def test_importing_is_cheap() -> None:
    code = "import sys, latchstep.http, latchstep.model.catalog; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'latchstep.model.retry'" in done.stdout
    for heavy in ("httpx2", "httpcore2", "anyio", "h11"):
        assert f"'{heavy}'" not in done.stdout
