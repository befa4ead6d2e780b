"""The workshop loop, rules 1 and 2: options, snapshots, and the starting transcript."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from workshop import MAX_REQUESTS, Script, add, workshop
from workshop_model import Exchange

import latchstep as ls
from latchstep.core.message import user
from latchstep.model.base import Request

from .s0 import (
    ANSWER,
    CALL,
    LOOPED,
    QUESTION,
    addition,
    collect,
    kinds,
    result,
    text_of,
)

# 1. Options


@pytest.mark.parametrize("steps", [0, -1, 65, 1.0, "4", None, True, float("nan")])
def test_s0_01_max_steps_is_a_whole_number_up_to_64(steps: Any) -> None:
    with pytest.raises(ls.DefinitionError, match="max_steps"):
        workshop([QUESTION], Script([ANSWER]), [add], max_steps=steps)


@pytest.mark.parametrize("steps", [1, 64])
def test_s0_01_both_ends_of_max_steps_are_allowed(steps: int) -> None:
    assert result(collect(workshop([QUESTION], Script([ANSWER]), [], max_steps=steps))).status == "completed"


@pytest.mark.parametrize("first", [0, -3, 65, 2.0, "1", False, True])
def test_s0_01_first_request_is_a_whole_number_up_to_64(first: Any) -> None:
    with pytest.raises(ls.DefinitionError, match="first_request"):
        workshop([QUESTION], Script([ANSWER]), [add], max_steps=1, first_request=first)


def test_s0_01_the_range_of_requests_stays_within_the_ceiling() -> None:
    assert MAX_REQUESTS == 64
    workshop([QUESTION], Script([ANSWER]), [add], max_steps=4, first_request=61)
    with pytest.raises(ls.DefinitionError, match=r"request 65 .* 64"):
        workshop([QUESTION], Script([ANSWER]), [add], max_steps=4, first_request=62)


@pytest.mark.parametrize("model", [None, "model", object(), ls.ScriptedModel(["text"])])
def test_s0_01_the_model_has_the_right_shape(model: Any) -> None:
    with pytest.raises(ls.DefinitionError, match="model"):
        workshop([QUESTION], model, [add], max_steps=1)


@pytest.mark.parametrize("tools", [[3], ["add"], [add, add], 7, None])
def test_s0_01_the_tools_have_the_right_shape(tools: Any) -> None:
    with pytest.raises(TypeError):
        workshop([QUESTION], Script([ANSWER]), tools, max_steps=1)


@pytest.mark.parametrize("signal", [True, object(), asyncio.Event])
def test_s0_01_the_cancel_signal_has_the_right_shape(signal: Any) -> None:
    with pytest.raises(ls.DefinitionError, match="signal"):
        workshop([QUESTION], Script([ANSWER]), [add], max_steps=1, signal=signal)


def test_s0_01_wrong_options_are_said_before_a_wrong_transcript_is() -> None:
    with pytest.raises(ls.DefinitionError):
        workshop([], Script([ANSWER]), [3], max_steps=1)


# 2. Snapshots and the starting transcript


def test_s0_02_later_changes_to_messages_and_tools_do_not_matter() -> None:
    arguments = {"left": 1, "right": 2}
    earlier = ls.ToolCall("call-1", "add", arguments)
    messages = [
        QUESTION,
        ls.Message("assistant", (earlier,)),
        ls.Message("tool", (ls.ToolResult("call-1", "add", "3"),)),
    ]
    tools = [add]
    model = Script([CALL], [ANSWER])
    stream = workshop(messages, model, tools, max_steps=2)
    arguments["left"] = 99
    messages.append(user("something else"))
    tools.clear()
    events = collect(stream)
    assert result(events).status == "completed"
    assert kinds(events)[:3] == ["message.accepted"] * 3
    assert [call.arguments for message in model.requests[0].messages for call in message.calls] == [
        {"left": 1, "right": 2}
    ]
    assert text_of(result(events).messages[-2]) == '{"sum":42}'


def test_s0_02_a_model_that_changes_its_request_changes_nothing() -> None:
    class Vandal(Script):
        def open(self, request: Request) -> Exchange:
            for message in request.messages:
                for call in message.calls:
                    call.arguments.clear()
            return super().open(request)

    model = Vandal([CALL], [ls.ToolCall("call-2", "add", {"left": 1, "right": 1})], [ANSWER])
    ended = result(collect(workshop([QUESTION], model, [add], max_steps=3)))
    assert ended.messages[1].calls[0].arguments == {"left": 20, "right": 22}


CALLING = ls.Message("assistant", (CALL,))
RESULT = ls.Message("tool", (ls.ToolResult("call-add-001", "add", "42"),))

INCOMPLETE: dict[str, Any] = {
    "no message": [],
    "a call without a result": [QUESTION, CALLING],
    "a call answered too late": [QUESTION, CALLING, user("and?"), RESULT],
    "a result without a call": [QUESTION, RESULT],
    "a result before its call": [QUESTION, RESULT, CALLING],
    "two results of one call": [QUESTION, CALLING, RESULT, RESULT],
    "a result under another name": [QUESTION, CALLING, ls.Message("tool", (ls.ToolResult("call-add-001", "x", "42"),))],
    "one id for two calls": [QUESTION, CALLING, RESULT, CALLING, RESULT],
    "a user who calls": [ls.Message("user", (CALL,)), RESULT],
    "a user with a result": [QUESTION, CALLING, ls.Message("user", RESULT.blocks)],
    "a tool that only talks": [QUESTION, ls.Message("tool", (ls.Text("42"),))],
    "an empty message": [QUESTION, ls.Message("assistant", ())],
    "an unknown role": [ls.Message("system", (ls.Text("be kind"),))],  # type: ignore[arg-type]
    "no messages at all": 7,
    "something else among them": [QUESTION, "text"],
    "a text that is none": [ls.Message("user", (ls.Text(5),))],  # type: ignore[arg-type]
    "a lone surrogate": [ls.Message("user", (ls.Text("\ud800"),))],
    "arguments that are no object": [QUESTION, ls.Message("assistant", (ls.ToolCall("c", "add", [1]),))],  # type: ignore[arg-type]
    "arguments that are not plain JSON": [
        QUESTION,
        ls.Message("assistant", (ls.ToolCall("call-add-001", "add", {"left": float("nan")}),)),
        RESULT,
    ],
    "arguments that contain themselves": [
        QUESTION,
        ls.Message("assistant", (ls.ToolCall("call-add-001", "add", LOOPED),)),
        RESULT,
    ],
    "4,097 messages": [QUESTION] * 4_097,
}


@pytest.mark.parametrize("flaw", INCOMPLETE)
def test_s0_02_an_invalid_transcript_gives_one_event_and_calls_no_model(flaw: str) -> None:
    model = Script([ANSWER])
    events = collect(workshop(INCOMPLETE[flaw], model, [add], max_steps=1))
    assert kinds(events) == ["run.finished"]
    ended = result(events)
    assert (ended.status, ended.error and ended.error.kind) == ("failed", "INVALID_TRANSCRIPT")
    assert ended.error is not None
    assert ended.error.message
    assert model.requests == []


def test_s0_02_the_largest_starting_transcript_is_accepted() -> None:
    model = Script([ANSWER])
    events = collect(workshop([QUESTION] * 4_096, model, [add], max_steps=1))
    assert kinds(events) == ["message.accepted"] * 4_096 + ["model.chunk", "run.finished"]
    assert result(events).status == "completed"
    assert len(model.requests[0].messages) == 4_096


def test_s0_02_what_a_run_leaves_is_a_complete_transcript_to_start_from() -> None:
    first, _ = addition()
    model = Script([ls.Text("yes")])
    again = collect(workshop([*result(first).messages, user("sure?")], model, [add], max_steps=1))
    assert kinds(again) == ["message.accepted"] * 5 + ["model.chunk", "run.finished"]
    assert result(again).final_text == "yes"
