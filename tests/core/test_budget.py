"""Bounds: exact sums, one warning before each wall, and which one ends the run."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchstep.core import event as ev
from latchstep.core.accept import dollars
from latchstep.core.action import CallModel, Note
from latchstep.core.budget import near, over, shown
from latchstep.core.decide import decide
from latchstep.core.message import Image, Message, Text, ToolCall, Usage, user
from latchstep.core.rules import Limits
from latchstep.core.state import State

from .test_decide import rules
from .test_state import asked, fresh, started


def stepped(state: State, number: int, **more: Any) -> None:
    """One turn: a request, an answer with a call, its result."""
    asked(state, f"request-{number:03d}")
    call = ToolCall(f"c{number}", "look", {"n": number})
    answer = {"request_id": "r", "message": Message("assistant", (call,)), "stop_reason": "tool_calls", **more}
    state.apply(ev.MessageCompleted(**answer))
    state.apply(ev.ToolStarted(call_id=call.id, name="look", sha256="", effect="read"))
    state.apply(ev.ToolFinished(call_id=call.id, name="look", outcome="ok", content=f"saw {number}"))


# -- money -------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_small_costs_do_not_drift() -> None:
    state = fresh()
    run = state.run
    assert run is not None
    for _ in range(100_000):
        state._spend(run, Usage(1, 1), 0.000_001_1)
    assert run.dollars == 0.11
    assert math.fsum([0.000_001_1] * 100_000) != sum([0.000_001_1] * 100_000), "floats would have drifted"


@given(st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=50))
def test_the_sum_is_exact_whatever_the_order_and_whatever_a_snapshot_does_between(costs: list[float]) -> None:
    one, two = fresh(), fresh()
    assert one.run is not None
    assert two.run is not None
    for cost in costs:
        one._spend(one.run, Usage(), cost)
    for cost in reversed(costs):
        two._spend(two.run, Usage(), cost)
        two.apply(ev.SessionSnapshot(needed=0, state=msgspec.Raw(two.snapshot())))
    assert one.run.dollars == pytest.approx(math.fsum(costs), rel=1e-12, abs=1e-20)
    assert one.run.dollars == pytest.approx(two.run.dollars, rel=1e-15, abs=1e-20)


@pytest.mark.parametrize(
    ("each", "times", "limit"), [(0.1, 3, 0.3), (0.1, 1, 0.1), (0.001, 700, 0.7), (1e-7, 10, 1e-6)]
)
def test_a_budget_of_cents_is_met_exactly(each: float, times: int, limit: float) -> None:
    state, limits = fresh(), Limits(max_cost=limit, max_steps=1000)
    assert state.run is not None
    for number in range(times):
        assert over(state, state.run, limits) is None, number
        state._spend(state.run, Usage(), each)
    assert over(state, state.run, limits) == ("max_cost", limit, limit)


@pytest.mark.parametrize("cost", [math.nan, math.inf, -1.0, True, "1", None])
def test_what_is_no_cost_is_unknown(cost: Any) -> None:
    assert dollars(cost) is None
    assert dollars(0) == 0.0


def test_a_cost_in_an_old_snapshot_is_read() -> None:
    state = fresh()
    assert state.run is not None
    state._spend(state.run, Usage(), 0.25)
    saved = state.snapshot()
    old = saved.replace(b'"cost":"0.25"', b'"cost":0.25')
    assert old != saved
    state.apply(ev.SessionSnapshot(needed=0, state=msgspec.Raw(old)))
    assert state.run.dollars == 0.25


def test_a_failed_attempt_that_was_counted_costs_what_it_costs() -> None:
    state = fresh()
    failed = {"request_id": "r", "attempt": 1, "kind": "x", "message": "m", "next": "retry"}
    state.apply(ev.ModelFailed(**failed, usage=Usage(10, 1), cost=0.25))  # type: ignore[arg-type]
    state.apply(ev.ModelFailed(**failed))  # type: ignore[arg-type]
    assert state.run is not None
    assert (state.run.dollars, state.run.usage) == (0.25, Usage(10, 1))
    state.apply(ev.ModelFailed(**failed, usage=Usage(10, 1)))  # type: ignore[arg-type]
    assert state.run.dollars is None


@pytest.mark.parametrize(
    ("number", "text"), [(1_000_000, "1000000"), (0.1 + 0.2, "0.3"), (1e-7, "1e-07"), (2.5, "2.5")]
)
def test_numbers_as_they_are_shown(number: float, text: str) -> None:
    assert shown(number) == text


# -- told before the wall ----------------------------------------------------------------------------------


def warnings(limits: Limits, turns: int, **more: Any) -> list[tuple[int, str, str]]:
    """(turns made, the bound, what was said) of each warning, the run going on as `decide` says."""
    state, found = fresh(), []
    for number in range(1, turns + 1):
        stepped(state, number, **more)
        while isinstance(action := decide(state, rules(limits=limits)), Note):
            (event,) = action.events
            if isinstance(event, ev.RunFinished):
                return found
            assert isinstance(event, ev.MessageAccepted)
            found.append((number, event.about, event.message.text))
            state.apply(event)
        assert isinstance(action, CallModel)
        assert set(action.carries) == {item.message_id for item in state.queue}
    return found


@pytest.mark.parametrize(
    ("limits", "more", "name", "at", "words"),
    [
        ({"max_steps": 10}, {}, "max_steps", 8, "8 of 10 steps"),
        ({"max_steps": 100, "warn_at": 0.5}, {}, "max_steps", 50, "50 of 100 steps"),
        ({"max_tokens": 100}, {"usage": Usage(9, 1)}, "max_tokens", 8, "80 of 100 tokens"),
        ({"max_cost": 0.001}, {"cost": 0.0001}, "max_cost", 8, "0.0008 of 0.001 US dollars"),
        ({"max_results": 50}, {}, "max_results", 8, "40 of 50 characters of results"),
        ({"max_tool_calls": 10}, {}, "max_tool_calls", 8, "8 of 10 tool calls"),
        ({"max_seconds": 10.0}, {"run_id": "run-1", "elapsed": 8.5}, "max_seconds", 1, "8.5 of 10 seconds"),
    ],
)
def test_each_bound_is_told_once_before_it_is_reached(limits: Any, more: Any, name: str, at: int, words: str) -> None:
    ((turn, about, said),) = warnings(Limits(**{"max_steps": 1000, **limits}), 60, **more)
    assert (turn, about) == (at, name)
    assert words in said


def test_two_walls_are_two_warnings() -> None:
    both = warnings(Limits(max_steps=20, max_tool_calls=10), 30)
    assert [(turn, about) for turn, about, _ in both] == [(8, "max_tool_calls"), (16, "max_steps")]


@pytest.mark.parametrize(
    "limits", [{"max_steps": 1}, {"max_steps": 2}, {"max_steps": 9}, {"max_steps": 50, "warn_at": None}]
)
def test_small_bounds_and_those_who_do_not_want_it_are_not_told(limits: Any) -> None:
    assert warnings(Limits(**limits), 60) == []


def test_a_warning_is_no_sign_of_a_repetition_and_a_new_run_begins_anew() -> None:
    state = fresh()
    assert state.run is not None
    for number in range(1, 9):
        stepped(state, number)
    limits = Limits(max_steps=10)
    action = decide(state, rules(limits=limits))
    assert isinstance(action, Note)
    state.apply(action.events[0])
    assert (state.told, state.run.corrected, state.run.warned) == (False, False, ("max_steps",))
    assert near(state.run, limits) is None
    state.apply(ev.RunFinished(status="cancelled"))
    state.apply(started("run-2"))
    assert state.run.warned == ()


# -- walls -------------------------------------------------------------------------------------------------


def test_all_results_of_a_run_together_are_bounded() -> None:
    state, limits = fresh(), Limits(max_results=14)
    stepped(state, 1)
    assert isinstance(decide(state, rules(limits=limits)), CallModel)
    asked(state, "request-002")
    message = Message("assistant", (ToolCall("p", "look"),))
    state.apply(ev.MessageCompleted(request_id="r", message=message, stop_reason="tool_calls"))
    picture = (Text("four"), Image("image/png", "QUJD"))
    state.apply(ev.ToolFinished(call_id="p", name="look", outcome="ok", content=picture))
    assert state.run is not None
    assert state.run.results == len("saw 1") + 4 + 4
    state.run.results += 1
    action = decide(state, rules(limits=limits))
    assert isinstance(action, Note)
    (ended,) = action.events
    assert isinstance(ended, ev.RunFinished)
    assert (ended.status, ended.error) == (
        "budget",
        ev.ErrorInfo("MAX_RESULTS", "max_results is 14, reached with 14"),
    )


def test_a_stop_after_the_turn_opens_no_request_and_keeps_what_waits() -> None:
    state = fresh()
    stepped(state, 1)
    state.apply(ev.MessageAccepted(message_id="s", source="steer", message=user("more")))
    state.apply(ev.CancelRequested(by="me", after_turn=True))
    action = decide(state, rules())
    assert isinstance(action, Note)
    assert action.events[0].status == "cancelled"  # type: ignore[attr-defined]
    assert [item.message_id for item in state.queue] == ["s"]
