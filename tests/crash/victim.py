"""Processes that run a session on disk and kill themselves at one chosen point; or resume it and end well.

Reads lines `HOME LEDGER POINT` and forks a process for each, so that a death costs no start of Python; answers
with its exit status (-9: killed). POINT is `none`, `count` (what could be a point goes to LEDGER.points), or one of

    EVENT:N         the N-th event of that type is seen
    effect:N        inside the N-th effect, after it happened; `look-quick:N`, `check:N` likewise
    disk:N:BYTES    in the N-th call that changes the disk: before it (0), after it (-1), or when so much of a write
                    has arrived
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import latchstep as ls
from latchstep.core.event import SessionCreated
from latchstep.journal.disk import OsDisk
from latchstep.journal.file import FileJournal
from latchstep.session.build import build_kit, build_rules
from latchstep.session.session import Session

home, ledger, point = Path(), Path(), ""
seen: Counter[str] = Counter()
calls: list[tuple[str, int]] = []
numbers = count(1)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def reached(what: str) -> None:
    seen[what] += 1
    if point == f"{what}:{seen[what]}":
        die()


class DyingDisk(OsDisk):
    """The real disk, until it is time."""

    def __getattribute__(self, name: str) -> Any:
        plain = super().__getattribute__(name)
        if name not in ("write", "truncate", "sync", "make_directory", "sync_directory", "rename", "unlink"):
            return plain

        def call(*given: Any) -> Any:
            number = next(numbers)  # a sync counts in a thread of its own
            calls.append((name, len(given[1]) if name == "write" else 0))
            here, _, bytes_ = point.rpartition(":")
            if here != f"disk:{number}":
                return plain(*given)
            if name == "write" and int(bytes_) > 0:
                os.write(given[0], given[1][: int(bytes_)])
            elif int(bytes_) < 0:
                with suppress(OSError):
                    plain(*given)
            return die()

        return call


def effect(name: str) -> str:
    """One line in the ledger: it happened."""
    with ledger.open("a") as file:
        file.write(name + "\n")
    reached("effect")
    return f"did {name}"


@ls.tool
def put(name: str) -> str:
    """Write once."""
    return effect(name)


@ls.tool(replay="safe")
def mark(name: str) -> str:
    """Write as often as you like."""
    return effect(name)


def settle(arguments: dict[str, str], found: object, context: ls.Context) -> str:
    return "done" if arguments["name"] in ledger.read_text().split() else "not_done"


@ls.tool(settle=settle)
def store(name: str) -> str:
    """Write once, and be able to look."""
    return effect(name)


@ls.tool(effect="read")
async def look(name: str) -> str:
    """Read: the first of two waits until the other is done."""
    if name == "slow":
        await asyncio.sleep(0.05)
    reached(f"look-{name}")
    return f"saw {name}"


def call(id: str, tool: str, name: str) -> ls.ToolCall:
    return ls.ToolCall(id=id, name=tool, arguments={"name": name})


MODEL = ls.ScriptedModel(
    [
        ["looking", call("c1", "look", "slow"), call("c2", "look", "quick")],
        ["working", call("c3", "put", "a"), call("c4", "mark", "b"), call("c5", "store", "c")],
        call("c6", "put", "d"),
        "done",
    ]
)


async def check(command: str) -> tuple[int | None, str]:
    reached("check")
    return 0, "fine"


async def main() -> int:
    record, header = home / "journal.jsonl", SessionCreated(session_id="s", time=1.0)
    whole = record.exists() and b"\n" in record.read_bytes()
    disk = DyingDisk()
    journal = FileJournal.open(home, disk=disk) if whole else FileJournal.create(home, header, disk=disk)
    kit = build_kit(MODEL, [put, mark, store, look], check=check)
    session = Session(journal, kit, build_rules(kit, checks=["the check"]))
    if session.state.finished is not None:
        return 0
    acknowledged = os.open(f"{ledger}.seen", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with session.stream(None if session.unfinished else "go") as run:
        async for event in run:
            if not event.part:
                os.write(acknowledged, b"%d %s\n" % (event.seq, event.type.encode()))
            reached(event.type)
        result = await run.result()
    await session.close()
    return 0 if result.status == "completed" else 1


def child() -> int:
    try:
        status = asyncio.run(main())
    except BaseException:
        traceback.print_exc()
        return 1
    if point == "count":
        points = [f"{what}:{n}" for what, times in seen.items() for n in range(1, times + 1)]
        for n, (name, size) in enumerate(calls, 1):
            parts = {0, 1, size // 2, size - 1, size} if name == "write" else {0, -1}
            points += [f"disk:{n}:{part}" for part in sorted(parts)]
        Path(f"{ledger}.points").write_text("\n".join(points))
    return status


if __name__ == "__main__":
    for line in sys.stdin:
        folder, book, point = line.split()
        home, ledger = Path(folder), Path(book)
        pid = os.fork()
        if pid == 0:
            os._exit(child())
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
