"""A workshop model: it streams chunks and then gives one terminal response, each naming its request.

`Checked` makes it a `Model` of the library. Its answer is believed only when both sides say the same.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Protocol

import msgspec
from workshop_protocol import demand, plain, snapshot, text, within

import latchstep as ls
from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.model.base import Request

Block = ls.Text | ls.ToolCall
_SORTED = msgspec.json.Encoder(order="sorted").encode


class Piece(msgspec.Struct, frozen=True):
    """A chunk: a piece of text, or one whole call."""

    request_id: str
    block: Block


class Response(msgspec.Struct, frozen=True):
    id: str
    request_id: str
    stop_reason: Literal["stop", "toolCall"]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Exchange:
    """One request under way. `response` is called once `chunks` has ended, not before."""

    chunks: AsyncGenerator[Piece, None]
    response: Callable[[], Awaitable[Response]]


class WorkshopModel(Protocol):
    def open(self, request: Request) -> Exchange: ...


class Side:
    """One side of a step, the streamed or the terminal one, each block checked as it comes."""

    def __init__(self, bound: str, taken: Iterable[str]) -> None:
        self.bound, self.ids, self.points = bound, set(taken), 0
        self.blocks: list[Block] = []

    def add(self, block: Any) -> Block:
        kept: Block
        within(self.bound, len(self.blocks) + 1)
        if type(block) is ls.Text:
            kept = ls.Text(text(block.text))
            self.points += len(kept.text)
            within("MAX_TEXT", self.points)
        else:
            demand(type(block) is ls.ToolCall and not block.flaw, "a block is neither text nor a whole call")
            kept = ls.ToolCall(text(block.id), text(block.name), plain(block.arguments))
            demand(bool(kept.id and kept.name) and kept.id not in self.ids, f"the call id {kept.id!r} is taken")
            self.ids.add(kept.id)
        self.blocks.append(kept)
        return kept

    def joined(self) -> tuple[Block, ...]:
        """The blocks with adjacent texts joined and empty ones left out."""
        joined: list[Block] = []
        for kind, blocks in groupby(self.blocks, type):
            if kind is ls.ToolCall:
                joined.extend(blocks)
            elif said := "".join(block.text for block in blocks if isinstance(block, ls.Text)):
                joined.append(ls.Text(said))
        return tuple(joined)


class Checked:
    """A workshop model as a `Model` of the library."""

    name = "workshop:model"

    def __init__(self, model: WorkshopModel) -> None:
        self._model = model

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        taken = [call.id for message in request.messages for call in message.calls]
        streamed, answered = Side("MAX_CHUNKS", taken), Side("MAX_BLOCKS", taken)
        exchange = self._model.open(msgspec.structs.replace(request, messages=snapshot(request.messages)))
        async with aclosing(exchange.chunks) as chunks:
            async for piece in chunks:
                demand(type(piece) is Piece, f"{type(piece).__name__} is not a chunk")
                demand(piece.request_id == request.request_id, f"a chunk answers {piece.request_id!r}")
                match streamed.add(piece.block):
                    case ls.Text() as said:
                        yield Delta("text", said.text)
                    case call:
                        yield Delta("tool_call", msgspec.json.encode(call.arguments).decode(), call.id, call.name)
        response = await exchange.response()
        demand(type(response) is Response and type(response.blocks) is tuple, "there is no terminal response")
        demand(response.request_id == request.request_id, f"the response answers {response.request_id!r}")
        demand(text(response.id) != "", "the response has no id")
        demand(response.stop_reason in ("stop", "toolCall"), f"the stop reason {response.stop_reason!r} is unknown")
        for block in response.blocks:
            answered.add(block)
        blocks = answered.joined()
        demand(_SORTED(blocks) == _SORTED(streamed.joined()), "the response is not what was streamed")
        speaks = [block for block in blocks if isinstance(block, ls.ToolCall) or block.text.strip()]
        demand(bool(speaks), "the response says nothing")
        stop: Literal["stop", "tool_calls"] = "stop" if response.stop_reason == "stop" else "tool_calls"
        yield Completed(blocks=blocks, stop_reason=stop, raw_stop_reason=response.stop_reason, response_id=response.id)
