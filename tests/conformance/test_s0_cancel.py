"""The workshop loop, rule 9: a cancel at any point leaves complete messages only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from workshop import Script, add, workshop
from workshop_model import Block, Exchange, Piece, Response
from workshop_view import Event

import latchstep as ls
from latchstep.model.base import Request

from .s0 import ANSWER, CALL, DEADLINE, QUESTION, kinds, result

# 9. Cancel


def cancel_at(when: Callable[[Event], bool], model: Any, tools: Any = (add,)) -> list[Event]:
    """The events of a run whose signal is set when the first event that fits is received."""

    async def gather() -> list[Event]:
        signal = asyncio.Event()
        events: list[Event] = []
        async with asyncio.timeout(DEADLINE):
            async for event in workshop([QUESTION], model, tools, max_steps=4, signal=signal):
                events.append(event)
                if when(event):
                    signal.set()
        assert len(asyncio.all_tasks()) == 1, "tasks were left behind"
        return events

    events = asyncio.run(gather())
    assert result(events).status == "cancelled"
    assert events[-1].type == "run.finished"
    return events


def test_s0_09_a_signal_that_is_already_set() -> None:
    async def gather() -> list[Event]:
        signal = asyncio.Event()
        signal.set()
        return [event async for event in workshop([QUESTION], model, [add], max_steps=4, signal=signal)]

    model = Script([CALL], [ANSWER])
    events = asyncio.run(gather())
    assert result(events).status == "cancelled"
    assert model.requests == []
    assert set(kinds(events)) <= {"message.accepted", "run.finished"}


def test_s0_09_cancel_at_the_first_emission() -> None:
    model = Script([CALL], [ANSWER])
    events = cancel_at(lambda event: event.sequence == 0, model)
    assert kinds(events) == ["message.accepted", "run.finished"]
    assert result(events).messages == (QUESTION,)
    assert model.requests == []


@pytest.mark.parametrize("blocks", [[ls.Text("par"), ls.Text("tial")], [ls.Text("a"), CALL]])
def test_s0_09_cancel_while_streaming_leaves_no_partial_message(blocks: list[Block]) -> None:
    model = Script(blocks, [ANSWER])
    events = cancel_at(lambda event: event.type == "model.chunk", model)
    assert kinds(events)[:2] == ["message.accepted", "model.chunk"]
    assert "tool.started" not in kinds(events)
    assert result(events).messages == (QUESTION,)
    assert (result(events).final_text, len(model.requests)) == ("", 1)


def cancel_inside(entered: asyncio.Event, model: Any, tools: Any = (add,)) -> list[Event]:
    """The events of a run whose signal is set as soon as something deep inside it says that it has begun."""

    async def gather() -> list[Event]:
        signal = asyncio.Event()

        async def set_it() -> None:
            await entered.wait()
            signal.set()

        setting = asyncio.create_task(set_it())
        async with asyncio.timeout(DEADLINE):
            stream = workshop([QUESTION], model, tools, max_steps=4, signal=signal)
            events = [event async for event in stream]
            await setting
        assert len(asyncio.all_tasks()) == 1, "tasks were left behind"
        return events

    events = asyncio.run(gather())
    assert result(events).status == "cancelled"
    return events


class Stuck(Script):
    """Waits for ever at one point: in the middle of the stream, or for the terminal response."""

    def __init__(self, point: str) -> None:
        super().__init__([CALL])
        self.point, self.entered, self.left = point, asyncio.Event(), False

    async def forever(self) -> None:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left = True

    def open(self, request: Request) -> Exchange:
        inner = super().open(request)

        async def chunks() -> AsyncGenerator[Piece, None]:
            async with aclosing(inner.chunks):
                async for piece in inner.chunks:
                    yield piece
            if self.point == "stream":
                await self.forever()

        async def response() -> Response:
            await self.forever()
            return await inner.response()

        return Exchange(chunks(), response)


@pytest.mark.parametrize("point", ["stream", "response"])
def test_s0_09_cancel_while_the_model_is_silent(point: str) -> None:
    model = Stuck(point)
    events = cancel_inside(model.entered, model)
    assert kinds(events) == ["message.accepted", "model.chunk", "run.finished"]
    assert result(events).messages == (QUESTION,)
    assert model.left


@pytest.mark.parametrize("effect", ["read", "write"])
def test_s0_09_cancel_in_a_tool_keeps_the_message_and_fabricates_no_result(effect: Any) -> None:
    entered = asyncio.Event()
    left: list[str] = []

    @ls.tool(effect=effect)
    async def wait() -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.append("wait")
        return "never"

    model = Script([CALL, ls.ToolCall("call-wait", "wait", {}), ls.ToolCall("call-later", "wait", {})], [ANSWER])
    events = cancel_inside(entered, model, [add, wait])
    assert kinds(events)[4:] == ["tool.started", "tool.finished", "tool.started", "run.finished"]
    assert [message.role for message in result(events).messages] == ["user", "assistant", "tool"]
    assert left == ["wait"]
    assert len(model.requests) == 1


@pytest.mark.parametrize("kind", ["tool.started", "tool.finished"])
def test_s0_09_cancel_between_phases(kind: str) -> None:
    ran: list[int] = []

    @ls.tool(name="add")
    def counted(left: int, right: int) -> int:
        ran.append(left)
        return left + right

    model = Script([CALL, ls.ToolCall("call-2", "add", {"left": 1, "right": 1})], [ANSWER])
    events = cancel_at(lambda event: event.type == kind, model, [counted])
    ended = result(events)
    finished = kind == "tool.finished"
    assert kinds(events)[3:] == ["tool.started", *(["tool.finished"] if finished else []), "run.finished"]
    assert [m.role for m in ended.messages] == ["user", "assistant", *(["tool"] if finished else [])]
    assert ran == ([20] if finished else [])
    assert len(model.requests) == 1


def test_s0_09_cancel_after_the_last_chunk_is_still_a_cancel() -> None:
    model = Script([CALL], [ANSWER])
    events = cancel_at(lambda event: event.type == "model.chunk" and event.sequence == 4, model)
    assert kinds(events)[4:] == ["model.chunk", "run.finished"]
    assert [message.role for message in result(events).messages] == ["user", "assistant", "tool"]


def test_s0_09_leaving_the_stream_cancels_the_run() -> None:
    async def leave() -> str:
        stream = workshop([QUESTION], Stuck("response"), [add], max_steps=4)
        iterator = stream.__aiter__()
        async with asyncio.timeout(DEADLINE):
            await anext(iterator)
            await iterator.aclose()  # type: ignore[attr-defined]
            return (await stream.run).status

    assert asyncio.run(leave()) == "cancelled"
