"""What a session works with: a model, tools, a prompt and a way to run checks. Built in `build`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from latchstep.core.event import Question
from latchstep.core.message import ToolCall
from latchstep.core.secrets import Masker
from latchstep.errors import LatchstepError
from latchstep.model.base import Model, OutputSpec, ToolSpec, final_tool
from latchstep.tool.base import Output, Tool

if TYPE_CHECKING:
    from .output import OutputType
    from .snapshots import Take

Checker = Callable[[str], Awaitable[tuple[int | None, str]]]
"""Runs a check command: exit status (negative for a signal, None if it never ended by itself) and output."""


async def no_checks(command: str) -> tuple[int | None, str]:
    raise LatchstepError("this session has no way to run checks; give the agent a workspace")


@dataclass(slots=True)
class Kit:
    """Everything a run uses and no event decides. Stable over a session: its prompt digest is recorded.

    summarizer: the model that sums up what does not fit any more, None for the session's own.
    output: the type of the runs' output, None where any text will do. A model that cannot hold its answer to a schema
    is offered a tool for it; the digest is the same either way, so that any recording can be played back.
    coroutines: names of the tools whose function is `async def`.
    masker: takes secrets out of what tools and checks say, before it is recorded; None where all of it may stand.
    on_open(seen, partly): told, when a session is opened, what the model knows of files (see `learn`).
    on_stop(): ends what earlier calls left running, when a run is stopped from outside. Bounded by itself.
    on_close(): ends what belongs to the session, such as its spawner.
    snapshot(stop): keeps the workspace's files; None where they are not kept.
    """

    model: Model
    tools: Mapping[str, Tool]
    render: Callable[[Any, Callable[[str], str]], Output]
    system: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    check: Checker = no_checks
    summarizer: Model | None = None
    workspace: Path | None = None
    deps: Any = None
    output: OutputType | None = None
    approve: Callable[[Question], Any] | None = None
    setup: dict[str, Any] = field(default_factory=dict)
    head: str = ""
    masker: Masker | None = None
    on_open: Callable[[dict[str, str], dict[str, int]], None] = lambda seen, partly: None
    on_stop: Callable[[], Awaitable[None]] | None = None
    on_close: Callable[[], Awaitable[None]] | None = None
    snapshot: Take | None = None
    coroutines: frozenset[str] = field(init=False)
    specs: tuple[ToolSpec, ...] = field(init=False)
    specs_json: bytes = field(init=False)
    held: OutputSpec | None = field(init=False, default=None)
    prompt_digest: bytes = field(init=False)
    _valid: dict[int, tuple[ToolCall, dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.coroutines = frozenset(name for name, t in self.tools.items() if inspect.iscoroutinefunction(t.function))
        self.specs = tuple(ToolSpec(t.name, t.description, t.schema) for t in self.tools.values())
        offered = self.specs
        if self.output is not None:
            offered = (*self.specs, final_tool(self.output.spec))
            if getattr(self.model, "native_output", False):
                self.held = self.output.spec
            else:
                self.specs = offered
        self.specs_json = msgspec.json.encode(offered, order="sorted")
        self.prompt_digest = sha256(self.system.encode() + b"\0" + self.specs_json).digest()

    @property
    def overhead(self) -> int:
        """Tokens of system prompt and tools, roughly."""
        return (len(self.system.encode()) + len(self.specs_json)) // 4

    def validated(self, call: ToolCall) -> dict[str, Any]:
        """Arguments as the tool takes them; raises ValueError. Kept for the turn, so that one parse serves all.

        By the call itself, not by its id: sessions share a kit, and their models may give the same ids.
        """
        known = self._valid.get(id(call))
        if known is None or known[0] is not call:
            known = self._valid[id(call)] = (call, self.tools[call.name].validate(call.arguments))
        return known[1]

    def forget_calls(self) -> None:
        """A new answer came: the calls of the last turn are history."""
        self._valid.clear()
