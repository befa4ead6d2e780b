"""Which run writes to a journal object now: there is one at a time, and one session that knows all of it.

Held by the object's identity: another opening of the same file is what the journal's own lock is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from latchstep.errors import SessionError
from latchstep.journal.base import Journal

if TYPE_CHECKING:
    from .run import Run

_WRITING: WeakValueDictionary[int, Run] = WeakValueDictionary()
"""By `id` of the journal, which the run keeps alive. A run under way is kept by its task."""


def claim(journal: Journal, run: Run) -> None:
    """The journal is this run's while it is under way. Raises SessionError if it is another's."""
    _refuse_claimed(journal, run)
    _WRITING[id(journal)] = run


def unclaimed_head(journal: Journal) -> int:
    """The last line of a journal that no run writes to: what a new session knows. Raises SessionError."""
    _refuse_claimed(journal, None)
    return journal.head


def _refuse_claimed(journal: Journal, run: Run | None) -> None:
    other = _WRITING.get(id(journal))
    if other is not None and other is not run and other.under_way:
        raise SessionError(
            "another run is writing to this journal; a journal has one writer at a time: "
            "wait for that run, or give this one a journal of its own"
        )


def refuse_stale(journal: Journal, known: int) -> None:
    """Raise SessionError if more is on record than the session knows of."""
    if journal.head > known:
        raise SessionError(
            f"this journal was written to by another session (line {journal.head}; this one knows {known}): "
            "make the session anew"
        )
