"""The workshop loop on latchstep: an event stream with hard limits.

It is a run of the library over a checked model (`workshop_model`), seen through a view with five kinds of events
(`workshop_view`). `python examples/workshop.py` shows them for one addition, without a key or a network.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any

import msgspec
from workshop_model import Block, Checked, Exchange, Piece, Response, WorkshopModel
from workshop_protocol import accepted
from workshop_view import Workshop

import latchstep as ls
from latchstep.core.message import user
from latchstep.model.base import Request

MAX_REQUESTS = 64


def workshop(
    messages: Iterable[ls.Message],
    model: WorkshopModel,
    tools: Iterable[Any],
    *,
    max_steps: int,
    first_request: int = 1,
    signal: asyncio.Event | None = None,
    max_parallel: int = 1,
) -> Workshop:
    """The stream of one run, which begins when it is iterated. Raises DefinitionError for a wrong option."""
    for name, value in {"max_steps": max_steps, "first_request": first_request, "max_parallel": max_parallel}.items():
        if type(value) is not int or not 1 <= value <= MAX_REQUESTS:
            raise ls.DefinitionError(f"{name} must be a whole number from 1 to {MAX_REQUESTS}, not {value!r}")
    if (last := first_request + max_steps - 1) > MAX_REQUESTS:
        raise ls.DefinitionError(f"request {last} would be the last; MAX_REQUESTS is {MAX_REQUESTS}")
    if not callable(getattr(model, "open", None)):
        raise ls.DefinitionError(f"a model has `open(request)`, unlike {type(model).__name__}")
    if signal is not None and not isinstance(signal, asyncio.Event):
        raise ls.DefinitionError(f"signal must be an asyncio.Event, not {type(signal).__name__}")
    start, flaw = accepted(messages)
    limits = ls.Limits(
        max_steps=max_steps, max_repeats=max_steps + 1, max_parallel=max_parallel, max_ahead=0, warn_at=None
    )
    run = ls.run_loop(
        messages=start,
        model=Checked(model),
        tools=tools,
        limits=limits,
        strict_protocol=True,
        first_request=first_request,
    )
    return Workshop(run, max_steps, signal, flaw)


@ls.tool(effect="read")
def add(left: int, right: int) -> dict[str, int]:
    """Add two integers."""
    return {"sum": left + right}


class Script:
    """Gives the n-th of these answers to the n-th request, one chunk a block."""

    def __init__(self, *answers: Sequence[Block]) -> None:
        self.answers, self.requests = answers, list[Request]()

    def open(self, request: Request) -> Exchange:
        blocks = tuple(self.answers[len(self.requests)])
        self.requests.append(request)

        async def chunks() -> AsyncGenerator[Piece, None]:
            for block in blocks:
                yield Piece(request.request_id, block)

        async def response() -> Response:
            calls = any(isinstance(block, ls.ToolCall) for block in blocks)
            number = f"response-{len(self.requests):03d}"
            return Response(number, request.request_id, "toolCall" if calls else "stop", blocks)

        return Exchange(chunks(), response)


async def main() -> None:
    call = ls.ToolCall("call-add-001", "add", {"left": 20, "right": 22})
    model = Script([call], [ls.Text("20 + 22 is 42.")])
    async for event in workshop([user("What is 20 + 22?", "message-user-001")], model, [add], max_steps=4):
        print(msgspec.json.encode(event).decode())


if __name__ == "__main__":
    asyncio.run(main())
