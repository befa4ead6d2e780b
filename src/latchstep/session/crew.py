"""The child tasks of one action, watched until each has ended or been given up.

Nothing waits for ever: a member has a deadline, an interrupted one a grace, and one that is deaf to
cancellation is left behind and named. How a member ended is decided here, not by what it returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Literal

How = Literal["done", "timed_out", "interrupted"]


class Member:
    """One child task. `deaf`: it did not stop within the grace and was left running."""

    __slots__ = ("deadline", "deaf", "how", "key", "seconds", "task", "timer")

    def __init__(self, key: str, task: asyncio.Task[Any], seconds: float) -> None:
        self.key, self.task, self.seconds = key, task, seconds
        self.how: How = "done"
        self.deaf = False
        self.timer: asyncio.TimerHandle | None = None
        self.deadline = 0.0

    def outcome(self) -> tuple[Any, BaseException | None]:
        """(value, None) or (None, error). A cancellation nobody asked for is an error like any other."""
        if self.deaf:
            return None, None
        if self.task.cancelled():
            return None, asyncio.CancelledError("cancelled itself")
        error = self.task.exception()
        return (None, error) if error is not None else (self.task.result(), None)


class Crew:
    """Runs members and yields each as it ends. One event loop, one action at a time."""

    def __init__(self, grace: float, on_interrupt: Callable[[], Awaitable[None]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._grace, self._on_interrupt = grace, on_interrupt
        self._members: list[Member] = []
        self._wake: asyncio.Future[None] | None = None
        self._interrupted = False

    def start(self, key: str, work: Coroutine[Any, Any, Any], seconds: float) -> None:
        member = Member(key, self._loop.create_task(work), seconds)
        member.task.add_done_callback(self._ring)
        member.deadline = self._loop.time() + seconds
        member.timer = self._loop.call_at(member.deadline, self._expire, member)
        self._members.append(member)

    def touch(self, key: str, more: float = 0.0) -> None:
        """A member showed life: its deadline starts anew (`more` seconds later)."""
        for member in self._members:
            if member.key == key:
                member.deadline = self._loop.time() + member.seconds + more

    def interrupt(self) -> None:
        """Stop everything: `ended` first awaits `on_interrupt`, then cancels each member."""
        self._interrupted = True
        self._ring(None)

    async def ended(self) -> AsyncIterator[Member]:
        """Each member once, in the order they end. Closing it early cancels what is left."""
        told = False
        left = list(self._members)
        try:
            while left:
                if self._interrupted and not told:
                    told = True
                    await self._on_interrupt()
                    for member in left:
                        self._stop(member, "interrupted")
                ready = [member for member in left if member.task.done() or member.deaf]
                if not ready:
                    self._wake = self._loop.create_future()
                    await self._wake
                    continue
                for member in ready:
                    left.remove(member)
                    self._forget(member)
                    yield member
        finally:
            for member in left:
                self._forget(member)
                member.task.cancel()

    def _ring(self, _: object) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _expire(self, member: Member) -> None:
        if member.task.done():
            return
        if self._loop.time() < member.deadline:
            member.timer = self._loop.call_at(member.deadline, self._expire, member)
            return
        self._stop(member, "timed_out")

    def _stop(self, member: Member, how: How) -> None:
        if member.task.done() or member.how != "done":
            return
        member.how = how
        if member.timer is not None:
            member.timer.cancel()
        member.task.cancel()
        member.timer = self._loop.call_later(self._grace, self._give_up, member)

    def _give_up(self, member: Member) -> None:
        if not member.task.done():
            member.deaf = True
            member.task.cancel()
            member.task.add_done_callback(_swallow)
            self._ring(None)

    def _forget(self, member: Member) -> None:
        if member.timer is not None:
            member.timer.cancel()


def _swallow(task: asyncio.Task[Any]) -> None:
    """A task left behind may still fail one day; nobody waits for it any more."""
    if not task.cancelled():
        task.exception()
