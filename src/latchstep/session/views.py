"""The events of a run seen as turns and messages: when each begins, grows and ends.

A view holds nothing that the events do not say, so it works as well on a journal as on a run.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import Literal

import msgspec

from latchstep.core import event as ev
from latchstep.core.message import Message, ToolResult, tool_message

Kind = Literal["turn_start", "message_start", "message_update", "message_end", "turn_end"]


class Moment(msgspec.Struct, frozen=True):
    """Something in the life of a turn, and the event that told it.

    A turn is one answer of the model with the results of its calls; the messages that its request delivered come
    first in it. `message`: whole, but None for an answer under way, and at its `message_end` where the attempt failed
    and what was shown is void. `results`: those of the turn, in call order, at its `turn_end`.
    """

    kind: Kind
    event: ev.Event
    message: Message | None = None
    results: tuple[ToolResult, ...] = ()


async def turns(events: AsyncIterable[ev.Event]) -> AsyncIterator[Moment]:
    """The moments of a run (`turns(run)`) or of a session's events (`turns(session.watch())`), as they come."""
    view = Turns()
    async for event in events:
        for moment in view.feed(event):
            yield moment


class Turns:
    """The view itself, for events that are there already. What began before the first event is not shown."""

    def __init__(self) -> None:
        self._waiting: dict[str, Message] = {}
        self._answer: Message | None = None
        self._results: dict[str, ToolResult | None] = {}
        self._open = self._showing = False

    def feed(self, event: ev.Event) -> Iterator[Moment]:
        match event:
            case ev.MessageAccepted() if event.source != "start":
                self._waiting[event.message_id] = event.message
            case ev.MessageEdited():
                self._waiting[event.message_id] = event.message
            case ev.MessageWithdrawn():
                self._waiting.pop(event.message_id, None)
            case ev.ModelRequested():
                yield from self._requested(event)
            case ev.ModelDelta():
                yield from self._begun(event)
                yield Moment("message_update", event)
            case ev.ModelFailed() if self._showing:
                self._showing = False
                yield Moment("message_end", event)
            case ev.MessageCompleted():
                yield from self._begun(event)
                self._answer, self._showing = event.message, False
                self._results = dict.fromkeys(call.id for call in event.message.calls)
                yield Moment("message_end", event, event.message)
                yield from self._ended(event)
            case ev.ToolFinished() if event.call_id in self._results:
                yield from self._finished(event)
            case ev.RunFinished():
                if self._showing:
                    yield Moment("message_end", event)
                self._showing = False
                self._results = {call_id: result for call_id, result in self._results.items() if result is not None}
                yield from self._ended(event)

    def _requested(self, event: ev.ModelRequested) -> Iterator[Moment]:
        if not self._open:
            self._open, self._answer = True, None
            yield Moment("turn_start", event)
        for message_id in event.carries:
            if (message := self._waiting.pop(message_id, None)) is not None:
                yield Moment("message_start", event, message)
                yield Moment("message_end", event, message)

    def _begun(self, event: ev.Event) -> Iterator[Moment]:
        if not self._showing:
            self._showing = True
            yield Moment("message_start", event)

    def _finished(self, event: ev.ToolFinished) -> Iterator[Moment]:
        result = ToolResult(event.call_id, event.name, event.content, event.outcome, event.is_error)
        self._results[event.call_id] = result
        yield Moment("message_start", event, tool_message(result))
        yield Moment("message_end", event, tool_message(result))
        yield from self._ended(event)

    def _ended(self, event: ev.Event) -> Iterator[Moment]:
        """The turn is over when every call of its answer has a result."""
        results = tuple(result for result in self._results.values() if result is not None)
        if self._open and len(results) == len(self._results):
            self._open, self._results = False, {}
            yield Moment("turn_end", event, self._answer, results)
