"""Opening a long journal whose live part is short: `python -m bench.opening [MEGABYTES]`; 100 of them by default.

The lines are made by hand, a snapshot that needs nothing before itself among them; whatever is not read may as well
be anything, so that only the size matters.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from latchstep.core.codec import encode_event
from latchstep.core.event import FORMAT, Event, MessageAccepted, SessionCreated, SessionSnapshot
from latchstep.core.message import user
from latchstep.core.state import State, fold
from latchstep.journal.file import FileJournal
from latchstep.journal.frame import ORIGIN, checksum, frame
from latchstep.journal.reader import JOURNAL

LINE = 100_000
"""Bytes of each line before the snapshot."""
LIVE = 2 << 20
"""Bytes of the live part, in lines of 1 KB."""
ROUNDS = 9


def make(directory: Path, size: int) -> int:
    """A session of `size` bytes, LIVE of them behind its snapshot; how many lines it has."""
    directory.mkdir(mode=0o700)
    n, p, written = 0, ORIGIN, 0
    with (directory / JOURNAL).open("wb") as file:

        def put(event: Event) -> None:
            nonlocal n, p, written
            line = frame(n, n, p, encode_event(event)[1:-1])
            n, p, written = n + 1, checksum(line), written + len(line)
            file.write(line)

        put(SessionCreated(session_id="s", format=FORMAT, time=1.0))
        long = MessageAccepted(message_id="m", source="start", message=user("x" * (LINE - 200)))
        while written < size - LIVE:
            put(long)
        put(SessionSnapshot(needed=n, state=msgspec.Raw(State(session_id="s").snapshot())))
        short = MessageAccepted(message_id="m", source="start", message=user("y" * 850))
        while written < size:
            put(short)
    return n


def opening(megabytes: int = 100) -> dict[str, Any]:
    """Milliseconds of CPU and wall of taking the lock and verifying, and of reading and folding what is live."""
    opened, folded, walls = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        lines = make(Path(folder) / "s", megabytes * 1_000_000)
        for _ in range(ROUNDS):
            gc.collect()
            wall, began = time.perf_counter(), time.process_time()
            journal = FileJournal.open(Path(folder) / "s")
            middle = time.process_time()
            state = fold(journal.live())
            folded.append(time.process_time() - middle)
            opened.append(middle - began)
            walls.append(time.perf_counter() - wall)
            assert journal.head == lines - 1
            assert state.session_id == "s"
            journal.close()
        size = os.path.getsize(Path(folder) / "s" / JOURNAL)
    return {
        "megabytes": round(size / 1e6),
        "live_megabytes": round(LIVE / 1e6, 1),
        "open_cpu_ms": round(min(opened) * 1e3, 1),
        "read_and_fold_cpu_ms": round(min(folded) * 1e3, 1),
        "wall_ms": round(min(walls) * 1e3, 1),
    }


if __name__ == "__main__":
    print(json.dumps(opening(*map(int, sys.argv[1:])), indent=2))
