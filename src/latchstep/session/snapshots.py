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

from .threads import in_thread

if TYPE_CHECKING:
    from latchstep.tool.snapshot import Taken

    from .session import Session

Take = Callable[[Callable[[], bool]], "Taken"]
"""Takes a snapshot, in whatever thread calls it; asks often whether it shall stop."""

SECONDS = 120.0
"""How long a snapshot may take (SNAPSHOT_SECONDS)."""

MAX_EXAMPLES = 20
"""Paths left out that the event names; the tree names them all."""


class Snapshots:
    """The one snapshot that may be under way. `take` is None where the session has no workspace to keep."""

    def __init__(self, take: Take | None) -> None:
        self._take = take
        self._task: asyncio.Task[Taken] | None = None
        self._stop = threading.Event()

    def begin(self) -> None:
        """Start one, unless one is under way."""
        if self._take is None or self._task is not None:
            return
        take, self._stop = self._take, threading.Event()
        stop, until = self._stop, time.monotonic() + SECONDS
        task = asyncio.get_running_loop().create_task(
            in_thread(lambda: take(lambda: stop.is_set() or time.monotonic() > until))
        )
        self._task = task

    async def before_effects(self, session: Session) -> None:
        """The files as they are are on record before the run's first effect, and a snapshot under way has ended."""
        if session.state.files == "unknown":
            self.begin()
        await self.note(session)

    async def note(self, session: Session, *, wait: bool = True) -> None:
        """Record the one under way, if there is one and it has ended, or when it has. A run that was interrupted does
        without it."""
        task = self._task
        if task is None or not (wait or task.done()):
            return
        if not task.done():
            session.crew.start("workspace.snapshot", _end_of(task), SECONDS + 2 * session.limits.grace)
            await session.crew.next()
        if session.interrupted or not task.done():
            await self.stop(session)
            return
        self._task = None
        await session.emit(_recorded(task))

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


def _recorded(task: asyncio.Task[Taken]) -> WorkspaceSnapshot:
    if task.cancelled():  # by whoever cancelled every task of the loop
        return WorkspaceSnapshot(error="it was cancelled")
    error = task.exception()
    if error is None:
        return kept(task.result())
    return WorkspaceSnapshot(error=clean(str(error) if isinstance(error, LatchstepError) else wording.of_error(error)))


def kept(taken: Taken, because: str = "") -> WorkspaceSnapshot:
    """What is recorded of a snapshot."""
    examples = tuple(clean(f"{path}: {why}") for path, why in taken.left_out[:MAX_EXAMPLES])
    return WorkspaceSnapshot(
        tree=taken.tree, files=taken.files, left_out=len(taken.left_out), examples=examples, because=clean(because)
    )
