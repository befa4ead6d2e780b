"""The state of a session: a fold over its events.

`apply` is the only way it changes: one flat match, one small function per event. Nothing here reads a
clock or decides anything; what must happen next is `decide`'s answer.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import msgspec

from . import event as ev
from .message import Message, StopReason, ToolResult, Usage, estimate, tool_message
from .parts import Fill, OpenCall, OpenRequest, Queued, RunState, files_in, learn, size_of_content
from .plan import Item, plan_in
from .repeats import MAX_PERIOD, longest, noted

PEOPLE = ("prompt", "steer", "follow_up")
"""Sources of what a person said."""


class State(msgspec.Struct, omit_defaults=True):
    """Everything the loop may depend on.

    transcript: what was said, complete messages only; it only grows, but for a compaction, which puts a summary in
    the place of its beginning. ids: of the calls in it.
    turn: the calls of the model's last message; `pending` of them have no result, `joined` have theirs in the
    transcript. answered: the model's last message, while it has no call left to run and nothing has followed it.
    armed: something may have changed since the declared checks last passed.
    files: whether a snapshot holds the workspace's files: none since the run began or a process opened the session
    (`unknown`), one does (`kept`), one did before effects that came since (`changed`).
    place: answers, summaries and failed attempts recorded so far.
    seen, partly: what the model knows of files, see `learn`.
    plan: what the model last said it would do.
    """

    transcript: list[Message] = []
    ids: set[str] = set()
    session_id: str = ""
    workspace: str = ""
    epoch: int = 0
    queue: list[Queued] = []
    turn: list[OpenCall] = []
    pending: int = 0
    joined: int = 0
    stop: StopReason = "stop"
    answered: Message | None = None
    request: OpenRequest | None = None
    requests: int = 0
    place: int = 0
    run: RunState | None = None
    finished: ev.RunFinished | None = None
    armed: bool = False
    checks: list[ev.CheckFinished] = []
    seen: dict[str, str] = {}
    partly: dict[str, int] = {}
    plan: tuple[Item, ...] = ()
    turns: list[str] = []
    streaks: list[int] = msgspec.field(default_factory=lambda: [0] * MAX_PERIOD)
    told: bool = False
    files: Literal["unknown", "kept", "changed"] = "unknown"
    fill: Fill = msgspec.field(default_factory=Fill)

    def apply(self, event: ev.Event) -> None:
        """Fold one event in. Transient and unknown events change nothing."""
        if self.run is not None and event.run_id == self.run.run_id:
            self.run.elapsed = max(self.run.elapsed, event.elapsed)
        match event:
            case ev.ModelDelta() | ev.ToolOutput() | ev.Unknown() | ev.CheckStarted():
                pass
            case ev.MessageAccepted():
                self._accepted(event)
            case ev.ModelRequested():
                self._requested(event)
            case ev.MessageCompleted():
                self._completed(event)
            case ev.ToolStarted():
                self._started(event)
            case ev.ToolFinished():
                self._tool_finished(event)
            case ev.ModelFailed():
                self._model_failed(event)
            case ev.ContextCompacted() | ev.CompactRequested():
                self._compacted(event)
            case ev.ModelSwitched():
                self._switched(event)
            case ev.CallChanged():
                self.open_call(event.call_id).change(event.arguments)
            case ev.CallKept():
                self.open_call(event.call_id).hooks = "kept"
            case ev.ApprovalRequested():
                self._asked(event)
            case ev.ApprovalAnswered():
                self._answered(event)
            case ev.ApprovalAbandoned():
                self._abandoned(event)
            case ev.MessageEdited():
                self._edited(event)
            case ev.MessageWithdrawn():
                self.queue = [queued for queued in self.queue if queued.message_id != event.message_id]
            case ev.CancelRequested():
                self._cancelled(event)
            case ev.ClockPassed():
                if self.run is not None:
                    self.run.clock = event
            case ev.CheckFinished():
                self.checks.append(event)
            case ev.WorkspaceSnapshot():
                self.files = "kept"
            case ev.RunStarted():
                self._run_started(event)
            case ev.RunResumed():
                self._run_resumed(event)
            case ev.RunFinished():
                self._run_finished(event)
            case ev.SessionCreated():
                self.session_id, self.workspace = event.session_id, event.workspace
            case ev.SessionOpened():
                self._opened(event)
            case ev.SessionSnapshot():
                self._restore(event)
            case _:
                raise TypeError(f"no fold for {type(event).__name__}")

    # -- messages ------------------------------------------------------------------------------------

    def _accepted(self, event: ev.MessageAccepted) -> None:
        if event.source == "start":
            self._say(event.message)
            self.ids.update(call.id for call in event.message.calls)
            return
        self.queue.append(Queued(event.message_id, event.source, event.message))
        if event.source == "check" and self.run is not None:
            self.run.check_rounds += 1
            self.checks = []
        elif event.source == "correction" and self.run is not None:
            self.run.corrections += 1
        elif event.about and self.run is not None:
            self.run.warned += (event.about,)
        elif event.source == "notice":
            self.told = bool(self.turn)
            if self.run is not None and self.answered is not None and self.stop != "length":
                self.run.corrected = True

    def _edited(self, event: ev.MessageEdited) -> None:
        self.queue = [
            Queued(item.message_id, item.source, event.message) if item.message_id == event.message_id else item
            for item in self.queue
        ]

    def _say(self, *messages: Message) -> None:
        self.transcript.extend(messages)
        self.fill.tokens += sum(map(estimate, messages))

    def _requested(self, event: ev.ModelRequested) -> None:
        if event.because == "compact" or self.fill.is_summary(event.request_id):
            self.fill.asked(event)
            return
        self._say(*self.outgoing(event.carries))
        self.turn, self.joined, self.answered = [], 0, None
        if carried := set(event.carries):
            if any(item.source in PEOPLE for item in self.queue if item.message_id in carried):
                self._forget_repetition()  # asked anew, doing the same again is no loop
            self.queue = [queued for queued in self.queue if queued.message_id not in carried]
        if self.request is None or self.request.request_id != event.request_id:
            self.requests += 1
        self.request = OpenRequest(event.request_id, event.attempt)

    def outgoing(self, carries: tuple[str, ...]) -> list[Message]:
        """What a request carrying these queued messages adds to the transcript: open results, then them."""
        results = [tool_message(entry.result) for entry in self.turn[self.joined :] if entry.result is not None]
        carried = set(carries)
        return results + [queued.message for queued in self.queue if queued.message_id in carried]

    @property
    def answerable(self) -> bool:
        """There is something for the model to answer, though nothing new is said: its own words were not the last."""
        last = self.transcript[-1] if self.transcript else None
        if self.queue or last is None or (self.finished is not None and self.finished.status == "completed"):
            return bool(self.queue)
        return last.role != "assistant" or bool(last.calls) or self.stop == "paused"

    def _completed(self, event: ev.MessageCompleted) -> None:
        message = event.message
        self.place += 1
        self.request = None
        self.stop = event.stop_reason
        self.transcript.append(message)
        self.fill.answered(event)
        self.checks = []
        calls = message.calls
        self.ids.update(call.id for call in calls)
        self.turn = [OpenCall(call) for call in calls]
        self.pending = len(calls)
        self.joined = 0
        self.answered = None if calls else message
        if (run := self.run) is None:
            return
        run.steps += 1
        run.output_tokens = event.usage.output
        run.empties = 0
        self._spend(run, event.usage, event.cost)
        if event.stop_reason == "length":
            if calls:
                run.truncations += 1
            else:
                run.continuations += 1

    def _switched(self, event: ev.ModelSwitched) -> None:
        self.fill.window = 0
        if self.run is not None and not event.request_id:
            self.run.model = event.new

    def _compacted(self, event: ev.ContextCompacted | ev.CompactRequested) -> None:
        if isinstance(event, ev.CompactRequested):
            self.fill.wanted(event)
            return
        self.place += 1
        self.transcript = [event.message, *self.transcript[event.replaced :]]
        self.ids = self._ids()
        self.fill = self.fill.compacted(event)
        if self.run is not None and self.run.active:
            self._spend(self.run, event.usage, event.cost)

    def _ids(self) -> set[str]:
        return {call.id for message in self.transcript for call in message.calls}

    def _model_failed(self, event: ev.ModelFailed) -> None:
        self.place += 1
        self.fill.failed(event)
        if (run := self.run) is None:
            return
        self._spend(run, event.usage, 0.0 if event.cost is None and not event.usage.total else event.cost)
        if event.next == "ask_again":
            run.empties += 1
        if event.next == "give_up":
            run.error = ev.ErrorInfo(event.kind, event.message)

    def _spend(self, run: RunState, usage: Usage, cost: float | None) -> None:
        run.usage = run.usage + usage
        if cost is None:
            run.cost_known = False
        elif cost:
            run.cost = (run.cost or 0) + Decimal(repr(cost))

    # -- calls ---------------------------------------------------------------------------------------

    def open_call(self, call_id: str) -> OpenCall:
        """The call of this id in the turn under way. Raises KeyError."""
        for entry in self.turn:
            if entry.call.id == call_id:
                return entry
        raise KeyError(call_id)

    def _asked(self, event: ev.ApprovalRequested) -> None:
        for question in event.questions:
            entry = self.open_call(question.call_id)
            entry.status, entry.stale = "asked", False
            entry.question, entry.reason = question.sha256, question.reason
            entry.found, entry.about = question.found, question.about

    def _answered(self, event: ev.ApprovalAnswered) -> None:
        self.open_call(event.call_id).answered(event)

    def _abandoned(self, event: ev.ApprovalAbandoned) -> None:
        for call_id in event.call_ids:
            entry = self.open_call(call_id)
            entry.status, entry.stale = "new", False

    def _started(self, event: ev.ToolStarted) -> None:
        entry = self.open_call(event.call_id)
        entry.status, entry.found = "started", event.found
        entry.effect, entry.replay, entry.key = event.effect, event.replay, event.idempotency_key
        if event.effect == "write" and self.files == "kept":
            self.files = "changed"
        if self.run is not None:
            self.run.tool_calls += 1
            if event.effect == "write":
                self.run.wrote = self.armed = True

    def _tool_finished(self, event: ev.ToolFinished) -> None:
        entry = self.open_call(event.call_id)
        if entry.status == "finished":
            raise ValueError(f"call {event.call_id} has a result already")
        entry.status = "finished"
        self.pending -= 1
        entry.result = ToolResult(event.call_id, event.name, event.content, event.outcome, event.is_error)
        if self.run is not None:
            self.run.results += size_of_content(event.content)
        if event.fatal and self.run is not None:
            kind = "IN_DOUBT" if event.outcome == "interrupted" else "TOOL"
            self.run.error = ev.ErrorInfo(kind, f"{event.name}: {entry.result.text}")
        if event.outcome == "ok" and (plan := plan_in(event.details)) is not None:
            self.plan = plan
        for file in files_in(event.details):
            learn(self.seen, self.partly, file)
        self._join()
        if not self.pending:
            self._note_repetition()

    def _join(self) -> None:
        """Move results into the transcript, in call order. What a cancel left waits for the next request."""
        while self.joined < len(self.turn):
            result = self.turn[self.joined].result
            if result is None or result.outcome in ("interrupted", "not_started"):
                return
            self._say(tool_message(result))
            self.joined += 1

    def _note_repetition(self) -> None:
        self.turns, self.streaks = noted(self.turns, self.streaks, self.turn)
        if self.told and self.repeats() < 2:
            self.told = False

    def _forget_repetition(self) -> None:
        self.turns, self.streaks, self.told = [], [0] * MAX_PERIOD, False

    def repeats(self) -> int:
        """How often the latest pattern of turns (1 to `MAX_PERIOD` long) has now been seen in a row."""
        return longest(self.streaks)

    # -- checks, runs, sessions ------------------------------------------------------------------------

    def _cancelled(self, event: ev.CancelRequested) -> None:
        self.fill.give_up()
        if self.run is not None and self.run.active:
            self.run.cancel_reason = event.reason or event.by
            if event.after_turn:
                self.run.stopping = True
            else:
                self.run.cancelled = True

    def _run_started(self, event: ev.RunStarted) -> None:
        self._say(*self.outgoing(()))
        self.fill.full, self.fill.rescued = False, 0
        self.turn, self.pending, self.joined, self.answered = [], 0, 0, None
        self.run = RunState(event.run_id, event)
        self.files = "unknown"
        self.finished = None
        self.request = None
        self.requests = max(self.requests, event.first_request - 1)
        self.checks = []
        self._forget_repetition()

    def _run_resumed(self, event: ev.RunResumed) -> None:
        if self.run is not None:
            changed = {name: getattr(event, name) for name in ev.CONDITIONS}
            self.run.started = msgspec.structs.replace(self.run.started, **changed)

    def _run_finished(self, event: ev.RunFinished) -> None:
        self.finished = event
        self.request = self.fill.open = None
        if self.run is not None:
            self.run.active = False
        if event.status == "completed" and self.checks and all(check.passed for check in self.checks):
            self.armed = False

    def _opened(self, event: ev.SessionOpened) -> None:
        """A new process: what was in flight is lost, and no grant of the old one is used silently."""
        self.epoch = event.epoch
        self.checks = []
        self.files = "unknown"
        for entry in self.turn:
            entry.lose()

    # -- snapshots -------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The state as JSON. The ids follow from the rest."""
        return _PLAIN.encode(msgspec.structs.replace(self, ids=set()))

    def _restore(self, event: ev.SessionSnapshot) -> None:
        """Who the session is stands in its header: a copy has another name and the same snapshots. One that is not
        whole says nothing of what was said, which was folded before it."""
        saved = _STATES.decode(event.state)
        mine = ["session_id", "workspace"] if self.session_id else []
        kept = ["ids", *mine, *([] if event.whole else ["transcript"])]
        for name in self.__struct_fields__:
            if name not in kept:
                setattr(self, name, getattr(saved, name))
        if event.whole:
            self.ids = self._ids()


_PLAIN = msgspec.json.Encoder()
_STATES = msgspec.json.Decoder(State)


def fold(events: Any) -> State:
    """The state after these events, from the beginning (or from a snapshot's first needed line)."""
    state = State()
    for event in events:
        state.apply(event)
    return state
