"""The `grep` tool over 5,000 files, in turns with ripgrep itself asked the same."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from latchstep.tool.base import Output
from latchstep.tool.ripgrep import ripgrep, ripgrep_tool
from latchstep.tool.spawner import Spawner
from latchstep.tool.workspace import Workspace

FILES, FOLDERS, ROUNDS = 5000, 200, 15
PATTERN = r"needle_\d+"


def _tree(root: Path) -> None:
    """One file in fifty has a match."""
    for at in range(FILES):
        path = root / f"part{at % 20}" / f"module{at % FOLDERS}" / f"file{at}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def work_{at}(value):\n    return value + {at}\n" * 20 + f"needle_{at}\n" * (at % 50 == 0))


async def search() -> dict[str, Any]:
    """Wall milliseconds, the best of the rounds, and the one over the other."""
    if not (program := ripgrep()):
        return {"not here": "ripgrep"}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()  # noqa: ASYNC240
        _tree(root)
        spawner = Spawner()
        tool = ripgrep_tool(Workspace(root), spawner, program)
        ours, theirs = [], []
        try:
            for _ in range(ROUNDS):
                began = time.perf_counter()
                found = await tool(pattern=PATTERN, limit=1000)
                ours.append(time.perf_counter() - began)
                assert isinstance(found, Output)
                began = time.perf_counter()
                there = subprocess.run([program, "-n", PATTERN], cwd=root, capture_output=True, check=True).stdout  # noqa: ASYNC221
                theirs.append(time.perf_counter() - began)
                assert str(found.content).count("needle_") >= there.count(b"needle_") == FILES // 50
        finally:
            await spawner.close()
    return {
        "grep_ms": round(min(ours) * 1e3, 1),
        "ripgrep_ms": round(min(theirs) * 1e3, 1),
        "over_ripgrep": round(min(ours) / min(theirs), 2),
    }
