"""What the state is made of: open calls, queued messages, the open request, the counters of a run."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import msgspec

from . import event as ev
from .message import Image, Message, Text, ToolCall, ToolResult, Usage, estimate

CallStatus = Literal["new", "asked", "allowed", "denied", "started", "lost", "finished"]


class OpenCall(msgspec.Struct, omit_defaults=True):
    """A call of the turn under way. `stale`: a question about it was open when the process died. `hooks`: what those
    before it did, once they have looked; `call` has the arguments they made. `answer`: what the person said to a call
    that is itself a question."""

    call: ToolCall
    status: CallStatus = "new"
    stale: bool = False
    hooks: Literal["", "kept", "changed"] = ""
    found: Any = None
    question: str = ""
    reason: str = ""
    about: ev.About = "run"
    note: str = ""
    answer: str = ""
    by: str = ""
    effect: ev.Effect = "write"
    replay: ev.Replay = "never"
    key: str = ""
    result: ToolResult | None = None

    def answered(self, event: ev.ApprovalAnswered) -> None:
        if self.status == "asked" and self.question == event.sha256:
            self.status = "allowed" if event.decision == "allow" else "denied"
            self.note, self.by = event.note, event.by
            if self.about == "answer":
                self.answer = event.note

    def change(self, arguments: dict[str, Any]) -> None:
        """A hook's arguments take the place of the model's."""
        self.call, self.hooks = msgspec.structs.replace(self.call, arguments=arguments), "changed"

    def lose(self) -> None:
        """Its process is gone: what was in flight is lost, and a question or grant counts no more. An answer
        in words is no grant."""
        if self.status == "started":
            self.status = "lost"
        elif self.status == "asked" or (self.status == "allowed" and self.about != "answer"):
            doubted = self.about == "doubt"
            self.stale = self.status == "asked" and not doubted
            self.status = "lost" if doubted else "new"
            if not doubted:
                self.question, self.found = "", None


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
    `measured` says whether it ever did, and so whether prompt and tools are in it. window: what the model takes, 0
    where nobody said. requests: summaries asked for. open: the one under way. focus: somebody wants a compaction, with
    this in view; `anew`: they said so when the one under way had been asked for. full: the open request did not fit.
    tight: the request for the summary did not fit either. tried: tokens when a compaction was last tried, `rescued`
    when the last one made room for such a request; both `unjudged` until the next answer tells what they came to.
    """

    tokens: int = 0
    measured: bool = False
    window: int = 0
    requests: int = 0
    open: OpenRequest | None = None
    focus: str | None = None
    anew: bool = False
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
        self.anew = self.anew and event.because == "retry"  # which says the same again

    def wanted(self, event: ev.CompactRequested) -> None:
        self.focus, self.anew = event.focus, self.open is not None

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
            focus = self.focus if self.anew else None
            self.give_up()
            self.focus = focus
            self.tried, self.unjudged = self.tokens, False

    def give_up(self) -> None:
        """No summary is wanted or under way any more."""
        self.open, self.focus, self.anew, self.tight = None, None, False, False

    def compacted(self, event: ev.ContextCompacted) -> Fill:
        """What it is from then on."""
        after = event.after
        rescued = after if self.full else 0
        focus = self.focus if self.anew else None
        return Fill(after, True, self.window, self.requests, focus=focus, tried=after, rescued=rescued, unjudged=True)


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


def files_in(details: Any) -> list[dict[str, Any]]:
    """The files that a result's details are about: itself, or each of its `files`. Details may be anything."""
    if not isinstance(details, dict):
        return []
    files = details.get("files")
    return [file for file in files if isinstance(file, dict)] if isinstance(files, list) else [details]


def learn(known: dict[str, str], partly: dict[str, int], file: dict[str, Any], most: int = 2_000) -> None:
    """Fold what a result's details say of one file into what the model knows of at most so many.

    known: path -> SHA-256 of the bytes it was last shown or wrote. partly: path -> how many lines of them, from the
    first on, it was shown, where that is not all. An edit of a part shows nothing of the rest.
    """
    path, sha256 = file.get("path"), file.get("sha256")
    if not (isinstance(path, str) and isinstance(sha256, str)):
        return
    before = known.get(path)
    if "replaced" in file:
        if file["replaced"] is None:
            partly.pop(path, None)
        elif file["replaced"] != before:
            return
    else:
        shown = [number for name in ("from", "to", "lines") if isinstance(number := file.get(name), int)]
        first, last, lines = shown if len(shown) == 3 else (1, 0, 0)
        upto = partly.pop(path, None)
        whole = before == sha256 and upto is None
        upto = upto or 0 if before == sha256 else 0
        upto = max(upto, last) if first <= upto + 1 else upto
        if upto < lines and not whole:
            remember(partly, path, upto, most)
    remember(known, path, sha256, most)


def size_of_content(content: str | tuple[Text | Image, ...]) -> int:
    """Characters of a result, those of its pictures in base64 too."""
    if isinstance(content, str):
        return len(content)
    return sum(len(part.data if isinstance(part, Image) else part.text) for part in content)


def remember(known: dict[Any, Any], key: Any, value: Any, most: int = 2_000) -> None:
    """Keep it as the latest of at most so many; the oldest is forgotten."""
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]
