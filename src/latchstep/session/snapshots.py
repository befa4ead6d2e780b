"""When a session's workspace is kept: before a run's first effect, and after effects while the model is thinking.

A snapshot runs in a thread and is recorded by the driver, at points where nothing else is done; one that fails is
recorded too, and fails nothing else.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from latchstep.core import wording
from latchstep.core.event import WorkspaceSnapshot
from latchstep.core.message import clean
from latchstep.errors import LatchstepError
from latchstep.tool.threads import in_thread

if TYPE_CHECKING:
    from latchstep.tool.snapshot import Taken

    from .session import Session

Take = Callable[[Callable[[], bool]], "Taken"]
"""Takes a snapshot, in whatever thread calls it; asks often whether it shall stop."""

SNAPSHOT_SECONDS = 120.0
"""How long a snapshot may take."""

MAX_EXAMPLES = 20
"""Paths left out that the event names; the tree names them all."""


class Snapshots:
    """The one snapshot that may be under way. `take` is None where the session has no workspace to keep."""

    def __init__(self, take: Take | None) -> None:
        self._take = take
        self._task: asyncio.Task[Taken] | None = None
        self._stop, self._until = threading.Event(), 0.0

    @property
    def under_way(self) -> bool:
        """One was begun and is not recorded yet."""
        return self._task is not None

    @property
    def ready(self) -> bool:
        """One has ended and is not recorded yet."""
        return self._task is not None and self._task.done()

    def begin(self) -> None:
        """Start one, unless one is under way."""
        if self._take is None or self._task is not None:
            return
        take, stop, until = self._take, threading.Event(), time.monotonic() + SNAPSHOT_SECONDS
        work = in_thread(lambda: take(lambda: stop.is_set() or time.monotonic() > until))
        self._task = asyncio.get_running_loop().create_task(work)
        self._stop, self._until = stop, until

    async def before_effects(self, session: Session) -> None:
        """The files as they are are on record before the run's first effect, and a snapshot under way has ended."""
        if session.state.files == "unknown":
            self.begin()
        await self.note(session)

    async def note(self, session: Session, *, wait: bool = True) -> None:
        """Record the one under way, if there is one and it has ended, or when it has. A run that was interrupted does
        without it."""
        task = self._task
        if task is None or not (wait or self.ready):
            return
        if not task.done():
            session.crew.start("workspace.snapshot", _end_of(task), SNAPSHOT_SECONDS + session.limits.grace)
            await session.crew.next()
        if session.interrupted:
            await self.stop(session)
            return
        late = not task.done() or time.monotonic() > self._until
        await self.stop(session)
        await session.emit(_recorded(task, late))

    async def stop(self, session: Session) -> None:
        """Stop the one under way, unrecorded."""
        task, self._task = self._task, None
        if task is None:
            return
        self._stop.set()
        try:
            await asyncio.wait([task], timeout=session.limits.grace)
        except asyncio.CancelledError:
            if not session.absorb():
                raise
        if not task.done():  # a disk that does not answer: its thread is left behind
            task.cancel()
        elif not task.cancelled():
            task.exception()


async def _end_of(task: asyncio.Task[Taken]) -> None:
    await asyncio.wait([task])


def _recorded(task: asyncio.Task[Taken], late: bool) -> WorkspaceSnapshot:
    if task.cancelled():  # by whoever cancelled every task of the loop
        return WorkspaceSnapshot(error="it was cancelled")
    if not task.done():
        return WorkspaceSnapshot(error="the disk does not answer")
    error = task.exception()
    if error is None:
        return kept(task.result())
    if late:
        return WorkspaceSnapshot(error=f"it took longer than {SNAPSHOT_SECONDS:g} s (SNAPSHOT_SECONDS)")
    return WorkspaceSnapshot(error=clean(_in_words(error)))


def _in_words(error: BaseException) -> str:
    match error:
        case LatchstepError():
            return str(error)
        case OSError(strerror=str(words), filename=path):
            return f"{words}: {path}" if path else words
        case _:
            return wording.of_error(error)


def kept(taken: Taken, because: str = "") -> WorkspaceSnapshot:
    """What is recorded of a snapshot."""
    examples = tuple(clean(f"{path}: {why}") for path, why in taken.left_out[:MAX_EXAMPLES])
    return WorkspaceSnapshot(
        tree=taken.tree, files=taken.files, left_out=len(taken.left_out), examples=examples, because=clean(because)
    )
