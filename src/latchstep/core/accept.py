"""The provider's terminal answer → the event that records it.

Ids become unique in the session and legal for every wire; blank text is dropped; an answer with nothing
in it is a failed attempt, not a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from .chunk import Completed
from .event import MessageCompleted, ModelFailed
from .message import Block, Message, Text, Thinking, ToolCall, clean
from .state import State

LEGAL_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
"""What every known provider accepts as a call id."""


def accept(answer: Completed, state: State, origin: str, max_empty: int = 1) -> MessageCompleted | ModelFailed:
    """The event for this answer. Deterministic: the same state and answer give the same ids.

    max_empty: how often in a row an empty answer is asked again (`Limits.max_empty`).
    """
    request = state.request
    assert request is not None
    blocks = tuple(_named(answer.blocks, state.ids, request.request_id))
    said = any(not isinstance(block, Thinking) for block in blocks)
    if not said and answer.stop_reason not in ("refused", "filtered", "paused"):
        announced = "announced tool calls, but made none" if answer.stop_reason == "tool_calls" else "is empty"
        empties = state.run.empties if state.run is not None else 0
        return ModelFailed(
            request_id=request.request_id,
            attempt=request.attempt,
            kind="TRUNCATED" if answer.stop_reason == "length" else "EMPTY_RESPONSE",
            message=f"the model's answer {announced} (stop reason {answer.raw_stop_reason or answer.stop_reason!r})",
            next="ask_again" if empties < max_empty and answer.stop_reason != "length" else "give_up",
            usage=answer.usage,
        )
    message_id = f"message-{answer.response_id}" if answer.response_id else f"message-{request.request_id}"
    return MessageCompleted(
        request_id=request.request_id,
        message=Message("assistant", blocks, clean(message_id), origin),
        stop_reason=answer.stop_reason,
        raw_stop_reason=answer.raw_stop_reason if answer.raw_stop_reason != answer.stop_reason else "",
        usage=answer.usage,
        cost=answer.cost,
    )


def _named(blocks: tuple[Block, ...], taken: set[str], request_id: str) -> Iterator[Block]:
    """The blocks worth keeping, each call with an id of its own; the provider's stays beside it."""
    here: set[str] = set()
    for index, block in enumerate(blocks):
        if isinstance(block, Text) and not block.text.strip() and block.opaque is None:
            continue
        if not isinstance(block, ToolCall):
            yield block
            continue
        if LEGAL_ID.fullmatch(block.id) and block.id not in taken and block.id not in here:
            here.add(block.id)
            yield block
            continue
        minted = f"call-{request_id.removeprefix('request-')}-{index}"
        while minted in taken or minted in here:
            minted += "x"
        here.add(minted)
        opaque = {**(block.opaque or {}), "provider_id": block.id} if block.id else block.opaque
        yield replace(block, id=minted, opaque=opaque)
