"""A recorded session to be run again: where the replay stands in it, and what comes next.

What came from outside is played at its place, what the loop makes is compared, and what is of neither kind is taken
over and named.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice

from latchstep.core import event as ev
from latchstep.core import wording
from latchstep.core.state import PEOPLE

Control = ev.CancelRequested | ev.ClockPassed
MADE = (
    ev.SessionOpened
    | ev.RunStarted
    | ev.RunResumed
    | ev.MessageAccepted
    | ev.ModelRequested
    | ev.ModelFailed
    | ev.ModelSwitched
    | ev.ContextCompacted
    | ev.MessageCompleted
    | ev.CallChanged
    | ev.CallKept
    | ev.ApprovalRequested
    | ev.ApprovalAbandoned
    | ev.ToolStarted
    | ev.ToolFinished
    | ev.CheckStarted
    | ev.CheckFinished
    | ev.RunFinished
)
"""What the loop makes of what it is given."""

ANSWERS = ev.MessageCompleted | ev.ModelFailed | ev.ContextCompacted
"""What stands on record for a model's answer, or for none."""

About = ev.CallChanged | ev.CallKept | ev.ToolStarted | ev.ToolFinished | ev.ApprovalRequested | ev.ApprovalAbandoned


HOOK_REFUSED = "This call was declined by a hook"


def is_said(event: ev.Event) -> bool:
    """Somebody outside the loop said it, at a moment of their own."""
    if isinstance(event, ev.MessageAccepted):
        return event.source in (*PEOPLE, "start")
    if isinstance(event, ev.CancelRequested):
        return event.after_turn
    return isinstance(event, ev.MessageEdited | ev.MessageWithdrawn | ev.ApprovalAnswered | ev.CompactRequested)


def is_foreign(event: ev.Event) -> bool:
    """Nothing that a replay knows how to bring about."""
    return not isinstance(event, MADE | Control) and not is_said(event)


def _calls(event: ev.Event) -> Iterable[str]:
    """The calls an event is about."""
    match event:
        case ev.CallChanged() | ev.CallKept() | ev.ToolStarted() | ev.ToolFinished():
            return (event.call_id,)
        case ev.ApprovalRequested():
            return [question.call_id for question in event.questions]
        case ev.ApprovalAbandoned():
            return event.call_ids
        case _:
            return ()


def by_hook(event: ev.Event) -> bool:
    """A hook refused the call, or failed before it could run."""
    said = str(event.content) if isinstance(event, ev.ToolFinished) else ""
    return said.startswith((HOOK_REFUSED, wording.hook_failed("").partition("(")[0]))


class Tape:
    """Recorded events and a place in them. Snapshots are left out: they repeat what the events say."""

    def __init__(self, events: Iterable[ev.Event]) -> None:
        self.events = [event for event in events if not isinstance(event, ev.SessionSnapshot)]
        self.at = 0
        self._about: dict[str, list[int]] = {}
        self._moved: list[asyncio.Future[None]] = []
        for index, event in enumerate(self.events):
            for call_id in _calls(event):
                self._about.setdefault(call_id, []).append(index)

    @property
    def next(self) -> ev.Event | None:
        return self.events[self.at] if self.at < len(self.events) else None

    @property
    def ahead(self) -> ev.Event | None:
        """The next event that a replay knows how to bring about."""
        return next((event for event in islice(self.events, self.at, None) if not is_foreign(event)), None)

    @property
    def coming(self) -> ev.Event | None:
        """The next event that the loop, or an interruption of it, must bring about."""
        left = islice(self.events, self.at, None)
        return next((event for event in left if not is_said(event) and not is_foreign(event)), None)

    @property
    def after_stop(self) -> ev.Event | None:
        """The first that the loop makes after the interruption that comes next."""
        left = islice(self.events, self.at, None)
        return next((event for event in left if isinstance(event, MADE) and not is_said(event)), None)

    def advance(self) -> None:
        self.at += 1
        moved, self._moved = self._moved, []
        for waiting in moved:
            if not waiting.done():
                waiting.set_result(None)

    async def moved(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._moved.append(waiting)
        await waiting

    def about(self, call_id: str) -> About | None:
        """The next event about this call."""
        places = self._about.get(call_id, [])
        first = bisect_left(places, self.at)
        found = self.events[places[first]] if first < len(places) else None
        assert found is None or isinstance(found, About)
        return found

    def result(self, call_id: str) -> ev.ToolFinished | None:
        """This call's result, if it came before its process died."""
        for event in islice(self.events, self.at, None):
            if isinstance(event, ev.SessionOpened):
                return None
            if isinstance(event, ev.ToolFinished) and event.call_id == call_id:
                return event
        return None

    def unprepared(self, call_id: str) -> bool:
        """What is recorded next are calls that could not be prepared, and this one is among them."""
        for event in islice(self.events, self.at, None):
            if not isinstance(event, ev.ToolFinished) or event.outcome != "error":
                return False
            if event.call_id == call_id:
                return True
        return False

    def hooked(self, name: str) -> bool:
        """Whether hooks look at calls of this tool in what comes next, up to where the run or its process ends."""
        names: dict[str, str] = {}
        for at, event in enumerate(self.events):
            if at >= self.at and isinstance(event, ev.RunFinished | ev.SessionOpened):
                break
            if isinstance(event, ev.MessageCompleted):  # an id may be used again
                names.update((call.id, call.name) for call in event.message.calls)
            looked = at >= self.at and (isinstance(event, ev.CallChanged | ev.CallKept) or by_hook(event))
            if looked and any(names.get(call_id) == name for call_id in _calls(event)):
                return True
        return False

    def asks(self, name: str) -> bool:
        """Whether calls of this tool were questions to a person."""
        asked = (q for e in self.events if isinstance(e, ev.ApprovalRequested) for q in e.questions)
        return any(question.about == "answer" and question.name == name for question in asked)

    def starts(self, name: str) -> list[int]:
        """Where calls of this tool were started."""
        return [i for i, e in enumerate(self.events) if isinstance(e, ev.ToolStarted) and e.name == name]

    def begins(self, at: int) -> int:
        """The place of the `run.started` whose messages begin here, or -1."""
        while at < len(self.events):
            event = self.events[at]
            if isinstance(event, ev.RunStarted):
                return at
            if not isinstance(event, ev.MessageAccepted) or event.source not in ("start", "prompt"):
                return -1
            at += 1
        return -1
