"""The loop without anything around it: `decide` and `apply` driven in memory, with a crash wherever one is wanted.

An effect and its record are separate steps here as in life, so a crash can fall before, between and after.
The ledger of effects is the truth that the record is judged by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from latchstep.core import event as ev
from latchstep.core import wording
from latchstep.core.accept import accept
from latchstep.core.action import Ask, CallModel, Check, Compact, Consult, Note, RunTools, Settle, Wait
from latchstep.core.calls import in_doubt, result
from latchstep.core.chunk import Completed
from latchstep.core.codec import decode_event, encode_event, stamp
from latchstep.core.compact import compacted, recoverable, to_summarise
from latchstep.core.decide import decide
from latchstep.core.message import Message, Text, ToolCall, ToolResult, estimate, user
from latchstep.core.parts import OpenCall
from latchstep.core.project import Projection
from latchstep.core.rules import Rules
from latchstep.core.state import State, fold

SUMMARY = Completed(blocks=(Text("what was done"),), stop_reason="stop", origin="sim")


class Crash(Exception):
    """The power goes."""


Act = Literal["", "steer", "follow_up", "edit", "withdraw", "stop"]
"""What a person does at a moment at which one may."""


def hooked(call: ToolCall) -> dict[str, Any] | str | None:
    """What the hooks make of a call: other arguments (some forbidden), a refusal in words, or nothing."""
    assert "hook" not in call.arguments, "a change is made twice"
    return [None, {**call.arguments, "hook": call.id}, {"forbidden": True, "hook": ""}, "no"][
        sum(map(ord, call.id)) % 4
    ]


@dataclass
class World:
    """What survives a crash: the record, and the effects that really happened.

    fits: tokens of a request that the model takes. summaries: whether the n-th summary comes, or its request fails.
    """

    script: list[Completed]
    rules: Rules
    record: list[ev.Event] = field(default_factory=list)
    effects: Counter[str] = field(default_factory=Counter)
    settles: Callable[[str], str] = lambda call_id: "unknown"
    requests: list[list[Message]] = field(default_factory=list)
    answer: ev.Decision = "allow"
    steps: int = 0
    crash_at: int = -1
    fits: int = 1 << 40
    padding: str = ""
    summaries: Callable[[int], bool] = lambda number: True
    acts: list[Act] = field(default_factory=list)
    accepted: dict[str, str] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)
    ran: dict[str, dict[str, Any]] = field(default_factory=dict)

    def step(self) -> None:
        """A point at which the process may die."""
        self.steps += 1
        if self.steps - 1 == self.crash_at:
            raise Crash

    def append(self, *events: ev.Event) -> None:
        for event in events:
            self.step()
            stamp(event, len(self.record))
            # what a journal gives back is decoded, never the object that went in
            self.record.append(decode_event(encode_event(event)))
            stamp(self.record[-1], len(self.record) - 1)
            self.state.apply(event)
        self.step()

    state: State = field(default_factory=State)

    def open(self) -> None:
        self.state = fold(self.record)
        self.append(ev.SessionOpened(epoch=self.state.epoch + 1))

    def begin(self, prompt: str) -> None:
        number = len(self.record)
        self.append(
            ev.MessageAccepted(message_id=f"m{number}", source="prompt", message=user(prompt)),
            ev.RunStarted(run_id=f"run-{number}", model="sim"),
        )

    def drive(self) -> Wait:
        """Until nothing can happen by itself. More than 500 actions is a loop that never ends."""
        for _ in range(500):
            self._person()
            action = decide(self.state, self.rules)
            if action != decide(self.state, self.rules):
                raise AssertionError("decide is not a function of its arguments")
            match action:
                case Wait(why="answer"):
                    self._answer()
                case Wait():
                    return action
                case _:
                    self._perform(action)
        raise AssertionError(f"no end in sight: {action}")

    def _perform(self, action: object) -> None:
        match action:
            case Note():
                self.append(*action.events)
            case CallModel():
                self._call_model(action)
            case Compact():
                self._compact(action)
            case RunTools():
                self._run_tools(action)
            case Consult():
                for entry in [self.state.open_call(call_id) for call_id in action.calls]:
                    self.append(self._looked_at(entry))
            case Ask():
                asked = tuple(
                    ev.Question(call_id=c, name="?", sha256=f"{c}-digest", about=action.about) for c in action.calls
                )
                self.append(ev.ApprovalRequested(questions=asked))
            case Settle():
                self._settle(action)
            case Check():
                self.append(ev.CheckStarted(command=action.command, index=action.index))
                self.append(ev.CheckFinished(command=action.command, index=action.index, passed=True, exit_status=0))
            case _:
                raise AssertionError(f"unknown action {action!r}")

    def _call_model(self, action: CallModel) -> None:
        self.append(
            ev.ModelRequested(
                request_id=action.request_id, attempt=action.attempt, because=action.because, carries=action.carries
            )
        )
        request = list(Projection().feed(self.state.transcript))
        if sum(map(estimate, request)) > self.fits:
            self._refused(action, "compact" if recoverable(self.state) else "give_up")
            return
        self.requests.append(request)
        answer = self.script[min(self.state.place, len(self.script) - 1)]
        self.append(accept(answer, self.state, "sim"))

    def _refused(self, action: CallModel | Compact, then: str) -> None:
        self.append(
            ev.ModelFailed(
                request_id=action.request_id,
                attempt=action.attempt,
                kind="CONTEXT_FULL",
                message="too long",
                next=then,  # type: ignore[arg-type]
            )
        )

    def _compact(self, action: Compact) -> None:
        self.append(ev.ModelRequested(request_id=action.request_id, attempt=action.attempt, because="compact"))
        assert to_summarise(self.state, action, self.rules)
        if not self.summaries(self.state.fill.requests):
            self._refused(action, "give_up" if action.because == "overflow" else "go_on")
            return
        self.append(compacted(self.state, action, self.rules, "what was done", SUMMARY))
        raw = msgspec.Raw(self.state.snapshot())
        self.append(ev.SessionSnapshot(needed=len(self.record), state=raw, whole=True))

    def _run_tools(self, action: RunTools) -> None:
        entries = [self.state.open_call(call_id) for call_id in action.calls]
        self.append(*(self._intent(entry) for entry in entries))
        for entry in entries:
            self.step()
            self.effects[entry.call.id] += 1
            self.ran[entry.call.id] = entry.call.arguments
            self.step()
        self._person()
        for entry in reversed(entries):  # results join in call order whatever order tools finish in
            self.append(result(entry, "ok", f"did {entry.call.id}" + self.padding, False))

    def _intent(self, entry: object) -> ev.ToolStarted:
        call = entry.call  # type: ignore[attr-defined]
        traits = self.rules.traits(call.name)
        return ev.ToolStarted(call_id=call.id, name=call.name, sha256="", effect=traits.effect, replay=traits.replay)

    def _looked_at(self, entry: OpenCall) -> ev.Event:
        said = hooked(entry.call)
        if isinstance(said, str):
            return result(entry, "denied", wording.denied(said, "a hook"), False)
        if said is None:
            return ev.CallKept(call_id=entry.call.id)
        return ev.CallChanged(call_id=entry.call.id, arguments=said)

    def _person(self) -> None:
        """The next thing a person does. What returns is acknowledged; what a crash cuts off may be on record or not."""
        act = self.acts.pop(0) if self.acts else ""
        waiting = [item.message_id for item in self.state.queue if item.source in ("steer", "follow_up")]
        if act in ("steer", "follow_up"):
            message_id = f"{act}-{len(self.acts)}"
            said = ev.MessageAccepted(message_id=message_id, source=act, message=user(f"words {message_id}"))
            self.append(said)
            self.accepted[message_id] = said.message.text
        elif act == "edit" and waiting:
            self.accepted.pop(waiting[-1], None)  # either text, if a crash comes in between
            self.append(ev.MessageEdited(message_id=waiting[-1], message=user(f"other words {waiting[-1]}")))
            self.accepted[waiting[-1]] = f"other words {waiting[-1]}"
        elif act == "withdraw" and waiting:
            self.accepted.pop(waiting[0], None)
            self.append(ev.MessageWithdrawn(message_id=waiting[0]))
            self.withdrawn.add(waiting[0])
        elif act == "stop":
            self.append(ev.CancelRequested(by="person", after_turn=True))

    def _settle(self, action: Settle) -> None:
        entry = self.state.open_call(action.call)
        happened = self.settles(action.call)
        if happened == "unknown":
            self._perform(in_doubt(entry, self.rules))
        elif happened == "done":
            self.append(result(entry, "ok", wording.settled(True), False))
        else:
            self.append(result(entry, "interrupted", wording.settled(False), True))

    def _answer(self) -> None:
        for entry in self.state.turn:
            if entry.status == "asked":
                answered = ev.ApprovalAnswered(call_id=entry.call.id, decision=self.answer, sha256=entry.question)
                self.append(answered)


def check_request(messages: list[Message]) -> None:
    """What every provider insists on: each call answered at once, once, in order; nothing blank."""
    open_calls: list[str] = []
    seen: set[str] = set()
    for message in messages:
        assert message.blocks, "an empty message"
        if message.role == "tool":
            (block,) = message.blocks
            assert isinstance(block, ToolResult)
            assert open_calls, f"orphan result {block.call_id}"
            assert open_calls.pop(0) == block.call_id, "results out of order"
            assert block.text.strip()
            continue
        assert not open_calls, f"{open_calls} have no result before a {message.role} message"
        open_calls = [call.id for call in message.calls]
        assert not seen.intersection(open_calls), "an id used twice"
        assert len(set(open_calls)) == len(open_calls)
        seen.update(open_calls)
    assert not open_calls, f"{open_calls} have no result"
