"""A snapshot of 5,000 files: the first, and one where nothing has changed, beside a bare walk with a status each."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latchstep.tool import snapshot
from latchstep.tool.snapshot import Shadow

FILES, FOLDERS, ROUNDS = 5000, 200, 9


def _best(work: Callable[[], Any]) -> float:
    """Milliseconds of CPU."""
    took = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return round(min(took) * 1e3, 1)


def _statuses(folder: str) -> int:
    count = 0
    with os.scandir(folder) as found:
        for item in found:
            item.stat(follow_symlinks=False)
            count += _statuses(item.path) if item.is_dir(follow_symlinks=False) else 1
    return count


def snapshots() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as base:
        root = Path(base) / "ws"
        for at in range(FILES):
            path = root / f"part{at % 20}" / f"module{at % FOLDERS}" / f"file{at}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"# {at}\n" * 40)
        time.sleep(snapshot.RACY / 1e9 + 0.1)  # else each would be read again: it was only just changed
        shadow = Shadow(root, Path(base) / "home")
        began = time.perf_counter()
        shadow.take()
        first = round((time.perf_counter() - began) * 1e3)
        walk, same = _best(lambda: _statuses(str(root))), _best(shadow.take)

        def changed() -> None:
            (root / "part0" / "module0" / "file0.py").write_text(str(time.perf_counter_ns()))
            shadow.take()

        one = _best(changed)
        shadow.leave()
    return {
        "first_wall_ms": first,
        "unchanged_ms": same,
        "bare_walk_ms": walk,
        "over_bare_walk": round(same / walk, 2),
        "one_changed_ms": one,
    }
