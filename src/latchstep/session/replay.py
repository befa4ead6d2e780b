"""Runs the loop again on a recorded session and finds the first event that is another.

The real session drives; its journal takes only what the record has next. What came from outside (answers, results,
findings, verdicts, what people said, time) is played from the record, at its place.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from latchstep.core import event as ev
from latchstep.core.message import Message
from latchstep.core.rules import Rules, Traits, Verdict
from latchstep.core.state import fold
from latchstep.errors import FatalToolError, JournalError, JournalPoisoned, SessionError
from latchstep.journal.base import Journal, MemoryJournal

from .kit import Kit
from .played import FOR_EVER, PlayedModel, played_kit, played_rules
from .run import Run
from .session import Session
from .tape import Control, Tape, is_foreign, is_said

LABELS = ("seq", "part", "time", "elapsed", "duration")
"""Fields that say where and when, and may differ."""


class Difference(msgspec.Struct, frozen=True):
    """The first event that is another. `recorded` is None where the record ends, `replayed` where the replay does.

    said: for a request, the messages that are new in it, one of which differs from what was sent then.
    """

    seq: int
    recorded: ev.Event | None
    replayed: ev.Event | None
    said: tuple[Message, ...] = ()


class Replayed(msgspec.Struct):
    """What a replay found. `kinds` counts the events that are the same, by type; `taken` those it could not bring
    about, which were taken over from the record as they stand. `blind`: runs whose system prompt or tools are not
    kept, so that what their requests said could not be compared."""

    kinds: Counter[str] = msgspec.field(default_factory=Counter)
    taken: Counter[str] = msgspec.field(default_factory=Counter)
    blind: list[str] = []
    difference: Difference | None = None


async def replay(
    events: Iterable[ev.Event],
    *,
    blob: Callable[[str], bytes | None] = lambda digest: None,
    run: int = 0,
    journal: Journal | None = None,
    live: Kit | None = None,
) -> Replayed:
    """Replay a session, or only its `run`-th run (from 1).

    blob: the recorded blob of this SHA-256, or None. journal: holds the replay and has its own header; by default it
    is kept in memory. live: a kit whose tools and checks really run. Raises SessionError where there is no such run.
    """
    tape = Tape(events)
    if not isinstance(header := tape.next, ev.SessionCreated):
        raise SessionError("a replay needs a session from its first event on")
    if journal is None:
        journal = MemoryJournal()
        journal.append([copy.copy(header)])
    tape.advance()
    if run:
        first, last = _bounds(tape, run)
        del tape.events[last:]
        while tape.at < first:
            if not isinstance(event := tape.events[tape.at], ev.Unknown):
                journal.append([copy.copy(event)])
            tape.advance()
    player = Player(tape, journal, blob, live, header.session_id)
    await player.play()
    return player.found


def _bounds(tape: Tape, run: int) -> tuple[int, int]:
    """Where a run begins, with its messages, and where it is over."""
    begins = [at for at, event in enumerate(tape.events) if isinstance(event, ev.RunStarted)]
    if not 1 <= run <= len(begins):
        raise SessionError(f"the session has {len(begins)} runs; there is no run {run}")
    first = begins[run - 1]
    while tape.begins(first - 1) == begins[run - 1]:
        first -= 1
    ends = (at for at, e in enumerate(tape.events) if at > first and isinstance(e, ev.RunFinished))
    return first, next(ends, len(tape.events) - 1) + 1


class Player:
    """The journal of a replay, and whoever stood outside: it takes what the record has next, and nothing else."""

    size = 0

    def __init__(
        self, tape: Tape, journal: Journal, blob: Callable[[str], bytes | None], live: Kit | None, recorded_id: str
    ) -> None:
        self.tape, self.found = tape, Replayed()
        self._inner, self._blob, self._live, self._recorded_id = journal, blob, live, recorded_id
        self._session: Session | None = None
        self._ids: list[str] = []
        self._base: float | None = None
        self._known = True
        self._sent = 0
        self._leaving: list[asyncio.Future[None]] = []
        self._stopping = False
        self.names: dict[bytes, str] = {}

    # -- the journal -----------------------------------------------------------------------------------

    @property
    def head(self) -> int:
        return self._inner.head

    @property
    def synced(self) -> int:
        return self._inner.synced

    @property
    def directory(self) -> Path | None:
        return self._inner.directory

    def append(self, events: Sequence[ev.Event]) -> int:
        for event in events:
            self._take(event)
        return self.head

    async def sync(self) -> None:
        await self._inner.sync()

    def live(self) -> Iterator[ev.Event]:
        return self._inner.live()

    def read(self, after: int = -1) -> Iterator[ev.Event]:
        return self._inner.read(after)

    def put_blob(self, data: bytes) -> str:
        return self.names.get(data) or self._inner.put_blob(data)

    def close(self) -> None:
        """One opening is over; the record goes on."""

    def _take(self, event: ev.Event) -> None:
        """Keep an event that is the one recorded here. Raises JournalPoisoned, which ends this opening."""
        opening = isinstance(event, ev.SessionOpened)
        if opening and not isinstance(self.tape.next, ev.SessionOpened):  # a replay that begins in the middle
            self._inner.append([event])
            return
        while (recorded := self.tape.next) is not None and not self._same(recorded, event):
            if not (is_said(recorded) or isinstance(recorded, Control) or is_foreign(recorded)):
                break
            if is_foreign(recorded) and type(recorded) is type(event):
                break
            self._play(recorded)
        if self.found.difference is not None or recorded is None or (isinstance(recorded, ev.SessionOpened) > opening):
            raise JournalPoisoned("the record goes no further in this opening")
        if isinstance(recorded, ev.RunFinished) and not isinstance(event, ev.RunFinished):
            _fail_as(recorded, event)
        if not self._same(recorded, event):
            self._differs(recorded, event)
            raise JournalPoisoned("the replay differs from the record")
        self._inner.append([event])
        self.found.kinds[event.type] += 1
        self.tape.advance()

    def _same(self, recorded: ev.Event, event: ev.Event) -> bool:
        if type(recorded) is not type(event):
            return False
        return isinstance(event, ev.SessionOpened) or self._plain(recorded) == self._plain(event)

    def _plain(self, event: ev.Event) -> Any:
        ignored = [*LABELS]
        if not self._known and isinstance(event, ev.ModelRequested):
            ignored.append("sha256")
        if self._live is not None and isinstance(event, ev.ToolFinished):
            ignored += ["details", "output"]
        raw = ev.encode_event(event)
        if self._session is not None and self._session.id != self._recorded_id:
            raw = raw.replace(self._session.id.encode(), self._recorded_id.encode())
        return {name: value for name, value in msgspec.json.decode(raw).items() if name not in ignored}

    def _differs(self, recorded: ev.Event | None, event: ev.Event | None) -> None:
        said: tuple[Message, ...] = ()
        if isinstance(event, ev.ModelRequested) and self._session is not None:
            said = tuple(self._session.projection.messages[self._sent :])
        seq = recorded.seq if recorded is not None else self.tape.events[-1].seq + 1
        self.found.difference = Difference(seq, recorded, event, said)

    # -- the outside -----------------------------------------------------------------------------------

    def blob(self, digest: str) -> bytes | None:
        return self._blob(digest) if digest else None

    def _play(self, event: ev.Event) -> None:
        """What somebody said, or what a replay cannot bring about: as it was recorded."""
        if is_foreign(event):
            self.found.taken[event.name if isinstance(event, ev.Unknown) else event.type] += 1
        if isinstance(event, ev.Unknown):
            self.tape.advance()
            return
        assert self._session is not None
        self._session.record(copy.copy(event))

    def interrupt(self) -> None:
        """The cancel, the passed deadline, or both, that come next."""
        session, at = self._session, self.tape.at
        assert session is not None
        while at < len(self.tape.events) and isinstance(event := self.tape.events[at], Control):
            if isinstance(event, ev.CancelRequested):
                session.cancel(event.reason, event.by)
            else:
                session.limits = replace(session.limits, max_seconds=event.seconds)
                session.ring()
            at += 1

    async def turn(self, call_id: str, *, stopped: bool = False) -> None:
        """Return when a call may end: not before those that ended before it, or the interruption that stopped it."""
        assert self._session is not None
        running = {entry.call.id for entry in self._session.state.turn if entry.status == "started"}
        while True:
            match self.tape.coming:
                case ev.ToolFinished() as other if other.call_id != call_id and other.call_id in running:
                    await self.tape.moved()
                case ev.CancelRequested() | ev.ClockPassed() if stopped:
                    await self.tape.moved()
                case _:
                    return

    def stop_soon(self) -> None:
        """The interruption that comes next, when all that was running in its moment has got there."""
        if not self._stopping:
            self._stopping = True
            asyncio.get_running_loop().call_soon(self._stop)

    def _stop(self) -> None:
        for leaving in self._leaving:
            if not leaving.done():
                leaving.set_result(None)
        self._leaving, self._stopping = [], False
        asyncio.get_running_loop().call_soon(self.interrupt)

    async def last_moment(self) -> None:
        """Return just before the interruption that comes next: what ends now has ended by itself."""
        leaving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leaving.append(leaving)
        self.stop_soon()
        await leaving

    async def _outside(self, session: Session) -> None:
        """The driver waits for us: do what was done from outside before it went on."""
        while session.unfinished:
            match event := self.tape.next:
                case None | ev.SessionOpened():
                    session.cancel("its process ends here")
                    return
                case ev.CancelRequested() | ev.ClockPassed():
                    if not self._at_work(session):
                        self.interrupt()
                    return
                case _ if is_said(event):
                    await session.barrier.quiet()
                    self._play(event)
                    session.wake()
                case _:
                    return

    def _at_work(self, session: Session) -> bool:
        """What runs was stopped while it ran: it says itself when."""
        if isinstance(self.tape.after_stop, ev.MessageCompleted | ev.ModelFailed | ev.CheckFinished):
            return True
        results = [self.tape.result(entry.call.id) for entry in session.state.turn if entry.status == "started"]
        return any(result is not None and result.outcome != "not_started" for result in results)

    # -- playing ---------------------------------------------------------------------------------------

    async def play(self) -> None:
        try:
            while self.found.difference is None and (event := self.tape.next) is not None:
                if isinstance(event, ev.SessionOpened) or self._session is None:
                    await self._open()
                    continue
                at = self.tape.at
                await self._step(self._session, event)
                if self.tape.at == at and self.found.difference is None:
                    self._differs(event, None)
        finally:
            if self._session is not None:
                await self._session.close()
            if self._live is not None and self._live.on_close is not None:
                await self._live.on_close()

    async def _open(self) -> None:
        """A process opens the session, as one did then. The one before it, if any, is gone."""
        if self._session is not None:
            await self._session.close()
        state = fold(self.live())
        name = (state.run.model or state.run.started.model) if state.run is not None else ""
        on_open = self._live.on_open if self._live is not None else lambda seen: None
        kit = Kit(model=PlayedModel(self, name), tools={}, render=lambda value: value, on_open=on_open)
        rules = Rules(judge=lambda call: Verdict("refuse"), traits=lambda name: Traits())
        self._sent = 0
        self._session = Session(
            self, kit, rules, state=state, now=self._now, monotonic=self._monotonic, new_id=lambda: self._ids.pop(0)
        )

    async def _step(self, session: Session, event: ev.Event) -> None:
        begins = self.tape.begins(self.tape.at)
        if session.unfinished and not is_said(event):
            await self._resume(session)
        elif begins >= 0:
            await self._begin(session, begins)
        elif is_said(event) or is_foreign(event):
            await session.barrier.quiet()
            self._play(event)
        else:
            self._differs(event, None)

    async def _resume(self, session: Session) -> None:
        run, tape, at = session.state.run, self.tape, self.tape.at
        assert run is not None
        started, name = run.started, run.model or run.started.model
        if isinstance(event := tape.next, ev.RunResumed):
            started = replace(started, **{field: getattr(event, field) for field in ev.CONDITIONS})
            at += 1
        event = tape.events[at] if at < len(tape.events) else None
        if isinstance(event, ev.ModelSwitched) and not event.request_id:
            name = event.new
        self._set_up(session, started, name)
        await self._drive(session, session.stream())

    async def _begin(self, session: Session, begins: int) -> None:
        tape = self.tape
        messages = [e for e in tape.events[tape.at : begins] if isinstance(e, ev.MessageAccepted)]
        started = tape.events[begins]
        assert isinstance(started, ev.RunStarted)
        prompt = messages.pop() if messages and messages[-1].source == "prompt" else None
        self._ids = [prompt.message_id.removeprefix("prompt-")] if prompt is not None else []
        self._ids.append(started.run_id.removeprefix("run-"))
        self._set_up(session, started, started.model)
        run = session.stream(
            prompt.message.text if prompt is not None else None,
            start=[event.message for event in messages],
            first_request=started.first_request,
        )
        await self._drive(session, run)

    def _set_up(self, session: Session, started: ev.RunStarted, name: str) -> None:
        session.kit, self._known = played_kit(self, started, name, self._live)
        session.rules = played_rules(self.tape, session.kit, started)
        limits = replace(session.rules.limits, max_seconds=None, tool_timeout=FOR_EVER, stream_timeout=FOR_EVER)
        if self._live is None:  # what was bounded when it was recorded is not bounded again
            limits = replace(limits, max_result=1 << 40)
        session.limits = replace(limits, max_prompt=1 << 40)
        if not self._known:
            self.found.blind.append(started.run_id)
        self._base = session.state.run.elapsed if session.unfinished and session.state.run is not None else 0.0

    async def _drive(self, session: Session, run: Run) -> None:
        async with run:
            async for event in run:
                if isinstance(event, ev.ModelRequested):
                    self._sent = len(session.projection.messages)
                await self._outside(session)
            await run.result()

    def _now(self) -> float:
        return self.tape.next.time if self.tape.next is not None else 0.0

    def _monotonic(self) -> float:
        """The recorded seconds of the run, so that they are recorded again."""
        if (base := self._base) is not None:
            self._base = None
            return base
        return self.tape.next.elapsed + 5e-5 if self.tape.next is not None else 0.0


def _fail_as(recorded: ev.RunFinished, event: ev.Event) -> None:
    """Then the disk failed, or a grant did not fit: that came from outside, and comes again. Raises what it raised."""
    error = recorded.error or ev.ErrorInfo("", "")
    if error.kind == "JOURNAL":
        raise JournalError(error.message)
    if error.kind == "TOOL" and isinstance(event, ev.ToolStarted):
        raise FatalToolError(error.message)


def blobs_of(read: Callable[[str], bytes]) -> Callable[[str], bytes | None]:
    """Blobs as a replay asks for them: None for one that is not kept. Raises JournalError for a damaged one."""

    def blob(digest: str) -> bytes | None:
        try:
            return read(digest)
        except JournalError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    return blob
