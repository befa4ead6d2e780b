"""The provider's terminal answer → the event that records it.

Whatever a model's code hands over becomes storable here, or a failure. Ids become unique in the session and
legal for every wire; blank text is dropped; an answer with nothing in it is a failed attempt, not a message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import get_args

from msgspec.structs import replace

from latchstep.errors import DefinitionError

from .chunk import Completed
from .compact import recoverable
from .event import MessageCompleted, ModelFailed
from .message import (
    Block,
    Image,
    Message,
    Provider,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
    clean,
    clean_json,
)
from .parts import OpenRequest
from .state import State

STOP_REASONS = frozenset(get_args(StopReason))

OUT_OF_WINDOW = "model_context_window_exceeded"
"""Anthropic's word for an answer that was cut since the window was full (docs.claude.com, handling stop reasons)."""

LEGAL_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
"""What every known provider accepts as a call id."""


def accept(answer: Completed, state: State, origin: str, max_empty: int = 1) -> MessageCompleted | ModelFailed:
    """The event for this answer. Deterministic: the same state and answer give the same ids.

    origin: the model that was asked, where the answer does not say who gave it. max_empty: how often in a row an
    empty answer is asked again (`Limits.max_empty`).
    """
    request = state.request
    assert request is not None
    try:
        if answer.stop_reason not in STOP_REASONS or not isinstance(answer.usage, Usage):
            raise ValueError(f"stop reason {answer.stop_reason!r}, usage {answer.usage!r}")
        blocks = tuple(_named(map(storable, answer.blocks), state.ids, request.request_id))
        raw = clean(answer.raw_stop_reason) if answer.raw_stop_reason != answer.stop_reason else ""
        response_id = clean(answer.response_id)
        origin, window = clean(answer.origin) or origin, int(answer.window)
    except (ValueError, TypeError, AttributeError) as error:
        message = f"the model's answer cannot be recorded: {error}"
        return _unusable(request, "MODEL_PROTOCOL_ERROR", clean(message))
    if raw == OUT_OF_WINDOW and recoverable(state):
        failed = _unusable(request, "CONTEXT_FULL", "the answer did not fit into the context")
        return _spent(replace(failed, next="compact"), answer, raw)
    said = any(not isinstance(block, Thinking) for block in blocks)
    if not said and answer.stop_reason not in ("refused", "filtered", "paused"):
        announced = "announced tool calls, but made none" if answer.stop_reason == "tool_calls" else "is empty"
        empties = state.run.empties if state.run is not None else 0
        failed = _unusable(
            request,
            "TRUNCATED" if answer.stop_reason == "length" else "EMPTY_RESPONSE",
            f"the model's answer {announced} (stop reason {raw or answer.stop_reason!r})",
        )
        again = empties < max_empty and answer.stop_reason != "length"
        return _spent(replace(failed, next="ask_again" if again else "give_up"), answer, raw)
    return MessageCompleted(
        request_id=request.request_id,
        message=Message("assistant", blocks, f"message-{response_id or request.request_id}", origin),
        stop_reason=answer.stop_reason,
        raw_stop_reason=raw,
        usage=answer.usage,
        cost=dollars(answer.cost),
        window=window if window != state.fill.window else 0,
    )


def _spent(failed: ModelFailed, answer: Completed, raw: str) -> ModelFailed:
    """An answer came, and cost what it cost."""
    cost = dollars(answer.cost)
    return replace(failed, usage=answer.usage, cost=cost, stop_reason=answer.stop_reason, raw_stop_reason=raw)


def dollars(cost: object) -> float | None:
    """A cost that can be recorded and added up; anything else is unknown."""
    known = isinstance(cost, int | float) and not isinstance(cost, bool) and math.isfinite(cost) and cost >= 0
    return float(cost) if known else None  # type: ignore[arg-type]


def _unusable(request: OpenRequest, kind: str, message: str) -> ModelFailed:
    return ModelFailed(
        request_id=request.request_id, attempt=request.attempt, kind=kind, message=message, next="give_up"
    )


def storable(block: Block) -> Block:
    """The block as a record and a strict wire can carry it. Raises ValueError or TypeError where nothing can.

    A call whose arguments are no plain JSON object keeps its place, with a flaw that says so.
    """
    match block:
        case Text() | Thinking():
            text = clean(block.text)
            if text is block.text and block.opaque is None:
                return block
            return replace(block, text=text, opaque=clean_json(block.opaque))
        case ToolCall():
            arguments, flaw = block.arguments, clean(block.flaw)
            try:
                if not isinstance(arguments, dict):
                    raise ValueError(f"{type(arguments).__name__} is no JSON object")
                arguments = clean_json(arguments)
            except ValueError as error:
                arguments, flaw = {}, f"the arguments are not plain JSON: {error}"
            name = clean(block.name).strip()
            return replace(block, name=name, arguments=arguments, flaw=flaw, opaque=clean_json(block.opaque))
        case ToolResult(content=content):
            if not isinstance(content, str):
                parts = tuple(storable(part) for part in content)
                return replace(block, content=parts)
            return replace(block, content=clean(content))
        case Provider():
            return replace(block, kind=clean(block.kind), data=clean_json(block.data))
        case Image():
            return block
        case _:
            raise TypeError(f"{type(block).__name__} is not a block")


def storable_message(message: Message, number: int) -> Message:
    """A message of an earlier conversation, as the record can carry it. Raises DefinitionError."""
    if not isinstance(message, Message):
        raise DefinitionError(f"message {number} is {type(message).__name__}, not a Message")
    try:
        return replace(message, blocks=tuple(map(storable, message.blocks)))
    except (ValueError, TypeError) as error:
        raise DefinitionError(f"message {number} cannot be recorded: {error}") from error


def _named(blocks: Iterable[Block], taken: set[str], request_id: str) -> Iterator[Block]:
    """The blocks worth keeping, each call with an id of its own; the provider's stays beside it."""
    here: set[str] = set()
    for index, block in enumerate(blocks):
        if isinstance(block, ToolResult):
            raise TypeError("a model cannot answer with a tool's result")
        if isinstance(block, Text) and not block.text.strip() and block.opaque is None:
            continue
        if not isinstance(block, ToolCall):
            yield block
            continue
        given = clean(block.id)
        if LEGAL_ID.fullmatch(given) and block.id not in taken and block.id not in here:
            here.add(block.id)
            yield block
            continue
        minted = f"call-{request_id.removeprefix('request-')}-{index}"
        while minted in taken or minted in here:
            minted += "x"
        here.add(minted)
        opaque = {**(block.opaque or {}), "provider_id": given} if given else block.opaque
        yield replace(block, id=minted, opaque=opaque)
