"""At every point of every generated history the process may die, also while it resumes.

However it goes on: no effect twice unless declared safe, an `ok` only where the effect happened, each call
one result, one ending, a request that every provider accepts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core import event as ev
from latchstep.core.chunk import Completed
from latchstep.core.codec import decode_event, encode_event
from latchstep.core.message import Text, ToolCall, ToolResult
from latchstep.core.rules import FINAL, RUN, Limits, Rules, Traits, Verdict
from latchstep.core.state import State, fold

from .simulate import Crash, World, check_request
from .tally import case, many

TRAITS = {
    "look": Traits("read", "safe"),
    "touch": Traits("write", "never"),
    "put": Traits("write", "safe"),
    "edit": Traits("write", "never", settles=True),
    "guarded": Traits("write", "never"),
    "peek": Traits("read", "safe", alone=True),
    "hooked": Traits("write", "never", hooked=True),
}


def judge(call: ToolCall) -> Verdict:
    if call.name not in TRAITS:
        return Verdict("reject", f"there is no tool {call.name}")
    if call.name == "guarded":
        return Verdict("ask", "guarded")
    if call.arguments.get("forbidden"):
        return Verdict("refuse", "forbidden")
    return RUN


def rules(**more: object) -> Rules:
    limits = Limits(max_steps=12, max_check_rounds=2, warn_at=0.3)
    return Rules(judge=judge, traits=lambda name: TRAITS.get(name, Traits()), **{"limits": limits, **more})  # type: ignore[arg-type]


calls = st.builds(
    lambda name, forbidden: ToolCall(id="", name=name, arguments={"forbidden": True} if forbidden else {}),
    st.sampled_from([*TRAITS, "unknown"]),
    st.sampled_from([False, False, False, True]),
)
turns = st.one_of(
    st.lists(calls, min_size=1, max_size=4).map(
        lambda batch: Completed(blocks=(Text("working"), *batch), stop_reason="tool_calls")
    ),
    st.lists(calls, min_size=1, max_size=2).map(lambda batch: Completed(blocks=tuple(batch), stop_reason="length")),
    st.just(Completed(blocks=(), stop_reason="stop")),
)
scripts = st.lists(turns, max_size=4).map(lambda made: [*made, Completed(blocks=(Text("done"),), stop_reason="stop")])
policies = st.fixed_dictionaries(
    {
        "on_doubt": st.sampled_from(["report", "ask", "fail"]),
        "on_stale_approval": st.sampled_from(["ask", "abandon"]),
        "checks": st.sampled_from([(), ("make test",)]),
        "limits": st.builds(
            lambda steering, follow_ups: Limits(
                max_steps=12, max_check_rounds=2, warn_at=0.3, steering=steering, follow_ups=follow_ups
            ),
            st.sampled_from(["all", "one"]),
            st.sampled_from(["all", "one"]),
        ),
    }
)
people = st.lists(
    st.sampled_from(["", "steer", "steer", "follow_up", "follow_up", "edit", "withdraw", ""]), max_size=12
).flatmap(lambda acts: st.sampled_from([acts, acts, [*acts, "stop"]]))


def run_with_crashes(
    script: list[Completed], policy: dict[str, object], crashes: list[int], answer: str, acts: Sequence[str] = ()
) -> World:
    """A run that dies at each of these steps (counted anew in each process), then goes on to its end."""
    case()
    world = World(script, rules(**policy), answer=answer, acts=list(acts))  # type: ignore[arg-type]
    world.settles = lambda call_id: "done" if world.effects[call_id] else "not_done"
    world.append(ev.SessionCreated(session_id="s"))
    for crash_at in [*crashes, -1]:
        world.steps, world.crash_at = 0, crash_at
        try:
            world.open()
            if world.state.run is None:
                world.begin("go")
            world.drive()
        except Crash:
            continue
        break
    return world


def judge_world(world: World) -> None:
    started: Counter[str] = Counter()
    names: dict[str, str] = {}
    outcomes: dict[str, ev.ToolFinished] = {}
    for event in world.record:
        if isinstance(event, ev.ToolStarted):
            started[event.call_id] += 1
            names[event.call_id] = event.name
        elif isinstance(event, ev.ToolFinished):
            assert event.call_id not in outcomes, "two results for one call"
            outcomes[event.call_id] = event
    consented = world.rules.on_doubt == "ask" and world.answer == "allow"
    for call_id, times in world.effects.items():
        assert started[call_id], f"{call_id} had an effect without an intent"
        safe = TRAITS[names[call_id]].replay == "safe"
        assert times == 1 or safe or (consented and not TRAITS[names[call_id]].settles), (
            f"{names[call_id]} ran {times} times"
        )
    for call_id, outcome in outcomes.items():
        if outcome.outcome == "ok":
            assert world.effects[call_id] or outcome.name == FINAL, f"{call_id} is ok, and never happened"
        if outcome.outcome in ("not_started", "denied", "rejected", "truncated"):
            assert not world.effects[call_id], f"{call_id} is {outcome.outcome}, and happened"
    judge_queue(world)
    changed = [event for event in world.record if isinstance(event, ev.CallChanged)]
    assert len(changed) == len({event.call_id for event in changed}), "a call changed twice"
    for event in changed:
        assert world.ran.get(event.call_id, event.arguments) == event.arguments, "what ran is not what was recorded"
        assert not (event.arguments.get("forbidden") and world.effects[event.call_id]), "a change was not judged"
    endings = [event for event in world.record if isinstance(event, ev.RunFinished)]
    assert len(endings) == 1
    assert not world.state.pending
    for request in world.requests:
        check_request(request)
    assert [event.seq for event in world.record] == list(range(len(world.record)))


def judge_queue(world: World) -> None:
    """What was acknowledged is delivered once, in its order and as last edited, or still waits."""
    sources = {e.message_id: e.source for e in world.record if isinstance(e, ev.MessageAccepted)}
    accepted = [name for name, source in sources.items() if source in ("steer", "follow_up")]
    requests = [event for event in world.record if isinstance(event, ev.ModelRequested)]
    carried = [name for request in requests for name in request.carries if name in accepted]
    waiting = [item.message_id for item in world.state.queue if item.message_id in accepted]
    texts = {item.message_id: item.message.text for item in world.state.queue}
    spoken = [message.text for message in world.state.transcript if message.role == "user"]
    assert len(carried) == len(set(carried)), "delivered twice"
    for source in ("steer", "follow_up"):
        order = [name for name in accepted if sources[name] == source]
        seen = [name for name in carried + waiting if sources[name] == source]
        assert seen == [name for name in order if name in seen], "out of order"
    for name, text in world.accepted.items():
        assert (spoken.count(text) == 1) if name in carried else (texts.get(name) == text), f"{name} is lost"
    assert not world.withdrawn & {*carried, *waiting}
    for request in requests[1:]:  # the first opens the run, with all there is
        here = Counter(sources[name] for name in request.carries)
        assert world.rules.limits.steering == "all" or here["steer"] <= 1
        assert world.rules.limits.follow_ups == "all" or here["follow_up"] <= 1


@settings(max_examples=many(100, 2000), deadline=None)
@given(scripts, policies, st.lists(st.integers(0, 60), max_size=3), st.sampled_from(["allow", "deny"]), people)
def test_any_crashes_lead_to_a_valid_end(
    script: list[Completed], policy: dict[str, object], crashes: list[int], answer: str, acts: list[str]
) -> None:
    judge_world(run_with_crashes(script, policy, crashes, answer, acts))


@settings(max_examples=many(5, 150), deadline=None)
@given(scripts, policies, st.sampled_from(["allow", "deny"]))
def test_a_crash_at_every_step_of_any_history(script: list[Completed], policy: dict[str, object], answer: str) -> None:
    for crash_at in range(run_with_crashes(script, policy, [], answer).steps):
        judge_world(run_with_crashes(script, policy, [crash_at], answer))


MIXED = [
    Completed(
        blocks=tuple(
            ToolCall(name=name)
            for name in ("look", "look", "touch", "edit", "guarded", "put", "peek", "nope", *["hooked"] * 4)
        ),
        stop_reason="tool_calls",
    ),
    Completed(blocks=(ToolCall(name="touch"),), stop_reason="length"),
    Completed(blocks=(Text("done"),), stop_reason="stop"),
]


@pytest.mark.parametrize("on_doubt", ["report", "ask", "fail"])
def test_a_crash_at_every_step_and_again_at_every_step_of_the_resume(on_doubt: str) -> None:
    policy = {"on_doubt": on_doubt, "checks": ("make test",)}
    whole = run_with_crashes(MIXED, policy, [], "allow")
    cases = 0
    for first in range(whole.steps):
        for second in range(0, whole.steps - first, 3):
            judge_world(run_with_crashes(MIXED, policy, [first, second], "allow"))
            cases += 1
    assert cases > 200


def test_the_next_prompt_after_any_crash_is_answered() -> None:
    """Nobody has to resume: a plain new message on the session gets a valid request and an answer."""
    whole = run_with_crashes(MIXED, {}, [], "allow")
    for crash_at in range(whole.steps):
        world = run_with_crashes(MIXED, {}, [crash_at], "allow")
        world.steps, world.crash_at = 0, -1
        world.script = [*MIXED, *MIXED[-1:]]
        world.open()
        world.begin("and now?")
        world.drive()
        check_request(world.requests[-1])
        assert world.requests[-1][-1].text == "and now?"
        assert world.state.finished is not None
        assert world.state.finished.status == "completed"


def test_what_a_crash_left_in_doubt_is_told_as_such() -> None:
    """The words depend on what is known: started and unknown, settled, safe, never started."""
    whole = run_with_crashes(MIXED, {}, [], "allow")
    told: dict[str, set[str]] = {}
    for crash_at in range(whole.steps):
        world = run_with_crashes(MIXED, {}, [crash_at], "allow")
        for message in world.state.transcript:
            for block in message.blocks:
                if isinstance(block, ToolResult):
                    told.setdefault(block.name, set()).add(block.outcome)
                    if block.outcome == "interrupted" and block.name == "touch":
                        assert "unknown" in block.text
                        assert "not run again" in block.text
    assert told["touch"] == {"ok", "interrupted", "truncated"}
    assert told["edit"] == {"ok", "interrupted"}
    assert told["look"] == told["put"] == told["peek"] == {"ok"}


@settings(max_examples=60, deadline=None)
@given(scripts, policies, st.lists(st.integers(0, 60), max_size=2), st.integers(0, 200))
def test_folding_from_a_snapshot_gives_the_same_state(
    script: list[Completed], policy: dict[str, object], crashes: list[int], where: int
) -> None:
    import msgspec

    world = run_with_crashes(script, policy, crashes, "allow")
    record = list(world.record)
    where = min(where, len(record) - 1)
    before = fold(record[:where])
    snapshot = ev.SessionSnapshot(needed=0, state=msgspec.Raw(before.snapshot()))
    decoded = decode_event(encode_event(snapshot))
    resumed = State()
    for event in [*record[:where], decoded, *record[where:]]:
        resumed.apply(event)
    assert resumed == fold(record)
