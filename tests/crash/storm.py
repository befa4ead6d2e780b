"""A real `latchstep`, killed again and again until it is let through; and the judge of what it leaves.

The task reads, runs a parallel batch, appends to a ledger of effects by shell commands, writes and edits files. The
server tells the turn by the request, so that whatever is asked again gets the same answer again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

from latchstep.core.codec import encode_event
from latchstep.journal.reader import JOURNAL, TOOLS_LOCK, read_journal
from latchstep.journal.store import Store
from latchstep.tool.toolslock import still_running
from tests.cli.cli_kit import PATIENCE, Home, wait_for
from tests.model.strict_chat import StrictChat, call_answer, text_answer

TASK = "do the work"
LINES = 66
"""As many lines as a whole run prints."""

STILL_RUNNING = 5
"""How a resume ends that finds something of the dead process alive, among other reasons."""

Kind = Literal["time", "line", "effect", "tools", "tools and owner", "none"]


class Kill(NamedTuple):
    """When and whom. `time`: after so many seconds. `line`: when so many lines of `--json` were seen. `effect`: when
    the ledger has grown by so many lines. `tools`: one of the processes beneath (guard, worker, shell) when so many
    lines were seen, `which` of them from 0 to 1; with or without the owner itself."""

    kind: Kind
    at: float = 0.0
    which: float = 0.0


def drawn(random: Random) -> Kill:
    kind: Kind = random.choice(("time", "line", "line", "effect", "tools", "tools and owner"))
    at = {"time": random.uniform(0.1, 1.0), "effect": random.randrange(1, 6)}.get(kind, random.randrange(1, LINES - 10))
    return Kill(kind, at, random.random())


class ByTurn:
    """The scripts of a `StrictChat`: which one is next depends on how often the model has spoken in the request."""

    def __init__(self, server: StrictChat, turns: list[list[Any]]) -> None:
        self._server, self._turns = server, turns

    def pop(self, _: int) -> list[Any]:
        said = json.loads(self._server.bodies[-1])["messages"]
        return self._turns[sum(message["role"] == "assistant" for message in said)]


def append(ledger: Path, name: str, seconds: float = 0.0) -> tuple[str, str, str]:
    """A call that has one effect; half of it, and the other half after a while, if it takes one."""
    command = f"echo {name} >> {ledger}" + (f"; sleep {seconds:g}; echo {name}.end >> {ledger}" if seconds else "")
    return name, "bash", json.dumps({"command": command})


def file_call(name: str, tool: str, **arguments: str) -> tuple[str, str, str]:
    return name, tool, json.dumps(arguments)


def turns(ledger: Path) -> list[list[Any]]:
    """Six answers: reads, effects and reads in one batch, files, more effects, and the end."""
    return [
        call_answer(*(file_call(f"r{i}", "read", path=f"file-{i}.txt") for i in range(4))),
        call_answer(
            append(ledger, "a1"),
            append(ledger, "a2", 0.05),
            file_call("r4", "read", path="file-1.txt"),
            file_call("r5", "list", path="."),
            append(ledger, "a3"),
        ),
        call_answer(
            file_call("w1", "write", path="new.txt", content="new\n"),
            file_call("e1", "edit", path="file-2.txt", old="text 2", new="changed 2"),
            append(ledger, "b1", 0.02),
        ),
        call_answer(append(ledger, "c1"), file_call("r6", "grep", pattern="text"), append(ledger, "c2", 0.05)),
        call_answer(append(ledger, "d1", 0.02)),
        text_answer("All of it is done."),
    ]


class Storm:
    """One machine, one task. `log` says what was done, for whoever reads a failure; `kills` counts those that hit."""

    def __init__(self, folder: Path, title: object = "") -> None:
        self.home, self.ledger = Home(folder), folder / "ledger"
        self.ledger.touch()
        self.log, self.acknowledged = [f"storm {title}"], dict[str, dict[int, dict[str, Any]]]()
        self.kills = self._printed = 0
        for i in range(4):
            (self.home.workspace / f"file-{i}.txt").write_text(f"text {i}\n" * 20 if i != 2 else "text 2\n")

    def rage(self, kills: Iterable[Kill]) -> int:
        """Run and resume, killed each time, then to the end; judge; how many processes were killed."""
        try:
            with StrictChat([]) as server:
                server.scripts = ByTurn(server, turns(self.ledger))  # type: ignore[assignment]
                for kill in kills:
                    if self._live(server.url, kill) == 0:
                        break  # it came to its end before, or in spite of it
                status = STILL_RUNNING
                for _ in range(10):
                    if status == STILL_RUNNING:
                        status = self._live(server.url, Kill("none"))
                self._judge(server, status)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *self.log])) from error
        finally:
            self.home.close()
        return self.kills

    def session(self) -> tuple[str, bool, bool] | None:
        """The session there is: id, whether a run of it is unfinished, whether it had one. Half-made ones are none."""
        for directory in reversed(self.home.sessions()):
            data = (directory / JOURNAL).read_bytes() if (directory / JOURNAL).exists() else b""
            if b"\n" in data:
                types = [event.type for event in read_journal(directory)]
                begun, ended = types.count("run.started"), types.count("run.finished")
                return directory.name, begun > ended, bool(begun)
        return None

    def _live(self, url: str, kill: Kill) -> int:
        """One process, killed if it does not end before; its exit status."""
        found, fresh = self.session(), ["--mode", "unconfined", "--base-url", url]
        if found is None:
            arguments = ["run", TASK, *fresh, "--json"]
        elif found[1]:
            arguments = ["resume", "--session", found[0], "--json"]
        elif found[2]:
            return 0
        else:
            arguments = ["resume", TASK, "--session", found[0], *fresh, "--json"]
        self._printed, effects = 0, self._effects()
        process = self.home.start(*arguments)
        killer = threading.Thread(target=self._kill, args=(kill, process, effects))
        killer.start()
        assert process.stdout is not None
        assert process.stderr is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            self._printed += 1
        said = process.stderr.read().decode()
        status = process.wait(PATIENCE)
        killer.join(PATIENCE)
        self.log.append(f"{arguments[0]}: {kill}: status {status} after {len(lines)} lines {said}")
        if status == STILL_RUNNING and "is still running" in said:
            return status  # on a busy machine what was killed may take longer to go than a resume waits
        assert status in (0, -signal.SIGKILL), f"status {status}: {said}"
        self.kills += status != 0
        self._acknowledge(lines)
        return status

    def _effects(self) -> int:
        return len(self.ledger.read_text().split())

    def _kill(self, kill: Kill, process: subprocess.Popen[bytes], effects: int) -> None:
        def due() -> bool:
            grown = self._effects() - effects if kill.kind == "effect" else self._printed
            return process.poll() is not None or grown >= kill.at

        if kill.kind == "none":
            return
        if kill.kind == "time":
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(kill.at)
        else:
            wait_for(due)
        if kill.kind.startswith("tools"):
            wait_for(lambda: process.poll() is not None or beneath(process.pid))
            if found := beneath(process.pid):
                victim = found[int(kill.which * len(found))]
                self.log.append(f"killed {victim} of {found} beneath {process.pid}")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    self.kills += 1
        if kill.kind != "tools":
            process.kill()

    def _acknowledge(self, lines: list[bytes]) -> None:
        """What was printed whole and as stored; a killed process may leave half a line."""
        whole = [json.loads(line) for line in lines if line.endswith(b"\n")]
        stored = {event.get("seq", 0): event for event in whole if not event.get("part")}
        if stored:
            found = self.session()
            assert found is not None
            self.acknowledged.setdefault(found[0], {}).update(stored)

    def _judge(self, server: StrictChat, status: int) -> None:
        assert status == 0
        found = self.session()
        assert found is not None
        name = found[0]
        directory = self.home.state / "sessions" / name
        assert Store(self.home.state).verify(name).sound
        events = [json.loads(encode_event(event)) for event in read_journal(directory)]
        assert set(self.acknowledged) == {name}
        for seq, shown in self.acknowledged[name].items():
            assert seq < len(events), f"line {seq}, {shown['type']}, was shown and is lost"
            assert events[seq] == shown, f"line {seq} was shown as {shown} and is {events[seq]}"
        assert not server.refused, server.refused
        happened = Counter(self.ledger.read_text().split())
        assert set(happened.values()) <= {1}, f"effects: {happened}"
        results = {event["call_id"]: event for event in events if event["type"] == "tool.finished"}
        assert len(results) == 16, sorted(results)
        assert sum(event["type"] == "tool.finished" for event in events) == 16
        for call_id, event in results.items():
            if event["outcome"] == "ok" and event["name"] == "bash":
                ended = (event["details"]["exit"], event["details"]["signal"])
                assert ended in ((0, ""), (None, "SIGKILL")), f"{call_id} ended with {ended}"
                assert happened[call_id] or ended[1], f"{call_id} is ok and never happened"  # else its shell was killed
            if event["outcome"] in ("not_started", "rejected", "denied"):
                assert not happened[call_id], f"{call_id} is {event['outcome']} and happened"
        endings = [event for event in events if event["type"] == "run.finished"]
        assert [event["status"] for event in endings] == ["completed"]
        assert events[-1]["type"] == "run.finished"
        assert (self.home.workspace / "file-2.txt").read_text() in ("text 2\n", "changed 2\n")
        wait_for(lambda: not still_running(directory / TOOLS_LOCK), "the end of every tool")
        wait_for(lambda: not living_in(self.home.workspace), "the end of every process")


def beneath(pid: int) -> list[int]:
    """The descendants of a process, nearest first."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found, todo = list[int](), [pid]
    while todo:
        below = sorted(parents.get(todo.pop(0), []))
        found += below
        todo += below
    return found


def living_in(folder: Path) -> list[int]:
    """Processes whose current folder it is."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if os.readlink(link) == str(folder):
                found.append(int(link.parent.name))
    return found
