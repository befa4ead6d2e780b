"""The ingress: whatever a model's code hands over becomes an event that can be recorded, sent and read again."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core import event as ev
from latchstep.core.accept import LEGAL_ID, accept, storable, storable_message
from latchstep.core.chunk import Completed
from latchstep.core.codec import decode_event, encode_event
from latchstep.core.message import Image, Message, Provider, Text, Thinking, ToolCall, ToolResult, Usage
from latchstep.core.parts import OpenRequest, RunState
from latchstep.core.state import State
from latchstep.errors import DefinitionError


def state(taken: set[str] | None = None, empties: int = 0) -> State:
    run = RunState("run-1", ev.RunStarted(run_id="run-1", model="m"))
    run.empties = empties
    return State(ids=taken or set(), request=OpenRequest("request-003", 2), run=run)


wild = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(st.characters(codec=None), max_size=5),
        st.binary(max_size=3),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)
strings = st.text(st.characters(codec=None), max_size=6)
blocks = st.one_of(
    st.builds(Text, strings),
    st.builds(Thinking, strings, st.one_of(st.none(), st.dictionaries(strings, wild, max_size=2))),
    st.builds(ToolCall, strings, strings, wild, strings),
    st.builds(Provider, strings, st.dictionaries(strings, wild, max_size=2)),
    st.builds(ToolResult, strings, strings, strings),
    wild,
)
stops = st.one_of(st.sampled_from(["stop", "tool_calls", "length", "filtered", "refused", "paused"]), wild)


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.lists(blocks, max_size=4).map(tuple), wild), stops, wild, wild)
def test_anything_becomes_an_event_that_survives_the_record(found: Any, stop: Any, raw: Any, response: Any) -> None:
    answer = Completed(blocks=found, stop_reason=stop, raw_stop_reason=raw, response_id=response)
    before = state({"call_0"})
    event = accept(answer, before, "p:m")
    assert isinstance(event, ev.MessageCompleted | ev.ModelFailed)
    assert decode_event(encode_event(event)) == event
    assert accept(answer, before, "p:m") == event
    assert before.ids == {"call_0"}
    if isinstance(event, ev.MessageCompleted):
        ids = [c.id for c in event.message.calls]
        assert len(set(ids)) == len(ids)
        assert all(LEGAL_ID.fullmatch(i) and i != "call_0" for i in ids)
        assert all(c.name == c.name.strip() for c in event.message.calls)
        assert event.message.blocks or stop in ("refused", "filtered", "paused")


def test_a_good_answer_stays_as_it_is() -> None:
    given_blocks = (
        Thinking("hm", {"signature": "abc"}),
        Text("hi"),
        ToolCall("call_1", "echo", {"a": [1, 2.5, None]}),
        Provider("search", {"q": "x"}),
        Image("image/png", "QUJD"),
    )
    answer = Completed(blocks=given_blocks, stop_reason="tool_calls", raw_stop_reason="tool_use", response_id="r1")
    event = accept(answer, state(), "p:m")
    assert isinstance(event, ev.MessageCompleted)
    assert event.message == Message("assistant", given_blocks, "message-r1", "p:m")
    assert (event.request_id, event.raw_stop_reason) == ("request-003", "tool_use")


def test_blank_text_is_dropped_unless_it_carries_something() -> None:
    answer = Completed(blocks=(Text(" "), Text("", {"id": "x"}), Text("a")), stop_reason="stop")
    event = accept(answer, state(), "p:m")
    assert isinstance(event, ev.MessageCompleted)
    assert event.message.blocks == (Text("", {"id": "x"}), Text("a"))


@pytest.mark.parametrize(
    ("stop", "empties", "kind", "then"),
    [
        ("stop", 0, "EMPTY_RESPONSE", "ask_again"),
        ("stop", 1, "EMPTY_RESPONSE", "give_up"),
        ("tool_calls", 0, "EMPTY_RESPONSE", "ask_again"),
        ("length", 0, "TRUNCATED", "give_up"),
    ],
)
def test_an_empty_answer_is_a_failed_attempt(stop: Any, empties: int, kind: str, then: str) -> None:
    answer = Completed(blocks=(Thinking("hm"),), stop_reason=stop, raw_stop_reason="raw", usage=Usage(1, 2))
    event = accept(answer, state(empties=empties), "p:m")
    assert isinstance(event, ev.ModelFailed)
    assert (event.kind, event.next, event.attempt, event.usage) == (kind, then, 2, Usage(1, 2))
    assert (event.stop_reason, event.raw_stop_reason) == (stop, "raw")


def test_minted_ids_avoid_what_is_taken() -> None:
    calls = tuple(ToolCall("", "t") for _ in range(3))
    event = accept(Completed(blocks=calls, stop_reason="tool_calls"), state({"call-003-1"}), "p:m")
    assert isinstance(event, ev.MessageCompleted)
    assert [c.id for c in event.message.calls] == ["call-003-0", "call-003-1x", "call-003-2"]


def test_storable_keeps_a_call_in_its_place_with_a_flaw() -> None:
    for arguments in ({"x": math.inf}, {"x": 2**64}, [1], None, {"x": {1, 2}}):
        call = storable(ToolCall("c", "t", arguments))  # type: ignore[arg-type]
        assert isinstance(call, ToolCall)
        assert (call.arguments, bool(call.flaw)) == ({}, True)
    deep: Any = {}
    for _ in range(100):
        deep = {"x": deep}
    assert storable(ToolCall("c", "t", deep)).flaw  # type: ignore[union-attr]


def test_a_history_that_cannot_be_recorded_is_refused_by_number() -> None:
    with pytest.raises(DefinitionError, match="message 7"):
        storable_message(Message("user", (Provider("x", {"y": math.nan}),)), 7)
    cleaned = storable_message(Message("tool", (ToolResult("c", "t", (Text("\ud83d"), Image("a", "b"))),)), 1)
    assert cleaned.blocks[0].content == (Text("�"), Image("a", "b"))  # type: ignore[union-attr]
