"""A session of many thousand steps in a small window, and the resume of what it left: memory, CPU, bytes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Completed
from latchstep.core.message import estimate
from latchstep.journal.base import restored
from latchstep.journal.file import FileJournal
from latchstep.journal.store import Store
from latchstep.model.base import Request

from .loop import cpu, resident

PART = 500
"""Steps of which the figures are taken together."""


class Counting:
    """Calls `look` for ever, sums up where it is asked to, and counts tokens as a provider would."""

    name = "bench:counting"

    def __init__(self) -> None:
        self.largest = self.calls = 0
        self._base: Any = None
        self._size = self._counted = 0

    async def stream(self, request: Request) -> Any:
        base = getattr(request.messages, "base", None)
        if base is not self._base:
            self._base, self._size, self._counted = base, 0, 0
        for at in range(self._counted, len(request.messages)):
            self._size += estimate(request.messages[at])
        self._counted = len(request.messages)
        self.largest = max(self.largest, self._size)
        usage = ls.Usage(self._size, 20)
        if not request.tools:
            yield Completed(blocks=(ls.Text("what was done, and what is open"),), stop_reason="stop", usage=usage)
            return
        self.calls += 1
        call = ls.ToolCall(f"c{self.calls}", "look", {"n": self.calls})
        yield Completed(blocks=(call,), stop_reason="tool_calls", usage=usage)


async def session(folder: Path, steps: int, window: int, size: int) -> dict[str, Any]:
    """One run of so many steps on disk, each with a result of `size` characters, measured in parts."""

    @ls.tool(effect="read")
    async def look(n: int) -> str:
        """Look at something."""
        return f"{n} " + "x" * size

    model, store = Counting(), Store(folder)
    journal = store.create("long", time=0.0)
    limits = ls.Limits(max_context=window, max_steps=steps)
    agent = ls.Agent(model, [look], limits=limits, journal=journal)
    parts, held, began, compacted = [], [], cpu(), 0
    session = agent.session()
    async with session.stream("go") as run:
        async for event in run:
            compacted += isinstance(event, ev.ContextCompacted)
            if isinstance(event, ev.MessageCompleted) and model.calls % PART == 0:
                parts.append(round((cpu() - began) / PART * 1e6, 1))
                held.append(round(resident() / 1e6, 1))
                began = cpu()
    written = journal.size
    await session.close()
    return {
        "steps": steps,
        "window": window,
        "largest_request": model.largest,
        "compactions": compacted,
        "journal_mb": round(written / 1e6, 1),
        "us_a_step": parts,
        "late_over_early": round(min(parts[-5:]) / min(parts[:5]), 2),
        "resident_mb": held,
    }


def resume(folder: Path) -> dict[str, Any]:
    """Open and restore it, in this process: CPU milliseconds beyond what is imported already."""
    used = []
    for _ in range(7):
        began = time.process_time()
        with FileJournal.open(folder / "sessions" / "long") as journal:
            state = restored(journal)
        used.append(round((time.process_time() - began) * 1e3, 2))
    return {"resume_ms": min(used), "transcript": len(state.transcript)}


def long() -> dict[str, Any]:
    """10,000 steps in a small window; and a journal of 100 MB, of which less than 2 MB are live."""
    return {"steps": apart(10_000, 50_000, 1_000), "large": apart(2_000, 200_000, 50_000)}


def apart(*shape: int) -> dict[str, Any]:
    """In a process of its own, so that the memory is its own."""
    command = [sys.executable, "-m", "bench.long", *map(str, shape)]
    figures: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return figures


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        given = [int(word) for word in sys.argv[1:]]
        print(json.dumps({**asyncio.run(session(Path(temporary), *given)), **resume(Path(temporary))}))
