"""Real `latchstep` processes for the tests of the terminal: over pipes, and over a pseudo terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import latchstep
from latchstep.model.catalog import SERVICES
from tests.model.strict_chat import call_answer, text_answer

PATIENCE = 30.0
"""Seconds after which whatever a test waits for is not coming."""

MODULE = ["-m", "latchstep"]

CONTROLLING = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Makes the terminal the controlling one, so that Ctrl-C is a signal, then becomes the command."""

NO_SERVERS = {it.url: "http://127.0.0.1:9/v1" for it in SERVICES.values() if it.local and it.url}
"""Model servers that may run on the machine of whoever tests are not seen."""


class Home:
    """A bare machine: a home, a folder for sessions, a workspace. Runs `latchstep` there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.workspace = folder / "ws"
        self.workspace.mkdir()
        (folder / "home").mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []

    def env(self, **more: str | None) -> dict[str, str]:
        """The environment: no key, no proxy, no model server, nothing of ours. A value of None leaves out."""
        base: dict[str, str | None] = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(latchstep.__file__).parents[1]),  # the package that is tested, wherever it lies
            "HOME": str(self.folder / "home"),
            "LATCHSTEP_HOME": str(self.state),
            "LANG": "C.UTF-8",
            "TMPDIR": os.environ.get("TMPDIR"),
            **NO_SERVERS,
            **more,
        }
        return {name: value for name, value in base.items() if value is not None}

    def start(
        self, *args: str | bytes, python: tuple[str, ...] = (), env: dict[str, str | None] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """A process over pipes, in the workspace, as the leader of its own group."""
        given: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "cwd": self.workspace,
            "start_new_session": True,
            **options,
        }
        process = subprocess.Popen([sys.executable, *python, *MODULE, *args], env=self.env(**(env or {})), **given)
        self.processes.append(process)
        return process

    def close(self) -> None:
        """End what a failing test left running."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            with process:
                pass

    def run(
        self, *args: str | bytes, stdin: bytes = b"", env: dict[str, str | None] | None = None, **options: Any
    ) -> Done:
        """Run to the end."""
        process = self.start(*args, env=env, stdin=subprocess.PIPE, **options)
        out, err = process.communicate(stdin, timeout=PATIENCE)
        return Done(process.returncode, out or b"", err or b"")

    def customized(self, code: str) -> str:
        """PYTHONPATH with this as the `sitecustomize` of the processes."""
        site = self.folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(code)
        return f"{site}:{Path(latchstep.__file__).parents[1]}"

    def sessions(self) -> list[Path]:
        return sorted((self.state / "sessions").glob("*")) if (self.state / "sessions").is_dir() else []

    def session(self) -> Path:
        """The only session there is."""
        (only,) = self.sessions()
        return only

    def session_named(self, prefix: str) -> Path:
        """The only session whose id begins so."""
        (only,) = [path for path in self.sessions() if path.name.startswith(prefix)]
        return only

    def events(self, session: Path | None = None) -> list[dict[str, Any]]:
        """What is on record, line by line."""
        lines = ((session or self.session()) / "journal.jsonl").read_bytes().splitlines()
        return [json.loads(line) for line in lines]

    def ending(self, session: Path | None = None) -> dict[str, Any]:
        (ending,) = [event for event in self.events(session) if event["type"] == "run.finished"][-1:]
        return ending


class Done:
    """How a process ended, and what it said."""

    def __init__(self, status: int, out: bytes, err: bytes) -> None:
        self.status, self.raw, self.raw_err = status, out, err

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def err(self) -> str:
        return self.raw_err.decode()

    def __repr__(self) -> str:
        out, err = (data.decode(errors="replace") for data in (self.raw, self.raw_err))
        return f"status {self.status}\n{out}\n-- stderr\n{err}"


def refused(done: Done, status: int, *words: str) -> None:
    """It ended with this status, one line on stderr that says each of the words, and nothing else."""
    assert done.status == status, done
    assert done.raw == b"", done
    lines = done.err.strip().splitlines()
    assert len(lines) == 1, done
    assert lines[0].startswith("Error: "), done
    for word in words:
        assert word in lines[0], done


class Terminal:
    """A real process at a real terminal."""

    def __init__(self, home: Home, *args: str, columns: int = 100, rows: int = 40, **env: str | None) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLING, sys.executable, *MODULE, *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=home.workspace,
            env=home.env(**{"TERM": "xterm-256color", **env}),
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""
        self._seen = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.hang_up()

    def hang_up(self) -> None:
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def _read(self, until: float) -> bool:
        """Take what has come; False at the end."""
        ready, _, _ = select.select([self.master], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)

    def expect(self, text: str) -> str:
        """Wait for this text after the last expected one; everything up to and with it."""
        until = time.monotonic() + PATIENCE
        while (found := self.shown.find(text, self._seen)) < 0:
            open_still = self._read(until)
            came = text in self.shown[self._seen :] or (open_still and time.monotonic() < until)
            assert came, f"{text!r} did not come:\n{self.shown}"
        start, self._seen = self._seen, found + len(text)
        return self.shown[start : self._seen]

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def end(self) -> int:
        """Everything it says until it ends; its exit status."""
        until = time.monotonic() + PATIENCE
        while self._read(until):
            assert time.monotonic() < until, f"it does not end:\n{self.shown}"
        return self.process.wait(PATIENCE)


def wait_for(condition: Callable[[], Any], what: str = "it") -> Any:
    """Poll until the condition gives something true, which is returned."""
    until = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < until, f"{what} did not happen in {PATIENCE:g} s"
        time.sleep(0.01)
    return found


def alive(pid: int) -> bool:
    """The process is there, and not only its unread exit status."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def pids_in(path: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in path.read_text().split()]
    return []


def bash(command: str, id: str = "call-1") -> list[Any]:
    """The events of an answer that runs this command."""
    return call_answer((id, "bash", json.dumps({"command": command})))


def edit(path: str, content: str, id: str = "call-1") -> list[Any]:
    return call_answer((id, "write", json.dumps({"path": path, "content": content})))


def call_answer_of(*calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """The events of an answer that makes these calls."""
    return call_answer(*((f"call-{at}", name, json.dumps(given)) for at, (name, given) in enumerate(calls, 1)))


def begun(pieces: str, *more: Any) -> list[Any]:
    """An answer that streams this much and then does what `more` says, such as `#STALL`."""
    return [*text_answer(pieces)[:1], *more]


BARE = ("--sandbox", "none")
"""For tests that look for processes by their numbers, which are others in a sandbox."""

NUMBER_ONLY = "import pwd\n\n\ndef nobody(uid):\n    raise KeyError(uid)\n\n\npwd.getpwuid = nobody\n"
"""A `sitecustomize` for a user that has a number and no entry anywhere, as in a container."""

DEEP = "echo $$ > pids; setsid sh -c 'echo $$ >> pids; setsid sleep 300 & echo $! >> pids; wait' & sleep 300"
"""A command with children in sessions of their own; `pids` names three of them."""


def three_pids(home: Home) -> list[int]:
    """The processes of `DEEP`, once all of them are there."""
    found = wait_for(lambda: pids if len(pids := pids_in(home.workspace / "pids")) == 3 else None, "DEEP")
    assert all(alive(pid) for pid in found)
    return list(found)


def ended(process: subprocess.Popen[bytes]) -> Done:
    """Wait for the end of one that was started before."""
    out, err = process.communicate(timeout=PATIENCE)
    return Done(process.returncode, out, err)


def stop(process: subprocess.Popen[bytes], number: signal.Signals) -> Done:
    process.send_signal(number)
    return ended(process)
