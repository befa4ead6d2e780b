"""Cassettes of the while-loop: a conversation's replies in the words of the Messages API, and the tools to play them.

{"messages": [{"role": "user", "content": "..."}], "replies": [{"stop_reason": "...", "content": [...]}, ...]}
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

import latchstep as ls
from latchstep.core.message import StopReason

STOPS: dict[str, StopReason] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "pause_turn": "paused",
    "refusal": "refused",
}


class Said(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["user", "assistant"]
    content: str


class ToolUse(msgspec.Struct, tag="tool_use", forbid_unknown_fields=True):
    id: str
    name: str
    input: dict[str, Any]


class Recorded(msgspec.Struct, forbid_unknown_fields=True):
    stop_reason: str
    content: list[ls.Text | ToolUse]


class Case(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[Said]
    replies: list[Recorded]


def cassette(case: str) -> tuple[list[ls.Message], ls.ScriptedModel]:
    """The messages a case starts from, and the model that replies as recorded. A case is a path or a name."""
    path = Path(case)
    if not path.is_file():
        path = Path(__file__).parent / "cassettes" / f"{case}.json"
    read = msgspec.json.decode(path.read_bytes(), type=Case)
    messages = [ls.Message(said.role, (ls.Text(said.content),)) for said in read.messages]
    return messages, ls.ScriptedModel([_reply(reply) for reply in read.replies], name="cassette:model")


def _reply(reply: Recorded) -> ls.Reply:
    blocks = [
        ls.ToolCall(block.id, block.name, block.input) if isinstance(block, ToolUse) else block
        for block in reply.content
    ]
    return ls.Reply(blocks, STOPS.get(reply.stop_reason, "stop"), raw_stop_reason=reply.stop_reason)


TOOLS: dict[str, Callable[..., Any]] = {
    "echo": lambda text: text,
    "add": lambda left, right: left + right,
}


def play(tool: str, input: dict[str, Any]) -> Any:
    """Run one of `TOOLS`. Raises ToolError for a tool there is not."""
    if tool not in TOOLS:
        raise ls.ToolError(f"there is no tool {tool!r}")
    return TOOLS[tool](**input)
