"""Our wires against llmock: a server that nobody here wrote breaks its answers on purpose and grades the client.

It runs as a process, so it may live in an environment of its own: `pip install llmock`, and `llmock` on the PATH.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from latchstep.core.chunk import Completed
from latchstep.core.message import Message, Text, ToolCall, ToolResult, user
from latchstep.errors import ModelError
from latchstep.http import Deadlines
from latchstep.model.base import Model, Request, ToolSpec
from latchstep.model.catalog import model
from latchstep.model.retry import retrying

WIRES = {
    "openai-chat:gpt-4o": "/v1",
    "openai:gpt-4o": "/v1",
    "anthropic:claude-x": "/anthropic",
    "gemini:g": "/gemini/v1beta",
}
OTHERS = {
    "mistral:m": "/mistral/v1",
    "groq:m": "/groq/openai/v1",
    "together:m": "/together/v1",
    "xai:m": "/xai/v1",
    "openai-chat:sonar": "/perplexity/v1",
    "openai-chat:jamba": "/ai21/v1",
}
WEATHER = ToolSpec("get_weather", "Weather of a city.", {"type": "object", "properties": {"city": {"type": "string"}}})


class Mock:
    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def asked(self, name: str, *behaviors: dict[str, Any], history: tuple[Message, ...] = (), **fields: Any) -> Any:
        """The `Completed` of one question under these faults, or the ModelError it raised. All faults must be used."""
        if behaviors:
            self.call("/_llmock/scenario", {"behaviors": behaviors})
        wire = wire_of(self, name)
        request = Request(request_id="r", messages=history or (user(f"{name} {behaviors}"),), **fields)

        async def collect() -> Any:
            return [chunk async for chunk in retrying(wire, base=0.05).stream(request)][-1]

        try:
            return asyncio.run(collect())
        except ModelError as error:
            return error
        finally:
            assert self.call("/_llmock/scenario")["pending"] == []


def wire_of(mock: Mock, name: str) -> Model:
    url = mock.url + (WIRES | OTHERS)[name]
    built: Any = model(name, base_url=url, api_key="any-key", deadlines=Deadlines(first=1.5, between=0.4))
    while hasattr(built, "inner"):
        built = built.inner
    wire: Model = built
    return wire


@pytest.fixture(scope="module")
def server() -> Iterator[Mock]:
    program = shutil.which("llmock", path=str(Path(sys.executable).parent)) or shutil.which("llmock")
    if program is None:
        pytest.skip("llmock is not installed: pip install llmock (an environment of its own is best)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mock = Mock(f"http://127.0.0.1:{port}")
    paced = ["--stream-chunk-delay-ms", "5"]  # so that it notices who stops reading
    with subprocess.Popen(
        [program, "serve", "--port", str(port), *paced], stdout=subprocess.DEVNULL, stderr=-2
    ) as process:
        try:
            end = time.monotonic() + 30
            while True:
                try:
                    mock.call("/health")
                    break
                except OSError:
                    assert time.monotonic() < end, "llmock did not start"
                    assert process.poll() is None, "llmock ended: is it the one from PyPI?"
                    time.sleep(0.05)
            yield mock
        finally:
            process.terminate()


@pytest.fixture
def mock(server: Mock) -> Iterator[Mock]:
    server.call("/_llmock/reset", {})
    yield server
    verdict = server.call("/_llmock/verdict")
    assert verdict["findings"] == []
    assert verdict["attempts"] > 0


@pytest.mark.parametrize("name", WIRES)
def test_what_may_pass_is_asked_again(mock: Mock, name: str) -> None:
    for behavior in [
        {"type": "fail", "status": 429, "retry_after": 0.5},
        *({"type": "fail", "status": status, "times": 2} for status in (408, 500, 529)),
        *(
            {"type": "stream_fault", "kind": kind, "after_chunks": 2}
            for kind in ("disconnect", "truncate", "malformed")
        ),
        {"type": "stream_fault", "kind": "stall", "after_chunks": 2, "stall_seconds": 30},
        {"type": "slow_first_token", "seconds": 0.6},
    ]:
        done = mock.asked(name, behavior)
        assert isinstance(done, Completed), (behavior, done)
        assert done.stop_reason == "stop"
        assert any(isinstance(block, Text) and block.text for block in done.blocks)


@pytest.mark.parametrize("name", WIRES)
def test_what_will_not_pass_is_raised_at_once(mock: Mock, name: str) -> None:
    for status, kind in [
        (400, "bad_request"),
        (401, "auth"),
        (403, "permission"),
        (404, "not_found"),
        (413, "context_overflow"),
        (422, "bad_request"),
    ]:
        error = mock.asked(name, {"type": "fail", "status": status})
        assert (getattr(error, "kind", None), error.status) == (kind, status), error


@pytest.mark.parametrize("name", WIRES | OTHERS)
def test_a_tool_is_called_and_its_result_taken(mock: Mock, name: str) -> None:
    asking = user("What is the weather in Paris?")
    called = mock.asked(name, history=(asking,), tools=(WEATHER,))
    (call,) = (block for block in called.blocks if isinstance(block, ToolCall))
    assert (call.name, call.flaw) == ("get_weather", "")
    said = Message("assistant", called.blocks, origin=name)
    found = Message("tool", (ToolResult(call.id, call.name, "21 C"),))
    done = mock.asked(name, history=(asking, said, found), tools=(WEATHER,))
    assert (done.stop_reason, [type(block) for block in done.blocks]) == ("stop", [Text])


@pytest.mark.parametrize("name", WIRES)
def test_broken_calls_are_seen(mock: Mock, name: str) -> None:
    if not name.startswith("gemini"):  # there the mock's broken arguments are `{}`, which are none
        broken = mock.asked(name, {"type": "tool_fault", "kind": "malformed_arguments"}, tools=(WEATHER,))
        assert all(block.flaw for block in broken.blocks if isinstance(block, ToolCall))
    other = mock.asked(name, {"type": "tool_fault", "kind": "unknown_tool"}, tools=(WEATHER,))
    assert [block.name == "get_weather" for block in other.blocks if isinstance(block, ToolCall)] == [False]
