"""A journal of 2 GB (30 MB in the reduced set) is opened, read and gone on with by reading its live part only."""

from __future__ import annotations

from pathlib import Path

from bench.opening import LIVE, make

from latchstep.core.event import ClockPassed
from latchstep.core.state import fold
from latchstep.journal.file import FileJournal
from latchstep.journal.reader import BLOCK
from tests.journal.journal_kit import CountingDisk, sync

from .tally import case, many


def test_a_long_journal_costs_its_live_part(tmp_path: Path) -> None:
    lines = make(tmp_path / "s", many(30, 2000) * 1_000_000)
    disk = CountingDisk()
    with FileJournal.open(tmp_path / "s", disk=disk) as journal:
        assert journal.head == lines - 1
        opened, disk.bytes_read = disk.bytes_read, 0
        assert opened < 2 * LIVE + 8 * BLOCK, "verified what an opening need not"
        live = list(journal.live())
        assert disk.bytes_read < 3 * LIVE + 8 * BLOCK, "read what nobody needs"
        assert live[0].type == "session.snapshot"
        assert live[-1].seq == lines - 1
        assert fold(live).session_id == "s"
        assert journal.append([ClockPassed(limit="x", seconds=1.0)]) == lines
        sync(journal)
    case(2)
    (tmp_path / "s" / "journal.jsonl").unlink()
