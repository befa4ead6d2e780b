"""The demo, replayed over each wire: the same script behind four servers, and the same story in the end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import latchstep as ls
from latchstep.cli.demo_script import reply
from latchstep.core.event import ModelDelta
from latchstep.journal.reader import TOOLS_LOCK
from latchstep.journal.store import Store
from latchstep.model.base import Request
from latchstep.tool.toolslock import wait_until_quiet

from .coding_run import SCRIPTED, TEST, project, the_model, work
from .wire_servers import WIRES, speaking

ROOT = Path(__file__).resolve().parents[2]

PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1/models/demo:streamGenerateContent?alt=sse",
}


def script(request: Request) -> ls.Reply:
    return reply(request, TEST)


def story(messages: Sequence[ls.Message], root: Path) -> list[Any]:
    """What was said and done, without ids, timings, and the place where it happened."""

    def plain(text: str) -> str:
        return re.sub(r"\b\d+\.\d+s\b", "TIME", text.replace(str(root), "ROOT"))

    told: list[Any] = []
    for message in messages:
        for block in message.blocks:
            match block:
                case ls.Text():
                    told.append((message.role, plain(block.text)))
                case ls.ToolCall():
                    told.append((message.role, block.name, json.loads(plain(json.dumps(block.arguments)))))
                case ls.ToolResult():
                    told.append((message.role, block.name, block.outcome, block.is_error, plain(block.text)))
    return told


class Expected:
    """The demo with its scripted model: its story, what it showed, and what the model was sent."""

    def __init__(self, folder: Path) -> None:
        self.requests: list[Request] = []
        root, shown = project(folder / "shop"), list[str]()

        def heard(request: Request) -> ls.Reply:
            self.requests.append(Request(request_id="", messages=[*request.messages], tools=request.tools))
            return script(request)

        model = ls.ScriptedModel([heard] * 40, name=SCRIPTED)
        done = work(model, root, watch=lambda event: shown.extend(text_of(event)))
        assert done.status == "completed"
        self.root, self.shown, self.story = root, "".join(shown), story(done.messages, root)


def text_of(event: Any) -> list[str]:
    return [event.piece] if isinstance(event, ModelDelta) and event.kind == "text" else []


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return Expected(tmp_path_factory.mktemp("scripted"))


@pytest.mark.parametrize("wire", WIRES)
def test_the_demo_is_the_same_over_each_wire(wire: str, tmp_path: Path, expected: Expected) -> None:
    root = project(tmp_path / "shop")
    shown: list[str] = []
    with speaking(wire, script) as server:
        model = the_model(f"{wire}:demo", server.url)
        done = work(model, root, watch=lambda event: shown.extend(text_of(event)))
    assert server.refused == []
    assert (done.status, done.error) == ("completed", None)
    assert story(done.messages, root) == expected.story
    assert "".join(shown) == expected.shown
    assert len(expected.story) > 20
    assert set(server.paths) == {PATHS[wire]}
    for path in root.rglob("*.py"):
        assert path.read_text() == (expected.root / path.relative_to(root)).read_text()
    assert len(server.requests) == len(expected.requests)
    for got, sent in zip(server.requests, expected.requests, strict=True):
        assert story(got.messages, root) == story(sent.messages, expected.root), "what the server read"
        assert got.tools == sent.tools
        assert "coding agent" in got.system


def killed_and_resumed(name: str, url: str, folder: Path) -> tuple[ls.RunResult, Path]:
    """A process that dies while the tests run, and this one going on."""
    root, home = project(folder / "shop"), folder / "home"
    victim = [sys.executable, "-m", "tests.conformance.coding_run", str(home), str(root), name, url]
    died = subprocess.run(victim, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert asyncio.run(wait_until_quiet(home / "sessions" / "killed" / TOOLS_LOCK, 20.0))
    journal = Store(home).open("killed")
    return work(the_model(name, url), root, journal, task=None), root


def test_a_run_over_a_wire_is_killed_and_resumed(tmp_path: Path) -> None:
    scripted, there = killed_and_resumed(SCRIPTED, "", tmp_path / "scripted")
    with speaking("openai", script) as server:
        done, root = killed_and_resumed("openai:demo", server.url, tmp_path / "wire")
    assert server.refused == []
    assert (done.status, scripted.status) == ("completed", "completed")
    told = story(done.messages, root)
    assert told == story(scripted.messages, there)
    assert [entry[2] for entry in told if entry[:2] == ("tool", "bash")] == ["interrupted", "ok"]
    assert len(server.requests) == 8, "nothing that was answered before the end is asked again"
