"""Reading without the lock: also while somebody writes, and after a crash that nobody recovered."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from pathlib import Path

import pytest

from latchstep.errors import JournalDamaged, JournalError
from latchstep.journal.blob import read_blob
from latchstep.journal.disk import OsDisk
from latchstep.journal.file import FileJournal
from latchstep.journal.reader import BLOCK, find_backwards, find_line, read_journal
from latchstep.journal.store import Store
from tests.journal.journal_kit import HEADER, CountingDisk, clock, raw_journal, snapshot, sync


def seqs(directory: Path, after: int = -1, verify: bool = True) -> list[int]:
    return [event.seq for event in read_journal(directory, after, verify)]


@pytest.mark.parametrize("verify", [True, False])
def test_follows_while_somebody_writes(tmp_path: Path, verify: bool) -> None:
    home = tmp_path / "s"
    with FileJournal.create(home, HEADER) as journal:
        assert seqs(home, verify=verify) == [0]
        last = 0
        for i in range(20):
            journal.append([clock(i)] * (i % 3))
            new = seqs(home, last, verify)
            assert new == list(range(last + 1, journal.head + 1))
            last = journal.head
        iterator = read_journal(home, last, verify)
        journal.append([clock(1), clock(2)])
        assert [event.seq for event in iterator] == [last + 1, last + 2]
        assert seqs(home, journal.head + 5, verify) == []


@pytest.mark.parametrize("verify", [True, False])
def test_leaves_out_an_incomplete_last_line_and_changes_nothing(tmp_path: Path, verify: bool) -> None:
    home = tmp_path / "s"
    with FileJournal.create(home, HEADER) as journal:
        journal.append([clock(1), clock(2)])
    path = home / "journal.jsonl"
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for cut in range(1, last):
        path.write_bytes(whole[:-cut])
        assert seqs(home, verify=verify) == [0, 1]
        assert path.read_bytes() == whole[:-cut]


def test_a_writer_that_finishes_a_line_between_two_looks_is_no_damage(tmp_path: Path) -> None:
    """The reader sees half of a long line, then the whole of it and a later one that proves it acknowledged."""
    home = tmp_path / "s"
    with FileJournal.create(home, HEADER) as journal:
        sync(journal)
        journal.append([clock(1, 9000)])
        half = journal.size - 4000
        sync(journal)
        journal.append([clock(2)])

    class Growing(OsDisk):
        def __init__(self, shy: int) -> None:
            self.shy = shy

        def read(self, handle: int, size: int, offset: int) -> bytes:
            self.shy -= 1
            return super().read(handle, size if self.shy < 0 else min(size, max(0, half - offset)), offset)

    for shy in range(12):
        found = [event.seq for event in read_journal(home, disk=Growing(shy))]
        assert found in ([0], [0, 1, 2])
    assert found == [0]


def test_stops_at_a_torn_group_and_reports_damage(tmp_path: Path) -> None:
    home = tmp_path / "s"
    with FileJournal.create(home, HEADER) as journal:
        sync(journal)
        journal.append([clock(i, 40) for i in range(1, 5)])
        journal.close()
        path = home / "journal.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:2], b"\0" * len(lines[2]), *lines[3:]]))
        assert seqs(home) == [0, 1]
    with FileJournal.open(home) as journal:
        sync(journal)
        journal.append([clock(2)])
        sync(journal)
        journal.append([clock(3)])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\0" * len(lines[2]), *lines[3:]]))
    events = read_journal(home)
    assert [next(events).seq, next(events).seq] == [0, 1]
    with pytest.raises(JournalDamaged, match="line 2"):
        next(events)


def test_without_verification_a_line_out_of_place_is_still_said(tmp_path: Path) -> None:
    home = raw_journal(
        tmp_path / "s",
        b'"type":"session.created","session_id":"s"',
        *[b'"type":"clock.passed","limit":"","seconds":1'] * 3,
    )
    path = home / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[2]]))
    with pytest.raises(JournalDamaged):
        seqs(home, verify=False)


def test_a_session_that_never_began_is_said(tmp_path: Path) -> None:
    home = tmp_path / "s"
    home.mkdir()
    with pytest.raises(JournalError, match="holds no session"):
        seqs(home)
    for data in (b"", b'{"n":0,"b":0', b"\0" * 600):
        (home / "journal.jsonl").write_bytes(data)
        for action in (lambda: seqs(home), lambda: FileJournal.open(home)):
            with pytest.raises(JournalError, match="never written whole"):
                action()


def test_a_reader_that_knows_the_end_reads_little(tmp_path: Path) -> None:
    home, disk = tmp_path / "s", CountingDisk()
    with FileJournal.create(home, HEADER) as journal:
        for i in range(300):
            journal.append([clock(i, 10_000)])
        list(read_journal(home, journal.head - 2, disk=disk))
        assert disk.bytes_read < 3 * BLOCK
        disk.bytes_read = 0
        list(read_journal(home, journal.head, disk=disk))
        assert disk.bytes_read < 3 * BLOCK


def test_a_disk_that_cannot_be_read_is_a_journal_error(tmp_path: Path) -> None:
    class Unreadable(CountingDisk):
        left = 1 << 60

        def read(self, handle: int, size: int, offset: int) -> bytes:
            self.left -= 1
            if self.left < 0:
                raise OSError(5, "Input/output error")
            return super().read(handle, size, offset)

    disk = Unreadable()
    store = Store(tmp_path, disk=disk)
    with store.create("s", time=1.0) as journal:
        name = journal.put_blob(b"blob")
        journal.append([snapshot(0), clock(2)])
        readings = (
            lambda: list(journal.live()),
            lambda: list(journal.read()),
            lambda: list(read_journal(store.directory("s"), disk=disk)),
            lambda: read_blob(store.directory("s"), name, disk=disk),
            lambda: store.verify("s"),
            lambda: store.fork("s", 2, "fork", time=2.0),
        )
        for action in readings:
            disk.left = 0
            with pytest.raises(JournalError, match=r"cannot be (read|made): Input/output error"):
                action()
            disk.left = 1
            with contextlib.suppress(JournalError):
                action()
        disk.left = 0
        assert "Input/output error" in store.list()[0].damaged
    with pytest.raises(JournalError, match="Input/output error"):
        store.open("s")


def test_lines_are_found_wherever_they_lie(tmp_path: Path) -> None:
    """Around the borders of blocks, with lines of all lengths."""
    home, disk = tmp_path / "s", CountingDisk()
    with FileJournal.create(home, HEADER) as journal:
        for i in range(1, 120):
            journal.append([clock(i, (i * 7919) % 20_000)])
        size = journal.size
    handle = disk.open(home / "journal.jsonl", "read")
    offsets = [0]
    for line in (home / "journal.jsonl").read_bytes().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    for n, (offset, end) in enumerate(pairwise(offsets)):
        cursor = find_line(disk, handle, n, size)
        assert cursor is not None
        assert (cursor.n, cursor.offset) == (n, offset)
        if n:  # a needle that ends exactly where the search ends is found, one byte less and it is not
            needle = b'\n{"n":%d,"b":' % n
            assert find_backwards(disk, handle, needle, offset - 1 + len(needle)) == offset - 1
            assert find_backwards(disk, handle, needle, offset - 2 + len(needle)) == -1
        assert find_line(disk, handle, n + 1, end) is None
    disk.close(handle)


def test_older_rot_does_not_hinder_an_opening_but_every_reading(tmp_path: Path) -> None:
    home = tmp_path / "s"
    with FileJournal.create(home, HEADER) as journal:
        journal.append([clock(1), clock(2)])
        sync(journal)
        journal.append([clock(3), snapshot(3)])
        sync(journal)
        journal.append([clock(5)])
    path = home / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"seconds":1.0', b'"seconds":9.0'))
    with FileJournal.open(home) as journal:
        assert [event.seq for event in journal.live()] == [3, 4, 5]
        assert [event.seq for event in journal.read(2)] == [3, 4, 5]
        with pytest.raises(JournalDamaged, match="line 1"):
            list(journal.read())
    with pytest.raises(JournalDamaged, match="line 1"):
        seqs(home)
