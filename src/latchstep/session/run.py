"""One pass, as the caller holds it: iterate its events, steer it, answer it, cancel it, await its result."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from latchstep.core import event as ev
from latchstep.core import wording
from latchstep.core.codec import stamp, stamp_time
from latchstep.core.message import Message, Usage, clean
from latchstep.core.parts import OpenCall
from latchstep.core.rules import RUN, Verdict
from latchstep.errors import (
    FatalToolError,
    JournalError,
    JournalPoisoned,
    LatchstepError,
    SessionError,
)

from .claim import claim
from .hub import Lockstep, Steps

if TYPE_CHECKING:
    from .session import Session

_log = logging.getLogger("latchstep")


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended.

    status: one of `completed, cancelled, max_steps, budget, stalled, unverified, failed`.
    final_text: the model's last word, "" if it had none. output: the typed output, where one was asked for.
    steps: model turns. cost: US dollars, None when unknown. error: why it failed. messages: the
    transcript, complete messages only; after a compaction it begins with the summary, and the journal has the rest.
    """

    status: ev.Status
    final_text: str = ""
    output: Any = None
    steps: int = 0
    usage: Usage = Usage()
    cost: float | None = None
    error: ev.ErrorInfo | None = None
    messages: tuple[Message, ...] = ()
    session_id: str = ""
    run_id: str = ""


class Run:
    """A run under way. Nobody needs to iterate it: it goes on by itself once it is entered or awaited.

    Leaving `async with` cancels what is not finished. Dropping an iterator only detaches it.
    """

    def __init__(self, session: Session, begin: Callable[[], Awaitable[None]]) -> None:
        self.session = session
        self._begin = begin
        self._task: asyncio.Task[RunResult] | None = None
        self._after = session.journal.head
        self.begun = asyncio.Event()
        self._early: str | None = None
        self._ended: ev.RunFinished | None = None
        self._finished: RunResult | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._approve: Callable[[ev.Question], Any] | None = session.kit.approve

    @property
    def finished(self) -> bool:
        return self._finished is not None

    @property
    def under_way(self) -> bool:
        return self._task is not None and not self._task.done() and not self.finished

    def drives(self, task: asyncio.Task[Any]) -> bool:
        return task is self._task

    def start(self) -> Run:
        """Begin in the background. Idempotent; needs a running event loop. Raises SessionError if another run of
        the session, or on its journal, is under way."""
        if self._task is None:
            self.session.enter(self)
            claim(self.session.journal, self)
            self._after = self.session.journal.head
            self._task = asyncio.get_running_loop().create_task(self._drive())
            self._task.add_done_callback(_seen)
            if self._early is not None:
                self.session.cancel(self._early)
        return self

    async def result(self) -> RunResult:
        """Wait for the end. An iterator of this run is no longer waited for: else each could wait for the other."""
        self.start()
        assert self._task is not None
        self._let_go()
        return await asyncio.shield(self._task)

    def __await__(self) -> Generator[Any, None, RunResult]:
        return self.result().__await__()

    def __aiter__(self) -> Steps:
        self.start()
        hub = self.session.hub
        if self._ended is not None:
            return Steps(hub, Lockstep(self._recorded(self._ended), lambda: True))
        return hub.follow(self.session.shown(self._after), lambda: not self.under_way)

    def _recorded(self, ended: ev.RunFinished) -> Iterator[ev.Event]:
        """The events of this run, which is over; the session may have gone on."""
        for event in self.session.shown(self._after):
            if event.seq > ended.seq:
                break
            yield event
        if ended.part:
            yield ended

    async def __aenter__(self) -> Run:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop("left" if kind is None else kind.__name__)

    async def stop(self, reason: str = "") -> None:
        """Cancel if not finished, and wait for the end."""
        if self._task is None or self._task.done():
            return
        self.cancel(reason)
        self._let_go()
        await asyncio.shield(self._task)

    def _let_go(self) -> None:
        if self.under_way and self.session.hub.lockstep is not None:
            self.session.hub.lockstep.let_go()

    async def steer(self, text: str) -> str:
        """Say something to the run: delivered with the next request, after the batch's results."""
        return await self._said(text, "steer")

    async def follow_up(self, text: str) -> str:
        """Say something that continues the run where it would otherwise end."""
        return await self._said(text, "follow_up")

    async def _said(self, text: str, source: ev.Source) -> str:
        """What is said to a run comes after what it was begun with."""
        if self.under_way:
            await self.begun.wait()
        return await self.session.send(text, source)

    async def stop_after_turn(self, reason: str = "") -> None:
        """Let the answer and the calls under way finish, and open no further request. The result says `cancelled`,
        unless the answer was the model's last word and nothing waits."""
        if self.under_way:
            await self.begun.wait()
        await self.session.stop_after_turn(reason)

    async def answer(
        self, call_id: str, decision: ev.Decision, *, by: str = "", rule: str = "", note: str = ""
    ) -> None:
        """Allow or deny the call a question is open about."""
        await self.session.answer(call_id, decision, by=by, rule=rule, note=note)

    def cancel(self, reason: str = "") -> None:
        """Stop at once and cleanly. The result says `cancelled`."""
        if self._task is None:
            self._early = reason
        elif self.under_way:
            self.session.cancel(reason)

    # -- the drive -------------------------------------------------------------------------------------

    async def _drive(self) -> RunResult:
        session = self.session
        clock: asyncio.TimerHandle | None = None
        try:
            await self._begin()
            if session.limits.max_seconds is not None and session.state.run is not None:
                left = max(0.0, session.limits.max_seconds - session.state.run.elapsed)
                clock = asyncio.get_running_loop().call_later(left, session.ring)
            while (await session.pump()).why != "idle":
                await self._answered()
            ended = session.state.finished
            assert ended is not None
        except (Exception, asyncio.CancelledError) as error:
            await session.crew.quit()
            await session.snapshots.stop(session)
            ended = await self._broken(error)
        finally:
            if clock is not None:
                clock.cancel()
            self._forget_expiry()
            session.crew.rest()
            self.begun.set()
        self._ended = ended
        self._finished = self._result(ended)
        if (lockstep := session.hub.lockstep) is not None:
            session.hub.detach(lockstep)
            lockstep.wake()
        return self._finished

    async def _answered(self) -> None:
        """Put open questions to the approver, if there is one; else wait until somebody answers, or it is too late."""
        session, most = self.session, self.session.limits.approval_timeout
        if most is not None and self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_later(most, self._expire)
        if self._approve is None:
            await session.woken()
        else:
            await self._ask_approver(self._approve)
        if not session.questions:
            self._forget_expiry()

    def _expire(self) -> None:
        self._expiring = asyncio.get_running_loop().create_task(self._too_late())

    async def _too_late(self) -> None:
        """Whatever is asked now was asked for too long."""
        note = f"nobody answered within {self.session.limits.approval_timeout:g} s"
        for entry in self.session.questions:
            try:
                await self.session.answer(entry.call.id, "deny", note=note)
            except LatchstepError:  # answered meanwhile; or nothing can be recorded, which ends the run by itself
                pass

    def _forget_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    async def _ask_approver(self, approve: Callable[[ev.Question], Any]) -> None:
        session = self.session
        for entry in session.questions:
            if entry.status != "asked" or session.interrupted:
                continue
            asking = asyncio.get_running_loop().create_task(_decision(approve, _question(entry)))
            asking.add_done_callback(lambda task: session.wake())
            while not asking.done() and entry.status == "asked" and not session.interrupted:
                await session.woken()
            if not asking.done():
                await self._give_up(asking)
            elif entry.status == "asked" and not session.interrupted:
                said = asking.result()
                decision: ev.Decision = "allow" if said.kind == "run" else "deny"
                try:
                    await session.answer(entry.call.id, decision, by="approver", rule=said.rule, note=said.text)
                except SessionError:  # somebody else was faster
                    pass

    async def _give_up(self, asking: asyncio.Task[Verdict]) -> None:
        """Its answer is not wanted any more. One that is deaf to that is left behind after the grace."""
        asking.cancel()
        try:
            await asyncio.wait([asking], timeout=self.session.limits.grace)
        except asyncio.CancelledError:
            if not self.session.absorb():
                raise

    async def _broken(self, error: BaseException) -> ev.RunFinished:
        """A promise is broken. The run still has its one ending, on record if the journal takes any. One that could not
        be gone on with stays unfinished."""
        kind = "JOURNAL" if isinstance(error, JournalError) else "INTERNAL"
        if isinstance(error, FatalToolError):
            kind = "TOOL"
        elif kind == "INTERNAL":
            _log.error("the driver failed", exc_info=error)
        message = str(error) if isinstance(error, LatchstepError) else wording.of_error(error)
        session = self.session
        try:
            if session.unfinished and self.begun.is_set() and not isinstance(error, JournalPoisoned):
                await session.finish(self._failed(kind, message))
                assert session.state.finished is not None
                return session.state.finished
        except Exception as worse:
            kind, message = "JOURNAL", wording.of_error(worse)
        return self._unrecorded(kind, message)

    def _failed(self, kind: str, message: str) -> ev.RunFinished:
        run = self.session.state.run
        return ev.RunFinished(
            status="failed",
            steps=run.steps if run else 0,
            usage=run.usage if run else Usage(),
            cost=run.dollars if run else None,
            error=ev.ErrorInfo(kind, clean(message)),
        )

    def _unrecorded(self, kind: str, message: str) -> ev.RunFinished:
        """The one event that may be shown without being recorded: the journal no longer takes any."""
        run = self.session.state.run
        ended = self._failed(kind, message)
        stamp_time(ended, time.time(), run.run_id if run else "", run.elapsed if run else 0.0)
        stamp(ended, self.session.journal.head, 1)
        self.session.hub.publish(ended)
        return ended

    def _typed(self, ended: ev.RunFinished) -> Any:
        output = self.session.kit.output
        return ended.output if output is None or ended.status != "completed" else output.typed(ended.output)

    def _result(self, ended: ev.RunFinished) -> RunResult:
        return RunResult(
            status=ended.status,
            final_text=ended.final_text,
            output=self._typed(ended),
            steps=ended.steps,
            usage=ended.usage,
            cost=ended.cost,
            error=ended.error,
            messages=tuple(self.session.state.transcript),
            session_id=self.session.id,
            run_id=ended.run_id,
        )


def _question(entry: OpenCall) -> ev.Question:
    """The question open about a call, as it was recorded."""
    return ev.Question(
        call_id=entry.call.id,
        name=entry.call.name,
        sha256=entry.question,
        reason=entry.reason,
        about=entry.about,
        found=entry.found,
        arguments=entry.call.arguments,
    )


async def _decision(approve: Callable[[ev.Question], Any], question: ev.Question) -> Verdict:
    """What an approver said: True, "allow", a Verdict that runs, or anything else, which declines. One that raises
    declines. Where the call is a question itself, any text is the answer to it."""
    try:
        said = approve(question)
        if hasattr(said, "__await__"):
            said = await said
        if isinstance(said, Verdict):
            return said
        if question.about == "answer" and isinstance(said, str):
            return Verdict("run", said)
        return RUN if said is True or (isinstance(said, str) and said == "allow") else Verdict("refuse")
    except BaseException as error:
        return Verdict("refuse", f"the approver failed: {wording.of_error(error)}")


def _seen(task: asyncio.Task[RunResult]) -> None:
    """A run nobody awaits must not be reported as never retrieved."""
    if not task.cancelled():
        task.exception()
