"""What the tests of the workshop loop share: its addition case, and models that disagree with themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import msgspec
from workshop import Script, add, workshop
from workshop_model import Block, Exchange, Piece, Response
from workshop_view import Event, Result, Workshop

import latchstep as ls
from latchstep.core.message import user
from latchstep.model.base import Request

CALL = ls.ToolCall("call-add-001", "add", {"left": 20, "right": 22})
QUESTION = user("What is 20 + 22?", "message-user-001")
ANSWER = ls.Text("20 + 22 is 42.")
DEADLINE = 20.0
LOOPED: dict[str, Any] = {}
LOOPED["self"] = LOOPED


def text_of(message: ls.Message) -> str:
    """The text of a message, results included."""
    return "".join(block.text for block in message.blocks if isinstance(block, ls.Text | ls.ToolResult))


def collect(stream: Workshop, seen: Callable[[Event], Any] = lambda event: None) -> list[Event]:
    """All events of a stream; `seen` is called for each as it is received."""

    async def gather() -> list[Event]:
        events = []
        async with asyncio.timeout(DEADLINE):
            async for event in stream:
                events.append(event)
                seen(event)
        assert len(asyncio.all_tasks()) == 1, "tasks were left behind"
        return events

    return asyncio.run(gather())


def addition(**options: Any) -> tuple[list[Event], Script]:
    model = Script([CALL], [ANSWER])
    return collect(workshop([QUESTION], model, [add], **{"max_steps": 4, **options})), model


def kinds(events: list[Event]) -> list[str]:
    return [event.type for event in events]


def result(events: list[Event]) -> Result:
    assert [event.sequence for event in events] == list(range(len(events)))
    assert kinds(events).count("run.finished") == 1
    assert isinstance(events[-1].body, Result)
    return events[-1].body


class Answering:
    """A model whose chunks and terminal response are given apart, so that they can disagree.

    chunks: blocks, or whole pieces, or anything else. change: fields of the response to replace.
    """

    def __init__(self, chunks: Sequence[Any], blocks: Sequence[Block] | None = None, **change: Any) -> None:
        self.chunks, self.blocks, self.change = chunks, blocks, change
        self.requests: list[Request] = []
        self.drawn = 0
        self.drained_first: bool | None = None

    def open(self, request: Request) -> Exchange:
        self.requests.append(request)
        drained = False

        async def chunks() -> AsyncGenerator[Piece, None]:
            nonlocal drained
            for chunk in self.chunks:
                self.drawn += 1
                yield Piece(request.request_id, chunk) if isinstance(chunk, ls.Text | ls.ToolCall) else chunk
            drained = True

        async def response() -> Response:
            self.drained_first = drained
            blocks = tuple(self.chunks if self.blocks is None else self.blocks)
            calls = any(isinstance(block, ls.ToolCall) for block in blocks)
            made = Response("response-1", request.request_id, "toolCall" if calls else "stop", blocks)
            return msgspec.structs.replace(made, **self.change)

        return Exchange(chunks(), response)


def refused(model: Any, naming: str = "") -> list[Event]:
    """The events of a run that this model's one answer fails, without any tool having run."""
    ran: list[int] = []

    @ls.tool
    def add(left: int, right: int) -> int:
        ran.append(left)
        return left + right

    events = collect(workshop([QUESTION], model, [add], max_steps=4))
    ended = result(events)
    assert (ended.status, ended.error and ended.error.kind) == ("failed", "MODEL_PROTOCOL_ERROR")
    assert ended.error is not None
    assert naming in ended.error.message
    assert ran == []
    assert "tool.started" not in kinds(events)
    assert len(model.requests) == 1
    return events


def accepted(model: Any) -> Result:
    """The result of a run in which this model answers at once with text."""
    ended = result(collect(workshop([QUESTION], model, [add], max_steps=1)))
    assert ended.error is None or ended.status == "max_steps", ended.error
    return ended
