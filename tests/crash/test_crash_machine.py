"""Any order of appends, syncs, failures, kills and power cuts, against a model; Hypothesis shrinks what breaks."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from latchstep.core.event import Event
from latchstep.errors import JournalPoisoned
from latchstep.journal.file import FileJournal
from latchstep.journal.reader import read_journal
from latchstep.testing.disk import Died, SimDisk
from tests.crash.crash_kit import FILE, HEADER, HOME, event, snapshot, sync, told

from .tally import case, many

counts = st.integers(1, 4)
parts = st.integers(0, 1200)


class JournalMachine(RuleBasedStateMachine):
    """`acknowledged` must be there; after it may come any beginning of `maybe`."""

    def __init__(self) -> None:
        super().__init__()
        case()
        self.disk = SimDisk()
        self.journal = FileJournal.create(HOME, HEADER, disk=self.disk)
        sync(self.journal)
        self.acknowledged, self.maybe = told([HEADER]), list[bytes]()
        self.withdrawn: list[bytes] = []  # cut back, which a power cut may undo until the next opening
        self.poisoned = False
        self.salt = 0

    def group(self, count: int, with_snapshot: bool = False) -> list[Event]:
        """New events, each unlike any other before, and the same as `maybe` will hold them."""
        self.salt += 1
        n = len(self.acknowledged) + len(self.maybe)
        group = [replace(event(n + i), time=float(self.salt)) for i in range(count)]
        if with_snapshot:
            group.insert(0, replace(snapshot(max(0, n - count)), time=float(self.salt)))
        return group

    def placed(self, group: list[Event]) -> list[bytes]:
        n = len(self.acknowledged) + len(self.maybe)
        return told([replace(found, seq=n + i) for i, found in enumerate(group)])

    @precondition(lambda self: not self.poisoned)
    @rule(count=counts, with_snapshot=st.booleans())
    def append_lazy(self, count: int, with_snapshot: bool) -> None:
        group = self.group(count, with_snapshot)
        placed = self.placed(group)
        self.journal.append(group)
        self.maybe += placed

    @precondition(lambda self: not self.poisoned)
    @rule(count=st.integers(0, 3))
    def append_durable(self, count: int) -> None:
        group = self.group(count)
        placed = self.placed(group)
        self.journal.append(group)
        sync(self.journal)
        self.acknowledged, self.maybe = self.acknowledged + self.maybe + placed, []

    @precondition(lambda self: not self.poisoned)
    @rule(count=counts, part=parts, how=st.sampled_from(["full", "eio"]))
    def write_fails(self, count: int, part: int, how: str) -> None:
        group = self.group(count)
        self.withdrawn = self.placed(group)
        self.disk.fail(how, part=part)  # type: ignore[arg-type]
        with pytest.raises(JournalPoisoned):
            self.journal.append(group)
        self.poisoned = True
        assert self.journal.head == len(self.acknowledged) + len(self.maybe) - 1

    @precondition(lambda self: not self.poisoned and self.maybe)
    @rule()
    def sync_fails(self) -> None:
        self.disk.fail("eio")
        with pytest.raises(JournalPoisoned) as caught:
            sync(self.journal)
        assert len(caught.value.withdrawn) == len(self.maybe)
        self.poisoned = True
        assert self.journal.head == len(self.acknowledged) - 1

    @rule(count=counts, part=parts, data=st.data(), power=st.booleans())
    def die_in_a_write(self, count: int, part: int, data: st.DataObject, power: bool) -> None:
        group = self.group(count)
        placed = self.placed(group)
        self.disk.fail("die", part=part)
        with pytest.raises((Died, JournalPoisoned)):
            self.journal.append(group)
        self.reopen(data if power else None, [] if self.poisoned else placed)

    @rule(data=st.data())
    def power_cut(self, data: st.DataObject) -> None:
        self.reopen(data, [])

    @rule()
    def kill(self) -> None:
        self.reopen(None, [])

    @rule(data=st.data(), after=st.integers(0, 5))
    def die_while_opening(self, data: st.DataObject, after: int) -> None:
        self.disk.kill()
        self.journal.close()
        self.disk.fail("die", after=after)
        try:
            FileJournal.open(HOME, disk=self.disk).close()
        except Died:
            pass
        self.reopen(data, [])

    def reopen(self, power: st.DataObject | None, placed: list[bytes]) -> None:
        if power is None:
            self.disk.kill()
        else:
            choices = power.draw(st.randoms(use_true_random=False))
            self.disk.power_cut(choices.randrange)
        self.journal.close()
        complete = self.disk.content(FILE).count(b"\n")
        may_be = self.acknowledged + self.maybe + placed + (self.withdrawn if power else [])
        self.journal = FileJournal.open(HOME, disk=self.disk)
        found = told(list(self.journal.read()))
        assert len(found) >= len(self.acknowledged), "an acknowledged record is gone"
        if power is None and self.journal.recovered is None:
            assert len(found) == complete, "a complete record is gone"
        assert found == may_be[: len(found)]
        self.acknowledged, self.maybe, self.withdrawn, self.poisoned = found, [], [], False

    @invariant()
    def what_is_written_reads_back(self) -> None:
        if not self.poisoned:
            everything = self.acknowledged + self.maybe
            assert told(list(self.journal.read())) == everything
            live = list(self.journal.live())
            assert told(live) == everything[live[0].seq :]
            assert (
                told(list(read_journal(HOME, len(everything) // 2, disk=self.disk)))
                == (everything[len(everything) // 2 + 1 :])
            )

    def teardown(self) -> None:
        self.journal.close()


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=many(100, 1000), stateful_step_count=25, deadline=None)
