"""The child tasks of the action under way, watched until each has ended or been given up.

Nothing waits for ever: a member has a deadline, a stopped one a grace, and one that is deaf to cancellation
is left behind and named. How a member ended is decided here, not by what it returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal

from latchstep.core import wording

_log = logging.getLogger("latchstep")

How = Literal["done", "timed_out", "interrupted"]


class Member:
    """One child task: its value or error once it has ended. `deaf`: it did not stop and was left running."""

    __slots__ = ("deadline", "deaf", "ended", "error", "how", "key", "seconds", "started", "task", "value", "work")

    def __init__(self, key: str, seconds: float, deadline: float) -> None:
        self.key, self.seconds, self.deadline = key, seconds, deadline
        self.how: How = "done"
        self.value: Any = None
        self.error: BaseException | None = None
        self.started = self.ended = self.deaf = False
        self.work: Coroutine[Any, Any, Any] | None = None
        self.task: asyncio.Task[None] | None = None

    def remark(self, apart: str = " ") -> str:
        """What is added wherever its end is told, where it was left behind."""
        return f"{apart}{wording.STILL_RUNNING}" if self.deaf else ""


class Crew:
    """One per session, reused by one action after the other. `on_interrupt` is awaited before any interrupted
    member is reported; `absorb` says whether a cancellation of the waiting task is to be understood as one."""

    def __init__(self, grace: float, on_interrupt: Callable[[], Awaitable[None]], absorb: Callable[[], bool]) -> None:
        self._grace, self._on_interrupt, self._absorb = grace, on_interrupt, absorb
        self._members: list[Member] = []
        self._wake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._interrupted = False

    def start(self, key: str, work: Coroutine[Any, Any, Any], seconds: float) -> None:
        """Run `work` in a task of its own, for at most `seconds`."""
        loop = asyncio.get_running_loop()
        member = Member(key, seconds, loop.time() + seconds)
        member.work = work
        self._members.append(member)
        member.task = loop.create_task(self._run(member))
        self._arm(member.deadline)
        if self._interrupted:
            self._stop(member, "interrupted")

    def did(self, key: str, value: Any, error: BaseException | None) -> None:
        """A member that has ended already, without a task."""
        member = Member(key, 0.0, 0.0)
        member.value, member.error, member.ended = value, error, True
        self._members.append(member)

    def touch(self, key: str, more: float = 0.0) -> bool:
        """A member showed life: its deadline starts anew (`more` seconds later). False: it was told to stop."""
        for member in self._members:
            if member.key == key and member.how == "done":
                member.deadline = asyncio.get_running_loop().time() + member.seconds + more
                return True
        return False

    async def next(self) -> Member | None:
        """The next member that has ended or was given up; None when none is left."""
        while self._members:
            for member in self._members:
                if member.ended or member.deaf:
                    if self._interrupted and member.how == "done" and isinstance(member.error, asyncio.CancelledError):
                        member.how = "interrupted"  # by whoever cancelled every task of the loop
                    if member.how == "interrupted":
                        await self._on_interrupt()
                    self._members.remove(member)
                    return member
            await self._rung()
            if self._interrupted:
                await self._on_interrupt()
        return None

    async def quit(self) -> None:
        """Stop whatever still runs, unreported, and wait for it no longer than the grace."""
        self.interrupt()
        while any(not (member.ended or member.deaf) for member in self._members):
            await self._rung()
        self._members.clear()

    async def to_the_end(self, work: Awaitable[None]) -> None:
        """Wait for work that bounds itself and ends what is left, interrupted or not. What it raises is logged."""
        ending = asyncio.ensure_future(work)
        while not ending.done():
            try:
                await asyncio.wait([ending])
            except asyncio.CancelledError:
                if not self._absorb():
                    raise
        if not ending.cancelled() and (error := ending.exception()) is not None:
            _log.error("what a stopped run left running could not be ended", exc_info=error)

    async def _rung(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        except asyncio.CancelledError:
            if not self._absorb():
                raise
        finally:
            self._wake = None

    def interrupt(self) -> None:
        """Cancel every member at once, and every one started from now on until `rest`."""
        self._interrupted = True
        for member in self._members:
            self._stop(member, "interrupted")
        self._ring()

    def rest(self) -> None:
        """Between runs: no member, no timer, nothing interrupted. What is left behind is cancelled."""
        for member in self._members:
            self._leave(member)
        self._members.clear()
        self._interrupted = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _run(self, member: Member) -> None:
        """The member's task. Whatever its work raises, even SystemExit, ends here and nowhere else."""
        member.started = True
        try:
            assert member.work is not None
            member.value = await member.work
        except BaseException as error:
            member.error = error
        member.ended = True
        self._ring()

    def _ring(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _arm(self, when: float) -> None:
        """One timer for all: it is set anew only when something is due before it rings."""
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._due)

    def _due(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for member in self._members:
            if member.ended or member.deadline > now:
                continue
            if member.how == "done":
                self._stop(member, "timed_out")
            else:
                self._leave(member)
                self._ring()
        if left := [member.deadline for member in self._members if not member.ended and not member.deaf]:
            self._arm(min(left))

    def _stop(self, member: Member, how: How) -> None:
        if member.ended or member.how != "done":
            return
        assert member.task is not None
        assert member.work is not None
        member.how = how
        if not member.task.cancelling():  # by a loop that shuts down: a second cancel says that it is left behind
            member.task.cancel()
        if not member.started:  # its task will never reach the work
            member.work.close()
            member.ended = True
            self._ring()
            return
        member.deadline = asyncio.get_running_loop().time() + self._grace
        self._arm(member.deadline)

    def _leave(self, member: Member) -> None:
        """Stop waiting for a task that does not stop. A second cancel is all it still gets."""
        if not member.ended and member.task is not None:
            member.deaf = True
            member.task.cancel()
            _log.info("%s did not stop when told to, and may still be running", member.key)
