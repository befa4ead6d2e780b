"""A process that runs a session on disk and kills itself at one chosen point; or resumes it and ends well.

Usage: victim.py HOME LEDGER POINT, where POINT is `none` or `EVENT:N` (the N-th event of that type is seen) or
`effect:N` (inside the N-th effect, after it happened).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import latchstep as ls
from latchstep.journal.store import Store
from latchstep.session.build import build_kit, build_rules
from latchstep.session.session import Session

home, ledger, point = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
seen: Counter[str] = Counter()


def reached(what: str) -> None:
    seen[what] += 1
    if point == f"{what}:{seen[what]}":
        os.kill(os.getpid(), signal.SIGKILL)


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
    shelf = Store(home)
    known = shelf.list()
    journal = shelf.open(known[0].id) if known else shelf.create("s", time=1.0)
    kit = build_kit(MODEL, [put, mark, store, look], check=check)
    session = Session(journal, kit, build_rules(kit, checks=["the check"]))
    if session.state.finished is not None:
        return 0
    async with session.stream(None if session.unfinished else "go") as run:
        async for event in run:
            reached(event.type)
        result = await run.result()
    await session.close()
    return 0 if result.status == "completed" else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
