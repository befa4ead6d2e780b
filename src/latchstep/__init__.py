"""latchstep: an agent loop in which every step latches.

    import latchstep as ls

    @ls.tool(effect="read")
    def add(left: int, right: int) -> int:
        "Add two integers."
        return left + right

    result = ls.Agent("openai-chat:MODEL", tools=[add]).run_sync("What is 20 + 22?")

Names are resolved on first use, so that importing this costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "Agent": "session.agent",
    "Cassette": "model.cassette",
    "Context": "tool.base",
    "DefinitionError": "errors",
    "FatalToolError": "errors",
    "Image": "core.message",
    "JournalError": "errors",
    "LatchstepError": "errors",
    "Limits": "core.rules",
    "MemoryJournal": "journal.base",
    "Message": "core.message",
    "ModelError": "errors",
    "Output": "tool.base",
    "Reply": "model.scripted",
    "Run": "session.run",
    "RunResult": "session.run",
    "ScriptedModel": "model.scripted",
    "Session": "session.session",
    "SessionError": "errors",
    "Text": "core.message",
    "Tool": "tool.base",
    "ToolCall": "core.message",
    "ToolError": "errors",
    "ToolResult": "core.message",
    "Usage": "core.message",
    "Verdict": "core.rules",
    "fallback": "model.fallback",
    "run_loop": "session.agent",
}

__all__ = [
    "Agent",
    "Cassette",
    "Context",
    "DefinitionError",
    "FatalToolError",
    "Image",
    "JournalError",
    "LatchstepError",
    "Limits",
    "MemoryJournal",
    "Message",
    "ModelError",
    "Output",
    "Reply",
    "Run",
    "RunResult",
    "ScriptedModel",
    "Session",
    "SessionError",
    "Text",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "Usage",
    "Verdict",
    "fallback",
    "model",
    "run_loop",
    "tool",
]

if TYPE_CHECKING:
    from .core.message import Image, Message, Text, ToolCall, ToolResult, Usage
    from .core.rules import Limits, Verdict
    from .errors import (
        DefinitionError,
        FatalToolError,
        JournalError,
        LatchstepError,
        ModelError,
        SessionError,
        ToolError,
    )
    from .journal.base import MemoryJournal
    from .model.cassette import Cassette
    from .model.catalog import model
    from .model.fallback import fallback
    from .model.scripted import Reply, ScriptedModel
    from .session.agent import Agent, run_loop
    from .session.run import Run, RunResult
    from .session.session import Session
    from .tool.base import Context, Output, Tool
    from .tool.define import tool


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("model", "tool"):  # packages that are also the function of their name
        return import_module(f"latchstep.{name}")
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'latchstep' has no attribute {name!r}")
    value = getattr(import_module(f"latchstep.{where}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
