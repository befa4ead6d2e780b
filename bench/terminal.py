"""Steps of the coding agent on disk: a shell command that does nothing, and reading a small file."""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import latchstep as ls
from latchstep.journal.store import Store
from latchstep.session.build import build_rules
from latchstep.session.coding import coding_kit
from latchstep.session.session import Session

CALLS = {
    "shell_true": ls.ToolCall(name="bash", arguments={"command": "true"}),
    "file_read": ls.ToolCall(name="read", arguments={"path": "notes.txt"}),
}


async def run_steps(folder: Path, call: ls.ToolCall, steps: int) -> dict[str, float]:
    """Wall and CPU milliseconds and bytes of journal a step, over a session of so many steps."""
    (folder / "notes.txt").write_text("a line\n" * 50)
    journal = Store(folder / "home").create("s", time=0.0)
    kit = coding_kit(ls.ScriptedModel([call] * steps + ["done"]), folder, directory=journal.directory)
    limits = ls.Limits(max_steps=steps + 1, max_repeats=steps + 1)
    session = Session(journal, kit, build_rules(kit, limits=limits))
    wall, cpu = time.perf_counter(), time.process_time()
    result = await session.run("go")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert result.status == "completed", result
    size = journal.size
    await session.close()
    return {
        "wall_ms": round(wall / steps * 1e3, 2),
        "cpu_ms": round(cpu / steps * 1e3, 2),
        "bytes": round(size / steps),
    }


def terminal() -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, call in CALLS.items():
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = asyncio.run(run_steps(Path(folder), call, 200))
    rows["peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return rows
