"""The barrier: one sync at a time, off the driver, and a gate that is shut while it is under way.

It runs in a task of its own, so that no cancellation of whoever waits for it opens the gate too early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from latchstep.errors import JournalPoisoned
from latchstep.journal.base import Journal


class Barrier:
    """`absorb` says whether a cancellation of the waiting task is none of the waiter's business; `on_end` is told
    how a sync ended before anyone who waited for it goes on."""

    def __init__(
        self, journal: Journal, absorb: Callable[[], bool], on_end: Callable[[JournalPoisoned | None], None]
    ) -> None:
        self._journal, self._absorb, self._on_end = journal, absorb, on_end
        self.under_way: asyncio.Task[None] | None = None

    async def sync(self) -> None:
        """Everything recorded so far survives a power cut when this returns."""
        needed = self._journal.head
        while self._journal.synced < needed:
            if self.under_way is None:
                self.under_way = asyncio.get_running_loop().create_task(self._sync())
            await self.quiet()

    async def quiet(self) -> None:
        """Return when no sync is under way, so that something may be recorded. Raises what the sync raised."""
        while (sync := self.under_way) is not None:
            try:
                await asyncio.shield(sync)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not self._absorb() and (not sync.cancelled() or (task is not None and task.cancelling())):
                    raise
                if sync.cancelled() and self.under_way is sync:  # before it began
                    self.under_way = None

    async def _sync(self) -> None:
        error: JournalPoisoned | None = None
        try:
            await self._to_the_end()
        except JournalPoisoned as poisoned:
            error = poisoned
            raise
        finally:
            self.under_way = None
            self._on_end(error)

    async def _to_the_end(self) -> None:
        """A loop that shuts down cancels this task too; the disk does not stop for that."""
        while True:
            try:
                return await self._journal.sync()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or not task.cancelling():
                    raise
                task.uncancel()
