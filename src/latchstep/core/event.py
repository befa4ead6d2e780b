"""What happened, in the past tense: one frozen tagged union, one total order per session.

An event is made without its place; the session stamps it once, when it is recorded. Transient events
(`TRANSIENT`) are shown and never stored: they carry the last stored `seq` and a `part` of 1, 2, ….
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .message import Image, Message, Outcome, StopReason, Text, Usage

FORMAT = 1
"""Major format of the journal. A reader refuses a larger one."""

Source = Literal["start", "prompt", "steer", "follow_up", "check", "notice", "correction"]
Because = Literal[
    "prompt", "results", "steer", "follow_up", "retry", "truncated", "check", "notice", "correction", "paused",
    "compact", "compacted",
]  # fmt: skip
CompactBecause = Literal["threshold", "overflow", "asked"]
Status = Literal["completed", "cancelled", "max_steps", "budget", "stalled", "unverified", "failed"]
Effect = Literal["read", "write"]
Replay = Literal["safe", "never"]
Decision = Literal["allow", "deny"]
About = Literal["run", "doubt", "answer"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Fields every event has. `time` is a label (Unix seconds) and never used for order;
    `elapsed` is monotonic seconds of the run, summed over resumes."""

    seq: int = 0
    part: int = 0
    time: float = 0.0
    run_id: str = ""
    elapsed: float = 0.0

    @property
    def type(self) -> str:
        return str(self.__struct_config__.tag)


class ErrorInfo(msgspec.Struct, frozen=True):
    """Why a run failed: `kind` for programs (`TRUNCATED`, `MODEL_AUTH`, …), `message` for people."""

    kind: str
    message: str


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person is asked about one call. The grant is bound to `sha256` of name, arguments and findings.

    `about`: may it run, may what is in doubt run again, or (`answer`) the call is itself a question, and the person's
    words are what it wants. `arguments` are given to an approver; the record has them once, in the assistant's message.
    """

    call_id: str
    name: str
    sha256: str
    reason: str = ""
    about: About = "run"
    found: Any = None
    arguments: dict[str, Any] = {}


class SessionCreated(Event, frozen=True, tag="session.created"):
    """The header, line 0. A header without a format is of format 1, for ever; whoever writes one says `FORMAT`."""

    session_id: str
    format: int = 1
    workspace: str = ""
    program: str = ""
    parent: str = ""
    parent_seq: int = -1


class SessionOpened(Event, frozen=True, tag="session.opened"):
    """A writer took the journal: whatever was in flight before is now lost."""

    epoch: int
    session_id: str = ""
    host: str = ""
    pid: int = 0
    program: str = ""


class SessionSnapshot(Event, frozen=True, tag="session.snapshot"):
    """The state; folding may start at line `needed`. `whole`: its messages are in it, and `needed` is its own line."""

    needed: int
    state: msgspec.Raw
    whole: bool = False


class RunStarted(Event, frozen=True, tag="run.started"):
    """`limits` is `Limits` as JSON, `rules` those of the other `Rules` that are not the default; `system` and `tools`
    are SHA-256 of texts that lie in `blobs/`.
    `setup` is what a front end needs to build the same agent again (mode, allowed commands, server, …)."""

    model: str
    limits: dict[str, Any] = {}
    rules: dict[str, Any] = {}
    checks: tuple[str, ...] = ()
    system: str = ""
    tools: str = ""
    first_request: int = 1
    head: str = ""
    setup: dict[str, Any] = {}


class RunResumed(Event, frozen=True, tag="run.resumed"):
    """An unfinished run goes on under other conditions than before. The fields are those of `run.started`; all of
    them hold from here on."""

    limits: dict[str, Any] = {}
    rules: dict[str, Any] = {}
    checks: tuple[str, ...] = ()
    system: str = ""
    tools: str = ""
    head: str = ""
    setup: dict[str, Any] = {}


CONDITIONS = tuple(name for name in RunResumed.__struct_fields__ if name not in Event.__struct_fields__)
"""What a run works under, and a resume may change."""


class MessageAccepted(Event, frozen=True, tag="message.accepted"):
    """`about` names the bound that a notice of the harness warns of."""

    message_id: str
    source: Source
    message: Message
    about: str = ""


class MessageEdited(Event, frozen=True, tag="message.edited"):
    """A waiting message says something else now, and keeps its id and its place."""

    message_id: str
    message: Message


class MessageWithdrawn(Event, frozen=True, tag="message.withdrawn"):
    message_id: str


class ModelRequested(Event, frozen=True, tag="model.requested"):
    """`carries` names the queued messages that this request delivers. With `compact` it asks for a summary, of which
    no delta is shown, and delivers nothing. `repaired` counts what had to be changed in the whole history for a
    provider to accept it, by kind (see `Projection`); the record stays as it was."""

    request_id: str
    attempt: int = 1
    because: Because = "prompt"
    carries: tuple[str, ...] = ()
    sha256: str = ""
    repaired: dict[str, int] = {}


class ModelDelta(Event, frozen=True, tag="model.delta"):
    """Transient. A piece of the answer; for `tool_call`, of its argument text."""

    request_id: str
    kind: Literal["text", "thinking", "tool_call"]
    piece: str
    call_id: str = ""
    name: str = ""


class ModelFailed(Event, frozen=True, tag="model.failed"):
    """An attempt failed: watchers discard what it showed. `retry_in` is seconds, for `next="retry"`; the stop reason is
    there when the answer came, and was empty. `compact`: it did not fit, and is asked again when there is room;
    `go_on`: a summary failed, and the run goes on without it."""

    request_id: str
    attempt: int
    kind: str
    message: str
    next: Literal["retry", "give_up", "ask_again", "compact", "go_on"]
    retry_in: float = 0.0
    usage: Usage = Usage()
    cost: float | None = None
    stop_reason: StopReason | None = None
    raw_stop_reason: str = ""


class ModelSwitched(Event, frozen=True, tag="model.switched"):
    """Another model goes on: names, and why in words. `request_id` names the request within which a wrapper
    changed to it; without one it is the session's own choice, for this run."""

    old: str
    new: str
    why: str = ""
    request_id: str = ""


class MessageCompleted(Event, frozen=True, tag="message.completed"):
    """The model's answer, whole. `raw_stop_reason` is the provider's own word, where it differs; `window` is how many
    tokens the model takes, said when it is first known."""

    request_id: str
    message: Message
    stop_reason: StopReason
    raw_stop_reason: str = ""
    usage: Usage = Usage()
    cost: float | None = None
    window: int = 0


class CompactRequested(Event, frozen=True, tag="compact.requested"):
    """Somebody wants the context compacted at the next boundary. `focus`: what the summary must not lose, in words."""

    focus: str = ""
    by: str = ""


class ContextCompacted(Event, frozen=True, tag="context.compacted"):
    """`message` takes the place of the first `replaced` messages of the transcript; the record keeps them.

    Its blocks: what it is, what the person said (each verbatim), the summary of `model`. `before` and `after` are
    tokens of the context: the provider's count with an estimate of what came since, and an estimate.
    """

    request_id: str
    message: Message
    replaced: int
    because: CompactBecause
    model: str = ""
    before: int = 0
    after: int = 0
    usage: Usage = Usage()
    cost: float | None = None


class CallChanged(Event, frozen=True, tag="call.changed"):
    """A hook's new arguments: what is judged, asked about and run from here on. The assistant's message stays."""

    call_id: str
    arguments: dict[str, Any]


class CallKept(Event, frozen=True, tag="call.kept"):
    """The hooks before this call have looked at it, and left it as it was."""

    call_id: str


class ApprovalRequested(Event, frozen=True, tag="approval.requested"):
    questions: tuple[Question, ...]


class ApprovalAnswered(Event, frozen=True, tag="approval.answered"):
    """`sha256` repeats the question's, so that an answer can never meet another call's arguments. `note` says why, or
    is the answer itself where the question was about one."""

    call_id: str
    decision: Decision
    sha256: str
    by: str = ""
    rule: str = ""
    note: str = ""


class ApprovalAbandoned(Event, frozen=True, tag="approval.abandoned"):
    call_ids: tuple[str, ...]
    reason: str = ""


class ToolStarted(Event, frozen=True, tag="tool.started"):
    """The intent, on disk before the effect. `found` is what `prepare` found, `rule` what let it run unasked."""

    call_id: str
    name: str
    sha256: str
    effect: Effect = "write"
    replay: Replay = "never"
    idempotency_key: str = ""
    found: Any = None
    rule: str = ""


class ToolOutput(Event, frozen=True, tag="tool.output"):
    """Transient. Progress of a running tool."""

    call_id: str
    text: str


class ToolFinished(Event, frozen=True, tag="tool.finished"):
    """`content` is for the model, `details` for people and programs; `output` names the full output's file.
    `fatal` means that the tool layer's promise is broken and the run must fail."""

    call_id: str
    name: str
    outcome: Outcome
    content: str | tuple[Text | Image, ...]
    is_error: bool = False
    details: Any = None
    duration: float = 0.0
    output: str = ""
    fatal: bool = False


class CancelRequested(Event, frozen=True, tag="cancel.requested"):
    """`after_turn`: the answer and the calls under way are finished first; no further request opens."""

    by: str = ""
    reason: str = ""
    after_turn: bool = False


class ClockPassed(Event, frozen=True, tag="clock.passed"):
    """A deadline of the run passed: which limit, and its value in seconds."""

    limit: str
    seconds: float


class CheckStarted(Event, frozen=True, tag="check.started"):
    command: str
    index: int


class CheckFinished(Event, frozen=True, tag="check.finished"):
    """`exit_status` is negative for a signal, None when the check never ended by itself."""

    command: str
    index: int
    passed: bool
    exit_status: int | None = None
    output: str = ""


class WorkspaceSnapshot(Event, frozen=True, tag="workspace.snapshot"):
    """The workspace's files as they are at this line: `tree` in its shadow store, "" where none could be taken, and
    `error` says why. `files` counts files and links, `left_out` what no snapshot holds; `examples` names some of it and
    why. `because`: "" in a run, else what it was taken or restored for."""

    tree: str = ""
    files: int = 0
    left_out: int = 0
    examples: tuple[str, ...] = ()
    because: str = ""
    error: str = ""


class RunFinished(Event, frozen=True, tag="run.finished"):
    """Last event of each run: its result without the messages. `output` is the typed output's JSON form."""

    status: Status
    final_text: str = ""
    output: Any = None
    steps: int = 0
    usage: Usage = Usage()
    cost: float | None = None
    error: ErrorInfo | None = None


class Unknown(Event, frozen=True, tag="unknown"):
    """A record of a type this version does not know: kept as it stands, skipped by the fold."""

    name: str
    raw: bytes


AnyEvent = (
    SessionCreated | SessionOpened | SessionSnapshot | RunStarted | RunResumed | MessageAccepted | MessageEdited
    | MessageWithdrawn | ModelRequested | ModelDelta | ModelFailed | ModelSwitched | MessageCompleted
    | CompactRequested | ContextCompacted | CallChanged | CallKept | ApprovalRequested | ApprovalAnswered
    | ApprovalAbandoned | ToolStarted | ToolOutput | ToolFinished | CancelRequested | ClockPassed | CheckStarted
    | CheckFinished | WorkspaceSnapshot | RunFinished
)  # fmt: skip

TRANSIENT = (ModelDelta, ToolOutput)
