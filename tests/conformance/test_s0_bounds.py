"""The workshop loop, rule 5: bounds on what a model streams and answers, and the agreement of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import workshop_protocol as bounds
from hypothesis import given, settings
from hypothesis import strategies as st
from workshop import Script, workshop
from workshop_model import Block, Piece

import latchstep as ls
from latchstep.core.message import clean

from .s0 import CALL, LOOPED, QUESTION, Answering, accepted, collect, refused, result

# 5. Bounds and agreement


def test_s0_05_the_stream_is_drained_before_the_terminal_response_is_awaited() -> None:
    model = Answering([ls.Text("a"), ls.Text("b")])
    accepted(model)
    assert model.drained_first is True


def test_s0_05_the_bounds_are_those_of_the_workshop() -> None:
    assert (bounds.MAX_CHUNKS, bounds.MAX_TEXT, bounds.MAX_BLOCKS) == (1_024, 65_536, 1_024)
    assert (bounds.MAX_DEPTH, bounds.MAX_SLOTS, bounds.MAX_ARGUMENT_TEXT) == (32, 256, 4_096)
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
    around: list[Block] = [ls.Text("a"), CALL, ls.Text("b")]
    assert accepted(Answering([ls.Text("a"), CALL, ls.Text("b")], around)).messages[1].blocks == tuple(around)
    refused(Answering([ls.Text("a"), ls.Text("b"), CALL], around), "streamed")
    refused(Answering([ls.Text("ab"), CALL], around), "streamed")


def pieces(blocks: Sequence[Block], cuts: Sequence[int]) -> list[Block]:
    """The same content with its texts cut at other places."""
    cut: list[Block] = []
    for block, at in zip(blocks, cuts, strict=True):
        cut += [ls.Text(block.text[:at]), ls.Text(block.text[at:])] if isinstance(block, ls.Text) else [block]
    return cut


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=5) | st.none(), min_size=1, max_size=6), st.data())
def test_s0_05_any_cut_of_the_same_content_agrees(content: list[str | None], data: st.DataObject) -> None:
    blocks: list[Block] = [
        ls.ToolCall(f"call-{number}", "add", {"left": number}) if text is None else ls.Text(text)
        for number, text in enumerate([*content, None])
    ]
    cuts = st.lists(st.integers(0, 5), min_size=len(blocks), max_size=len(blocks))
    ended = accepted(Answering(pieces(blocks, data.draw(cuts)), pieces(blocks, data.draw(cuts))))
    said = "".join(block.text for block in blocks if isinstance(block, ls.Text))
    assert "".join(clean(ended.messages[1].text).split()) == "".join(clean(said).split())
    assert list(ended.messages[1].calls) == [block for block in blocks if isinstance(block, ls.ToolCall)]


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
