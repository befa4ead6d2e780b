"""The seam to the record: what the session needs of a journal, and the one kept in memory.

The promise of each implementation: what `append` returned is readable at once by anyone; what a
returned `sync` covered survives a power cut; after an error nothing more is written in this opening.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from latchstep.core.codec import stamp
from latchstep.core.event import Event
from latchstep.core.state import State
from latchstep.errors import JournalPoisoned


class Journal(Protocol):
    """One session's record. Not thread-safe: one event loop uses it."""

    @property
    def head(self) -> int:
        """`seq` of the last record, -1 while there is none."""
        ...

    @property
    def synced(self) -> int:
        """`seq` of the last record that a returned `sync` covers."""
        ...

    @property
    def size(self) -> int:
        """Bytes written so far (0 in memory): what snapshots are paced by."""
        ...

    @property
    def directory(self) -> Path | None:
        """Where outputs and blobs of this session lie; None in memory."""
        ...

    def append(self, events: Sequence[Event]) -> int:
        """Write the events whole, in one group, and stamp each with its `seq`. Returns the new head.

        Never call it while a `sync` is under way. Raises JournalPoisoned, with nothing of the group kept.
        """
        ...

    async def sync(self) -> None:
        """Return when everything appended so far survives a power cut. Raises JournalPoisoned."""
        ...

    def live(self) -> Iterator[Event]:
        """The events a fold must start from: from the last snapshot's `needed` line on, in order."""
        ...

    def read(self, after: int = -1) -> Iterator[Event]:
        """Every event with `seq` > after, in order."""
        ...

    def put_blob(self, data: bytes) -> str:
        """Keep bytes by their SHA-256 (hex, returned); durable at the next `sync`."""
        ...

    def close(self) -> None:
        """Give up the writer's place. Idempotent."""
        ...


class MemoryJournal:
    """A journal that lives as long as its object. `sync` is free and promises nothing beyond that."""

    directory: Path | None = None
    size = 0

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._blobs: dict[str, bytes] = {}
        self._closed = False

    @property
    def head(self) -> int:
        return len(self._events) - 1

    @property
    def synced(self) -> int:
        return len(self._events) - 1

    def append(self, events: Sequence[Event]) -> int:
        if self._closed:
            raise JournalPoisoned("the journal is closed")
        for event in events:
            stamp(event, len(self._events))
            self._events.append(event)
        return len(self._events) - 1

    async def sync(self) -> None:
        return None

    def live(self) -> Iterator[Event]:
        return self.read()

    def read(self, after: int = -1) -> Iterator[Event]:
        return iter(self._events[after + 1 :])

    def put_blob(self, data: bytes) -> str:
        import hashlib

        digest = hashlib.sha256(data).hexdigest()
        self._blobs[digest] = data
        return digest

    def close(self) -> None:
        self._closed = True


def restored(journal: Journal) -> State:
    """The state of the session: its header, which says who it is, and a fold over what is live."""
    state = State()
    live = journal.live()
    if (first := next(live, None)) is None:
        return state
    if first.seq and (header := next(journal.read(), None)) is not None:
        state.apply(header)
    state.apply(first)
    for event in live:
        state.apply(event)
    return state


def new_session_id(now: float, token: Callable[[int], str] = secrets.token_hex) -> str:
    """`YYYYMMDD-HHMMSS-xxxxxx` in UTC: sorts by time, and is unique without asking anyone."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(now)) + "-" + token(3)
