"""What the state is made of: open calls, queued messages, the open request, the counters of a run."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from . import event as ev
from .message import Message, ToolCall, ToolResult, Usage, estimate

CallStatus = Literal["new", "asked", "allowed", "denied", "started", "lost", "finished"]


class OpenCall(msgspec.Struct, omit_defaults=True):
    """A call of the turn under way. `stale`: a question about it was open when the process died."""

    call: ToolCall
    status: CallStatus = "new"
    stale: bool = False
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


class Fill(msgspec.Struct, omit_defaults=True):
    """How full the context is, and what was done about it.

    tokens: of the transcript, as the provider counted it at the last answer, with an estimate of what came since;
    `measured` says whether it ever did, and so whether prompt and tools are in it. window: what the model takes,
    0 where nobody said. requests: summaries asked for. open: the one under way. focus: somebody wants a compaction,
    with this in view. full: the open request did not fit. tight: the request for the summary did not fit either.
    tried: tokens when a compaction was last tried, `rescued` when the last one made room for such a request; both
    `unjudged` until the next answer tells what they came to.
    """

    tokens: int = 0
    measured: bool = False
    window: int = 0
    requests: int = 0
    open: OpenRequest | None = None
    focus: str | None = None
    full: bool = False
    tight: bool = False
    tried: int = 0
    rescued: int = 0
    unjudged: bool = False

    def is_summary(self, request_id: str) -> bool:
        """Whether it is the request for the summary that is under way."""
        return self.open is not None and self.open.request_id == request_id

    def asked(self, event: ev.ModelRequested) -> None:
        self.requests += not self.is_summary(event.request_id)
        self.open = OpenRequest(event.request_id, event.attempt)

    def answered(self, event: ev.MessageCompleted) -> None:
        self.full = False
        self.window = event.window or self.window
        if event.usage.input:
            self.tokens, self.measured = event.usage.total, True
        else:
            self.tokens += estimate(event.message)
        if self.unjudged:
            self.tried, self.unjudged = self.tokens, False
            self.rescued = self.rescued and self.tokens

    def failed(self, event: ev.ModelFailed) -> None:
        summary = self.is_summary(event.request_id)
        if event.next == "compact":
            self.tight, self.full = summary, self.full or not summary
        elif summary and event.next != "retry":
            self.give_up()
            self.tried, self.unjudged = self.tokens, False

    def give_up(self) -> None:
        """No summary is wanted or under way any more."""
        self.open, self.focus, self.tight = None, None, False

    def compacted(self, event: ev.ContextCompacted) -> Fill:
        """What it is from then on."""
        after = event.after
        rescued = after if self.full else 0
        return Fill(after, True, self.window, self.requests, tried=after, rescued=rescued, unjudged=True)


class RunState(msgspec.Struct, omit_defaults=True):
    """Counters and outcome of the run under way, or of the last one. `started` is how it began, `model` what the
    session changed to since, if it did."""

    run_id: str
    started: ev.RunStarted
    model: str = ""
    active: bool = True
    steps: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    cost: float | None = None
    cost_known: bool = True
    elapsed: float = 0.0
    truncations: int = 0
    continuations: int = 0
    empties: int = 0
    check_rounds: int = 0
    corrections: int = 0
    wrote: bool = False
    corrected: bool = False
    cancelled: bool = False
    cancel_reason: str = ""
    clock: ev.ClockPassed | None = None
    error: ev.ErrorInfo | None = None
    output_tokens: int = 0
