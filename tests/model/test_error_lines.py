"""What goes wrong between a wire and its server, as the one line that a person reads, over every wire."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from latchstep.core.chunk import Completed
from latchstep.core.message import Text, ToolCall, user
from latchstep.errors import ModelError
from latchstep.model.base import Request, ToolSpec
from latchstep.model.catalog import SERVICES, model
from tests.model import strict_anthropic, strict_chat, strict_gemini, strict_responses
from tests.model.strict_chat import StrictChat

KEY = "sk-very-secret"
ECHO = ToolSpec("echo", "", {"type": "object", "properties": {}})
PAGE = "<!DOCTYPE html>\n<html><body>Sign in</body></html>"
DEEP = "[" * 100_000 + "]" * 100_000
CHAT, RESPONSES, ANTHROPIC, GEMINI = "openai-chat:m", "openai:m", "anthropic:m", "gemini:m"
WIRES = {
    CHAT: strict_chat.text_answer("hello"),
    RESPONSES: strict_responses.answer(strict_responses.text("hello")),
    ANTHROPIC: strict_anthropic.streamed({"type": "text", "text": "hello"}),
    GEMINI: strict_gemini.text_answer("hello"),
}
HALF = {CHAT: 1, RESPONSES: 3, ANTHROPIC: 3, GEMINI: 1}
PATHS = {CHAT: "/chat/completions", RESPONSES: "/responses", ANTHROPIC: "/messages", GEMINI: ":streamGenerateContent"}


def key_of(name: str) -> str:
    return SERVICES[name.partition(":")[0]].key


def refusals(name: str) -> dict[str, tuple[Any, str, list[str]]]:
    """By what is wrong: the server's answer, the error's kind, and words of its line."""
    said: dict[str, tuple[int, Any, str, str]] = {
        CHAT: {
            "wrong key": (401, f"Incorrect API key provided: {KEY}.", "invalid_request_error", "invalid_api_key"),
            "unknown model": (404, "The model `m` does not exist", "invalid_request_error", "model_not_found"),
            "region": (403, "Country, region, or territory not supported", "request_forbidden", "unsupported_country"),
        },
        ANTHROPIC: {
            "wrong key": (401, "invalid x-api-key", "authentication_error", ""),
            "unknown model": (404, "model: m", "not_found_error", ""),
            "region": (403, "Request not allowed", "forbidden", ""),
        },
        GEMINI: {
            "wrong key": (
                400,
                "API key not valid. Please pass a valid API key.",
                "INVALID_ARGUMENT",
                "API_KEY_INVALID",
            ),
            "unknown model": (404, "models/m is not found for API version v1beta", "NOT_FOUND", ""),
            "region": (400, "User location is not supported for the API use.", "FAILED_PRECONDITION", ""),
        },
    }.get(CHAT if name == RESPONSES else name, {})  # type: ignore[assignment]
    kinds = {
        "wrong key": "auth",
        "unknown model": "not_found",
        "region": "bad_request" if name == GEMINI else "permission",
    }
    advice = {"wrong key": [f"(check {key_of(name)})"], "unknown model": ["model's name", PATHS[name]], "region": []}
    found: dict[str, tuple[Any, str, list[str]]] = {}
    for what, (status, words, type, code) in said.items():
        error: dict[str, Any] = {"message": words, "type": type, "code": code}
        if name == GEMINI:
            error = {"code": status, "message": words, "status": type, "details": [{"reason": code}] if code else []}
        shown = words.replace(KEY, "***")
        found[what] = ([f"#STATUS {status}", {"error": error}], kinds[what], [shown, *advice[what]])
    return found


LINES: dict[str, tuple[Any, str, list[str]]] = {
    "key refused in silence": (["#STATUS 401", ""], "auth", ["URL gave no reason (status 401)", "(check VARIABLE)"]),
    "page of a login": (["#STATUS 401 content-type=text/html", PAGE], "auth", ["URL", "web page", "login"]),
    "page instead of an API": (PAGE, "bad_request", ["URL answered with a web page (status 200): check base_url"]),
    "page of a wrong address": (["#STATUS 404 content-type=text/html", PAGE], "bad_request", ["check base_url"]),
    "page of a broken server": (["#STATUS 502 content-type=text/html", PAGE], "server", ["web page (status 502)"]),
    "nothing at the address": (["#STATUS 404", ""], "not_found", ["URL gave no reason", "base_url usually ends in"]),
    "moved": (["#STATUS 301 location=https://x/v2", ""], "bad_request", ["URL redirects to https://x/v2"]),
    "refused": (["#STATUS 400", {"error": {"message": "top_p:\n too high"}}], "bad_request", ["top_p: too high"]),
    "too large": (["#STATUS 413", "Payload Too Large"], "context_overflow", ["Payload Too Large"]),
    "too much": (["#STATUS 429 retry-after=900", {"error": {"message": "slow"}}], "rate_limited", ["slow"]),
    "silent": (["#STATUS 500", ""], "server", ["URL gave no reason (status 500)"]),
    "broken while refusing": (
        ["#STATUS 403 content-encoding=gzip", "not compressed"], "permission", ["URL gave no reason (status 403)"]),
    "deep refusal": (["#STATUS 400", DEEP], "bad_request", ["[[[["]),
    "refused without words": (
        ["#STATUS 400", {"oops": 1}], "bad_request", ['URL gave no reason (status 400): {"oops":1}']),
    "refused with a success": ('{"code": 401, "msg": "token\\n expired", "success": false}', "auth", ["token expired"]),
    "accepted and not answered": (
        ["#STATUS 202", {"status": "queued"}], "protocol", ['answered, but with no answer: {"status": "queued"}']),
    "success without a body": (["#STATUS 204", ""], "protocol", ["closed the stream without an answer"]),
    "empty": (b"", "protocol", ["closed the stream without an answer"]),
    "not a stream": ("hello world\n\n", "protocol", ["closed the stream without an answer"]),
    "not compressed": (
        ["#STATUS 200 content-encoding=gzip content-type=text/event-stream", "not compressed"], "network",
        ["the connection to HOST broke", "decompressing"]),
    "not JSON": (["what?"], "protocol", ["an event that is not JSON: what?"]),
    "deep": ([DEEP], "protocol", ["an event that is not JSON: [[[["]),
    "hung up": (["#DROP"], "network", ["the connection to HOST broke"]),
}  # fmt: skip


def told(name: str, script: Any) -> tuple[Any, StrictChat]:
    """(the `Completed` or ModelError of one answer, the server)."""
    with StrictChat([script], strict=False) as server:
        built: Any = model(name, base_url=server.url, api_key=KEY)
        while hasattr(built, "inner"):
            built = built.inner
        built.key_from = key_of(name)

        async def collect() -> Any:
            request = Request(request_id="r", messages=(user("hi"),), tools=(ECHO,))
            return [chunk async for chunk in built.stream(request)][-1]

        try:
            return asyncio.run(collect()), server
        except ModelError as error:
            return error, server
        finally:
            assert len(server.bodies) == 1


@pytest.mark.parametrize("name", WIRES)
def test_every_failure_is_one_line_that_says_what_to_do(name: str) -> None:
    for what, (script, kind, words) in (LINES | refusals(name)).items():
        error, server = told(name, script)
        assert isinstance(error, ModelError), what
        line = str(error)
        assert line.startswith(f"{kind}: "), (what, line)
        host = server.url.split("/")[2]
        url = f"http://{host}{server.paths[0].partition('?')[0]}"
        for word in words:
            word = word.replace("URL", url).replace("HOST", host).replace("VARIABLE", key_of(name))
            assert word in line, (what, line)
        assert line.isprintable(), what
        assert len(line) < 700, what
        assert KEY not in line + repr(error.args), what


@pytest.mark.parametrize("name", WIRES)
def test_an_error_after_the_answer_began_is_the_providers_own(name: str) -> None:
    half = WIRES[name][: HALF[name]]
    for error in (
        {"type": "overloaded_error", "code": "server_is_overloaded", "message": f"Over\nloaded {KEY}"},
        {"status": "UNAVAILABLE", "code": 503, "message": f"Over\nloaded {KEY}"},
    ):
        found, _ = told(name, [*half, {"type": "error", "error": error}, "#STALL"])
        assert str(found) == "overloaded: Over loaded ***"


@pytest.mark.parametrize("name", WIRES)
def test_an_event_of_a_kind_to_come_does_not_harm(name: str) -> None:
    whole, half = WIRES[name], HALF[name]
    strange = [{"type": "of.tomorrow", "x": [1]}, {}, [], "null", '"text"', "17", {"type": None}, {"candidates": 7}]
    found, _ = told(name, [*strange[:4], *whole[:half], *strange, *whole[half:]])
    assert isinstance(found, Completed)
    assert [block.text for block in found.blocks if isinstance(block, Text)] == ["hello"]


DEEP_CALLS = {
    CHAT: strict_chat.call_answer(("c", "echo", DEEP)),
    RESPONSES: strict_responses.answer(strict_responses.call("c", "echo", DEEP)),
    ANTHROPIC: [
        *strict_anthropic.streamed({"type": "tool_use", "id": "c", "name": "echo", "input": {}}, stop="tool_use")[:2],
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": DEEP}},
        *strict_anthropic.streamed({"type": "tool_use", "id": "c", "name": "echo", "input": {}}, stop="tool_use")[2:],
    ],
}


@pytest.mark.parametrize("name", DEEP_CALLS)
def test_arguments_that_are_too_deep_are_a_flaw_of_the_call(name: str) -> None:
    found, _ = told(name, DEEP_CALLS[name])
    assert isinstance(found, Completed)
    (call,) = (block for block in found.blocks if isinstance(block, ToolCall))
    assert call.flaw
    assert json.dumps(call.arguments) == "{}"
