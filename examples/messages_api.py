"""A transcript as the Messages API has it: all results of a turn in one user message, linked by id."""

from __future__ import annotations

from collections.abc import Iterable

import latchstep as ls
from latchstep.core.message import tool_message


def joined(messages: Iterable[ls.Message]) -> list[ls.Message]:
    """From one message a result to one a turn."""
    out: list[ls.Message] = []
    for message in messages:
        if message.role != "tool":
            out.append(message)
        elif out and out[-1].role == "user" and isinstance(out[-1].blocks[-1], ls.ToolResult):
            out[-1] = ls.Message("user", out[-1].blocks + message.blocks)
        else:
            out.append(ls.Message("user", message.blocks))
    return out


def split(messages: Iterable[ls.Message]) -> list[ls.Message]:
    """And back: each result a message of its own, before whatever else its message says."""
    out: list[ls.Message] = []
    for message in messages:
        results = [block for block in message.blocks if isinstance(block, ls.ToolResult)]
        rest = tuple(block for block in message.blocks if not isinstance(block, ls.ToolResult))
        out.extend(map(tool_message, results))
        if not results:
            out.append(message)
        elif rest:
            out.append(ls.Message(message.role, rest))
    return out
