"""One fdatasync at a time, in a daemon thread of its own: off the event loop, and never in the way of an exit.

The thread holds nothing but the file and its queue. How a barrier ended lies in the `Barrier`, not in a callback
of some loop, so that a wait that was cancelled, or a loop that was closed meanwhile, loses nothing.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from .disk import Disk

if TYPE_CHECKING:
    import asyncio


class Barrier:
    """One fdatasync under way: what it covers, how it ended and with how many bytes in the file, who waits for it, on
    whichever loop."""

    __slots__ = ("done", "error", "found", "head", "lock", "size", "waiters")

    def __init__(self, head: int, size: int) -> None:
        self.head, self.size, self.found = head, size, size
        self.done = False
        self.error: Exception | None = None
        self.lock = threading.Lock()
        self.waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    async def wait(self, seconds: float) -> bool:
        """Return when it has ended, or after so many seconds; whether it has."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self.lock:
            if self.done:
                return True
            self.waiters.append((loop, future))
        await asyncio.wait([future], timeout=seconds)
        return self.done

    def run(self, disk: Disk, handle: int) -> None:
        """In the thread."""
        try:
            disk.sync(handle)
            self.found = disk.size(handle)
        except Exception as error:  # whatever a disk raises, whoever waits must hear of it
            self.error = error
        with self.lock:
            self.done = True
            waiters = self.waiters
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:  # that loop was closed meanwhile: nobody waits on it any more
                pass


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Syncer:
    """Owns the thread; started by the first barrier."""

    def __init__(self, disk: Disk, handle: int) -> None:
        self._disk, self._handle = disk, handle
        self._jobs: SimpleQueue[Barrier | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, head: int, size: int) -> Barrier:
        """Start a barrier that covers the records up to `head`, the first `size` bytes."""
        if self._thread is None:
            work = (self._jobs, self._disk, self._handle)
            self._thread = threading.Thread(target=_work, args=work, name="latchstep-sync", daemon=True)
            self._thread.start()
        barrier = Barrier(head, size)
        self._jobs.put(barrier)
        return barrier

    def stop(self, seconds: float) -> bool:
        """End the thread after what is under way; False if that took longer."""
        if self._thread is None:
            return True
        self._jobs.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()


def _work(jobs: SimpleQueue[Barrier | None], disk: Disk, handle: int) -> None:
    while (job := jobs.get()) is not None:
        job.run(disk, handle)
