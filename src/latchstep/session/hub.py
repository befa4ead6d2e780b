"""Hands recorded events to those who watch.

The caller's own iterator goes in lockstep: the driver waits until it has come back for more. Other watchers
have bounded queues in which deltas merge; one that lags goes on from the journal.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from msgspec.structs import replace

from latchstep.core.event import TRANSIENT, Event, ModelDelta, RunFinished
from latchstep.core.rules import Limits
from latchstep.errors import SessionError

AHEAD = Limits().max_ahead
"""Transient events that may lie between the driver and the caller's iterator, unless the limits say otherwise."""

QUEUE = 1024
"""Events a watcher may lag behind before it is sent to the journal; beyond it the caller's iterator loses deltas."""

MERGED = 4096
"""Characters up to which the deltas of a lagging watcher merge into one."""


class Lockstep:
    """What lies between the driver and the caller's iterator: every event, in order; the driver waits for it.

    over: the run's ending is in it. What is recorded then belongs to the next run.
    """

    def __init__(self, backlog: Iterable[Event], done: Callable[[], bool]) -> None:
        self._done = done
        self.over = False
        self._buffer: deque[Event] = deque(backlog)
        self._consumer: asyncio.Future[None] | None = None
        self._producer: asyncio.Future[None] | None = None
        self._waits = True

    async def next(self) -> Event:
        while not self._buffer:
            if self._done():
                raise StopAsyncIteration
            self._release()
            self._consumer = asyncio.get_running_loop().create_future()
            try:
                await self._consumer
            finally:
                self._consumer = None
        return self._buffer.popleft()

    def put(self, event: Event) -> None:
        if self.over or (len(self._buffer) >= QUEUE and isinstance(event, TRANSIENT)):
            return
        self.over = isinstance(event, RunFinished)
        self._buffer.append(event)
        self.wake()

    def wake(self) -> None:
        if self._consumer is not None and not self._consumer.done():
            self._consumer.set_result(None)

    async def drained(self, ahead: int) -> None:
        """Return when the caller has at most `ahead` events before it; with 0, when it asks for the next."""
        while self._waits and (len(self._buffer) > ahead or (ahead == 0 and self._consumer is None)):
            self._producer = asyncio.get_running_loop().create_future()
            await self._producer
            if ahead == 0 and not self._buffer:
                return

    def _release(self) -> None:
        if self._producer is not None and not self._producer.done():
            self._producer.set_result(None)

    def let_go(self) -> None:
        """The driver no longer waits for the caller, who still gets every event."""
        self._waits = False
        self._release()


class Steps:
    """The caller's iterator over one run. Only the caller holds it: dropping it lets the run go on alone."""

    def __init__(self, hub: Hub, lockstep: Lockstep) -> None:
        self._hub, self._lockstep = hub, lockstep

    def __aiter__(self) -> Steps:
        return self

    async def __anext__(self) -> Event:
        return await self._lockstep.next()

    def __del__(self) -> None:
        try:
            self._hub.detach(self._lockstep)
        except RuntimeError:  # the event loop is already closed
            pass


class Watcher:
    """Another pair of eyes on a session. It never slows the driver."""

    def __init__(self, hub: Hub, read: Callable[[int], Iterator[Event]], after: int) -> None:
        self._hub, self._read, self._seq = hub, read, after
        self._queue: deque[Event] = deque()
        self._lagging = True
        self._closed = False
        self._waiting: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        last = self._queue[-1] if self._queue else None
        if (
            isinstance(event, ModelDelta)
            and isinstance(last, ModelDelta)
            and len(last.piece) < MERGED
            and (last.request_id, last.kind, last.call_id) == (event.request_id, event.kind, event.call_id)
        ):
            self._queue[-1] = replace(event, piece=last.piece + event.piece)
        elif len(self._queue) >= QUEUE:
            self._queue.clear()
            self._lagging = True
        elif not self._lagging:
            self._queue.append(event)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def close(self) -> None:
        self._closed = True
        self._hub.watchers.discard(self)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def events(self) -> AsyncIterator[Event]:
        """Stored events after the given `seq` from the journal, then everything as it happens."""
        self._hub.watchers.add(self)
        self._closed = self._hub.closed
        try:
            while True:
                if self._lagging:
                    self._lagging = False
                    for event in self._read(self._seq):
                        self._seq = event.seq
                        yield event
                while self._queue:
                    event = self._queue.popleft()
                    if event.seq < self._seq or (event.seq == self._seq and not isinstance(event, TRANSIENT)):
                        continue  # the journal gave it already, or what came after it
                    if not isinstance(event, TRANSIENT):
                        self._seq = event.seq
                    yield event
                if self._lagging:
                    continue
                if self._closed:
                    return
                self._waiting = asyncio.get_running_loop().create_future()
                await self._waiting
        finally:
            self.close()


class Hub:
    """All who watch one session. ahead: transient events that may lie between the driver and the caller's
    iterator; with 0 it waits after each."""

    def __init__(self, ahead: int = AHEAD) -> None:
        self._ahead = ahead
        self.lockstep: Lockstep | None = None
        self.watchers: set[Watcher] = set()
        self.closed = False
        self._unyielded = 0

    @property
    def busy(self) -> bool:
        """Somebody watches."""
        return self.lockstep is not None or bool(self.watchers)

    def follow(self, backlog: Iterable[Event], done: Callable[[], bool]) -> Steps:
        """The caller's own iterator. There is one at a time."""
        if self.lockstep is not None:
            raise SessionError("this run is already iterated; use session.watch() for more eyes")
        self.lockstep = Lockstep(backlog, done)
        return Steps(self, self.lockstep)

    def detach(self, lockstep: Lockstep | None) -> None:
        """Nothing more goes to it, and the driver no longer waits for it."""
        if lockstep is not None:
            lockstep.let_go()
            if self.lockstep is lockstep:
                self.lockstep = None

    def go_on(self) -> None:
        """The ending was an earlier run's: the caller's iterator goes on to its own."""
        if self.lockstep is not None:
            self.lockstep.over = False

    def publish(self, event: Event) -> None:
        if self.lockstep is not None:
            self.lockstep.put(event)
        for watcher in self.watchers:
            watcher.put(event)

    async def passed(self) -> None:
        """After a transient event: bounded run-ahead, and a cancel still gets in."""
        self._unyielded += 1
        if self.lockstep is not None:
            await self.lockstep.drained(self._ahead)
        if self._unyielded >= self._ahead:
            self._unyielded = 0
            await asyncio.sleep(0)

    def close(self) -> None:
        self.closed = True
        for watcher in list(self.watchers):
            watcher.close()
