"""Bytes that change on the medium: acknowledged history is never altered in silence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from latchstep.errors import JournalDamaged
from latchstep.journal.file import FileJournal
from latchstep.journal.reader import read_journal
from latchstep.testing.disk import SECTOR, SimDisk
from tests.crash.crash_kit import FILE, HEADER, HOME, event, expected, numbers_b, snapshot, sync, synced_journal, told

from .tally import case, many

GROUPS = (1, 2, 1, 1)
"""Five lines after the header; the full set takes more of the same."""


def open_and_read(disk: SimDisk) -> tuple[list[bytes], bool]:
    """What an opening gives, and whether it said that something was cut."""
    journal = FileJournal.open(HOME, disk=disk)
    found, said = told(list(journal.read())), journal.recovered is not None
    if journal.recovered is not None:
        disk.unlink(journal.recovered.kept)
    journal.close()
    return found, said


def assert_not_silent(disk: SimDisk, data: bytes, wanted: list[bytes], proven: int, first_bad: int) -> None:
    """Refused; or, where no later line proves that line `first_bad` was acknowledged, cut there and said."""
    case()
    disk.replace(FILE, data)
    if first_bad < proven:
        with pytest.raises(JournalDamaged) as caught:
            FileJournal.open(HOME, disk=disk)
        assert caught.value.line == first_bad
        assert disk.content(FILE) == data
        return
    found, said = open_and_read(disk)
    assert found == wanted[:first_bad]
    assert said


def line_of(lines: list[bytes], offset: int) -> int:
    ends = itertools.accumulate(map(len, lines))
    return next(n for n, end in enumerate(ends) if offset < end)


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    for offset in range(len(data)):
        for bit in (offset % 8, (offset + 3) % 8):
            damaged = bytearray(data)
            damaged[offset] ^= 1 << bit
            yield offset, bytes(damaged)


def test_two_bits_of_every_byte() -> None:
    disk, lines = synced_journal(many(GROUPS, (*GROUPS, 3, 1)))
    data, wanted, proven = b"".join(lines), expected(len(lines)), numbers_b(lines[-1])
    assert proven == len(lines) - 1
    for offset, damaged in flips(data):
        assert_not_silent(disk, damaged, wanted, proven, line_of(lines, offset))


def test_a_snapshot_that_claims_another_place_hides_nothing() -> None:
    """An opening reads from the last snapshot on, and must not believe the place that a rotten one claims."""
    disk = SimDisk()
    with FileJournal.create(HOME, HEADER, disk=disk) as journal:
        for group in ([event(1)], [snapshot(2)], [event(3)], [event(4)]):
            sync(journal)
            journal.append(group)
        sync(journal)
    whole = disk.content(FILE)
    for claimed in range(3, 10):
        rotten = whole.replace(b'{"n":2,"b":2,', b'{"n":%d,"b":%d,' % (claimed, claimed))
        assert rotten != whole
        case()
        disk.replace(FILE, rotten)
        with pytest.raises(JournalDamaged, match="line 2"):
            FileJournal.open(HOME, disk=disk)
        assert disk.content(FILE) == rotten


def test_each_sector_zeroed() -> None:
    disk, lines = synced_journal((*GROUPS, 3, 2, 1))
    data, wanted, proven = b"".join(lines), expected(len(lines)), numbers_b(lines[-1])
    assert len(data) > 4 * SECTOR
    for start in range(0, len(data), SECTOR):
        damaged = data[:start] + bytes(min(SECTOR, len(data) - start)) + data[start + SECTOR :]
        survivors = [n for n in range(len(lines)) if sum(map(len, lines[:n])) >= start + SECTOR]
        provable = max((numbers_b(lines[n]) for n in survivors), default=0)
        if line_of(lines, start):
            assert_not_silent(disk, damaged, wanted, min(proven, provable), line_of(lines, start))
        else:
            disk.replace(FILE, damaged)
            with pytest.raises(JournalDamaged):
                FileJournal.open(HOME, disk=disk)


def test_each_line_duplicated_deleted_or_swapped() -> None:
    disk, lines = synced_journal(GROUPS)
    wanted, last = expected(len(lines)), len(lines) - 1
    for n in range(len(lines)):
        twice = [*lines[: n + 1], *lines[n:]]
        assert_not_silent(disk, b"".join(twice), wanted, last if n < last - 1 else 0, n + 1)
        if 0 < n < last:
            without = [*lines[:n], *lines[n + 1 :]]
            assert_not_silent(disk, b"".join(without), wanted, last, n)
            swapped = [*lines[:n], lines[n + 1], lines[n], *lines[n + 2 :]]
            assert_not_silent(disk, b"".join(swapped), wanted, last, n)


def test_a_journal_without_its_header_is_refused() -> None:
    disk, lines = synced_journal(GROUPS)
    disk.replace(FILE, b"".join(lines[1:]))
    with pytest.raises(JournalDamaged):
        FileJournal.open(HOME, disk=disk)


def test_older_rot_is_reported_by_whoever_reads_it() -> None:
    """Before the snapshot an opening does not look; `read` and `read_journal` do, at every byte."""
    disk, _ = synced_journal((2, 1))
    journal = FileJournal.open(HOME, disk=disk)
    journal.append([snapshot(journal.head)])
    sync(journal)
    journal.append([event(5)])
    sync(journal)
    journal.close()
    data = disk.content(FILE)
    lines = data.splitlines(keepends=True)
    before = sum(map(len, lines[:4]))
    for offset, damaged in flips(data[:before]):
        case()
        disk.replace(FILE, damaged + data[before:])
        with pytest.raises(JournalDamaged) as caught:
            list(read_journal(HOME, disk=disk))
        assert caught.value.line == line_of(lines, offset)
        if offset >= len(lines[0]):
            needed = offset >= sum(map(len, lines[:3]))
            with pytest.raises(JournalDamaged), FileJournal.open(HOME, disk=disk) as opened:
                list(opened.live() if needed else opened.read())


def test_a_torn_tail_and_rot_before_it_are_told_apart() -> None:
    disk, lines = synced_journal(GROUPS)
    torn = b"".join(lines) + b'{"n":6,"b":6,"p":"'
    disk.replace(FILE, torn)
    found, said = open_and_read(disk)
    assert found == expected(len(lines))
    assert said
    rotten = bytearray(torn)
    rotten[len(lines[0]) + 60] ^= 4
    disk.replace(FILE, bytes(rotten))
    with pytest.raises(JournalDamaged):
        FileJournal.open(HOME, disk=disk)
