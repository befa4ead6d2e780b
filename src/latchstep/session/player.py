"""The journal of a replay, and whoever stood outside the loop.

It takes what the record has next and nothing else, so that the first event that is another ends the replay.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from latchstep.core import event as ev
from latchstep.core.action import Wait
from latchstep.core.codec import encode_event
from latchstep.core.decide import decide
from latchstep.core.message import Message
from latchstep.errors import FatalToolError, JournalError, JournalPoisoned, ToolError
from latchstep.journal.base import Journal

from .kit import Kit
from .session import Session
from .tape import ANSWERS, Control, Tape, is_foreign, is_said

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


class Player:
    """The journal of a replay, and whoever stood outside: it takes what the record has next, and nothing else."""

    size = 0

    def __init__(
        self,
        tape: Tape,
        journal: Journal,
        blob: Callable[[str], bytes | None],
        live: Kit | None,
        header: ev.SessionCreated,
    ) -> None:
        self.tape, self.found = tape, Replayed()
        self._inner, self._blob, self.live_kit = journal, blob, live
        self._recorded_id, self.workspace = header.session_id, header.workspace
        self.session: Session | None = None
        self.ids: list[str] = []
        self.base: float | None = None
        self.known = True
        self.sent = 0
        self._leaving: list[asyncio.Future[None]] = []
        self._stopping = False
        self.names: dict[bytes, str] = {}
        self._keys: dict[str, str] = {}

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
            self.take_over(recorded)
            if self.found.difference is not None:
                break
        if self.found.difference is not None or recorded is None or (isinstance(recorded, ev.SessionOpened) > opening):
            raise JournalPoisoned("the record goes no further in this opening")
        if isinstance(recorded, ev.RunFinished) and not isinstance(event, ev.RunFinished):
            _fail_as(recorded, event)
        if not self._same(recorded, event):
            self.differs(recorded, event)
            raise JournalPoisoned("the replay differs from the record")
        self._inner.append([event])
        self.found.kinds[event.type] += 1
        if isinstance(event, ev.ContextCompacted):
            self.sent = 0  # the next request begins anew
        self.tape.advance()

    def _same(self, recorded: ev.Event, event: ev.Event) -> bool:
        if type(recorded) is not type(event):
            return False
        if isinstance(event, ev.SessionOpened):
            return True
        return self._plain(recorded) == self._plain(event) and self._keyed(recorded, event)

    def _keyed(self, recorded: ev.Event, event: ev.Event) -> bool:
        """Two effects have one key now if they had one then: how it reads is the program's choice."""
        if not isinstance(recorded, ev.ToolStarted) or not isinstance(event, ev.ToolStarted):
            return True
        then, now = recorded.idempotency_key, event.idempotency_key
        return self._keys.setdefault(f"-{then}", now) == now and self._keys.setdefault(f"+{now}", then) == then

    def _plain(self, event: ev.Event) -> Any:
        ignored = [*LABELS]
        if not self.known and isinstance(event, ev.ModelRequested):
            ignored.append("sha256")
        if isinstance(event, ev.ToolStarted):
            ignored.append("idempotency_key")
        if self.live_kit is not None and isinstance(event, ev.ToolFinished):
            ignored += ["details", "output"]
        raw = encode_event(event)
        if self.session is not None and self.session.id != self._recorded_id:
            raw = raw.replace(self.session.id.encode(), self._recorded_id.encode())
        return {name: value for name, value in msgspec.json.decode(raw).items() if name not in ignored}

    def differs(self, recorded: ev.Event | None, event: ev.Event | None) -> None:
        said: tuple[Message, ...] = ()
        if isinstance(event, ev.ModelRequested) and self.session is not None:
            said = tuple(self.session.projection.messages[self.sent :])
        if self.live_kit is not None and isinstance(recorded, ev.ToolFinished) and isinstance(event, ev.ToolFinished):
            recorded, event = (replace(e, details=None, output="") for e in (recorded, event))
        seq = recorded.seq if recorded is not None else self.tape.events[-1].seq + 1
        self.found.difference = Difference(seq, recorded, event, said)

    # -- the outside -----------------------------------------------------------------------------------

    def blob(self, digest: str) -> bytes | None:
        return self._blob(digest) if digest else None

    def take_over(self, event: ev.Event) -> None:
        """What somebody said, or what a replay cannot bring about: as it was recorded."""
        if is_foreign(event) and not isinstance(event, ev.WorkspaceSnapshot):
            self.found.taken[event.name if isinstance(event, ev.Unknown) else event.type] += 1
        if isinstance(event, ev.Unknown):
            self.tape.advance()
            return
        assert self.session is not None
        try:
            self.session.record(copy.copy(event))
        except (KeyError, ValueError):  # it is about a call that is not there, or not any more
            self.differs(event, None)

    def interrupt(self) -> None:
        """The cancel, the passed deadline, or both, that come next."""
        session = self.session
        assert session is not None
        for event in islice(self.tape.events, self.tape.at, None):
            if is_said(event):
                if session.unfinished:
                    return
                self.take_over(event)
            elif isinstance(event, ev.CancelRequested):
                session.cancel(event.reason, event.by)
            elif isinstance(event, ev.ClockPassed):
                session.limits = replace(session.limits, max_seconds=event.seconds)
                session.ring()
            elif not is_foreign(event):
                return

    async def turn(self, call_id: str, *, stopped: bool = False) -> None:
        """Return when a call may end: not before those that ended before it, or the interruption that stopped it."""
        assert self.session is not None
        mine = self.session.state.open_call(call_id).status
        running = {entry.call.id for entry in self.session.state.turn if entry.status == mine}
        while True:
            match self.tape.coming:
                case ev.ToolFinished() | ev.CallChanged() | ev.CallKept() as other if (
                    other.call_id != call_id and other.call_id in running
                ):
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

    async def nothing_for(self, what: str) -> ToolError:
        """The record has no end of this: it was stopped or died, and so it will be now. Returns where the record goes
        on in another way."""
        if isinstance(self.tape.coming, Control):
            self.stop_soon()
        elif not isinstance(self.tape.coming, ev.SessionOpened | None):
            return ToolError(f"the record has no {what} here")
        elif self.session is not None and self.session.busy and not self.session.unfinished:
            self.session.cancel("its process ends here")
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody ends this wait but who cancels it")

    async def last_moment(self) -> None:
        """Return just before the interruption that comes next: what ends now has ended by itself."""
        leaving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leaving.append(leaving)
        self.stop_soon()
        await leaving

    async def outside(self, session: Session) -> None:
        """The driver waits for us: do what was done from outside before it went on."""
        while session.unfinished:
            if self.found.difference is not None:
                session.cancel("the replay differs from the record")
                return
            match event := self.tape.ahead:
                case None | ev.SessionOpened():
                    session.cancel("its process ends here")
                    return
                case _ if is_said(event):
                    await session.barrier.quiet()
                    self.take_over(event)
                    session.wake()
                case ev.CancelRequested() | ev.ClockPassed():
                    if not self._at_work(session):
                        self.interrupt()
                    return
                case _:
                    if not session.questions or not isinstance(decide(session.state, session.rules), Wait):
                        return
                    self.differs(event, None)  # nobody answers

    def _at_work(self, session: Session) -> bool:
        """What runs was stopped while it ran: it says itself when."""
        if isinstance(self.tape.after_stop, ANSWERS | ev.CheckFinished):
            return True
        results = [self.tape.result(entry.call.id) for entry in session.state.turn if entry.status == "started"]
        return any(result is not None and result.outcome != "not_started" for result in results)

    def now(self) -> float:
        return self.tape.next.time if self.tape.next is not None else 0.0

    def monotonic(self) -> float:
        """The recorded seconds of the run, so that they are recorded again."""
        if (base := self.base) is not None:
            self.base = None
            return base
        return self.tape.next.elapsed + 5e-5 if self.tape.next is not None else 0.0


def _fail_as(recorded: ev.RunFinished, event: ev.Event) -> None:
    """Then the disk failed, or a grant did not fit: that came from outside, and comes again. Raises what it raised."""
    error = recorded.error or ev.ErrorInfo("", "")
    if error.kind == "JOURNAL":
        raise JournalError(error.message)
    if error.kind == "TOOL" and isinstance(event, ev.ToolStarted):
        raise FatalToolError(error.message)
