"""Power cuts at random moments on a disk that forgets: what a sync covered is there at the very next opening."""

from __future__ import annotations

import random

import pytest

from latchstep.journal.blob import read_blob
from latchstep.journal.file import FileJournal
from latchstep.testing.disk import Died, SimDisk
from tests.crash.crash_kit import FILE, HEADER, HOME, create_or_open, event, snapshot, sync, told

from .tally import case, many


class Model:
    """What was promised, and what may also be there: `acknowledged`, and then any beginning of `maybe`."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self.maybe: list[bytes] = []

    def check(self, journal: FileJournal) -> None:
        found = told(list(journal.read()))
        everything = self.acknowledged + self.maybe
        assert len(found) >= len(self.acknowledged), "an acknowledged record is gone"
        assert found == everything[: len(found)], "a record is not what was written"
        self.acknowledged, self.maybe = found, []
        live = list(journal.live())
        assert told(live) == found[live[0].seq :]
        assert journal.synced == journal.head == len(found) - 1


def work(journal: FileJournal, model: Model, rng: random.Random, steps: int) -> None:
    for _ in range(steps):
        n = journal.head + 1
        if rng.random() < 0.15:
            group = [snapshot(rng.randrange(n + 1)), event(n + 1)]
        else:
            group = [event(n + i) for i in range(rng.choice((1, 1, 2, 4)))]
        try:
            journal.append(group)
        finally:
            model.maybe += told([_placed(found, n + i) for i, found in enumerate(group)])
        if rng.random() < 0.4:
            sync(journal)
            model.acknowledged, model.maybe = model.acknowledged + model.maybe, []


def _placed(found: object, seq: int) -> object:
    from msgspec.structs import replace

    return replace(found, seq=seq)  # type: ignore[type-var]


@pytest.mark.parametrize("seed", range(many(40, 400)))
def test_what_was_acknowledged_survives_every_power_cut(seed: int) -> None:
    rng = random.Random(seed)
    disk, model = SimDisk(), Model()
    journal = FileJournal.create(HOME, HEADER, disk=disk)
    model.maybe = told([HEADER])
    sync(journal)
    model.acknowledged, model.maybe = model.maybe, []
    for _ in range(6):
        work(journal, model, rng, rng.randrange(1, 8))
        disk.power_cut(rng.randrange)
        journal.close()
        if rng.random() < 0.5:  # and again while it recovers
            disk.fail("die", after=rng.randrange(6))
            try:
                FileJournal.open(HOME, disk=disk).close()
            except Died:
                pass
            disk.power_cut(rng.randrange)
        journal = FileJournal.open(HOME, disk=disk)
        model.check(journal)
        case()
    journal.close()


@pytest.mark.parametrize("seed", range(many(20, 300)))
def test_what_an_opening_acted_on_survives_the_next_power_cut(seed: int) -> None:
    """Killed with lazy lines in the cache, opened, power cut: what the opening showed must still be there."""
    rng = random.Random(seed)
    disk = SimDisk()
    journal = FileJournal.create(HOME, HEADER, disk=disk)
    journal.append([event(i) for i in range(1, 9)])
    disk.kill()
    journal.close()
    journal = FileJournal.open(HOME, disk=disk)
    shown = told(list(journal.read()))
    assert len(shown) == 9
    disk.power_cut(rng.randrange)
    journal.close()
    with FileJournal.open(HOME, disk=disk) as journal:
        assert told(list(journal.read())) == shown


@pytest.mark.parametrize("blob", [b"b" * 1500, b""])
@pytest.mark.parametrize("seed", range(many(20, 300)))
def test_a_session_whose_first_sync_returned_is_there(seed: int, blob: bytes) -> None:
    """Directory entries too: they were synced before anything was promised, with or without those of a blob."""
    rng = random.Random(seed)
    disk = SimDisk()
    home = HOME / "deep" / "er"
    journal = FileJournal.create(home, HEADER, disk=disk)
    name = journal.put_blob(blob) if blob else ""
    journal.append([event(1)])
    sync(journal)
    disk.power_cut(rng.randrange)
    journal.close()
    with FileJournal.open(home, disk=disk) as journal:
        assert journal.head == 1
    if blob:
        assert read_blob(home, name, disk=disk) == blob


@pytest.mark.parametrize("seed", range(many(20, 300)))
def test_a_creation_cut_by_power_can_be_made_again(seed: int) -> None:
    rng = random.Random(seed)
    disk = SimDisk()
    disk.fail("die", after=rng.randrange(8))
    try:
        FileJournal.create(HOME, HEADER, disk=disk).close()
    except Died:
        pass
    disk.power_cut(rng.randrange)
    with create_or_open(disk) as journal:
        assert told(list(journal.read())) == told([HEADER])
    assert disk.content(FILE).count(b"\n") == 1


def test_barriers_are_counted_and_few() -> None:
    disk = SimDisk()
    journal = FileJournal.create(HOME, HEADER, disk=disk)
    made = disk.barriers
    assert made == 2  # the folder's entry and the file's
    sync(journal)
    for i in range(3):
        journal.append([event(i), event(i + 1)])
    assert disk.barriers == made + 1
    sync(journal)
    sync(journal)
    assert disk.barriers == made + 2
    journal.close()
    FileJournal.open(HOME, disk=disk).close()
    assert disk.barriers == made + 3
