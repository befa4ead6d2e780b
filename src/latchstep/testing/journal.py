"""What every `Journal` must do, as functions that take a maker of empty journals and assert.

    @pytest.mark.parametrize("check", JOURNAL_CHECKS)
    def test_mine(check): check(lambda: MyJournal(...))

`make()` gives a new journal that holds nothing, or nothing but line 0. `RESUME_CHECKS` also take `reopen(journal)`,
which closes the journal and opens the same record again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from latchstep.core.codec import encode_event, stamp
from latchstep.core.event import Event, MessageAccepted, SessionSnapshot, ToolFinished, Unknown
from latchstep.core.message import user
from latchstep.errors import JournalError
from latchstep.journal.base import Journal

Make = Callable[[], Journal]
Reopen = Callable[[Journal], Journal]

HARD_TEXTS = (
    "",
    'quote " backslash \\ slash /',
    "newline \n return \r tab \t",
    "separators \u2028 \u2029 \x85 \x1e",
    "controls \x00 \x01 \x7f",
    "astral \U0001f512 combining e\u0301 right-to-left \u202e",
    '","crc":"00000000"}\n{"n":1,"b":1,"p":"00000000","type":"session.snapshot",',
)


def events(count: int = 3) -> list[Event]:
    """Different events with texts that are hard to store."""
    texts = (HARD_TEXTS * (count // len(HARD_TEXTS) + 1))[:count]
    return [MessageAccepted(message_id=f"m{i}", source="start", message=user(text)) for i, text in enumerate(texts)]


def same(left: Event, right: Event) -> bool:
    """Equal as they are stored, and in the same place."""
    return encode_event(left) == encode_event(right) and left.seq == right.seq


def _assert_same(found: list[Event], wanted: list[Event]) -> None:
    assert len(found) == len(wanted), f"{len(found)} events came back, not {len(wanted)}"
    for left, right in zip(found, wanted, strict=True):
        assert same(left, right), f"{left} came back for {right}"


def check_numbers_are_contiguous(make: Make) -> None:
    journal = make()
    before = journal.head
    group = events(4)
    assert journal.append(group[:3]) == before + 3
    assert journal.append(group[3:]) == before + 4 == journal.head
    assert [event.seq for event in group] == [before + 1 + i for i in range(4)]
    journal.close()


def check_an_empty_group_changes_nothing(make: Make) -> None:
    journal = make()
    before = journal.head, journal.size
    assert journal.append([]) == before[0]
    assert (journal.head, journal.size) == before
    journal.close()


def check_every_record_comes_back(make: Make) -> None:
    journal = make()
    first = journal.head + 1
    group = events(2 * len(HARD_TEXTS))
    journal.append(group)
    _assert_same(list(journal.read(first - 1)), group)
    journal.close()


def check_reading_after_any_place(make: Make) -> None:
    journal = make()
    journal.append(events(5))
    everything = list(journal.read())
    assert [event.seq for event in everything] == list(range(journal.head + 1))
    for after in range(-1, journal.head + 2):
        _assert_same(list(journal.read(after)), everything[after + 1 :])
    journal.close()


def check_what_is_appended_is_readable_at_once(make: Make) -> None:
    journal = make()
    for event in events(5):
        seq = journal.append([event])
        _assert_same(list(journal.read(seq - 1)), [event])
    journal.close()


def check_sync_covers_what_was_appended(make: Make) -> None:
    journal = make()
    for group in (events(1), events(3)):
        journal.append(group)
        asyncio.run(journal.sync())  # on a loop of its own each time
        assert journal.synced == journal.head
    asyncio.run(journal.sync())
    journal.close()


def check_syncs_at_the_same_time(make: Make) -> None:
    journal = make()

    async def three() -> None:
        journal.append(events(2))
        await asyncio.gather(*(journal.sync() for _ in range(3)))
        assert journal.synced == journal.head

    asyncio.run(three())
    journal.close()


def check_an_event_may_come_from_another_place(make: Make) -> None:
    journal = make()
    event = events(1)[0]
    stamp(event, 99)
    seq = journal.append([event])
    assert event.seq == seq
    assert [found.seq for found in journal.read(seq - 1)] == [seq]
    journal.close()


def check_live_starts_no_later_than_needed(make: Make) -> None:
    journal = make()
    first = journal.append(events(4)) - 1
    journal.append([SessionSnapshot(needed=first, state=msgspec.Raw(b'{"a":[1,2]}'))])
    journal.append(events(2))
    live = list(journal.live())
    assert live[0].seq <= first
    assert [event.seq for event in live] == list(range(live[0].seq, journal.head + 1))
    journal.close()


def check_blobs_are_named_by_content(make: Make) -> None:
    journal = make()
    for data in (b"", b"x", bytes(range(256)) * 300):
        name = journal.put_blob(data)
        assert name == journal.put_blob(data)
        assert len(name) == 64
    journal.close()


def check_a_closed_journal_refuses(make: Make) -> None:
    journal = make()
    journal.close()
    journal.close()
    try:
        journal.append(events(1))
    except JournalError:
        return
    raise AssertionError("a closed journal took an event")


def check_reopening_brings_everything_back(make: Make, reopen: Reopen) -> None:
    journal = make()
    journal.append(events(5))
    everything = list(journal.read())
    journal = reopen(journal)
    _assert_same(list(journal.read()), everything)
    more = [ToolFinished(call_id="c", name="t", outcome="ok", content="done")]
    assert journal.append(more) == len(everything)
    journal = reopen(journal)
    _assert_same(list(journal.read()), [*everything, *more])
    assert not any(isinstance(event, Unknown) for event in journal.read())
    journal.close()


def check_reopening_starts_at_the_snapshot(make: Make, reopen: Reopen) -> None:
    journal = make()
    needed = journal.append(events(6)) - 1
    journal.append([SessionSnapshot(needed=needed, state=msgspec.Raw(b"{}"))])
    journal.append(events(2))
    everything = list(journal.read())
    journal = reopen(journal)
    live = list(journal.live())
    assert live[0].seq <= needed
    _assert_same(live, everything[live[0].seq :])
    journal.close()


JOURNAL_CHECKS: tuple[Callable[[Make], None], ...] = (
    check_numbers_are_contiguous,
    check_an_empty_group_changes_nothing,
    check_every_record_comes_back,
    check_reading_after_any_place,
    check_what_is_appended_is_readable_at_once,
    check_sync_covers_what_was_appended,
    check_syncs_at_the_same_time,
    check_an_event_may_come_from_another_place,
    check_live_starts_no_later_than_needed,
    check_blobs_are_named_by_content,
    check_a_closed_journal_refuses,
)

RESUME_CHECKS: tuple[Callable[[Make, Reopen], None], ...] = (
    check_reopening_brings_everything_back,
    check_reopening_starts_at_the_snapshot,
)
