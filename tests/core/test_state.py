"""The fold: what each event changes, and nothing else does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from latchstep.core import event as ev
from latchstep.core.calls import result
from latchstep.core.codec import decode_event, encode_event
from latchstep.core.message import Message, Text, ToolCall, Usage, user
from latchstep.core.parts import learn
from latchstep.core.state import MAX_PERIOD, State, fold


def started(run_id: str = "run-1", first_request: int = 1) -> ev.RunStarted:
    return ev.RunStarted(run_id=run_id, model="m", first_request=first_request)


def prompt(number: int = 1) -> ev.MessageAccepted:
    return ev.MessageAccepted(message_id=f"m{number}", source="prompt", message=user(f"p{number}", f"m{number}"))


def asked(state: State, request_id: str = "request-001") -> None:
    carries = tuple(queued.message_id for queued in state.queue)
    state.apply(ev.ModelRequested(request_id=request_id, carries=carries))


def answered(state: State, *names: str, cost: float | None = None) -> None:
    number = state.place
    calls = tuple(ToolCall(f"c{number}-{n}", name, {}) for n, name in enumerate(names))
    message = Message("assistant", calls or (Text("done"),))
    state.apply(
        ev.MessageCompleted(
            request_id="request-001",
            message=message,
            stop_reason="tool_calls" if calls else "stop",
            usage=Usage(10, 2),
            cost=cost,
        )
    )


def finish(state: State, said: str = "ok", outcome: str = "ok") -> None:
    for entry in list(state.turn):
        state.apply(result(entry, outcome, said, False))  # type: ignore[arg-type]


def fresh() -> State:
    state = State()
    for event in (ev.SessionCreated(session_id="s"), ev.SessionOpened(epoch=1), prompt(), started()):
        state.apply(event)
    return state


def turn(state: State, *names: str, said: str = "ok") -> None:
    asked(state, f"request-{state.requests + 1:03d}")
    answered(state, *names)
    finish(state, said)


def test_results_join_in_call_order_whatever_order_they_come_in() -> None:
    state = fresh()
    asked(state)
    answered(state, "a", "b", "c")
    first, second, third = state.turn
    state.apply(result(third, "ok", "3", False))
    assert (len(state.transcript), state.pending) == (2, 2)
    state.apply(result(first, "ok", "1", False))
    assert len(state.transcript) == 3
    state.apply(result(second, "ok", "2", False))
    assert [m.blocks[0].text for m in state.transcript[2:]] == ["1", "2", "3"]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="has a result already"):
        state.apply(result(first, "ok", "1", False))


def test_what_a_cancel_left_joins_only_with_the_next_request() -> None:
    state = fresh()
    asked(state)
    answered(state, "a", "b")
    first, second = state.turn
    state.apply(result(first, "interrupted", "stopped", True))
    state.apply(result(second, "not_started", "never", True))
    state.apply(ev.RunFinished(status="cancelled"))
    assert [m.role for m in state.transcript] == ["user", "assistant"]
    state.apply(prompt(2))
    state.apply(started("run-2"))
    assert [m.role for m in state.transcript] == ["user", "assistant", "tool", "tool"]
    asked(state, "request-002")
    assert [m.role for m in state.transcript][-1] == "user"


def test_a_run_that_broke_with_open_calls_does_not_hold_the_next() -> None:
    state = fresh()
    asked(state)
    answered(state, "a")
    state.apply(ev.RunFinished(status="failed"))
    assert state.pending == 1
    state.apply(started("run-2"))
    assert (state.pending, state.turn) == (0, [])


def test_an_opening_marks_what_was_in_flight() -> None:
    state = fresh()
    asked(state)
    answered(state, "a", "b", "c", "d")
    ids = [entry.call.id for entry in state.turn]
    state.apply(ev.ToolStarted(call_id=ids[0], name="a", sha256="x"))
    questions = tuple(ev.Question(call_id=i, name="b", sha256=f"digest {i}", found={"x": 1}) for i in ids[1:3])
    state.apply(ev.ApprovalRequested(questions=questions))
    state.apply(ev.ApprovalAnswered(call_id=ids[1], decision="allow", sha256=f"digest {ids[1]}"))
    state.apply(ev.SessionOpened(epoch=2))
    assert [entry.status for entry in state.turn] == ["lost", "new", "new", "new"]
    assert [entry.stale for entry in state.turn] == [False, False, True, False]
    assert [(entry.question, entry.found) for entry in state.turn[1:3]] == [("", None), ("", None)]
    assert state.armed


def test_an_answer_meets_only_the_question_it_was_given_to() -> None:
    state = fresh()
    asked(state)
    answered(state, "a")
    call_id = state.turn[0].call.id
    state.apply(ev.ApprovalRequested(questions=(ev.Question(call_id=call_id, name="a", sha256="one"),)))
    state.apply(ev.ApprovalAnswered(call_id=call_id, decision="allow", sha256="another"))
    assert state.turn[0].status == "asked"
    state.apply(ev.ApprovalAnswered(call_id=call_id, decision="deny", sha256="one"))
    assert state.turn[0].status == "denied"


def test_checks_disarm_only_a_run_they_completed() -> None:
    passed = ev.CheckFinished(command="a", index=0, passed=True, exit_status=0)
    failed = ev.CheckFinished(command="b", index=1, passed=False, exit_status=1)
    for ending, checks, armed in [
        ("completed", [passed], False),
        ("cancelled", [passed], True),
        ("unverified", [passed, failed], True),
        ("completed", [], True),
    ]:
        state = fresh()
        state.armed = True
        for check in checks:
            state.apply(check)
        state.apply(ev.RunFinished(status=ending))  # type: ignore[arg-type]
        assert state.armed is armed, ending


def test_usage_and_cost_add_up_and_an_unknown_cost_is_remembered() -> None:
    state = fresh()
    asked(state)
    answered(state, "a", cost=0.25)
    assert state.run is not None
    assert (state.run.usage, state.run.cost, state.run.cost_known) == (Usage(10, 2), 0.25, True)
    failed = ev.ModelFailed(request_id="r", attempt=1, kind="x", message="m", next="retry", usage=Usage(1, 1))
    state.apply(failed)
    assert (state.run.usage, state.run.cost_known) == (Usage(11, 3), False)


def test_request_numbers_go_on_over_runs() -> None:
    state = fresh()
    assert state.requests == 0
    asked(state, "request-001")
    asked(state, "request-001")  # asked again
    assert state.requests == 1
    state.apply(started("run-2", first_request=7))
    assert state.requests == 6
    state.apply(started("run-3"))
    assert state.requests == 6


@pytest.mark.parametrize("period", range(1, MAX_PERIOD + 1))
def test_repetition_is_seen_up_to_a_period(period: int) -> None:
    state = fresh()
    for number in range(period * 5):
        turn(state, f"tool{number % period}")
    assert state.repeats() == 5
    turn(state, "another")
    assert state.repeats() == 1


def test_a_pattern_that_is_too_long_or_changes_is_none() -> None:
    state = fresh()
    for number in range((MAX_PERIOD + 1) * 4):
        turn(state, f"tool{number % (MAX_PERIOD + 1)}")
        assert state.repeats() == 1
    for number in range(10):
        turn(state, "poll", said=str(number))
        assert state.repeats() == 1


def test_a_new_word_from_a_person_forgets_the_repetition_and_one_from_the_harness_does_not() -> None:
    state = fresh()
    for _ in range(3):
        turn(state, "look")
    notice = ev.MessageAccepted(message_id="n", source="notice", message=user("again?"))
    state.apply(notice)
    turn(state, "look")
    assert (state.repeats(), state.told) == (4, True)
    state.apply(ev.MessageAccepted(message_id="s", source="steer", message=user("once more")))
    turn(state, "look")
    assert (state.repeats(), state.told) == (1, False)


def test_withdrawn_and_delivered_messages_leave_the_queue() -> None:
    state = fresh()
    state.apply(ev.MessageAccepted(message_id="s1", source="steer", message=user("a")))
    state.apply(ev.MessageAccepted(message_id="s2", source="steer", message=user("b")))
    state.apply(ev.MessageWithdrawn(message_id="s1"))
    asked(state)
    assert [m.text for m in state.transcript] == ["p1", "b"]
    assert state.queue == []


def test_unknown_and_transient_events_change_nothing() -> None:
    state = fresh()
    before = state.snapshot()
    for event in (
        ev.Unknown(name="new.thing", raw=b"{}"),
        ev.ModelDelta(request_id="r", kind="text", piece="x"),
        ev.ToolOutput(call_id="c", text="x"),
    ):
        state.apply(event)
    assert state.snapshot() == before
    with pytest.raises(TypeError, match="no fold"):
        state.apply(ev.Event())


def test_elapsed_never_goes_back_and_belongs_to_its_run() -> None:
    state = fresh()
    assert state.run is not None
    for run_id, elapsed in (("run-1", 5.0), ("run-1", 3.0), ("run-0", 99.0)):
        state.apply(ev.CancelRequested(run_id=run_id, elapsed=elapsed))
    assert state.run.elapsed == 5.0


def test_a_snapshot_restores_all_but_the_messages() -> None:
    state = fresh()
    turn(state, "look")
    asked(state, "request-002")
    answered(state, "touch", "look")
    state.apply(ev.ToolStarted(call_id=state.turn[0].call.id, name="touch", sha256="x", found={"a": [1]}))
    snapshot = ev.SessionSnapshot(needed=0, state=msgspec.Raw(state.snapshot()))
    restored = fold([decode_event(encode_event(snapshot))])
    restored.transcript, restored.ids = state.transcript, state.ids
    assert restored == state


@pytest.mark.parametrize(
    ("files", "known", "partly"),
    [
        ([{}], "new", None),  # a picture
        ([{"lines": 0}], "new", None),
        ([{"lines": 9, "from": 1, "to": 9}], "new", None),
        ([{"lines": 9, "from": 1, "to": 8}], "new", 8),
        ([{"lines": 9, "from": 2, "to": 9}], "new", 0),
        ([{"lines": 9, "from": 2, "to": 9}, {"lines": 9, "from": 1, "to": 1}], "new", 1),
        ([{"lines": 9, "from": 1, "to": 5}, {"lines": 9, "from": 6, "to": 9}], "new", None),
        ([{"lines": 9, "from": 1, "to": 9}, {"lines": 9, "from": 1, "to": 2}], "new", None),
        ([{"sha256": "old", "lines": 9, "from": 1, "to": 5}, {"lines": 9, "from": 6, "to": 9}], "new", 0),
        ([{"replaced": None}], "new", None),  # a new file
        ([{"sha256": "old"}, {"replaced": "old"}], "new", None),
        ([{"sha256": "old", "lines": 9, "from": 1, "to": 5}, {"replaced": "old"}], "new", 5),
        ([{"replaced": "old"}], None, None),  # a part was changed of what was never shown
        ([{"sha256": "older"}, {"replaced": "old"}], "older", None),
    ],
)
def test_what_the_model_knows_of_a_file(files: list[dict[str, Any]], known: str | None, partly: int | None) -> None:
    state = fresh()
    for file in files:
        learn(state.seen, state.partly, {"path": "f", "sha256": "new", **file})
    assert (state.seen.get("f"), state.partly.get("f")) == (known, partly)
