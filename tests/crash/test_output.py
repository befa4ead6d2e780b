"""Typed output over any crashes: one ending, and an output that is valid if and only if the run is completed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core import event as ev
from latchstep.core.chunk import Completed
from latchstep.core.message import Message, Text, ToolCall
from latchstep.core.rules import FINAL, Answer, Limits

from .simulate import World
from .test_pure_core import judge_world, run_with_crashes


def output(said: Message | ToolCall) -> Answer:
    """Valid is what has or says `n`, and nothing else."""
    given = said.arguments if isinstance(said, ToolCall) else {"n": int(said.text)} if said.text.isdigit() else {}
    return Answer(str(given["n"]), given) if "n" in given else Answer("", problem="no n", wanted="n")


def final(**arguments: int) -> ToolCall:
    return ToolCall(name=FINAL, arguments=arguments)


def turn(*blocks: Text | ToolCall, stop: str = "") -> Completed:
    called = any(isinstance(block, ToolCall) for block in blocks)
    return Completed(blocks=blocks, stop_reason=stop or ("tool_calls" if called else "stop"))  # type: ignore[arg-type]


turns = st.sampled_from(
    [
        turn(final(n=1)),
        turn(final()),
        turn(Text("5")),
        turn(Text("five")),
        turn(final(n=2), ToolCall(name="touch")),
        turn(ToolCall(name="look"), ToolCall(name="edit")),
        turn(ToolCall(name="guarded"), final(n=3)),
        turn(final(n=4), final(n=4)),
        turn(final(n=6), stop="length"),
        turn(Text("7"), stop="length"),
        turn(final(n=8), stop="filtered"),
        turn(),
    ]
)
policies = st.fixed_dictionaries(
    {
        "on_doubt": st.sampled_from(["report", "ask", "fail"]),
        "checks": st.sampled_from([(), ("make test",)]),
        "limits": st.builds(
            lambda corrections, steps: Limits(max_steps=steps, max_corrections=corrections),
            st.integers(0, 3),
            st.integers(1, 8),
        ),
    }
)


def judge_output(world: World) -> ev.RunFinished:
    judge_world(world)
    (ending,) = (event for event in world.record if isinstance(event, ev.RunFinished))
    said = Counter(event.source for event in world.record if isinstance(event, ev.MessageAccepted))
    most = world.rules.limits.max_corrections
    assert said["correction"] <= most
    assert (ending.output is not None) == (ending.status == "completed")
    if ending.status == "completed":
        assert isinstance(ending.output["n"], int)
        assert ending.final_text == str(ending.output["n"])
        *_, last = (event.message for event in world.record if isinstance(event, ev.MessageCompleted))
        assert output(last.calls[0] if last.calls else last) == Answer(ending.final_text, ending.output)
        assert len(last.calls) <= 1
    if ending.error is not None and ending.error.kind == "OUTPUT_INVALID":
        assert said["correction"] == most
    return ending


@settings(max_examples=200, deadline=None)
@given(
    st.lists(turns, min_size=1, max_size=5),
    policies,
    st.lists(st.integers(0, 40), max_size=3),
    st.sampled_from(["allow", "deny"]),
)
def test_output_is_valid_if_and_only_if_the_run_is_completed(
    script: list[Completed], policy: dict[str, object], crashes: list[int], answer: str
) -> None:
    judge_output(run_with_crashes(script, {**policy, "output": output}, crashes, answer))


SCRIPT = [turn(final(n=1), ToolCall(name="touch")), turn(Text("five")), turn(final())]


@pytest.mark.parametrize("answer", [turn(final(n=2)), turn(Text("2"))])
def test_a_crash_at_every_step_and_again_at_every_step_of_the_resume(answer: Completed) -> None:
    """No crash costs a correction, or gives one away."""
    script = [*SCRIPT, answer]
    policy: dict[str, object] = {"output": output, "checks": ("make test",)}
    whole = run_with_crashes(script, policy, [], "allow")
    cases = 0
    for first in range(whole.steps):
        for second in range(0, whole.steps - first, 3):
            ending = judge_output(run_with_crashes(script, policy, [first, second], "allow"))
            assert (ending.status, ending.output) == ("completed", {"n": 2})
            cases += 1
    assert cases > 100
