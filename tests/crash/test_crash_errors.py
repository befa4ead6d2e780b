"""A disk that fails: nothing of a failed group stays, its events are named, and nothing more is written."""

from __future__ import annotations

import asyncio
import random

import pytest

from latchstep.errors import JournalError, JournalPoisoned
from latchstep.journal.file import FileJournal
from latchstep.testing.disk import Died, SimDisk
from tests.crash.crash_kit import FILE, HEADER, HOME, create_or_open, event, expected, sync, told

from .tally import case, many


def started(disk: SimDisk) -> FileJournal:
    journal = FileJournal.create(HOME, HEADER, disk=disk)
    journal.append([event(1), event(2)])
    sync(journal)
    return journal


def group_size() -> int:
    disk = SimDisk()
    journal = started(disk)
    before = journal.size
    journal.append([event(3), event(4)])
    journal.close()
    return journal.size - before


def assert_poisoned(journal: FileJournal) -> None:
    for _ in range(2):
        with pytest.raises(JournalPoisoned):
            journal.append([event(9)])
        with pytest.raises(JournalPoisoned):
            asyncio.run(journal.sync())


def test_short_writes_are_continued_at_every_length() -> None:
    for part in range(1, group_size(), many(5, 1)):
        case()
        disk = SimDisk()
        journal = started(disk)
        disk.fail("short", part=part)
        disk.fail("short", after=1, part=1)
        assert journal.append([event(3), event(4)]) == 4
        sync(journal)
        assert told(list(journal.read())) == expected(5)
        journal.close()


@pytest.mark.parametrize("how", ["full", "eio"])
def test_a_failed_write_leaves_nothing_at_every_length(how: str) -> None:
    for part in range(0, group_size() + 1, many(5, 1)):
        case()
        disk = SimDisk()
        journal = started(disk)
        before = disk.content(FILE)
        disk.fail(how, part=part)  # type: ignore[arg-type]
        with pytest.raises(JournalPoisoned) as caught:
            journal.append([event(3), event(4)])
        assert caught.value.withdrawn == ("3 message.accepted", "4 tool.started")
        assert disk.content(FILE) == before
        assert journal.head == 2
        assert_poisoned(journal)
        assert disk.content(FILE) == before
        journal.close()
        with FileJournal.open(HOME, disk=disk) as again:
            assert again.recovered is None
            assert again.append([event(3)]) == 3


def test_a_write_that_fails_and_cannot_be_cut_back_is_mended_by_the_next_opening() -> None:
    for part in (0, 1, 100, group_size() - 1):
        disk = SimDisk()
        journal = started(disk)
        disk.fail("full", part=part)
        disk.fail("eio", after=1)
        with pytest.raises(JournalPoisoned, match="cutting them off failed too"):
            journal.append([event(3), event(4)])
        assert_poisoned(journal)
        journal.close()
        with FileJournal.open(HOME, disk=disk) as again:
            found = told(list(again.read()))
            assert found == expected(len(found))
            assert len(found) >= 3


def test_a_failed_sync_cuts_back_to_the_last_synced_byte_and_is_never_retried() -> None:
    """The second sync would succeed, falsely: the system counts the lost pages as clean."""
    disk = SimDisk()
    journal = started(disk)
    certain = disk.content(FILE)
    journal.append([event(3)])
    journal.append([event(4)])
    disk.fail("eio")
    barriers = disk.barriers
    with pytest.raises(JournalPoisoned) as caught:
        sync(journal)
    assert caught.value.withdrawn == ("3 message.accepted", "4 tool.started")
    assert (journal.head, journal.synced, disk.content(FILE)) == (2, 2, certain)
    assert_poisoned(journal)
    assert disk.barriers == barriers + 1
    journal.close()
    disk.power_cut(random.Random(1).randrange)
    with FileJournal.open(HOME, disk=disk) as again:
        assert told(list(again.read()))[:3] == expected(3)


def test_after_a_failed_sync_a_fresh_opening_promises_only_what_is_on_disk() -> None:
    for seed in range(many(40, 400)):
        case()
        rng = random.Random(seed)
        disk = SimDisk()
        journal = started(disk)
        journal.append([event(3), event(4)])
        disk.fail("eio")
        with pytest.raises(JournalPoisoned):
            sync(journal)
        journal.close()
        journal = FileJournal.open(HOME, disk=disk)
        shown = told(list(journal.read()))
        assert shown == expected(3)
        journal.append([event(3)])
        sync(journal)
        disk.power_cut(rng.randrange)
        journal.close()
        with FileJournal.open(HOME, disk=disk) as again:
            assert told(list(again.read())) == expected(4)


def test_every_waiter_hears_of_a_failed_sync() -> None:
    disk = SimDisk()
    journal = started(disk)
    journal.append([event(3)])
    disk.fail("eio")

    async def three() -> list[BaseException | None]:
        return await asyncio.gather(*(journal.sync() for _ in range(3)), return_exceptions=True)

    assert [type(result) for result in asyncio.run(three())] == [JournalPoisoned] * 3
    journal.close()


def test_every_failing_operation_of_a_creation_and_an_opening_is_said() -> None:
    for after in range(6):
        for how in ("full", "eio"):
            disk = SimDisk()
            disk.fail(how, after=after)  # type: ignore[arg-type]
            try:
                FileJournal.create(HOME, HEADER, disk=disk).close()
            except JournalError:
                pass
            with create_or_open(disk) as journal:
                assert told(list(journal.read())) == expected(1)
    for after in range(9):
        disk = SimDisk()
        journal = started(disk)
        journal.close()
        whole = disk.content(FILE)
        disk.replace(FILE, whole + b'{"n":3,')
        disk.fail("eio", after=after)
        try:
            FileJournal.open(HOME, disk=disk).close()
        except JournalError:
            pass
        disk.kill()  # no fault is left
        with FileJournal.open(HOME, disk=disk) as again:
            assert told(list(again.read())) == expected(3)
        assert disk.content(FILE) == whole
        assert any(disk.content(HOME / name) == b'{"n":3,' for name in disk.names(HOME) if name.startswith("torn-"))


def test_the_process_dies_at_every_operation_and_byte() -> None:
    """Killed in a write or a sync, with the cache kept: every complete record comes back."""
    size = group_size()
    for part in range(size + 1):
        case(row="SIGKILL")
        disk = SimDisk()
        journal = started(disk)
        disk.fail("die", part=part)
        with pytest.raises(Died):
            journal.append([event(3), event(4)])
        disk.kill()
        journal.close()
        complete = disk.content(FILE).count(b"\n")
        with FileJournal.open(HOME, disk=disk) as again:
            assert told(list(again.read())) == expected(complete)
    assert complete == 5


def test_an_interrupted_write_poisons_the_writer() -> None:
    """A KeyboardInterrupt can end `append` between the write and the bookkeeping."""

    class Interrupting(SimDisk):
        armed = False

        def write(self, handle: int, data: bytes) -> int:
            taken = super().write(handle, data)
            if self.armed:
                raise KeyboardInterrupt
            return taken

    disk = Interrupting()
    journal = started(disk)
    disk.armed = True
    with pytest.raises(KeyboardInterrupt):
        journal.append([event(3)])
    disk.armed = False
    assert_poisoned(journal)
    journal.close()
    with FileJournal.open(HOME, disk=disk) as again:
        assert told(list(again.read())) == expected(4)
