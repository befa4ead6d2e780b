"""Compaction among crashes, without anything around the core: whatever is cut, wherever it dies, the same holds.

Every history of `test_pure_core` again, with a context so small that much of it is summarised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core import event as ev
from latchstep.core.chunk import Completed
from latchstep.core.codec import decode_event, encode_event
from latchstep.core.compact import _places
from latchstep.core.message import Text, ToolCall, ToolResult, estimate
from latchstep.core.rules import Limits
from latchstep.core.state import State, fold

from .simulate import Crash, World, check_request
from .test_pure_core import MIXED, judge_world, policies, rules, scripts

SMALL = Limits(max_steps=16, max_check_rounds=2, max_context=600, keep_recent=100)
LONG = "x" * 400
TURNS = [Completed(blocks=(Text("w" * 300), ToolCall(name="touch")), stop_reason="tool_calls")] * 6

longer = st.tuples(st.integers(0, 6), scripts).map(lambda made: [*TURNS[: made[0]], *made[1]])
small = st.fixed_dictionaries(
    {
        "limits": st.sampled_from([SMALL, Limits(max_steps=16, max_check_rounds=2)]),
        "fits": st.sampled_from([1 << 40, 500, 250]),
        "summaries": st.sampled_from([(), (1,), (1, 2)]),
        "asked": st.lists(st.integers(0, 80), max_size=2),
    }
)


def run(
    script: Sequence[Completed], policy: dict[str, Any], crashes: Sequence[int], context: dict[str, Any], answer: Any
) -> World:
    """A run that dies at each of these steps, with compactions wherever they are due or asked for."""
    world = World([*script], rules(**{**policy, "limits": context["limits"]}), answer=answer, padding=LONG)
    world.fits = context["fits"]
    world.summaries = lambda number: number not in context["summaries"]
    world.settles = lambda call_id: "done" if world.effects[call_id] else "not_done"
    world.append(ev.SessionCreated(session_id="s"))
    wanted = sorted(context["asked"])
    for crash_at in [*crashes, -1]:
        world.steps, world.crash_at = 0, crash_at
        try:
            world.open()
            if world.state.run is None:
                world.begin("go " + LONG)
            if wanted and len(world.record) > wanted[0]:
                wanted.pop(0)
                world.append(ev.CompactRequested(focus="the tests"))
            world.drive()
        except Crash:
            continue
        break
    return world


def folded(record: Sequence[ev.Event], at: int) -> State:
    """As a journal gives it back: from what the snapshot in line `at` needs."""
    snapshot = record[at]
    assert isinstance(snapshot, ev.SessionSnapshot)
    state = State()
    state.apply(record[0])
    for event in record[max(1, snapshot.needed) :]:
        state.apply(event)
    return state


def judge(world: World) -> None:
    if world.state.finished is not None and world.state.finished.status == "failed" and world.fits < 1 << 40:
        assert world.state.finished.error is not None
        assert world.state.finished.error.kind in ("CONTEXT_FULL", "EMPTY_RESPONSE", "TRUNCATED", "IN_DOUBT")
    judge_world(world)
    for request in world.requests:
        assert request[0].role == "user"
        assert sum(map(estimate, request)) <= world.fits
    replayed = fold(world.record)
    assert replayed == world.state
    for at, event in enumerate(world.record):
        if isinstance(event, ev.SessionSnapshot):
            assert folded(world.record, at) == replayed


@settings(max_examples=200, deadline=None)
@given(longer, policies, st.lists(st.integers(0, 80), max_size=3), small, st.sampled_from(["allow", "deny"]))
def test_any_crashes_with_compactions_lead_to_a_valid_end(
    script: list[Completed], policy: dict[str, Any], crashes: list[int], context: dict[str, Any], answer: str
) -> None:
    judge(run(script, policy, crashes, context, answer))


@pytest.mark.parametrize("fits", [1 << 40, 500])
def test_a_crash_at_every_step_around_compactions(fits: int) -> None:
    context = {"limits": SMALL if fits > 500 else Limits(), "fits": fits, "summaries": (), "asked": []}
    script = [*MIXED[:1], *TURNS, *MIXED[1:]]
    whole = run(script, {}, [], context, "allow")
    assert sum(isinstance(e, ev.ContextCompacted) for e in whole.record) > 1
    for first in range(whole.steps):
        world = run(script, {}, [first, first // 3], context, "allow")
        judge(world)
        assert world.state.finished is not None
        assert world.state.finished.status == "completed"


@settings(max_examples=60, deadline=None)
@given(longer, small, st.floats(0, 1))
def test_folding_from_any_snapshot_gives_the_same_state(
    script: list[Completed], context: dict[str, Any], part: float
) -> None:
    """Wherever it stands: in the middle of a turn, a compaction, or between two runs."""
    world = run(script, {}, [], context, "allow")
    where = max(1, int(part * len(world.record)))
    raw = msgspec.Raw(fold(world.record[:where]).snapshot())
    snapshot = ev.SessionSnapshot(needed=where, state=raw, whole=True)
    decoded = decode_event(encode_event(snapshot))
    record = [*world.record[:where], decoded, *world.record[where:]]
    assert folded(record, where) == fold(world.record) == fold(record)


@settings(max_examples=60, deadline=None)
@given(longer, small, st.floats(0, 1))
def test_a_cut_parts_no_call_from_its_result(script: list[Completed], context: dict[str, Any], part: float) -> None:
    """At every place of every history, in flight or not, after compactions or before."""
    world = run(script, {}, [], context, "allow")
    state = fold(world.record[: int(part * len(world.record))])
    for place in _places(state):
        kept, gone = state.transcript[place:], state.transcript[:place]
        called = {call.id for message in gone for call in message.calls}
        answered = {b.call_id for message in kept for b in message.blocks if isinstance(b, ToolResult)}
        assert not called & answered
        assert not called & {entry.call.id for entry in state.turn[state.joined :]}


def test_the_next_prompt_after_any_crash_around_a_compaction_is_answered() -> None:
    context = {"limits": SMALL, "fits": 500, "summaries": (1,), "asked": []}
    whole = run([*TURNS, *MIXED], {}, [], context, "allow")
    for crash_at in range(0, whole.steps, 2):
        world = run([*TURNS, *MIXED], {}, [crash_at], context, "allow")
        world.steps, world.crash_at = 0, -1
        world.script = MIXED[-1:]
        world.open()
        world.begin("and now?")
        world.drive()
        check_request(world.requests[-1])
        assert world.requests[-1][-1].text == "and now?"
        assert world.state.finished is not None
        assert world.state.finished.status == "completed"
