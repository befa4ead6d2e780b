"""What the tests of the governed agent share: a repository, a home for sessions, a scripted or a served model."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import rivumi

import latchstep as ls
from latchstep.core import event as ev
from latchstep.journal.reader import read_journal
from latchstep.journal.store import Store

from .conftest import EXAMPLES

T = TypeVar("T", bound=ev.Event)

CHECK = "python3 check.py"


class Ground:
    """A repository with one commit in which `check.py` passes while `wanted.txt` says yes."""

    def __init__(self, folder: Path) -> None:
        self.root, self.store = folder / "repo", Store(folder / "home")
        self.processes: list[subprocess.Popen[str]] = []
        self.root.mkdir()
        (self.root / "notes.txt").write_text("one\n")
        (self.root / "check.py").write_text("import sys\nsys.exit('yes' not in open('wanted.txt').read())\n")
        self.git("init", "-q", "-b", "main")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "one")

    def git(self, *args: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *args], cwd=self.root, check=True, capture_output=True)

    def session(
        self,
        model: Any,
        *,
        checks: Sequence[str] = (),
        approve: Callable[[Any], Any] = lambda question: True,
        old: str | None = None,
        name: str = "",
    ) -> ls.Session:
        if isinstance(model, list):
            model = ls.ScriptedModel(model, name=name or "scripted:script")
        return rivumi.governed(self.store, self.root, model, checks=checks, approve=approve, old=old)

    @property
    def id(self) -> str:
        (entry,) = self.store.list()
        return entry.id

    @property
    def journal(self) -> Path:
        return self.store.directory(self.id) / "journal.jsonl"

    def has(self, kind: str) -> bool:
        """An event of this type is on record, by whoever writes it."""
        found = list(self.store.sessions.glob("*/journal.jsonl"))
        return any(f'"type":"{kind}"'.encode() in path.read_bytes() for path in found)

    def events(self) -> list[ev.Event]:
        return list(read_journal(self.store.directory(self.id)))

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events() if isinstance(event, kind)]

    def run(self, model: Any, prompt: str | None = "go", **more: Any) -> ls.RunResult:
        """One run of a session, new or old, which is closed after it."""

        async def main() -> ls.RunResult:
            session = self.session(model, **more)
            try:
                return await session.run(prompt)
            finally:
                await session.close()

        return asyncio.run(main())

    def start(self, url: str, *task: str, check: str = "true") -> subprocess.Popen[str]:
        """The example as a process of its own, asked about everything by nobody."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "LATCHSTEP_HOME": str(self.store.root),
            "RIVUMI_MODEL": "openai-chat:m",
            "RIVUMI_URL": url,
            "RIVUMI_CHECK": check,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "rivumi.py"), *task],
            cwd=self.root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        """End what a test left running."""
        for process in self.processes:
            process.kill()
            process.communicate()


def call(name: str, id: str, **arguments: Any) -> ls.ToolCall:
    return ls.ToolCall(id, name, arguments)


def write(path: str, content: str, id: str = "w") -> ls.ToolCall:
    return call("write", id, path=path, content=content)


def bash(command: str, id: str = "b") -> ls.ToolCall:
    return call("bash", id, command=command)


def read(path: str = "notes.txt", id: str = "r", **more: Any) -> ls.ToolCall:
    return call("read", id, path=path, **more)


def cut(*calls: ls.ToolCall) -> ls.Reply:
    """An answer that the token limit cut after these calls."""
    return ls.Reply(list(calls), "length", ls.Usage(10, 300))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]
