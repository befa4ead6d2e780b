"""A journal cut at every byte, with every kind of tail: exactly the complete records come back, and it goes on."""

from __future__ import annotations

import pytest

from latchstep.errors import JournalDamaged, JournalError
from latchstep.journal.file import FileJournal
from latchstep.journal.frame import ORIGIN, checksum, frame
from latchstep.testing import crash
from latchstep.testing.disk import SimDisk
from tests.crash.crash_kit import FILE, HEADER, HOME, event, expected, numbers_b, snapshot, sync, synced_journal, told

from .tally import case, many


def foreign_lines(b: int) -> bytes:
    """Whole lines of another journal, with the `b` given."""
    lines, p = [], ORIGIN
    for n in range(4):
        lines.append(frame(n + b, b, p, b'"type":"cancel.requested","by":"foreign"'))
        p = checksum(lines[-1])
    return b"".join(lines)


TAILS = {**crash.TAILS, "lines of another journal": foreign_lines(0)}


def complete(lines: list[bytes], cut: int) -> int:
    count = size = 0
    for line in lines:
        size += len(line)
        if size > cut:
            break
        count += 1
    return count


@pytest.mark.parametrize("tail", TAILS)
def test_b50_exactly_the_complete_prefix_comes_back(tail: str) -> None:
    disk, lines = synced_journal(many((1, 2), (1, 3, 2)))
    whole = b"".join(lines)
    for cut, damaged in crash.truncations(whole, [TAILS[tail]]):
        case()
        disk.replace(FILE, damaged)
        count = complete(lines, cut)
        if count == 0:
            with pytest.raises(JournalError, match=r"never written whole|not session\.created"):
                FileJournal.open(HOME, disk=disk)
            continue
        journal = FileJournal.open(HOME, disk=disk)
        assert told(list(journal.read())) == expected(count), f"cut at {cut}"
        extra = damaged[sum(map(len, lines[:count])) :]
        assert (journal.recovered is None) == (not extra)
        if journal.recovered is not None:
            assert disk.content(journal.recovered.kept) == extra
            disk.unlink(journal.recovered.kept)
        assert journal.append([event(count)]) == count
        assert told(list(journal.read())) == expected(count + 1)
        journal.close()
        if cut % 7 == 0:  # and what was appended to the cut file is sound for the next opening
            with FileJournal.open(HOME, disk=disk) as again:
                assert again.recovered is None
                assert told(list(again.read())) == expected(count + 1)


def test_foreign_lines_that_claim_acknowledged_ones_are_refused_never_accepted() -> None:
    disk, lines = synced_journal((1, 3, 2))
    whole = b"".join(lines[:3])
    disk.replace(FILE, whole + b"x" + foreign_lines(40))
    with pytest.raises(JournalDamaged, match="line 3"):
        FileJournal.open(HOME, disk=disk)
    assert disk.content(FILE).startswith(whole + b"x")


def test_a_lazy_group_is_cut_where_it_tore_even_behind_a_snapshot_that_arrived() -> None:
    """The snapshot and all after it are whole, but a line of the same unsynced group before it is not."""
    disk = SimDisk()
    journal = FileJournal.create(HOME, HEADER, disk=disk)
    sync(journal)
    journal.append([event(i) for i in range(1, 5)])
    journal.append([snapshot(1), event(6)])
    journal.close()
    lines = disk.content(FILE).splitlines(keepends=True)
    assert [numbers_b(line) for line in lines] == [0, 1, 1, 1, 1, 1, 1]
    for lost in range(1, 5):
        for hole in (bytes(len(lines[lost])), lines[lost][:20] + bytes(len(lines[lost]) - 20)):
            disk.replace(FILE, b"".join([*lines[:lost], hole, *lines[lost + 1 :]]))
            with FileJournal.open(HOME, disk=disk) as journal:
                assert journal.recovered is not None
                assert journal.recovered.line == lost
                assert told(list(journal.live())) == expected(lost)
            disk.unlink(journal.recovered.kept)


def test_a_session_is_begun_again_over_a_torn_header() -> None:
    disk, lines = synced_journal(())
    disk.replace(FILE, lines[0][:-1])
    with FileJournal.create(HOME, HEADER, disk=disk) as journal:
        assert journal.recovered is not None
        assert disk.content(journal.recovered.kept) == lines[0][:-1]
        assert told(list(journal.read())) == expected(1)
    with pytest.raises(JournalError, match="already"):
        FileJournal.create(HOME, HEADER, disk=disk)
