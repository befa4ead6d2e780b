"""What the state is made of: open calls, queued messages, the open request, the counters of a run."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import msgspec

from . import event as ev
from .message import Message, ToolCall, ToolResult, Usage

CallStatus = Literal["new", "asked", "allowed", "denied", "started", "lost", "finished"]


class OpenCall(msgspec.Struct, omit_defaults=True):
    """A call of the turn under way. `stale`: a question about it was open when the process died. `hooks`: what those
    before it did, once they have looked; `call` has the arguments they made."""

    call: ToolCall
    status: CallStatus = "new"
    stale: bool = False
    hooks: Literal["", "kept", "changed"] = ""
    found: Any = None
    question: str = ""
    reason: str = ""
    about: Literal["run", "doubt"] = "run"
    note: str = ""
    by: str = ""
    effect: ev.Effect = "write"
    replay: ev.Replay = "never"
    key: str = ""
    result: ToolResult | None = None


class Queued(msgspec.Struct, frozen=True):
    """An accepted message that no request has carried yet."""

    message_id: str
    source: ev.Source
    message: Message


class OpenRequest(msgspec.Struct, frozen=True):
    """A model request that has no answer yet: under way, failed, or lost with its process."""

    request_id: str
    attempt: int = 1


class RunState(msgspec.Struct, omit_defaults=True):
    """Counters and outcome of the run under way, or of the last one. `started` is how it began, with what a resume
    changed since; `model` what the session changed to, if it did. `cost` is the exact sum of what was recorded.
    `warned` names the bounds the model was told of before they were reached. `stopping`: no further request opens."""

    run_id: str
    started: ev.RunStarted
    model: str = ""
    active: bool = True
    steps: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    results: int = 0
    cost: Decimal | None = None
    cost_known: bool = True
    elapsed: float = 0.0
    truncations: int = 0
    continuations: int = 0
    empties: int = 0
    check_rounds: int = 0
    corrections: int = 0
    wrote: bool = False
    corrected: bool = False
    warned: tuple[str, ...] = ()
    stopping: bool = False
    cancelled: bool = False
    cancel_reason: str = ""
    clock: ev.ClockPassed | None = None
    error: ev.ErrorInfo | None = None
    output_tokens: int = 0

    @property
    def dollars(self) -> float | None:
        """What the run cost so far, None while any of it is unknown."""
        return float(self.cost) if self.cost is not None and self.cost_known else None

    @property
    def ending(self) -> bool:
        """Under way, but whatever is said to it now, it opens no further request."""
        return self.active and bool(self.cancelled or self.stopping or self.clock or self.error)
