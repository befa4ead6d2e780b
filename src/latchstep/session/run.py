"""One pass, as the caller holds it: iterate its events, steer it, answer it, cancel it, await its result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from latchstep.core import event as ev
from latchstep.core.message import Message, Usage
from latchstep.errors import JournalError

from .hub import Lockstep

if TYPE_CHECKING:
    from .session import Session

_log = logging.getLogger("latchstep")


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended.

    status: one of `completed, cancelled, max_steps, budget, stalled, unverified, failed`.
    final_text: the model's last word, "" if it had none. output: the typed output, where one was asked for.
    steps: model turns. cost: US dollars, None when unknown. error: why it failed. messages: the whole
    transcript, complete messages only.
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
        self._finished: RunResult | None = None
        self._approve: Callable[[ev.Question], Any] | None = session.kit.approve

    @property
    def finished(self) -> bool:
        return self._finished is not None

    def start(self) -> Run:
        """Begin in the background. Idempotent; needs a running event loop."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drive())
            self._task.add_done_callback(_seen)
        return self

    async def result(self) -> RunResult:
        """Wait for the end. An iterator of this run is detached: the end cannot wait for it and it for the end."""
        self.start()
        assert self._task is not None
        if self.session.hub.lockstep is not None:
            self.session.hub.lockstep.close()
        return await asyncio.shield(self._task)

    def __await__(self) -> Generator[Any, None, RunResult]:
        return self.result().__await__()

    def __aiter__(self) -> Lockstep:
        self.start()
        return self.session.follow(self._after, lambda: self._task is None or self._task.done() or self.finished)

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
        if not self.finished:
            self.cancel(reason)
        await asyncio.shield(self._task)

    async def steer(self, text: str) -> str:
        """Say something to the run: delivered with the next request, after the batch's results."""
        return await self.session.send(text, "steer")

    async def follow_up(self, text: str) -> str:
        """Say something that continues the run where it would otherwise end."""
        return await self.session.send(text, "follow_up")

    async def answer(
        self, call_id: str, decision: ev.Decision, *, by: str = "", rule: str = "", note: str = ""
    ) -> None:
        """Allow or deny the call a question is open about."""
        await self.session.answer(call_id, decision, by=by, rule=rule, note=note)

    def cancel(self, reason: str = "") -> None:
        """Stop at once and cleanly. The result says `cancelled`."""
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
            await self._until_idle()
            ended = session.state.finished
            assert ended is not None
        except JournalError as error:
            ended = self._unrecorded("JOURNAL", str(error))
        except Exception as error:
            _log.exception("the driver failed")
            ended = await self._broken(error)
        finally:
            if clock is not None:
                clock.cancel()
        self._finished = self._result(ended)
        if session.hub.lockstep is not None:
            session.hub.lockstep.wake()
        return self._finished

    async def _until_idle(self) -> None:
        session = self.session
        while True:
            try:
                wait = await session.pump()
                if wait.why == "idle":
                    return
                await self._answered()
            except asyncio.CancelledError:
                # The loop is shutting down, or somebody cancelled our task: an ordinary cancel of the run.
                task = asyncio.current_task()
                if task is None or not session.unfinished or session.interrupted:
                    raise
                task.uncancel()
                session.cancel("the task was cancelled", by="asyncio")

    async def _answered(self) -> None:
        """Put open questions to the approver, if there is one; else wait until somebody answers."""
        session = self.session
        if self._approve is None:
            await session.woken()
            return
        for entry in session.questions:
            if session.interrupted:
                return
            question = session.question(entry)
            asking = asyncio.ensure_future(_decision(self._approve, question))
            waiting = asyncio.ensure_future(session.woken())
            try:
                await asyncio.wait([asking, waiting], return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    allowed, note = asking.result()
                    await session.answer(entry.call.id, "allow" if allowed else "deny", by="approver", note=note)
            finally:
                asking.cancel()
                waiting.cancel()
                await asyncio.gather(asking, waiting, return_exceptions=True)

    async def _broken(self, error: Exception) -> ev.RunFinished:
        """A promise inside the driver is broken. The run still has its one ending."""
        try:
            if self.session.unfinished:
                info = ev.ErrorInfo("INTERNAL", f"{type(error).__name__}: {error}")
                run = self.session.state.run
                assert run is not None
                await self.session.emit(ev.RunFinished(status="failed", steps=run.steps, usage=run.usage, error=info))
            ended = self.session.state.finished
            return ended or self._unrecorded("INTERNAL", str(error))
        except JournalError as worse:
            return self._unrecorded("JOURNAL", str(worse))

    def _unrecorded(self, kind: str, message: str) -> ev.RunFinished:
        """The one event that may be shown without being recorded: the journal no longer takes any."""
        run = self.session.state.run
        ended = ev.RunFinished(
            status="failed",
            steps=run.steps if run else 0,
            usage=run.usage if run else Usage(),
            error=ev.ErrorInfo(kind, message),
        )
        ev.stamp(ended, self.session.journal.head, 1)
        self.session.hub.publish(ended)
        return ended

    def _result(self, ended: ev.RunFinished) -> RunResult:
        return RunResult(
            status=ended.status,
            final_text=ended.final_text,
            output=ended.output,
            steps=ended.steps,
            usage=ended.usage,
            cost=ended.cost,
            error=ended.error,
            messages=tuple(self.session.state.transcript),
            session_id=self.session.id,
            run_id=ended.run_id,
        )


async def _decision(approve: Callable[[ev.Question], Any], question: ev.Question) -> tuple[bool, str]:
    """What an approver said: True, "allow", or anything else, which declines. One that raises declines."""
    try:
        said = approve(question)
        if hasattr(said, "__await__"):
            said = await said
    except Exception as error:
        return False, f"the approver failed: {type(error).__name__}: {error}"
    return said is True or said == "allow", ""


def _seen(task: asyncio.Task[RunResult]) -> None:
    """A run nobody awaits must not be reported as never retrieved."""
    if not task.cancelled():
        task.exception()
