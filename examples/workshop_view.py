"""The five kinds of events of the workshop loop, numbered from 0, as a view over the events of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any, Literal

import msgspec
from workshop_model import Piece

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.message import tool_message

Kind = Literal["message.accepted", "model.chunk", "tool.started", "tool.finished", "run.finished"]


class Event(msgspec.Struct, frozen=True):
    """body: the message; the `Piece`; the call; the message with its result; the `Result`."""

    type: Kind
    sequence: int
    body: Any


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    status: str
    max_steps: int
    final_text: str = ""
    error: ev.ErrorInfo | None = None
    messages: tuple[ls.Message, ...] = ()


class Workshop:
    """One stream of events. `run` is the library's own: steer it, follow up, cancel it."""

    def __init__(self, run: ls.Run, max_steps: int, signal: asyncio.Event | None, flaw: str) -> None:
        self.run, self._max_steps, self._signal, self._flaw = run, max_steps, signal, flaw
        self._calls: dict[str, ls.ToolCall] = {}
        self._started: set[str] = set()
        self._results: dict[str, ev.ToolFinished | None] = {}

    async def __aiter__(self) -> AsyncIterator[Event]:
        number = count()
        if self._flaw:
            error = ev.ErrorInfo("INVALID_TRANSCRIPT", self._flaw)
            yield Event("run.finished", next(number), Result("failed", self._max_steps, error=error))
            return
        watch = asyncio.create_task(self._watch())
        try:
            async with self.run as run:
                async for happened in run:
                    for kind, body in self._shown(happened):
                        yield Event(kind, next(number), body)
                ended = await run
        finally:
            watch.cancel()
        result = Result(ended.status, self._max_steps, ended.final_text, ended.error, ended.messages)
        yield Event("run.finished", next(number), result)

    async def _watch(self) -> None:
        if self._signal is not None:
            await self._signal.wait()
            self.run.cancel("signal")

    def _shown(self, happened: ev.Event) -> Iterator[tuple[Kind, Any]]:
        """What this view shows of an event of the library: of calls, one after the other as they were made."""
        match happened:
            case ev.MessageAccepted():
                yield "message.accepted", happened.message
            case ev.ModelDelta():
                yield "model.chunk", _piece(happened)
            case ev.MessageCompleted():
                self._calls = {call.id: call for call in happened.message.calls}
                self._results = dict.fromkeys(self._calls)
            case ev.ToolStarted():
                self._started.add(happened.call_id)
                yield "tool.started", self._calls[happened.call_id]
            case ev.ToolFinished() if happened.outcome not in ("interrupted", "not_started"):
                self._results[happened.call_id] = happened
                while self._results and (done := next(iter(self._results.values()))) is not None:
                    del self._results[done.call_id]
                    if done.call_id not in self._started:  # rejected: the library does not even start it
                        yield "tool.started", self._calls[done.call_id]
                    result = ls.ToolResult(done.call_id, done.name, done.content, done.outcome, done.is_error)
                    yield "tool.finished", tool_message(result)


def _piece(delta: ev.ModelDelta) -> Piece:
    if delta.kind == "text":
        return Piece(delta.request_id, ls.Text(delta.piece))
    return Piece(delta.request_id, ls.ToolCall(delta.call_id, delta.name, msgspec.json.decode(delta.piece)))
