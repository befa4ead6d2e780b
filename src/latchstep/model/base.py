"""The seam to a model: a `Request` goes in, a stream of chunks comes out.

A `Model` holds nothing that matters between calls: whatever it must know is in the request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from latchstep.core.chunk import Chunk, Failed
from latchstep.core.message import Message, Usage
from latchstep.errors import ModelError


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as a model sees it. `schema` is a JSON Schema of type object, without `$ref` at its top."""

    name: str
    description: str
    schema: dict[str, Any]


class OutputSpec(msgspec.Struct, frozen=True):
    """What the last answer must be: one JSON object that fits `schema`, which is as a `ToolSpec`'s."""

    name: str
    schema: dict[str, Any]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one model call may depend on.

    messages: a read-only view, already valid for any wire (see `core.project`). The list behind it only
        ever grows, so an adapter may keep what it encoded of an earlier view (`messages.base is ...`).
    place: how many answers and failed attempts the session has recorded before this call.
    output: given to a model with `native_output`, which holds the text of its answer to the schema by itself.
    max_output: cap on the answer's tokens, or None for the provider's own.
    options: passed to the provider by name.
    sha256: digest of messages, system prompt and tools, as `model.requested` records it.
    """

    request_id: str
    messages: Sequence[Message]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    output: OutputSpec | None = None
    place: int = 0
    attempt: int = 1
    max_output: int | None = None
    options: dict[str, Any] = {}
    sha256: str = ""


@runtime_checkable
class Model(Protocol):
    """Answers a request. `name` is what the journal calls it (`provider:model`).

    A model that may be given `Request.output` says so with an attribute `native_output = True`; any other is offered
    a tool by which to give it (`final_tool`).
    """

    @property
    def name(self) -> str: ...

    def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """Deltas, then exactly one `Completed`; or raises one `ModelError`. Closing it closes the connection."""
        ...


def final_tool(output: OutputSpec) -> ToolSpec:
    """The tool by which any model can give the output."""
    about = "Give the final answer. Call this once, by itself, when the work is done, instead of answering in text."
    return ToolSpec(output.name, about, output.schema)


def with_final_tool(request: Request) -> Request:
    """The same request for a model that cannot hold its text to a schema."""
    if request.output is None:
        return request
    return replace(request, tools=(*request.tools, final_tool(request.output)), output=None)


def discarded(error: ModelError, retry_in: float) -> Failed:
    """What a wrapper says when it asks again after this error."""
    spent = error.usage or Usage()
    return Failed(kind=error.kind, message=error.message, retry_in=retry_in, usage=spent, cost=error.cost)


@asynccontextmanager
async def answering(model: Model, request: Request) -> AsyncIterator[AsyncIterator[Chunk]]:
    """The model's stream for a wrapper to read; leaving the block closes it, and with it the connection."""
    chunks = model.stream(request)
    if not isinstance(chunks, AsyncGenerator):
        yield chunks
        return
    async with aclosing(chunks):
        yield chunks
