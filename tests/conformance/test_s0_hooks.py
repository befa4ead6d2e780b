"""The workshop loop, rule 11: what it shares with pi, each as a wrapper or a view and none as a branch of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from workshop import Script, add, workshop
from workshop_model import Checked

import latchstep as ls
from latchstep.core.message import Message, user
from latchstep.model.transform import transformed
from latchstep.session.views import Moment, turns
from latchstep.tool.hooks import after_tool, before_tool

from .s0 import ANSWER, CALL, DEADLINE, QUESTION, collect, kinds, result, text_of


def doubled(arguments: dict[str, Any], context: ls.Context) -> dict[str, Any]:
    return {name: 2 * value for name, value in arguments.items()}


def test_s0_11_a_hook_before_a_tool_changes_what_it_is_called_with() -> None:
    model = Script([CALL], [ANSWER])
    stream = workshop([QUESTION], model, [before_tool(add, doubled)], max_steps=4)
    events = collect(stream)
    assert text_of(result(events).messages[2]) == '{"sum":84}'
    assert kinds(events).count("tool.started") == 1
    assert result(events).messages[1].calls[0].arguments == {"left": 20, "right": 22}


def test_s0_11_a_hook_before_a_tool_refuses_a_call() -> None:
    refusing = before_tool(add, lambda arguments, context: ls.Verdict("refuse", "no sums today"))
    events = collect(workshop([QUESTION], Script([CALL], [ANSWER]), [refusing], max_steps=4))
    (block,) = result(events).messages[2].blocks
    assert isinstance(block, ls.ToolResult)
    assert (block.outcome, block.is_error, "no sums today" in block.text) == ("denied", False, True)
    assert result(events).status == "completed"


def test_s0_11_a_hook_after_a_tool_replaces_its_result() -> None:
    noted = after_tool(add, lambda arguments, output, context: f"{output.content} (checked)")
    model = Script([CALL], [ANSWER])
    collect(workshop([QUESTION], model, [noted], max_steps=4))
    assert text_of(model.requests[1].messages[2]) == '{"sum":42} (checked)'


def test_s0_11_a_context_transform_changes_what_is_sent_and_not_what_is_said() -> None:
    def last_two(messages: Sequence[Message]) -> list[Message]:
        return [user("Go on."), *messages[-2:]]

    model = Script([CALL], [ANSWER])

    async def main() -> ls.RunResult:
        async with asyncio.timeout(DEADLINE):
            return await ls.run_loop(messages=[QUESTION], model=transformed(Checked(model), last_two), tools=[add])

    ended = asyncio.run(main())
    assert [message.role for message in ended.messages] == ["user", "assistant", "tool", "assistant"]
    assert [message.role for message in model.requests[1].messages] == ["user", "assistant", "tool"]
    assert model.requests[1].messages[0].text == "Go on."


@pytest.mark.parametrize("call", [CALL, ls.ToolCall("call-2", "nope", {})])
def test_s0_11_a_run_is_stopped_after_a_turn(call: ls.ToolCall) -> None:
    model = Script([call], [ANSWER])
    stream = workshop([QUESTION], model, [add], max_steps=4)

    async def gather() -> list[Any]:
        events = []
        async with asyncio.timeout(DEADLINE):
            async for event in stream:
                events.append(event)
                if event.type == "tool.started":
                    await stream.run.stop_after_turn("enough")
        return events

    ended = result(asyncio.run(gather()))
    assert (ended.status, len(model.requests)) == ("cancelled", 1)
    assert [message.role for message in ended.messages] == ["user", "assistant", "tool"]


def test_s0_11_turns_and_messages_begin_and_end() -> None:
    stream = workshop([QUESTION], Script([CALL], [ANSWER]), [add], max_steps=2)

    async def gather() -> list[Moment]:
        async with asyncio.timeout(DEADLINE), stream.run as run:
            return [moment async for moment in turns(run)]

    moments = asyncio.run(gather())
    message = ["message_start", "message_end"]
    answer = ["message_start", "message_update", "message_end"]
    turn = ["turn_start", *answer]
    assert [moment.kind for moment in moments] == [*turn, *message, "turn_end", *turn, "turn_end"]
    first, second = (moment for moment in moments if moment.kind == "turn_end")
    assert [r.text for r in first.results] == ['{"sum":42}']
    assert second.message is not None
    assert second.message.text == "20 + 22 is 42."


@pytest.mark.parametrize("max_steps", [2, 12, 25, 64])
def test_s0_11_the_view_shows_no_message_that_nobody_sent(max_steps: int) -> None:
    """The library's own notices are off here: its users see the budget in the result."""
    calls = [[ls.ToolCall(f"call-{n}", "add", {"left": n, "right": 1})] for n in range(max_steps)]
    events = collect(workshop([QUESTION], Script(*calls), [add], max_steps=max_steps))
    assert kinds(events).count("message.accepted") == 1
    assert (result(events).status, result(events).max_steps) == ("max_steps", max_steps)
