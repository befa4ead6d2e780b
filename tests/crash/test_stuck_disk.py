"""A disk that never answers a barrier: the wait has an end, and it is said."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.errors import JournalLocked, JournalPoisoned
from latchstep.journal import file
from latchstep.journal.file import FileJournal
from latchstep.testing.disk import SimDisk
from tests.crash.crash_kit import HEADER, HOME, event
from tests.session.fakes import call, go, session_of


class StuckDisk(SimDisk):
    """A barrier on a file does not return while `free` is clear."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.free.set()

    def sync(self, handle: int) -> None:
        self.free.wait()
        super().sync(handle)


def sync(journal: FileJournal) -> None:
    """A barrier that must have an end of its own."""
    asyncio.run(asyncio.wait_for(journal.sync(), 10))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[StuckDisk]:
    monkeypatch.setattr(file, "SYNC_WAIT", 0.05)
    monkeypatch.setattr(file, "CLOSE_WAIT", 0.05)
    made = StuckDisk()
    yield made
    made.free.set()


def test_a_barrier_that_does_not_end_poisons_the_journal(disk: StuckDisk) -> None:
    journal = FileJournal.create(HOME, HEADER, disk=disk)
    sync(journal)
    journal.append([event(1), event(2)])
    disk.free.clear()
    with pytest.raises(JournalPoisoned, match=r"SYNC_WAIT, 0\.05 s") as caught:
        sync(journal)
    assert caught.value.withdrawn == ("1 tool.started", "2 tool.finished")
    for _ in range(2):
        with pytest.raises(JournalPoisoned, match="SYNC_WAIT"):
            journal.append([event(3)])
        with pytest.raises(JournalPoisoned, match="SYNC_WAIT"):
            sync(journal)
    journal.close()
    with pytest.raises(JournalLocked):  # a write is still under way
        FileJournal.open(HOME, disk=disk)
    disk.free.set()
    disk.kill()
    with FileJournal.open(HOME, disk=disk) as again:
        assert again.head == 2, "what was in the disk's hands was not cut off"


def test_a_barrier_that_ends_too_late_does_not_mend_it(disk: StuckDisk) -> None:
    journal = FileJournal.create(HOME, HEADER, disk=disk)
    disk.free.clear()
    with pytest.raises(JournalPoisoned):
        sync(journal)
    disk.free.set()
    until = time.monotonic() + 10
    while journal.synced < 0:
        assert time.monotonic() < until
        time.sleep(0.001)
    with pytest.raises(JournalPoisoned, match="SYNC_WAIT"):
        journal.append([event(1)])
    journal.close()
    FileJournal.open(HOME, disk=disk).close()


@pytest.mark.parametrize("moment", ["message.accepted", "tool.started", "run.finished"])
def test_a_run_on_a_disk_that_hangs_ends(disk: StuckDisk, moment: str) -> None:
    ran: list[str] = []

    @ls.tool
    def write() -> str:
        """Write."""
        ran.append("write")
        return "done"

    async def main() -> None:
        journal = FileJournal.create(HOME, HEADER, disk=disk)
        plain = journal.append

        def append(events: list[ev.Event]) -> int:
            if any(found.type == moment for found in events):
                disk.free.clear()
            return plain(events)

        journal.append = append  # type: ignore[method-assign,assignment]
        session = session_of([call("write", "c1"), "done"], [write], journal=journal)
        async with session.stream("go") as run:
            seen = [found.type async for found in run]
            result = await run.result()
        assert (result.status, result.error.kind if result.error else "") == ("failed", "JOURNAL")
        assert result.error is not None
        assert "did not answer within SYNC_WAIT" in result.error.message
        assert seen.count("run.finished") == 1
        assert ran == (["write"] if moment == "run.finished" else [])
        with pytest.raises(JournalPoisoned):
            await session.send("more")
        await session.close()

    go(main())
