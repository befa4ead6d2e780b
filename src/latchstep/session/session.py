"""The driver: asks `decide`, performs what it says, records what happened. Owns one journal.

An event is in the journal before it is in the state, and in the state before anyone sees it. Nothing that
matters lives in a local variable here: a resumed session is a fresh driver over the same events.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import msgspec

from latchstep.core import event as ev
from latchstep.core.accept import storable_message
from latchstep.core.action import Wait
from latchstep.core.codec import stamp, stamp_time
from latchstep.core.decide import decide
from latchstep.core.message import Message, clean
from latchstep.core.parts import OpenCall
from latchstep.core.project import Projection
from latchstep.core.rules import Rules
from latchstep.core.state import State
from latchstep.errors import JournalPoisoned, SessionError
from latchstep.journal.base import Journal, restored
from latchstep.model.base import Model

from .barrier import Barrier
from .begin import beginning
from .claim import refuse_stale, unclaimed_head
from .compacting import SNAPSHOT_EVERY, compact_session, snapshot
from .crew import Crew
from .hub import Hub, Lockstep, Watcher
from .kit import Kit
from .model_call import with_model
from .perform import perform
from .run import Run, RunResult
from .said import change, readable, reply, take
from .snapshots import Snapshots


class Session:
    """Many runs on one journal. Not thread-safe: one event loop at a time uses it.

    `state` is the fold of the journal, for callers who made it already to find out how to build the kit.
    """

    def __init__(
        self,
        journal: Journal,
        kit: Kit,
        rules: Rules,
        *,
        state: State | None = None,
        program: str = "",
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        self._known = unclaimed_head(journal)
        self.journal, self.kit, self.rules, self.limits = journal, kit, rules, rules.limits
        self.hub = Hub(rules.limits.max_ahead)
        self.projection, self.projected = Projection(), 0
        self._now, self._monotonic, self._new_id = now, monotonic, new_id
        self._since, self._base = monotonic(), 0.0
        self._part, self._rang, self.next_snapshot = 0, False, max(journal.size, SNAPSHOT_EVERY)
        self._cancel: ev.CancelRequested | None = None
        self.compacting: asyncio.Future[None] | None = None
        self.crew = Crew(rules.limits.grace, self.note_interrupt, self.absorb)
        self.barrier = Barrier(journal, self.absorb, self._synced)
        self.snapshots = Snapshots(kit.snapshot)
        self._ending: ev.RunFinished | None = None
        self._poison: JournalPoisoned | None = None
        self._woken: asyncio.Future[None] | None = None
        self._run: Run | None = None
        self.state: State = state if state is not None else restored(journal)
        kit.on_open(self.state.seen, self.state.partly)
        epoch, host = self.state.epoch + 1, socket.gethostname()
        self.record(ev.SessionOpened(epoch=epoch, session_id=self.id, host=host, pid=os.getpid(), program=program))

    # -- what can be asked of it -----------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.state.session_id

    @property
    def unfinished(self) -> bool:
        """A run was started and has no ending yet: `resume` goes on with it."""
        return self.state.run is not None and self.state.run.active

    @property
    def busy(self) -> bool:
        """A run is driven here and now, or a compaction between two."""
        return self.compacting is not None or (self._run is not None and self._run.under_way)

    @property
    def questions(self) -> tuple[OpenCall, ...]:
        """The calls a person is being asked about."""
        return tuple(entry for entry in self.state.turn if entry.status == "asked")

    def stream(self, prompt: str | None = None, *, start: Sequence[Message] = (), first_request: int = 1) -> Run:
        """A run for this prompt, begun when it is entered (`async with`) or awaited (`result()`).

        Without a prompt the last turn is asked again (a retry, with a budget of its own); raises SessionError if
        there is nothing to answer. On an unfinished session the old run goes on, and the prompt joins it. `start` are
        messages said before, recorded as they are.
        """
        self._refuse_second(None)
        if prompt is None and not (start or self.unfinished or self.state.answerable or not self.state.transcript):
            raise SessionError("there is nothing to answer: the model had the last word; say something")
        if prompt is not None:
            readable(prompt, self.limits.max_prompt)
        said = tuple(storable_message(message, number) for number, message in enumerate(start, 1))
        return Run(self, lambda: self._begin(prompt, said, first_request))

    def switch(self, model: Model | str) -> None:
        """Go on with another model, from the next run (or the next resume) on. Raises SessionError during a run."""
        self._refuse_second(None)
        self.kit = with_model(self.kit, model)

    def enter(self, run: Run | None) -> None:
        """A run begins, or (None) a compaction between two. There is one at a time."""
        self._refuse_second(run)
        self._run, self._cancel, self._rang, self.compacting = run, None, False, None if run else asyncio.Future()

    def _refuse_second(self, run: Run | None) -> None:
        if self.busy and (self.compacting is not None or self._run is not run):
            raise SessionError("a run or compaction is under way in this session; steer it, or wait for its result")
        refuse_stale(self.journal, self._known)

    async def run(self, prompt: str | None = None) -> RunResult:
        """Run to the end. Cancelling the caller cancels the run."""
        async with self.stream(prompt) as run:
            return await run.result()

    async def resume(self, prompt: str | None = None) -> RunResult:
        """Go on with the unfinished run under its own id. Raises SessionError if there is none."""
        if not self.unfinished:
            raise SessionError("this session has no unfinished run")
        return await self.run(prompt)

    def watch(self, after: int = -1) -> AsyncIterator[ev.Event]:
        """Everything stored after `after`, then everything as it happens, at the watcher's own pace."""
        return Watcher(self.hub, self.shown, after).events()

    def shown(self, after: int) -> Iterator[ev.Event]:
        """The record after `after`, but for an ending that is not on disk yet."""
        for event in self.journal.read(after):
            if self._ending is not None and event.seq >= self._ending.seq:
                return
            yield event

    async def send(self, text: str, source: ev.Source = "steer") -> str:
        """Accept a message for the run under way, or for the next one. Returns its id once it is on disk."""
        message_id = f"{source}-{self._new_id()}"
        await take(self, text, source, message_id)
        return message_id

    async def edit(self, message_id: str, text: str) -> None:
        """Change what a message that no request has carried yet says; it keeps its place. Raises SessionError."""
        await change(self, message_id, text)

    async def withdraw(self, message_id: str) -> None:
        """Take back a message that no request has carried yet, or (by the id of its call) an open question, whose call
        is then not run. Raises SessionError."""
        await change(self, message_id, None)

    async def stop_after_turn(self, reason: str = "", by: str = "caller") -> None:
        """End the run under way when its turn is complete: see `Run.stop_after_turn`. Without one it does nothing."""
        await self.barrier.quiet()
        if self.unfinished:
            self.record(ev.CancelRequested(by=by, reason=clean(reason), after_turn=True))

    async def compact(self, focus: str = "") -> ev.ContextCompacted | None:
        """Have what was said so far summarised. A run takes it at the next boundary, and this returns None once it is
        on disk; so it does for an unfinished one. Else it is done now, and returned; None where it was cancelled.

        focus: what the summary must not lose. Raises SessionError where nothing can be cut, LatchstepError where
        no summary came.
        """
        return await compact_session(self, focus)

    async def answer(
        self, call_id: str, decision: ev.Decision, *, by: str = "", rule: str = "", note: str = ""
    ) -> None:
        """Answer the question about one call. Raises SessionError if nobody asks about it."""
        await reply(self, call_id, decision, by=by, rule=rule, note=note)

    def cancel(self, reason: str = "", by: str = "caller") -> None:
        """Stop the run (or compaction) under way: no further model call, nothing left running. Returns at once."""
        if self._cancel is None and self.busy:
            self._cancel = ev.CancelRequested(by=by, reason=clean(reason))
            self._interrupt()

    async def close(self) -> None:
        """End what belongs to the session and give up the journal. A run or compaction under way is cancelled."""
        if self._run is not None:
            await self._run.stop()
        if self.compacting is not None:
            self.cancel("the session was closed")
            await asyncio.wait([self.compacting])
        if self.kit.on_close is not None:
            await self.kit.on_close()
        self.hub.close()
        self.journal.close()

    # -- recording -------------------------------------------------------------------------------------

    def record(self, *events: ev.Event) -> None:
        """The only way anything ever changes: journal, state, watchers, in this order."""
        self._write(events)
        if self.hub.busy:
            for event in events:
                self.hub.publish(event)

    def _write(self, events: Sequence[ev.Event]) -> None:
        refuse_stale(self.journal, self._known)
        run = self.state.run
        run_id = run.run_id if run is not None and run.active else ""
        now, elapsed = int(self._now() * 1e3) / 1e3, self._elapsed() if run_id else 0.0
        for event in events:
            run_id = event.run_id if type(event) is ev.RunStarted else run_id
            stamp_time(event, now, run_id, elapsed)
        try:
            self._known = self.journal.append(events)
        except JournalPoisoned as error:
            self._poisoned(error)
            raise
        self._part = 0
        for event in events:
            self.state.apply(event)
            if type(event) is ev.ContextCompacted:
                self.projection, self.projected = Projection(), 0

    def _elapsed(self) -> float:
        """Seconds of the run so far, in ten-thousandths: `round` costs more than the rest of a record."""
        return int((self._base + self._monotonic() - self._since) * 1e4) / 1e4

    async def emit(self, *events: ev.Event) -> None:
        """Record, and let the caller see it before going on. Never while a sync is under way.

        The next side effect happens in a task that is still to be scheduled, so that whoever was woken by
        these events runs before it and may cancel it.
        """
        if self.barrier.under_way is not None:
            await self.barrier.quiet()
        self.record(*events)
        if self.hub.lockstep is not None:
            await self._stepped(self.hub.lockstep)

    async def finish(self, ending: ev.RunFinished) -> None:
        """Record the ending, and show it only when it is on disk. What was stopped has nothing running by then."""
        if self.interrupted and self.kit.on_stop is not None:
            await self.crew.to_the_end(self.kit.on_stop())
        await self.barrier.quiet()
        self._write((ending,))
        self._ending = ending
        await self.sync()
        self._synced(None)
        if self.hub.lockstep is not None:
            await self._stepped(self.hub.lockstep)

    async def _stepped(self, lockstep: Lockstep) -> None:
        """Return when the caller's iterator has come back for more."""
        try:
            await lockstep.drained(0)
        except asyncio.CancelledError:
            if not self.absorb():
                raise

    async def show(self, event: ev.Event) -> None:
        """Show a transient event, no faster than the caller's iterator takes them."""
        self.present(event)
        await self.hub.passed()

    def present(self, event: ev.Event) -> None:
        """Hand out a transient event: it takes the last stored `seq` and the next `part`."""
        self._part += 1
        run = self.state.run
        stamp_time(event, self._now(), run.run_id if run is not None else "", self._elapsed())
        stamp(event, self.journal.head, self._part)
        self.hub.publish(event)

    async def sync(self) -> None:
        """The barrier: everything recorded so far survives a power cut when this returns."""
        await self.barrier.sync()

    def _synced(self, error: JournalPoisoned | None) -> None:
        """A sync has ended, and nobody who waited for it has run yet."""
        if error is not None:
            self._poisoned(error)
        elif self._ending is not None and self.journal.synced >= self._ending.seq:
            self.hub.publish(self._ending)
            self._ending = None

    # -- driving ---------------------------------------------------------------------------------------

    async def _begin(self, prompt: str | None, start: Sequence[Message], first_request: int) -> None:
        """Record the run's beginning, on disk before anything is done for it."""
        self.crew.rest()
        run = self.state.run
        if prompt is not None and run is not None and run.ending:
            await self.pump()  # it could not answer the prompt
            self.hub.go_on()
        self._since = self._monotonic()
        self._base = self.state.run.elapsed if self.unfinished and self.state.run is not None else 0.0
        parts = (self.state, self.kit, self.rules, self.journal, self._new_id)
        events = beginning(*parts, prompt=prompt, start=start, first_request=first_request)
        await self.barrier.quiet()
        self.record(*events)
        if self._run is not None:
            self._run.begun.set()
        await self.sync()
        if self.hub.lockstep is not None:
            await self._stepped(self.hub.lockstep)

    async def pump(self) -> Wait:
        """Decide and perform until nothing can happen by itself."""
        while True:
            if self.barrier.under_way is not None:
                await self.barrier.quiet()  # from here to what is recorded nothing else happens
            await self.note_interrupt()
            action = decide(self.state, self.rules)
            if isinstance(action, Wait):
                return action
            await perform(self, action)
            if self.journal.size >= self.next_snapshot:
                await snapshot(self)

    async def woken(self) -> None:
        """Return when a question was answered, the approver spoke, or the run was interrupted."""
        if not self.questions or self.interrupted:
            return
        self._woken = asyncio.get_running_loop().create_future()
        try:
            await self._woken
        except asyncio.CancelledError:
            if not self.absorb():
                raise
        finally:
            self._woken = None

    def ring(self) -> None:
        """The run's time is up."""
        self._rang = True
        self._interrupt()

    @property
    def interrupted(self) -> bool:
        return self._cancel is not None or self._rang or self._poison is not None

    def absorb(self) -> bool:
        """Was the driver's own task cancelled, as by a loop that shuts down? That cancels the run, and no more."""
        task = asyncio.current_task()
        if task is None or self._run is None or not self._run.drives(task) or not task.cancelling():
            return False
        while task.uncancel():
            pass
        self.cancel("the task was cancelled", by="asyncio")
        return True

    def _poisoned(self, error: JournalPoisoned) -> None:
        """Nothing can be recorded any more: the run under way ends at once."""
        self._poison = error
        self._interrupt()

    def why_interrupted(self) -> str:
        if self._cancel is None:
            return f"max_seconds is {self.limits.max_seconds:g}" if self._rang else "the run was stopped"
        return f"the run was cancelled: {self._cancel.reason}".removesuffix(": ")

    async def note_interrupt(self) -> None:
        """Record a wanted cancel or a passed deadline, once, before its consequences. Raises JournalPoisoned."""
        if self._poison is not None:
            raise self._poison
        run, idle = self.state.run, self.compacting is not None and self.state.fill.focus is not None
        if self._cancel is not None and idle:
            await self.emit(msgspec.structs.replace(self._cancel))
        if run is None or not run.active:
            return
        if self._cancel is not None and not run.cancelled:
            await self.emit(msgspec.structs.replace(self._cancel))
        if self._rang and run.clock is None:
            await self.emit(ev.ClockPassed(limit="max_seconds", seconds=self.limits.max_seconds or 0.0))

    def _interrupt(self) -> None:
        if self.hub.lockstep is not None:
            self.hub.lockstep.let_go()
        self.crew.interrupt()
        self.wake()

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
