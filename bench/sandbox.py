"""Commands by a plain spawn, by the spawner, and by the spawner in each sandbox that works here."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from latchstep.tool import proctable
from latchstep.tool.probe import trial
from latchstep.tool.sandbox import Level, Sandbox
from latchstep.tool.spawner import Spawner

COMMANDS, ROUNDS = 100, 3


async def sandbox() -> dict[str, Any]:
    """Wall milliseconds of `true` (median), of the first one with the start, and what the spawner's processes hold."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = str(Path(folder).resolve())  # noqa: ASYNC240
        found["plain_ms"] = round(min([await _plain(root) for _ in range(ROUNDS)]), 2)
        levels: tuple[Level, ...] = ("none", "landlock", "bubblewrap")
        for level in levels:
            confined = Sandbox(level, root)
            if level != "none" and (problem := await trial(confined)):
                found[level] = {"not here": problem}
                continue
            rounds = [await _spawner(confined) for _ in range(ROUNDS)]
            best = {name: round(min(each[name] for each in rounds), 2) for name in rounds[0]}
            found[level] = {**best, "over_plain_ms": round(best["command_ms"] - found["plain_ms"], 2)}
    return found


async def _plain(root: str) -> float:
    took = []
    for _ in range(COMMANDS):
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            "/bin/bash", "-c", "true", cwd=root, stdout=asyncio.subprocess.PIPE
        )
        await process.communicate()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3


async def _spawner(confined: Sandbox) -> dict[str, float]:
    spawner = Spawner(sandbox=confined)
    try:
        began = time.perf_counter()
        await spawner.run("true", cwd=confined.root)
        first, took = time.perf_counter() - began, []
        for _ in range(COMMANDS):
            began = time.perf_counter()
            await spawner.run("true", cwd=confined.root)
            took.append(time.perf_counter() - began)
        guard = spawner.guards[0]
        held = sum(_held(pid) for pid in (guard, *proctable.descendants(proctable.walk(), guard)))
    finally:
        await spawner.close(0.0)
    return {"first_ms": first * 1e3, "command_ms": statistics.median(took) * 1e3, "memory_mb": held}


def _held(pid: int) -> float:
    """Megabytes of a process that nobody shares with it, and its part of the rest."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024
