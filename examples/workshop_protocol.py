"""The bounds of the workshop loop, and what it demands of a call's arguments and of a starting transcript.

Whatever does not fit raises, naming the bound and the value, before anything is done about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from math import isfinite
from typing import Any

import msgspec

import latchstep as ls
from latchstep.core.message import Provider, Thinking

MAX_MESSAGES = 4_096  # in a starting transcript
MAX_CHUNKS = 1_024  # streamed in one step
MAX_BLOCKS = 1_024  # in one terminal response
MAX_TEXT = 65_536  # code points of text in one step
MAX_DEPTH = 32  # of a value in a call's arguments; the root lies at 0
MAX_SLOTS = 256  # fields and array slots in a call's arguments: 257 values, with the root
MAX_ARGUMENT_TEXT = 4_096  # code points over keys and strings in a call's arguments

CONTENT = {"user": ls.Text | ls.Image, "assistant": ls.Text | ls.ToolCall | Thinking | Provider, "tool": ls.ToolResult}


def demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ls.ModelError("protocol", otherwise)


def within(bound: str, value: int) -> None:
    """`bound` is the name of one of the bounds above."""
    demand(value <= globals()[bound], f"{bound} is {globals()[bound]}, and this is {value}")


def text(value: Any) -> str:
    """The value, if it is a string that strict UTF-8 can carry."""
    demand(type(value) is str, f"{type(value).__name__} stands where text belongs")
    demand(not any("\ud800" <= point <= "\udfff" for point in value), "a text holds a lone surrogate")
    return str(value)


def plain(arguments: Any) -> dict[str, Any]:
    """A copy of a call's arguments: plain JSON within bounds, sharing nothing with the original."""
    slots = points = 0

    def copy(value: Any, depth: int) -> Any:
        nonlocal slots, points
        within("MAX_DEPTH", depth)
        if type(value) in (dict, list):
            slots += len(value)
            within("MAX_SLOTS", slots)
            points += sum(len(text(key)) for key in value) if type(value) is dict else 0
            within("MAX_ARGUMENT_TEXT", points)
            if type(value) is list:
                return [copy(item, depth + 1) for item in value]
            return {key: copy(item, depth + 1) for key, item in value.items()}
        if type(value) is str:
            points += len(text(value))
            within("MAX_ARGUMENT_TEXT", points)
        else:
            number = (type(value) is int and -(2**63) <= value < 2**64) or (type(value) is float and isfinite(value))
            demand(value is None or type(value) is bool or number, f"{type(value).__name__} is not plain JSON here")
        return value

    demand(type(arguments) is dict, "the arguments are not one JSON object")
    return dict(copy(arguments, 0))


def snapshot(messages: Iterable[ls.Message]) -> tuple[ls.Message, ...]:
    """A copy that shares nothing with the original. Raises TypeError or ValueError for what is no message."""
    return msgspec.json.decode(msgspec.json.encode(tuple(messages)), type=tuple[ls.Message, ...])


def complete(messages: Iterable[ls.Message]) -> tuple[ls.Message, ...]:
    """A snapshot of a transcript in which each call has its one result before anyone else speaks.

    Raises for anything else: see `accepted`.
    """
    given = tuple(islice(messages, MAX_MESSAGES + 1))
    within("MAX_MESSAGES", len(given))
    demand(bool(given), "there is nothing to answer")
    for call in chain.from_iterable(message.calls for message in given):
        plain(call.arguments)
    waiting: dict[str, str] = {}
    known: set[str] = set()
    for message in (copied := snapshot(given)):
        fits = message.blocks and all(isinstance(block, CONTENT[message.role]) for block in message.blocks)
        demand(bool(fits), f"a {message.role} message is empty or holds what it may not")
        demand(message.role == "tool" or not waiting, f"no result of {', '.join(waiting)}")
        for block in message.blocks:
            if isinstance(block, ls.ToolCall):
                demand(block.id not in known, f"two calls have the id {block.id!r}")
                known.add(block.id)
                waiting[block.id] = block.name
            elif isinstance(block, ls.ToolResult):
                demand(waiting.pop(block.call_id, None) == block.name, f"no call awaits the result {block.call_id!r}")
    demand(not waiting, f"no result of {', '.join(waiting)}")
    return copied


def accepted(messages: Iterable[ls.Message]) -> tuple[tuple[ls.Message, ...], str]:
    """The snapshot of a complete transcript and "", or nothing and what is wrong with it."""
    try:
        return complete(messages), ""
    except (ls.ModelError, AttributeError, OverflowError, RecursionError, TypeError, ValueError) as flaw:
        return (), f"{type(flaw).__name__}: {flaw}"
