"""A recorded session as a model: its answers, failures included, in the order they came.

Strict, it compares the SHA-256 of each request with the recorded one, and the first difference fails with
a diff of what was sent then and now: a session recorded once is a regression test for ever.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterable, Iterator

import msgspec

from latchstep.core.chunk import Chunk, Completed, Delta, Failed, Switched
from latchstep.core.event import (
    ContextCompacted,
    Event,
    MessageCompleted,
    ModelFailed,
    ModelRequested,
    ModelSwitched,
    RunStarted,
)
from latchstep.core.message import Message, Text, Thinking
from latchstep.core.project import Projection
from latchstep.core.state import State
from latchstep.errors import DefinitionError, ModelError

from .base import Request

Answered = MessageCompleted | ModelFailed | ContextCompacted
"""What stands on record for one answer."""

_KINDS = {"MODEL_PROTOCOL_ERROR": "protocol", "CONTEXT_FULL": "context_overflow", "FILTERED": "filtered"}


class Cassette:
    """Plays back the events of a session. Asked once too often, it raises ModelError("bad_request")."""

    def __init__(self, events: Iterable[Event], *, strict: bool = True) -> None:
        self._events = list(events)
        self._strict = strict
        self._answers = [e for e in self._events if isinstance(e, Answered)]
        self._requests, self._switches = _leading(self._events)
        started = next((e for e in self._events if isinstance(e, RunStarted)), None)
        if started is None:
            raise DefinitionError("a cassette needs the events of a session in which a run was started")
        self.name = started.model

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        place = request.place
        if place < len(self._answers):
            recorded = self._requests[place]
            if self._strict and recorded.sha256 and recorded.sha256 != request.sha256:
                raise ModelError("bad_request", self._difference(recorded, request))
        for chunk in self._switched(place):
            yield chunk
        answer = self._answer(place)
        while isinstance(answer, ModelFailed) and answer.next == "retry":
            yield Failed(kind=answer.kind, message=answer.message, retry_in=0.0, usage=answer.usage, cost=answer.cost)
            place += 1
            for chunk in self._switched(place):
                yield chunk
            answer = self._answer(place)
        for piece in chunks_of(answer):
            yield piece

    def _switched(self, place: int) -> list[Switched]:
        found = self._switches[place] if place < len(self._switches) else []
        return [Switched(old=event.old, new=event.new, why=event.why) for event in found]

    def _answer(self, place: int) -> Answered:
        if place < len(self._answers):
            return self._answers[place]
        raise ModelError(
            "bad_request", f"the cassette has {len(self._answers)} answers; number {place + 1} was asked for"
        )

    def _difference(self, recorded: ModelRequested, request: Request) -> str:
        """A readable diff of the projected messages, or the news that prompt or tools differ."""
        state = State()
        for event in self._events:
            if event is recorded:
                break
            state.apply(event)
        then = Projection().feed([*state.transcript, *state.outgoing(recorded.carries)])
        diff = difflib.unified_diff(_lines(then), _lines(request.messages), "recorded", "now", lineterm="", n=1)
        text = "\n".join(diff) or "the messages are equal: the system prompt or the tools differ"
        return f"{request.request_id} is not the request that was recorded:\n{text}"


def chunks_of(answer: Answered) -> Iterator[Chunk]:
    """What a model says for this to be recorded. Raises ModelError where it gave up."""
    if isinstance(answer, ModelFailed):
        if answer.stop_reason is None:
            kind = _KINDS.get(answer.kind, answer.kind.removeprefix("MODEL_").lower())
            raise ModelError(kind, answer.message, usage=answer.usage, cost=answer.cost)  # type: ignore[arg-type]
        yield Completed(  # an answer came, and was empty
            blocks=(),
            stop_reason=answer.stop_reason,
            raw_stop_reason=answer.raw_stop_reason,
            usage=answer.usage,
            cost=answer.cost,
        )
        return
    if isinstance(answer, ContextCompacted):
        summary = answer.message.blocks[-1]
        yield Completed(
            blocks=(summary,), stop_reason="stop", usage=answer.usage, cost=answer.cost, origin=answer.model
        )
        return
    for block in answer.message.blocks:
        if isinstance(block, Text | Thinking):
            yield Delta("text" if isinstance(block, Text) else "thinking", block.text)
    yield Completed(
        blocks=answer.message.blocks,
        stop_reason=answer.stop_reason,
        raw_stop_reason=answer.raw_stop_reason,
        usage=answer.usage,
        cost=answer.cost,
        response_id=answer.message.id.removeprefix("message-"),
        origin=answer.message.origin,
        window=answer.window,
    )


def _leading(events: list[Event]) -> tuple[list[ModelRequested], list[list[ModelSwitched]]]:
    """For each answer, the request it answered, and the switches within it that came before."""
    requests: list[ModelRequested] = []
    switches: list[list[ModelSwitched]] = [[]]
    latest = None
    for event in events:
        if isinstance(event, ModelRequested):
            latest = event
        elif isinstance(event, ModelSwitched) and event.request_id:
            switches[-1].append(event)
        elif isinstance(event, Answered):
            assert latest is not None
            requests.append(latest)
            switches.append([])
    return requests, switches


def _lines(messages: Iterable[Message]) -> list[str]:
    return [msgspec.json.encode((message.role, message.blocks)).decode() for message in messages]
