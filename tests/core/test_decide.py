"""What must happen next, for each state there is. `decide` is a function: it looks at nothing else."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import msgspec
import pytest

import latchstep
from latchstep.core import event as ev
from latchstep.core.action import Ask, CallModel, Check, Note, RunTools, Settle, Wait
from latchstep.core.decide import decide
from latchstep.core.markup import call_in_text
from latchstep.core.message import Message, Text, ToolCall, user
from latchstep.core.rules import RUN, Limits, Rules, Traits, Verdict
from latchstep.core.state import State

from .test_state import answered, asked, finish, fresh

TRAITS = {
    "look": Traits("read", "safe"),
    "peek": Traits("read", "safe", alone=True),
    "touch": Traits("write", "never"),
    "put": Traits("write", "safe"),
    "edit": Traits("write", "never", settles=True),
}


def rules(verdicts: dict[str, Verdict] | None = None, **more: Any) -> Rules:
    given = verdicts or {}
    return Rules(
        judge=lambda call: given.get(call.name, RUN),
        traits=lambda name: TRAITS.get(name, Traits()),
        known=TRAITS.__contains__,
        **more,
    )


def after(*names: str, stop: Any = "tool_calls") -> State:
    state = fresh()
    asked(state)
    answered(state, *names)
    state.stop = stop
    return state


def lost(name: str, **more: Any) -> State:
    state = after(name)
    traits = TRAITS[name]
    entry = state.turn[0]
    state.apply(
        ev.ToolStarted(call_id=entry.call.id, name=name, sha256="x", effect=traits.effect, replay=traits.replay)
    )
    state.apply(ev.SessionOpened(epoch=2))
    return state


def noted(action: object) -> list[Any]:
    assert isinstance(action, Note), action
    return [getattr(event, "outcome", None) or getattr(event, "status", None) for event in action.events]


def test_it_waits_where_nothing_is_under_way() -> None:
    assert decide(State(), rules()) == Wait("idle")
    state = fresh()
    state.apply(ev.RunFinished(status="completed"))
    assert decide(state, rules()) == Wait("idle")


def test_a_run_begins_with_a_request_that_carries_what_waits() -> None:
    assert decide(fresh(), rules()) == CallModel("request-001", 1, "prompt", ("m1",))


@pytest.mark.parametrize(
    ("batch", "first_groups"),
    [
        (["look", "look", "touch", "look"], [2, 1, 1]),
        (["touch", "touch"], [1, 1]),
        (["look", "peek", "look", "look"], [1, 1, 2]),
        (["look"] * 5, [3, 2]),
        (["unknown", "look"], [1, 1]),
    ],
)
def test_groups(batch: list[str], first_groups: list[int]) -> None:
    state = after(*batch)
    sizes = []
    while isinstance(action := decide(state, rules(limits=Limits(max_parallel=3))), RunTools):
        sizes.append(len(action.calls))
        for call_id in action.calls:
            entry = state.open_call(call_id)
            traits = TRAITS.get(entry.call.name, Traits())
            state.apply(ev.ToolStarted(call_id=call_id, name="x", sha256="x", effect=traits.effect))
            state.apply(ev.ToolFinished(call_id=call_id, name="x", outcome="ok", content="ok"))
    assert sizes == first_groups
    assert action == CallModel("request-002", 1, "results", ())


def test_everything_is_asked_or_closed_before_anything_runs() -> None:
    verdicts = {"touch": Verdict("ask", "why"), "put": Verdict("refuse", "no"), "nope": Verdict("reject", "unknown")}
    state = after("look", "touch", "put", "nope", "touch")
    action = decide(state, rules(verdicts))
    assert noted(action) == ["denied", "rejected"]
    assert isinstance(action, Note)
    for event in action.events:
        state.apply(event)
    ids = [entry.call.id for entry in state.turn]
    assert decide(state, rules(verdicts)) == Ask((ids[1], ids[4]), ("why", "why"))
    questions = tuple(ev.Question(call_id=i, name="touch", sha256=i) for i in (ids[1], ids[4]))
    state.apply(ev.ApprovalRequested(questions=questions))
    assert decide(state, rules(verdicts)) == Wait("answer")
    state.apply(ev.ApprovalAnswered(call_id=ids[1], decision="allow", sha256=ids[1]))
    assert decide(state, rules(verdicts)) == Wait("answer")
    state.apply(ev.ApprovalAnswered(call_id=ids[4], decision="deny", sha256=ids[4]))
    assert noted(decide(state, rules(verdicts))) == ["denied"]


def test_a_verdict_that_does_not_exist_runs_nothing() -> None:
    assert noted(decide(after("touch"), rules({"touch": Verdict("perhaps")}))) == ["rejected"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "verdict", "on_doubt", "expected"),
    [
        ("look", "run", "report", RunTools),
        ("put", "run", "fail", RunTools),
        ("put", "ask", "report", Ask),
        ("put", "refuse", "report", Note),
        ("put", "reject", "report", Note),
        ("touch", "run", "report", Note),
        ("touch", "run", "ask", Ask),
        ("touch", "run", "fail", Note),
        ("edit", "run", "report", Settle),
        ("edit", "refuse", "report", Settle),
        ("edit", "reject", "report", Note),
    ],
)
def test_what_becomes_of_a_lost_call(name: str, verdict: Any, on_doubt: Any, expected: type) -> None:
    action = decide(lost(name), rules({name: Verdict(verdict, "words")}, on_doubt=on_doubt))
    assert type(action) is expected
    if isinstance(action, Note):
        assert noted(action) == ["interrupted"]
        assert action.events[0].fatal is (on_doubt == "fail")  # type: ignore[attr-defined]
    if isinstance(action, Ask):
        assert action.about == "doubt"


def test_a_tool_that_is_no_longer_declared_safe_is_in_doubt() -> None:
    state = lost("put")
    unsafe = Rules(judge=lambda call: RUN, traits=lambda name: Traits())
    assert noted(decide(state, unsafe)) == ["interrupted"]


def test_a_tool_that_became_safe_since_is_in_doubt_all_the_same() -> None:
    state = lost("touch")
    safe = Rules(judge=lambda call: RUN, traits=lambda name: Traits("write", "safe"))
    assert noted(decide(state, safe)) == ["interrupted"]


@pytest.mark.parametrize("how", ["cancel", "clock"])
def test_an_interrupt_closes_every_call_truthfully_then_the_run(how: str) -> None:
    state = lost("touch")
    for name in ("a", "b", "c"):
        state.turn.append(type(state.turn[0])(ToolCall(name, "touch")))
        state.pending += 1
    state.apply(ev.ToolStarted(call_id="a", name="touch", sha256="x"))
    state.apply(ev.ApprovalRequested(questions=(ev.Question(call_id="b", name="touch", sha256="x"),)))
    state.apply(ev.CancelRequested(reason="lunch") if how == "cancel" else ev.ClockPassed(limit="m", seconds=3))
    action = decide(state, rules())
    assert noted(action) == ["interrupted", "interrupted", "not_started", "not_started"]
    assert isinstance(action, Note)
    for event in action.events:
        state.apply(event)
    assert noted(decide(state, rules())) == ["cancelled" if how == "cancel" else "budget"]


def test_a_failed_run_starts_nothing_more() -> None:
    state = after("touch", "touch")
    state.apply(ev.ToolStarted(call_id=state.turn[0].call.id, name="touch", sha256="x"))
    state.apply(
        ev.ToolFinished(call_id=state.turn[0].call.id, name="touch", outcome="error", content="gone", fatal=True)
    )
    assert noted(decide(state, rules())) == ["not_started"]
    finish_rest(state)
    action = decide(state, rules())
    assert noted(action) == ["failed"]
    assert action.events[0].error == ev.ErrorInfo("TOOL", "touch: gone")  # type: ignore[union-attr,attr-defined]


def finish_rest(state: State) -> None:
    for entry in state.turn:
        if entry.status != "finished":
            state.apply(ev.ToolFinished(call_id=entry.call.id, name="x", outcome="not_started", content="no"))


def test_checks_run_in_order_and_once() -> None:
    state = after()
    state.stop = "stop"
    both = rules(checks=("make", "lint"))
    assert noted(decide(state, both)) == ["completed"]
    state.armed = True
    assert decide(state, both) == Check(0, "make")
    state.apply(ev.CheckFinished(command="make", index=0, passed=True, exit_status=0))
    assert decide(state, both) == Check(1, "lint")
    state.apply(ev.CheckFinished(command="lint", index=1, passed=False, exit_status=2, output="bad"))
    action = decide(state, both)
    assert isinstance(action, Note)
    (said,) = action.events
    assert isinstance(said, ev.MessageAccepted)
    assert said.source == "check"
    state.apply(said)
    assert decide(state, both) == CallModel("request-002", 1, "check", (said.message_id,))


def test_the_reason_of_a_request_is_what_it_carries() -> None:
    state = after()
    state.stop = "stop"
    for number, source in enumerate(("follow_up", "steer", "follow_up")):
        state.apply(ev.MessageAccepted(message_id=f"x{number}", source=source, message=user("x")))  # type: ignore[arg-type]
    assert decide(state, rules()) == CallModel("request-002", 1, "steer", ("x1",))
    asked(state, "request-002")
    state.queue = [q for q in fresh().queue if q.source != "prompt"]
    answered(state)
    state.apply(ev.MessageAccepted(message_id="f", source="follow_up", message=user("x")))
    assert decide(state, rules()) == CallModel("request-003", 1, "follow_up", ("f",))


def test_budgets_name_bound_value_and_limit() -> None:
    state = after("look")
    finish(state)
    for limits, words in [
        (Limits(max_steps=1), "max_steps is 1, reached with 1"),
        (Limits(max_tokens=5), "max_tokens is 5, reached with 12"),
        (Limits(max_seconds=0.0), "max_seconds is 0, reached with 0"),
    ]:
        action = decide(state, rules(limits=limits))
        assert action.events[0].error.message == words  # type: ignore[union-attr,attr-defined]


def test_the_same_state_gives_the_same_action_after_the_record() -> None:
    for state in (fresh(), after("look", "touch"), lost("touch"), lost("edit")):
        copy = msgspec.json.decode(msgspec.json.encode(state), type=State)
        assert decide(copy, rules()) == decide(state, rules()) == decide(state, rules())


def test_it_is_small_and_pure() -> None:
    core = Path(latchstep.__file__).parent / "core"
    assert (core / "decide.py").read_text().count("\n") <= 220
    for path in core.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not {name.split(".")[0] for name in names} & {"asyncio", "os", "time", "random", "socket"}, path


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ('<tool_call>{"name": "look"}</tool_call>', "look"),
        ('\n<function_calls>\n<invoke name="look">\n</invoke></function_calls> ', "look"),
        ('<tool_call>{"name": "gone"}</tool_call>', ""),
        ('See: <tool_call>{"name": "look"}</tool_call>', ""),
        ("<tool_call>" * 1000, ""),
        ("", ""),
    ],
)
def test_a_call_in_text(said: str, name: str) -> None:
    assert call_in_text(Message("assistant", (Text(said),)), TRAITS.__contains__) == name
