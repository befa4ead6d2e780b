"""A model that answers from a list: for tests, demos and examples.

Its place in the list is counted from the session's record, never kept in the object, so that it survives
a resume and one object can serve many sessions.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.core.message import Block, StopReason, Text, Thinking, ToolCall, Usage
from latchstep.errors import DefinitionError, ModelError

from .base import Request


class Reply:
    """One scripted answer.

    blocks: a string, a block, or a list of both. stop_reason: by default `tool_calls` if there is a call,
    else `stop`. deltas: what is streamed before (strings are text), by default one piece a block.
    """

    def __init__(
        self,
        blocks: str | Block | Sequence[str | Block],
        stop_reason: StopReason | None = None,
        usage: Usage | None = None,
        deltas: Sequence[str | Delta] | None = None,
        *,
        raw_stop_reason: str = "",
        cost: float | None = None,
        response_id: str = "",
    ) -> None:
        listed = [blocks] if isinstance(blocks, str | msgspec.Struct) else list(blocks)
        self.blocks: tuple[Block, ...] = tuple(Text(b) if isinstance(b, str) else b for b in listed)
        called = any(isinstance(block, ToolCall) for block in self.blocks)
        self.stop_reason: StopReason = stop_reason or ("tool_calls" if called else "stop")
        self.usage, self.cost = usage or Usage(), cost
        self.raw_stop_reason, self.response_id = raw_stop_reason or self.stop_reason, response_id
        given = [_piece(block) for block in self.blocks] if deltas is None else deltas
        self.deltas = tuple(Delta("text", d) if isinstance(d, str) else d for d in given if d is not None)


Scripted = str | Block | Sequence[Any] | Reply | BaseException | Callable[[Request], Any]


class ScriptedModel:
    """Answers the n-th request of a session with the n-th reply.

    A reply is a string (final text), a `ToolCall`, a list of blocks, a `Reply`, an exception to raise, or a
    function of the request that returns one of these (it may be async). Asked once too often, it raises
    ModelError("bad_request").
    """

    def __init__(self, replies: Sequence[Scripted], *, name: str = "scripted:script") -> None:
        if isinstance(replies, str):
            raise DefinitionError("ScriptedModel takes a list of replies; for one text, give [text]")
        self.replies = [
            reply if callable(reply) or isinstance(reply, Reply | BaseException) else Reply(reply) for reply in replies
        ]
        self.name = name

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        if request.place >= len(self.replies):
            raise ModelError(
                "bad_request",
                f"the script has {len(self.replies)} replies, and number {request.place + 1} was asked for",
            )
        reply: Any = self.replies[request.place]
        if not isinstance(reply, Reply | BaseException):
            reply = reply(request)
            if inspect.isawaitable(reply):
                reply = await reply
        if isinstance(reply, BaseException):
            raise reply
        if not isinstance(reply, Reply):
            reply = Reply(reply)
        for delta in reply.deltas:
            yield delta
        yield Completed(
            blocks=reply.blocks,
            stop_reason=reply.stop_reason,
            raw_stop_reason=reply.raw_stop_reason,
            usage=reply.usage,
            cost=reply.cost,
            response_id=reply.response_id,
            model=self.name,
        )


def _piece(block: Block) -> Delta | None:
    match block:
        case Text():
            return Delta("text", block.text) if block.text else None
        case Thinking():
            return Delta("thinking", block.text) if block.text else None
        case ToolCall():
            return Delta("tool_call", msgspec.json.encode(block.arguments).decode(), block.id, block.name)
        case _:
            return None
