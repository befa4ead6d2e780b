"""The workshop loop of `examples/workshop.py`, rule by rule.

Not covered yet, because the library does not have them yet, and so not claimed: of rule 11 the context transform,
the hooks before and after a tool, and the stop after a turn.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
import workshop_protocol as bounds
from workshop import MAX_REQUESTS, Script, add, workshop
from workshop_model import Block, Exchange, Piece, Response
from workshop_view import Event, Result, Workshop

import latchstep as ls
from latchstep.core.message import user
from latchstep.model.base import Request

from .conftest import EXAMPLES

CALL = ls.ToolCall("call-add-001", "add", {"left": 20, "right": 22})
QUESTION = user("What is 20 + 22?", "message-user-001")
ANSWER = ls.Text("20 + 22 is 42.")
DEADLINE = 20.0


def text_of(message: ls.Message) -> str:
    """The text of a message, results included."""
    return "".join(block.text for block in message.blocks if isinstance(block, ls.Text | ls.ToolResult))


def collect(stream: Workshop, seen: Callable[[Event], Any] = lambda event: None) -> list[Event]:
    """All events of a stream; `seen` is called for each as it is received."""

    async def gather() -> list[Event]:
        events = []
        async with asyncio.timeout(DEADLINE):
            async for event in stream:
                events.append(event)
                seen(event)
        assert len(asyncio.all_tasks()) == 1, "tasks were left behind"
        return events

    return asyncio.run(gather())


def addition(**options: Any) -> tuple[list[Event], Script]:
    model = Script([CALL], [ANSWER])
    return collect(workshop([QUESTION], model, [add], **{"max_steps": 4, **options})), model


def kinds(events: list[Event]) -> list[str]:
    return [event.type for event in events]


def result(events: list[Event]) -> Result:
    assert [event.sequence for event in events] == list(range(len(events)))
    assert kinds(events).count("run.finished") == 1
    assert isinstance(events[-1].body, Result)
    return events[-1].body


class Answering:
    """A model whose chunks and terminal response are given apart, so that they can disagree.

    chunks: blocks, or whole pieces, or anything else. change: fields of the response to replace.
    """

    def __init__(self, chunks: Sequence[Any], blocks: Sequence[Block] | None = None, **change: Any) -> None:
        self.chunks, self.blocks, self.change = chunks, blocks, change
        self.requests: list[Request] = []
        self.drawn = 0
        self.drained_first: bool | None = None

    def open(self, request: Request) -> Exchange:
        self.requests.append(request)
        drained = False

        async def chunks() -> AsyncGenerator[Piece, None]:
            nonlocal drained
            for chunk in self.chunks:
                self.drawn += 1
                yield Piece(request.request_id, chunk) if isinstance(chunk, ls.Text | ls.ToolCall) else chunk
            drained = True

        async def response() -> Response:
            self.drained_first = drained
            blocks = tuple(self.chunks if self.blocks is None else self.blocks)
            calls = any(isinstance(block, ls.ToolCall) for block in blocks)
            made = Response("response-1", request.request_id, "toolCall" if calls else "stop", blocks)
            return msgspec.structs.replace(made, **self.change)

        return Exchange(chunks(), response)


def refused(model: Any, naming: str = "") -> list[Event]:
    """The events of a run that this model's one answer fails, without any tool having run."""
    ran: list[int] = []

    @ls.tool
    def add(left: int, right: int) -> int:
        ran.append(left)
        return left + right

    events = collect(workshop([QUESTION], model, [add], max_steps=4))
    ended = result(events)
    assert (ended.status, ended.error and ended.error.kind) == ("failed", "MODEL_PROTOCOL_ERROR")
    assert ended.error is not None
    assert naming in ended.error.message
    assert ran == []
    assert "tool.started" not in kinds(events)
    assert len(model.requests) == 1
    return events


def accepted(model: Any) -> Result:
    """The result of a run in which this model answers at once with text."""
    ended = result(collect(workshop([QUESTION], model, [add], max_steps=1)))
    assert ended.error is None or ended.status == "max_steps", ended.error
    return ended


# 1. Options


@pytest.mark.parametrize("steps", [0, -1, 65, 1.0, "4", None, True, float("nan")])
def test_s0_01_max_steps_is_a_whole_number_up_to_64(steps: Any) -> None:
    with pytest.raises(ls.DefinitionError, match="max_steps"):
        workshop([QUESTION], Script([ANSWER]), [add], max_steps=steps)


@pytest.mark.parametrize("steps", [1, 64])
def test_s0_01_both_ends_of_max_steps_are_allowed(steps: int) -> None:
    assert result(collect(workshop([QUESTION], Script([ANSWER]), [], max_steps=steps))).status == "completed"


@pytest.mark.parametrize("first", [0, -3, 65, 2.0, "1", False])
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
LOOPED: dict[str, Any] = {}
LOOPED["self"] = LOOPED

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


# 3. Order


def test_s0_03_one_acceptance_for_each_starting_message_comes_first() -> None:
    start = [user("a"), ls.Message("assistant", (ls.Text("b"),)), user("c")]
    events = collect(workshop(start, Script([CALL], [ANSWER]), [add], max_steps=2))
    assert [event.body for event in events[:3]] == start
    assert kinds(events)[3:] == ["model.chunk", "tool.started", "tool.finished", "model.chunk", "run.finished"]


def test_s0_03_model_and_tool_phases_share_one_sequence_from_0() -> None:
    many = [ls.ToolCall(f"call-{n}", "add", {"left": n, "right": n}) for n in range(5)]
    events = collect(workshop([QUESTION], Script(many, [CALL], [ANSWER]), [add], max_steps=3))
    assert [event.sequence for event in events] == list(range(len(events)))
    assert len(events) == 1 + 5 + 10 + 1 + 2 + 1 + 1


# 4. Requests


def test_s0_04_requests_are_numbered_from_001() -> None:
    _, model = addition()
    assert [request.request_id for request in model.requests] == ["request-001", "request-002"]


def test_s0_04_requests_are_offset_by_the_first_number() -> None:
    calls = [[ls.ToolCall(f"call-{n}", "add", {"left": n, "right": n})] for n in range(3)]
    model = Script(*calls, [ANSWER])
    events = collect(workshop([QUESTION], model, [add], max_steps=4, first_request=61))
    assert [r.request_id for r in model.requests] == ["request-061", "request-062", "request-063", "request-064"]
    assert {e.body.request_id for e in events if e.type == "model.chunk"} == {r.request_id for r in model.requests}


def test_s0_04_each_request_sees_the_complete_transcript() -> None:
    calls = [[ls.ToolCall(f"call-{n}", "add", {"left": n, "right": n})] for n in range(3)]
    model = Script(*calls, [ANSWER])
    ended = result(collect(workshop([QUESTION], model, [add], max_steps=4)))
    assert [list(request.messages) for request in model.requests] == [
        list(ended.messages[:length]) for length in (1, 3, 5, 7)
    ]


# 5. Bounds and agreement


def test_s0_05_the_stream_is_drained_before_the_terminal_response_is_awaited() -> None:
    model = Answering([ls.Text("a"), ls.Text("b")])
    accepted(model)
    assert model.drained_first is True


def test_s0_05_the_bounds_are_those_of_the_workshop() -> None:
    assert (bounds.MAX_CHUNKS, bounds.MAX_TEXT, bounds.MAX_BLOCKS) == (1_024, 65_536, 1_024)
    assert (bounds.MAX_DEPTH, bounds.MAX_VALUES, bounds.MAX_SLOTS, bounds.MAX_ARGUMENT_TEXT) == (32, 257, 256, 4_096)
    assert bounds.MAX_MESSAGES == 4_096


def test_s0_05_as_many_chunks_as_allowed_and_not_one_more() -> None:
    assert accepted(Answering([ls.Text("a")] * 1_024)).final_text == "a" * 1_024
    endless = Answering([ls.Text("a")] * 5_000)
    refused(endless, "MAX_CHUNKS is 1024")
    assert endless.drawn == 1_025


def test_s0_05_as_much_text_as_allowed_and_not_one_code_point_more() -> None:
    assert len(accepted(Answering([ls.Text("😀" * 65_536)])).final_text) == 65_536
    refused(Answering([ls.Text("a" * 65_536), ls.Text("b")]), "MAX_TEXT is 65536")
    refused(Answering([ls.Text("a" * 65_537)]), "MAX_TEXT")
    refused(Answering([ls.Text("a")], [ls.Text("a" * 65_537)]), "MAX_TEXT")


def test_s0_05_as_many_blocks_as_allowed_and_not_one_more() -> None:
    assert accepted(Answering([ls.Text("a" * 1_024)], [ls.Text("a")] * 1_024)).final_text == "a" * 1_024
    refused(Answering([ls.Text("a" * 1_025)], [ls.Text("a")] * 1_025), "MAX_BLOCKS is 1024")


def test_s0_05_adjacent_texts_are_joined_on_both_sides() -> None:
    ended = accepted(Answering([ls.Text("ab"), ls.Text("c"), ls.Text("")], [ls.Text("a"), ls.Text("bc")]))
    assert ended.final_text == "abc"
    assert ended.messages[-1].blocks == (ls.Text("abc"),)


def test_s0_05_calls_are_boundaries_between_texts() -> None:
    around = [ls.Text("a"), CALL, ls.Text("b")]
    assert accepted(Answering([ls.Text("a"), CALL, ls.Text("b")], around)).messages[1].blocks == tuple(around)
    refused(Answering([ls.Text("a"), ls.Text("b"), CALL], around), "streamed")
    refused(Answering([ls.Text("ab"), CALL], around), "streamed")


DISAGREEING = [
    ([ls.Text("a")], [ls.Text("b")]),
    ([ls.Text("a")], []),
    ([], [ls.Text("a")]),
    ([ls.Text("a")], [ls.Text("a"), CALL]),
    ([ls.Text("a"), CALL], [ls.Text("a")]),
    ([CALL], [ls.ToolCall("call-add-002", "add", CALL.arguments)]),
    ([CALL], [ls.ToolCall("call-add-001", "sub", CALL.arguments)]),
    ([CALL], [ls.ToolCall("call-add-001", "add", {"left": 20, "right": 23})]),
    ([ls.ToolCall("c", "add", {"left": 1})], [ls.ToolCall("c", "add", {"left": True})]),
    ([CALL, ls.ToolCall("c", "add", {})], [ls.ToolCall("c", "add", {}), CALL]),
]


@pytest.mark.parametrize(("chunks", "blocks"), DISAGREEING)
def test_s0_05_both_sides_agree_in_content_and_order(chunks: list[Block], blocks: list[Block]) -> None:
    refused(Answering(chunks, blocks))


def test_s0_05_the_order_of_fields_in_arguments_is_no_disagreement() -> None:
    turned = ls.ToolCall("call-add-001", "add", {"right": 22, "left": 20})
    assert accepted(Answering([CALL], [turned])).status == "max_steps"


def test_s0_05_request_ids_match() -> None:
    refused(Answering([Piece("request-002", ls.Text("a"))], [ls.Text("a")]), "request-002")
    refused(Answering([ls.Text("a")], request_id="request-007"), "request-007")
    refused(Answering([ls.Text("a"), Piece("", CALL)], [ls.Text("a"), CALL]))


@pytest.mark.parametrize(
    "model",
    [
        Answering([ls.Text("a")], stop_reason="length"),
        Answering([ls.Text("a")], stop_reason=None),
        Answering([ls.Text("a")], stop_reason=[]),
        Answering([ls.Text("a")], blocks=[ls.Text("a")], id=""),
        Answering([ls.Text("a")], id=7),
        Answering([None], [ls.Text("a")]),
        Answering(["a"], [ls.Text("a")]),
        Answering([ls.Text(None)]),  # type: ignore[arg-type]
        Answering([ls.Text("\udc00")]),
        Answering([ls.Text("a")], [ls.ToolResult("c", "add", "1")]),  # type: ignore[list-item]
        Answering([ls.ToolCall("", "add", {})]),
        Answering([ls.ToolCall("c", "", {})]),
        Answering([ls.ToolCall("c", "add", {}, flaw="not JSON")]),
        Answering([ls.ToolCall("c", "add", {}), ls.ToolCall("c", "add", {})]),
        Answering([ls.Text("  ")]),
        Answering([]),
    ],
)
def test_s0_05_malformed_answers_are_violations(model: Answering) -> None:
    refused(model)


def nested(depth: int) -> dict[str, Any]:
    """Arguments whose deepest value lies at this depth."""
    value: Any = 0
    for _ in range(depth - 1):
        value = [value]
    return {"a": value}


WITHIN: dict[str, Any] = {
    "depth": nested(32),
    "values, in an array": {"a": [0] * 255},
    "fields": {str(n): None for n in range(256)},
    "text in values": {"a": "😀" * 4_095},
    "text in keys": {"k" * 4_096: 1},
    "every kind": {"a": [None, True, False, -1, 2**63, 1.5, "", {}, []]},
    "nothing": {},
}
BEYOND: dict[str, Any] = {
    "depth": nested(33),
    "endless depth": LOOPED,
    "values, in an array": {"a": [0] * 256},
    "fields": {str(n): None for n in range(257)},
    "fields and slots together": {"a": [0] * 128, "b": [{"c": 0}] * 64},
    "text in values": {"a": "x" * 4_096},
    "text in keys": {"k" * 4_097: 1},
    "text in both": {"k" * 2_000: "v" * 2_097},
    "NaN": {"a": float("nan")},
    "infinity": {"a": float("inf")},
    "an integer no wire carries": {"a": 2**64},
    "a tuple": {"a": (1,)},
    "a set": {"a": {1}},
    "bytes": {"a": b"1"},
    "an object": {"a": object()},
    "a key that is no text": {1: "a"},
    "a lone surrogate": {"a": "\ud800"},
    "a list": [1],
    "none": None,
}


@pytest.mark.parametrize("case", WITHIN)
def test_s0_05_arguments_up_to_each_bound_are_accepted(case: str) -> None:
    ran = []

    def take(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"arguments": arguments}

    def keep(arguments: dict[str, Any]) -> None:
        ran.append(arguments)

    tool = ls.Tool("take", "", {"type": "object"}, keep, take)
    stream = workshop([QUESTION], Script([ls.ToolCall("c", "take", WITHIN[case])]), [tool], max_steps=1)
    assert result(collect(stream)).status == "max_steps"
    assert ran == [WITHIN[case]]


@pytest.mark.parametrize("case", BEYOND)
def test_s0_05_arguments_beyond_a_bound_run_nothing(case: str) -> None:
    refused(Answering([ls.ToolCall("c", "add", BEYOND[case])]))
    refused(Answering([ls.ToolCall("c", "add", {})], [ls.ToolCall("c", "add", BEYOND[case])]))


def test_s0_05_a_violation_by_the_last_of_several_calls_runs_none_of_them() -> None:
    refused(Answering([CALL, ls.ToolCall("c", "add", {"a": float("nan")})]))


# 6. Stop


def test_s0_06_stop_appends_the_message_and_ends_with_its_text() -> None:
    ended = accepted(Answering([ls.Text("a"), ls.Text("b")]))
    assert (ended.status, ended.final_text) == ("completed", "ab")
    assert [message.role for message in ended.messages] == ["user", "assistant"]
    assert ended.messages[-1].text == "ab"


def test_s0_06_calls_in_a_stop_response_are_forbidden() -> None:
    refused(Answering([ls.Text("done"), CALL], stop_reason="stop"))
    refused(Answering([CALL], stop_reason="stop"))


def test_s0_06_announced_calls_must_be_there() -> None:
    refused(Answering([ls.Text("I will add them.")], stop_reason="toolCall"))
    refused(Answering([], stop_reason="toolCall"))


# 7. Calls


def test_s0_07_calls_run_one_after_the_other_in_order_each_with_its_linked_result() -> None:
    log: list[str] = []

    @ls.tool(effect="read")
    async def step(name: str) -> str:
        log.append(f"{name} begins")
        await asyncio.sleep(0)
        log.append(f"{name} ends")
        return name.upper()

    calls = [ls.ToolCall(f"call-{name}", "step", {"name": name}) for name in "abc"]
    events = collect(workshop([QUESTION], Script(calls, [ANSWER]), [step], max_steps=2), lambda e: log.append(e.type))
    started = [entry for entry in log if entry not in ("message.accepted", "model.chunk", "run.finished")]
    assert started == [
        entry for name in "abc" for entry in ("tool.started", f"{name} begins", f"{name} ends", "tool.finished")
    ]
    messages = result(events).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool", "tool", "assistant"]
    assert [message.blocks[0].call_id for message in messages[2:5]] == ["call-a", "call-b", "call-c"]  # type: ignore[union-attr]
    assert [text_of(message) for message in messages[2:5]] == ["A", "B", "C"]


def test_s0_07_the_message_is_appended_before_its_calls_run() -> None:
    stream: Workshop

    @ls.tool
    def look() -> str:
        return stream.run.session.state.transcript[-1].id

    stream = workshop([QUESTION], Script([ls.ToolCall("c", "look", {})], [ANSWER]), [look], max_steps=2)
    assert text_of(result(collect(stream)).messages[2]) == "message-response-001"


@pytest.mark.parametrize(
    "call",
    [ls.ToolCall("bad", "fails", {}), ls.ToolCall("bad", "unknown", {}), ls.ToolCall("bad", "add", {"left": "x"})],
)
def test_s0_07_a_recoverable_error_is_a_linked_result_and_the_run_goes_on(call: ls.ToolCall) -> None:
    @ls.tool
    def fails() -> str:
        raise ValueError("the disk is full")

    after = ls.ToolCall("call-after", "add", {"left": 1, "right": 1})
    model = Script([CALL, call, after], [ANSWER])
    events = collect(workshop([QUESTION], model, [add, fails], max_steps=2))
    assert kinds(events)[4:10] == ["tool.started", "tool.finished"] * 3
    assert [event.body.id for event in events[4:10:2]] == ["call-add-001", "bad", "call-after"]
    results = [message.blocks[0] for message in result(events).messages[2:5]]
    assert [r.call_id for r in results if isinstance(r, ls.ToolResult)] == ["call-add-001", "bad", "call-after"]
    assert [r.is_error for r in results if isinstance(r, ls.ToolResult)] == [False, True, False]
    assert result(events).status == "completed"
    assert list(model.requests[1].messages) == list(result(events).messages[:5])


def test_s0_07_a_fatal_tool_phase_fails_the_run() -> None:
    @ls.tool
    def broken() -> str:
        raise ls.FatalToolError("the tool layer lost its workspace")

    model = Script([ls.ToolCall("c", "broken", {}), CALL], [ANSWER])
    events = collect(workshop([QUESTION], model, [add, broken], max_steps=2))
    ended = result(events)
    assert (ended.status, ended.error and ended.error.kind) == ("failed", "TOOL")
    assert len(model.requests) == 1
    assert [event.body.id for event in events if event.type == "tool.started"] == ["c"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_s0_07_a_tool_layer_that_breaks_its_promise_fails_the_run() -> None:
    def broken(arguments: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("validation itself is broken")

    tool = ls.Tool("odd", "", {"type": "object"}, lambda: "fine", broken)
    model = Script([ls.ToolCall("c", "odd", {})], [ANSWER])
    ended = result(collect(workshop([QUESTION], model, [tool], max_steps=2)))
    assert ended.status == "failed"
    assert len(model.requests) == 1


# 8. Budget


def test_s0_08_step_budget_counts_model_turns() -> None:
    batch = [ls.ToolCall(f"call-{n}", "add", {"left": n, "right": n}) for n in range(3)]
    model = Script([CALL], batch, [ANSWER])
    events = collect(workshop([QUESTION], model, [add], max_steps=2))
    assert len(model.requests) == 2
    assert kinds(events).count("tool.finished") == 4
    assert kinds(events)[-2:] == ["tool.finished", "run.finished"]
    ended = result(events)
    assert (ended.status, ended.max_steps) == ("max_steps", 2)
    assert [message.role for message in ended.messages[-3:]] == ["tool"] * 3


def test_s0_08_a_stop_in_the_last_step_is_completed() -> None:
    events, model = addition(max_steps=2)
    assert (result(events).status, len(model.requests)) == ("completed", 2)


def test_s0_08_the_same_call_in_every_step_uses_the_whole_budget() -> None:
    model = Script(*[[ls.ToolCall(f"call-{n}", "add", CALL.arguments)] for n in range(64)])
    ended = result(collect(workshop([QUESTION], model, [add], max_steps=64)))
    assert (ended.status, ended.max_steps, len(model.requests)) == ("max_steps", 64, 64)
    assert [message.role for message in ended.messages] == ["user"] + ["assistant", "tool"] * 64


# 9. Cancel


def cancel_at(when: Callable[[Event], bool], model: Any, tools: Any = (add,)) -> list[Event]:
    """The events of a run whose signal is set when the first event that fits is received."""

    async def gather() -> list[Event]:
        signal = asyncio.Event()
        events: list[Event] = []
        async with asyncio.timeout(DEADLINE):
            async for event in workshop([QUESTION], model, tools, max_steps=4, signal=signal):
                events.append(event)
                if when(event):
                    signal.set()
        assert len(asyncio.all_tasks()) == 1, "tasks were left behind"
        return events

    events = asyncio.run(gather())
    assert result(events).status == "cancelled"
    assert events[-1].type == "run.finished"
    return events


def test_s0_09_a_signal_that_is_already_set() -> None:
    async def gather() -> list[Event]:
        signal = asyncio.Event()
        signal.set()
        return [event async for event in workshop([QUESTION], model, [add], max_steps=4, signal=signal)]

    model = Script([CALL], [ANSWER])
    events = asyncio.run(gather())
    assert result(events).status == "cancelled"
    assert model.requests == []
    assert set(kinds(events)) <= {"message.accepted", "run.finished"}


def test_s0_09_cancel_at_the_first_emission() -> None:
    model = Script([CALL], [ANSWER])
    events = cancel_at(lambda event: event.sequence == 0, model)
    assert kinds(events) == ["message.accepted", "run.finished"]
    assert result(events).messages == (QUESTION,)
    assert model.requests == []


@pytest.mark.parametrize("blocks", [[ls.Text("par"), ls.Text("tial")], [ls.Text("a"), CALL]])
def test_s0_09_cancel_while_streaming_leaves_no_partial_message(blocks: list[Block]) -> None:
    model = Script(blocks, [ANSWER])
    events = cancel_at(lambda event: event.type == "model.chunk", model)
    assert kinds(events)[:2] == ["message.accepted", "model.chunk"]
    assert "tool.started" not in kinds(events)
    assert result(events).messages == (QUESTION,)
    assert (result(events).final_text, len(model.requests)) == ("", 1)


def cancel_inside(entered: asyncio.Event, model: Any, tools: Any = (add,)) -> list[Event]:
    """The events of a run whose signal is set as soon as something deep inside it says that it has begun."""

    async def gather() -> list[Event]:
        signal = asyncio.Event()

        async def set_it() -> None:
            await entered.wait()
            signal.set()

        setting = asyncio.create_task(set_it())
        async with asyncio.timeout(DEADLINE):
            stream = workshop([QUESTION], model, tools, max_steps=4, signal=signal)
            events = [event async for event in stream]
            await setting
        assert len(asyncio.all_tasks()) == 1, "tasks were left behind"
        return events

    events = asyncio.run(gather())
    assert result(events).status == "cancelled"
    return events


class Stuck(Script):
    """Waits for ever at one point: in the middle of the stream, or for the terminal response."""

    def __init__(self, point: str) -> None:
        super().__init__([CALL])
        self.point, self.entered, self.left = point, asyncio.Event(), False

    async def forever(self) -> None:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left = True

    def open(self, request: Request) -> Exchange:
        inner = super().open(request)

        async def chunks() -> AsyncGenerator[Piece, None]:
            async with aclosing(inner.chunks):
                async for piece in inner.chunks:
                    yield piece
            if self.point == "stream":
                await self.forever()

        async def response() -> Response:
            await self.forever()
            return await inner.response()

        return Exchange(chunks(), response)


@pytest.mark.parametrize("point", ["stream", "response"])
def test_s0_09_cancel_while_the_model_is_silent(point: str) -> None:
    model = Stuck(point)
    events = cancel_inside(model.entered, model)
    assert kinds(events) == ["message.accepted", "model.chunk", "run.finished"]
    assert result(events).messages == (QUESTION,)
    assert model.left


@pytest.mark.parametrize("effect", ["read", "write"])
def test_s0_09_cancel_in_a_tool_keeps_the_message_and_fabricates_no_result(effect: Any) -> None:
    entered = asyncio.Event()
    left: list[str] = []

    @ls.tool(effect=effect)
    async def wait() -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.append("wait")
        return "never"

    model = Script([CALL, ls.ToolCall("call-wait", "wait", {}), ls.ToolCall("call-later", "wait", {})], [ANSWER])
    events = cancel_inside(entered, model, [add, wait])
    assert kinds(events)[4:] == ["tool.started", "tool.finished", "tool.started", "run.finished"]
    assert [message.role for message in result(events).messages] == ["user", "assistant", "tool"]
    assert left == ["wait"]
    assert len(model.requests) == 1


@pytest.mark.parametrize("kind", ["tool.started", "tool.finished"])
def test_s0_09_cancel_between_phases(kind: str) -> None:
    ran: list[int] = []

    @ls.tool(name="add")
    def counted(left: int, right: int) -> int:
        ran.append(left)
        return left + right

    model = Script([CALL, ls.ToolCall("call-2", "add", {"left": 1, "right": 1})], [ANSWER])
    events = cancel_at(lambda event: event.type == kind, model, [counted])
    ended = result(events)
    finished = kind == "tool.finished"
    assert kinds(events)[3:] == ["tool.started", *(["tool.finished"] if finished else []), "run.finished"]
    assert [m.role for m in ended.messages] == ["user", "assistant", *(["tool"] if finished else [])]
    assert ran == ([20] if finished else [])
    assert len(model.requests) == 1


def test_s0_09_cancel_after_the_last_chunk_is_still_a_cancel() -> None:
    model = Script([CALL], [ANSWER])
    events = cancel_at(lambda event: event.type == "model.chunk" and event.sequence == 4, model)
    assert kinds(events)[4:] == ["model.chunk", "run.finished"]
    assert [message.role for message in result(events).messages] == ["user", "assistant", "tool"]


def test_s0_09_leaving_the_stream_cancels_the_run() -> None:
    async def leave() -> str:
        stream = workshop([QUESTION], Stuck("response"), [add], max_steps=4)
        iterator = stream.__aiter__()
        async with asyncio.timeout(DEADLINE):
            await anext(iterator)
            await iterator.aclose()  # type: ignore[attr-defined]
            return (await stream.run).status

    assert asyncio.run(leave()) == "cancelled"


# 10. The view


def test_s0_10_one_addition_gives_six_events() -> None:
    events, model = addition()
    assert kinds(events) == [
        "message.accepted",
        "model.chunk",
        "tool.started",
        "tool.finished",
        "model.chunk",
        "run.finished",
    ]
    assert [event.sequence for event in events] == [0, 1, 2, 3, 4, 5]
    ended = result(events)
    assert (ended.status, ended.final_text, ended.error) == ("completed", "20 + 22 is 42.", None)
    second = list(model.requests[1].messages)
    assert [message.role for message in second] == ["user", "assistant", "tool"]
    assert second[0] == QUESTION
    assert (second[1].id, second[1].blocks) == ("message-response-001", (CALL,))
    assert (second[2].id, second[2].blocks) == (
        "tool-result-call-add-001",
        (ls.ToolResult("call-add-001", "add", '{"sum":42}', "ok", False),),
    )
    assert events[3].body == second[2]
    assert ended.messages[3].id == "message-response-002"


def test_s0_10_a_fresh_clone_shows_them_offline() -> None:
    shown = subprocess.run(
        [sys.executable, str(EXAMPLES / "workshop.py")], capture_output=True, text=True, timeout=60, check=True
    )
    lines = [msgspec.json.decode(line) for line in shown.stdout.splitlines()]
    assert [(line["type"], line["sequence"]) for line in lines] == [
        (event.type, event.sequence) for event in addition()[0]
    ]
    assert lines[-1]["body"]["final_text"] == "20 + 22 is 42."


# 11. What it shares with pi, as far as it exists


def test_s0_11_messages_are_converted_at_the_request_boundary() -> None:
    """A result without text reaches the model as a word, and stays as it was in the record."""

    @ls.tool
    def silent() -> str:
        return ""

    model = Script([ls.ToolCall("c", "silent", {})], [ANSWER])
    ended = result(collect(workshop([QUESTION], model, [silent], max_steps=2)))
    assert text_of(ended.messages[2]) == ""
    assert text_of(model.requests[1].messages[2]) == "(no output)"


def test_s0_11_steering_is_delivered_after_the_batch() -> None:
    async def gather() -> list[Event]:
        events = []
        stream = workshop([QUESTION], model, [add], max_steps=4)
        async with asyncio.timeout(DEADLINE):
            async for event in stream:
                events.append(event)
                if event.type == "tool.started" and event.body.id == "call-add-001":
                    await stream.run.steer("Be brief.")
        return events

    model = Script([CALL, ls.ToolCall("call-2", "add", {"left": 1, "right": 1})], [ANSWER])
    ended = result(asyncio.run(gather()))
    assert [message.role for message in model.requests[1].messages] == ["user", "assistant", "tool", "tool", "user"]
    assert model.requests[1].messages[-1].text == "Be brief."
    assert ended.status == "completed"


def test_s0_11_a_follow_up_continues_where_the_run_would_end() -> None:
    async def gather() -> list[Event]:
        events = []
        stream = workshop([QUESTION], model, [add], max_steps=4)
        async with asyncio.timeout(DEADLINE):
            async for event in stream:
                events.append(event)
                if event.type == "tool.finished":
                    await stream.run.follow_up("And twice that?")
        return events

    model = Script([CALL], [ANSWER], [ls.Text("84.")])
    ended = result(asyncio.run(gather()))
    assert [message.role for message in ended.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert ended.final_text == "84."


def together(max_parallel: int, alone: bool) -> int:
    """How many of three reads were seen running at once."""
    running = most = 0

    @ls.tool(effect="read", alone=alone)
    async def read(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1
        return n

    calls = [ls.ToolCall(f"call-{n}", "read", {"n": n}) for n in range(3)]
    stream = workshop([QUESTION], Script(calls, [ANSWER]), [read], max_steps=2, max_parallel=max_parallel)
    events = collect(stream)
    assert [text_of(message) for message in result(events).messages[2:5]] == ["0", "1", "2"]
    finished = [event.body.id for event in events if event.type == "tool.finished"]
    assert finished == [f"tool-result-call-{n}" for n in range(3)]
    return most


def test_s0_11_tools_run_in_sequence_or_in_parallel_with_a_constraint_by_tool() -> None:
    assert together(1, alone=False) == 1
    assert together(2, alone=False) == 2
    assert together(8, alone=False) == 3
    assert together(8, alone=True) == 1


def test_s0_11_turn_and_message_lifecycle_events_lie_under_the_view() -> None:
    stream = workshop([QUESTION], Script([CALL], [ANSWER]), [add], max_steps=2)
    collect(stream)
    recorded = [event.type for event in stream.run.session.journal.read()]
    turn = ["model.requested", "message.completed"]
    assert recorded[2:] == [
        "message.accepted",
        "run.started",
        *turn,
        "tool.started",
        "tool.finished",
        *turn,
        "run.finished",
    ]
