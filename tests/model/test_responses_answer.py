"""The decoder of Responses alone: vectors by id, ways to end, dialects, and anything at all."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.core.message import Block, Message, Provider, Text, Thinking, ToolCall, Usage, user
from latchstep.errors import RETRYABLE, ModelError
from latchstep.model.base import Request
from latchstep.model.responses_answer import Decoder
from latchstep.model.responses_request import Encoder
from tests.model.strict_responses import answer, call, reasoning, refusal, text
from tests.model.test_chat_answer import json_values, shaped
from tests.model.vectors import vector

TOOLS = ("echo", "read", "write", "bash", "count", "slow", "fail")


def decode(events: Iterable[Any], known: Iterable[str] = TOOLS, name: str = "message") -> list[Chunk]:
    decoder = Decoder(known)
    chunks: list[Chunk] = []
    for event in events:
        if not (isinstance(event, str) and event.startswith("#")):
            chunks += decoder.feed(name, event if isinstance(event, str) else json.dumps(event))
    return chunks + decoder.end()


def completed(events: Iterable[Any], known: Iterable[str] = TOOLS, name: str = "message") -> Completed:
    *deltas, last = decode(events, known, name)
    assert all(isinstance(chunk, Delta) for chunk in deltas)
    assert isinstance(last, Completed)
    return last


def calls(events: Iterable[Any]) -> list[Any]:
    blocks = completed(events).blocks
    return [(block.id, block.name, block.arguments) for block in blocks if isinstance(block, ToolCall)]


def failure(events: Iterable[Any], name: str = "message") -> ModelError:
    with pytest.raises(ModelError) as caught:
        decode(events, name=name)
    return caught.value


def shown(events: Iterable[Any], kind: str = "text") -> str:
    return "".join(chunk.piece for chunk in decode(events) if isinstance(chunk, Delta) and chunk.kind == kind)


def sent_back(*blocks: Block) -> Any:
    """The items of a next request in which these blocks are an answer of the same model."""
    said = Message("assistant", blocks, origin="openai:m")
    body = Encoder("m", origin="openai:m").encode(Request(request_id="r", messages=(user("go"), said)))
    assert refusal(body) is None, refusal(body)
    return json.loads(body)["input"][1:]


# --- vectors -----------------------------------------------------------------------------------------


def test_b42_items_come_whole_and_go_back_as_they_came() -> None:
    events = vector_events("B42")
    for script in (events, _emptied(events), _emptied(events, None)):
        found = completed(script)
        assert calls(script) == [("call_1", "echo", {"text": "x"})]
        assert found.stop_reason == "tool_calls"
        assert found.usage == Usage(5, 6)
        thought, called, result = sent_back(*found.blocks)
        assert thought == {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAA"}
        assert (called["id"], called["call_id"], called["status"]) == ("fc_1", "call_1", "completed")
        assert result["call_id"] == "call_1"


def vector_events(id: str) -> Any:
    return vector(id, "sse-responses")


def _emptied(events: list[Any], output: Any = ()) -> list[Any]:
    """The same stream from a server whose last event has no output."""
    events = json.loads(json.dumps(events))
    for event in events:
        if isinstance(event, dict) and "output" in event.get("response", {}):
            event["response"]["output"] = list(output) if output is not None else None
    return events


def test_b17_ids() -> None:
    same = answer(call("call_0", "count"), {**call("call_0", "echo", '{"text":"x"}'), "id": "fc_2"})
    assert calls(same) == [("call_0", "count", {}), ("call_0", "echo", {"text": "x"})]
    assert calls(_emptied(same)) == calls(same)
    for none in ("", None):
        without = answer(*({**call("a", name), "call_id": none, "id": none} for name in ("count", "echo")))
        assert calls(without) == [("", "count", {}), ("", "echo", {})]
        assert calls(answer({**call("a"), "call_id": none})) == [("fc_a", "echo", {})]


def test_b18_b19_arguments() -> None:
    for arguments in ("", None, " \n", "{}", {}):
        assert calls(answer(call("c", "count", arguments))) == [("c", "count", {})]
    absent = call("c", "count")
    del absent["arguments"]
    whole = {"object": "response", "status": "completed", "output": [absent]}
    assert calls([whole]) == [("c", "count", {})]
    assert calls(answer(call("c", "echo", {"text": "x"}))) == [("c", "echo", {"text": "x"})]
    (block,) = completed(answer(call("c", "echo", ["x"]))).blocks
    assert isinstance(block, ToolCall)
    assert block.flaw


@pytest.mark.parametrize(
    ("arguments", "response", "stop", "flawed"),
    [
        ('{"path":"/tmp/t/f"}', {"reason": "max_output_tokens"}, "length", False),
        ('{"path": "/tmp/t/f", "content": "line1\\nli', {"reason": "max_output_tokens"}, "length", True),
        ('{"path": "/tmp', {"reason": "content_filter"}, "filtered", True),
        ("", {"reason": "max_output_tokens"}, "length", True),
        ('{"path":"/tmp/t/f"}', {"reason": "max_messages"}, "length", False),
        ('{"path":"/tmp/t/f"}', None, "length", False),
    ],
)
def test_b22_cut_by_a_limit_or_a_filter(arguments: str, response: Any, stop: str, flawed: bool) -> None:
    events = answer(
        text("I will write"), call("c", "write", arguments), status="incomplete", incomplete_details=response
    )
    for script in (events, _emptied(events), [{**events[-1]["response"]}]):
        found = completed(script)
        (block,) = (block for block in found.blocks if isinstance(block, ToolCall))
        assert (found.stop_reason, bool(block.flaw)) == (stop, flawed)
        assert found.raw_stop_reason == ((response or {}).get("reason") or "incomplete")
        assert found.usage == Usage(3, 2)


def test_b22_cut_whatever_the_status_says() -> None:
    cut = answer(call("c", "write", '{"path": "/tmp'))
    assert completed(cut).stop_reason == "length"
    half = answer(call("c", "write", '{"path": "/tmp/t/f"}', status="incomplete"))
    assert completed(half).stop_reason == "length"
    reason = answer(call("c", "write", "{}"), incomplete_details={"reason": "max_output_tokens"})
    assert completed(reason).stop_reason == "length"


def test_b31_the_end_of_the_stream_is_not_the_end_of_the_answer() -> None:
    assert failure(vector_events("B31")).kind == "protocol"
    assert "middle" in failure(vector_events("B31")).message
    whole = answer(text("hello"))
    for count in range(len(whole)):
        assert failure(whole[:count]).kind == "protocol"
        assert failure([*whole[:count], "[DONE]"]).kind == "protocol"
    for status in ("queued", "in_progress", "odd"):
        assert failure([{"object": "response", "status": status, "output": []}]).kind == "protocol"


def test_b33_error_events() -> None:
    assert failure(vector_events("B33")).kind == "overloaded"
    for code, kind in [
        ("server_error", "server"),
        ("rate_limit_exceeded", "rate_limited"),
        ("slow_down", "overloaded"),
        ("insufficient_quota", "quota"),
        ("usage_limit_reached", "quota"),
        ("usage_not_included", "quota"),
        ("context_length_exceeded", "context_overflow"),
        ("vector_store_timeout", "timeout"),
        ("invalid_prompt", "bad_request"),
        ("invalid_image_format", "bad_request"),
        ("image_too_large", "bad_request"),
        ("failed_to_download_image", "bad_request"),
        ("image_content_policy_violation", "filtered"),
        ("misalignment_policy_violation", "filtered"),
        ("cyber_policy", "filtered"),
        ("bio_policy", "filtered"),
        ("invalid_api_key", "auth"),
        ("model_not_found", "not_found"),
        ("who_knows", "server"),
    ]:
        error = {"code": code, "message": "said so", "param": None}
        for event in (
            {"type": "response.failed", "response": {"status": "failed", "error": error, "output": []}},
            {"type": "error", "error": error, "sequence_number": 2},
            {"type": "error", **error, "sequence_number": 2},
            {"error": error},
            {"object": "response", "status": "failed", "error": error, "output": []},
        ):
            found = failure([*answer(text("Par"))[:3], event])
            assert (found.kind, found.message) == (kind, "said so"), event
            assert found.retryable == (kind in RETRYABLE)
    assert failure([{"type": "response.failed", "response": {"status": "failed", "error": None}}]).kind == "server"
    assert failure([{"type": "response.completed", "response": {"status": "cancelled"}}]).kind == "server"
    assert failure([{"message": "busy", "code": 503}], "error").kind == "overloaded"
    assert failure([{"detail": "Not authenticated"}]).message == "Not authenticated"
    assert failure(["not json"]).kind == "protocol"


def test_b45_context_overflow() -> None:
    (case,) = (case for case in vector("B45", "json") if "sse" in case)
    assert failure([case["sse"]]).kind == "context_overflow"


# --- what an answer is made of -----------------------------------------------------------------------


def test_the_final_output_counts_and_not_what_was_streamed_before() -> None:
    events = answer(reasoning("rs_1", "final"), text("final"))
    events[2]["item"] = reasoning("rs_1", "other")
    (thought, said) = completed(events).blocks
    assert isinstance(thought, Thinking)
    assert thought.opaque == reasoning("rs_1", "final")
    assert isinstance(said, Text)
    events[-1]["response"]["output"] = []
    (thought, _) = completed(events).blocks
    assert isinstance(thought, Thinking)
    assert thought.opaque == reasoning("rs_1", "other")


def _unplaced(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != "output_index"}


def test_items_that_never_came_whole_are_made_of_their_pieces() -> None:
    """From a server that sends neither `output_item.done` nor an output; places and ids may be missing, too."""
    full = _emptied(answer(text("hel"), call("a", "echo", '{"text":1}'), text("lo", "msg_2"), call("b", "count", "{}")))
    for dropped in (("nothing",), (), ("output_index",), ("item_id",)):
        events = [event for event in full if event["type"] != "response.output_item.done"]
        events = [{key: value for key, value in event.items() if key not in dropped} for event in events]
        if not dropped:  # places of items only
            events = [event if "item" in event else _unplaced(event) for event in events]
        found = completed(events)
        assert [block.text for block in found.blocks if isinstance(block, Text)] == ["hel", "lo"]
        assert calls(events) == [("a", "echo", {"text": 1}), ("b", "count", {})]
        assert found.stop_reason == "tool_calls"
    nothing = [event for event in full if "delta" not in event and event["type"] != "response.output_item.done"]
    assert completed(nothing).stop_reason == "length"  # calls whose arguments never came do not run
    at_once = {"type": "response.function_call_arguments.done", "output_index": 1, "arguments": '{"text":2}'}
    assert calls([*nothing[:-1], at_once, nothing[-1]])[0] == ("a", "echo", {"text": 2})


def test_arguments_that_were_streamed_count_where_the_item_has_none() -> None:
    bare, shown = call("c", "echo", ""), call("c", "echo", "{}")
    head = {"output_index": 0, "item_id": bare["id"]}
    begun = {"type": "response.output_item.added", "output_index": 0, "item": bare}
    delta = {"type": "response.function_call_arguments.delta", "delta": '{"text":"x"}', **head}
    done = {"type": "response.output_item.done", "output_index": 0, "item": bare}
    for output in ([], [bare]):
        end = {"type": "response.completed", "response": {"status": "completed", "output": output}}
        assert calls([begun, delta, done, end]) == [("c", "echo", {"text": "x"})]
        assert calls([begun, delta, end]) == [("c", "echo", {"text": "x"})]
    end["response"]["output"] = [shown]
    assert calls([begun, delta, end]) == [("c", "echo", {})]


def test_an_item_that_comes_twice_is_one() -> None:
    made = call("c", "echo")
    done = [{"type": "response.output_item.done", "output_index": at, "item": made} for at in (0, 1)]
    for events, output in ((done, []), ([], [made, made]), ([], [made, {**made, "id": "fc_2", "call_id": "c"}])):
        end = {"type": "response.completed", "response": {"status": "completed", "output": output}}
        expected = 2 if output and output[0] != output[-1] else 1
        assert calls([*events, end]) == [("c", "echo", {})] * expected


def test_text_without_an_item_is_the_answer() -> None:
    delta = {"type": "response.output_text.delta", "output_index": 0, "delta": "hello"}
    end = {"type": "response.completed", "response": {"status": "completed", "output": []}}
    answered = completed([delta, end])
    assert [block.text for block in answered.blocks if isinstance(block, Text)] == ["hello"]
    assert sent_back(*answered.blocks)[-1]["content"] == "hello"


def test_items_are_in_the_order_of_their_places() -> None:
    events = _emptied(answer(text("a"), text("b", "msg_2"), text("c", "msg_3")))
    shuffled = [events[0], *events[7:10], *events[4:7], *events[1:4], events[-1]]
    assert [block.text for block in completed(shuffled).blocks if isinstance(block, Text)] == ["a", "b", "c"]


def test_what_only_the_provider_understands_is_kept_in_order() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}}
    odd = {"type": "who_knows", "n": [1, {"a": None}]}
    call_item = call("c", namespace="n", caller={"type": "direct"})
    said = text("a", phase="commentary")
    found = completed(answer(reasoning(), search, said, odd, call_item)).blocks
    assert [type(block) for block in found] == [Thinking, Provider, Text, Provider, ToolCall]
    assert found[1] == Provider("openai.web_search_call", search)
    assert found[3] == Provider("openai.who_knows", odd)
    back = sent_back(*(block for block in found if block != found[3]))
    del said["content"][0]["logprobs"]
    assert back[:3] == [reasoning(), search, said]
    assert back[3] == call_item
    assert back[4]["caller"] == {"type": "direct"}


def test_parts_of_a_message() -> None:
    note = {"type": "url_citation", "url": "https://x", "title": "x", "start_index": 0, "end_index": 1}
    parts = [
        {"type": "output_text", "text": "a", "annotations": [note], "logprobs": [{"token": "a"}]},
        {"type": "output_text", "text": " \n", "annotations": []},
        {"type": "output_text", "text": "b", "annotations": []},
        {"type": "odd", "n": 1},
        None,
    ]
    found = completed(answer({**text(""), "content": [part for part in parts if part]})).blocks
    assert [block.text for block in found if isinstance(block, Text)] == ["a", "b"]
    assert found[2] == Provider("openai.message.odd", {"type": "odd", "n": 1})
    (item,) = sent_back(*found)
    assert item["content"][0] == {"type": "output_text", "text": "a", "annotations": [note]}
    whole = {"object": "response", "output": [{"type": "message", "content": "a"}, {"type": "message"}, {}, 7]}
    assert [block.text for block in completed([whole]).blocks if isinstance(block, Text)] == ["a"]
    assert completed(answer(text(""))).blocks == ()


def test_a_refusal() -> None:
    item = {**text(""), "content": [{"type": "refusal", "refusal": "I cannot"}]}
    for events in (answer(item), _emptied(answer(item)), [answer(item)[-1]["response"]]):
        found = completed(events)
        assert (found.stop_reason, found.raw_stop_reason) == ("refused", "completed")
        assert [block.text for block in found.blocks if isinstance(block, Text)] == ["I cannot"]
        assert shown(events) == "I cannot"
    assert completed(answer(item, call("c"))).stop_reason == "refused"
    cut = answer(item, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert completed(cut).stop_reason == "length"
    pieces = [event for event in _emptied(answer(item)) if event["type"] != "response.output_item.done"]
    assert completed(pieces).stop_reason == "refused"


def test_a_whole_response() -> None:
    whole = answer(reasoning("rs_1", "gAAA", "hm", "so"), text("hello"), call("c", "echo", '{"text":"x"}'))[-1][
        "response"
    ]
    for status in ("completed", "complete", None):
        found = completed([{**whole, "status": status}], name="")
        assert [type(block) for block in found.blocks] == [Thinking, Text, ToolCall]
        assert (found.stop_reason, found.usage, found.response_id, found.model) == (
            "tool_calls",
            Usage(3, 2),
            "resp_1",
            "m",
        )
    deltas = [chunk for chunk in decode([whole], name="") if isinstance(chunk, Delta)]
    assert [(delta.kind, delta.piece) for delta in deltas] == [
        ("thinking", "hm\n\nso"),
        ("text", "hello"),
        ("tool_call", '{"text":"x"}'),
    ]


def test_deltas() -> None:
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "rs_1"}},
        {"type": "response.reasoning_summary_part.added", "output_index": 0, "summary_index": 0},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "hm"},
        {"type": "response.reasoning_summary_part.added", "output_index": 0, "summary_index": 1},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 1, "delta": "so"},
        {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "!"},
        {"type": "response.custom_tool_call_input.delta", "output_index": 0, "delta": "never"},
        {"type": "response.shell_call_output_content.done", "output": [{"stdout": "x"}], "error": "none"},
        *answer(call("c", "echo", '{"text":"x"}'))[1:],
    ]
    assert shown(events, "thinking") == "hm\n\nso!"
    deltas = [chunk for chunk in decode(events) if isinstance(chunk, Delta) and chunk.kind == "tool_call"]
    assert [(delta.piece, delta.call_id, delta.name) for delta in deltas] == [
        ("", "c", "echo"),
        ('{"text":"x"}', "c", "echo"),
    ]


def test_a_type_may_be_missing_where_the_event_is_named() -> None:
    decoder = Decoder()
    for event in answer(text("hello")):
        decoder.feed(event.pop("type"), json.dumps(event))
    assert decoder.finished
    assert decoder.done


def test_a_character_in_two_halves_is_shown_once() -> None:
    delta = {"type": "response.output_text.delta", "output_index": 0}
    events = [json.dumps({**delta, "delta": piece}) for piece in ("\ud83e", "\udd80!")]
    start, *_, end = _emptied(answer(text("")))
    begun = {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "msg_1"}}
    assert shown([start, begun, *events, end]) == "🦀!"
    (block,) = completed([start, begun, *events, end]).blocks
    assert isinstance(block, Text)
    assert block.text == "🦀!"


def test_usage() -> None:
    usage = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 1},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 14,
        "cost": 0.25,
    }
    events = answer(text("a"), usage=usage)
    events[0]["response"]["usage"] = {"input_tokens": 1, "output_tokens": 1}
    assert completed(events).usage == Usage(9, 5, 4, 1, 2)
    assert completed(events).cost == 0.25
    broken = {"input_tokens": -1, "output_tokens": "x", "input_tokens_details": None, "cost": True}
    assert completed(answer(text("a"), usage=broken)).usage == Usage()
    assert completed([*events, {"type": "response.completed", "response": {}}]).usage.input == 9


def test_what_is_kept_has_a_bound() -> None:
    decoder = Decoder()
    size = 15 * 1024 * 1024
    data = json.dumps({"type": "response.output_item.done", "output_index": 0, "item": {"type": "x", "x": "x" * size}})
    with pytest.raises(ModelError, match="MAX_ANSWER"):  # noqa: PT012 - which of them is not said
        for at in range(5):
            decoder.feed("", data.replace('"output_index": 0', f'"output_index": {at}'))


# --- anything at all ---------------------------------------------------------------------------------

small = st.text(max_size=3)
any_item = shaped(
    type=st.sampled_from(["message", "reasoning", "function_call", "web_search_call"]),
    id=st.sampled_from(["a", "b", ""]),
    call_id=st.sampled_from(["a", "b", ""]),
    name=st.sampled_from(["echo", ""]),
    status=st.sampled_from(["completed", "incomplete"]),
    arguments=st.sampled_from(["{", "{}", "", "x"]),
    content=st.lists(shaped(type=st.sampled_from(["output_text", "refusal"]), text=small, refusal=small), max_size=2),
    summary=st.lists(shaped(type=st.just("summary_text"), text=small), max_size=2),
    encrypted_content=small,
)
usage = shaped(input_tokens=st.integers(), output_tokens=st.integers(), input_tokens_details=json_values)
response = shaped(
    id=small,
    status=st.sampled_from(["completed", "incomplete", "failed"]),
    output=st.lists(any_item, max_size=3),
    error=st.none() | shaped(code=st.sampled_from(["server_error", "x"]), message=small),
    incomplete_details=st.none() | shaped(reason=st.sampled_from(["max_output_tokens", "content_filter"])),
    usage=usage,
)
types = [
    "response.created", "response.output_item.added", "response.output_item.done", "response.output_text.delta",
    "response.refusal.delta", "response.reasoning_summary_text.delta", "response.reasoning_summary_part.added",
    "response.function_call_arguments.delta", "response.function_call_arguments.done", "response.completed",
    "response.incomplete", "response.failed", "error",
]  # fmt: skip
any_event = shaped(
    type=st.sampled_from(types),
    item=any_item,
    item_id=st.sampled_from(["a", "b"]),
    output_index=st.integers(0, 2),
    summary_index=st.integers(0, 1),
    delta=small,
    arguments=st.sampled_from(["{}", "{", ""]),
    response=response,
)
last = st.builds(lambda value: {"type": "response.completed", "response": value}, response)


@given(st.lists(any_event | json_values | small | response, max_size=6), last)
@settings(max_examples=400, deadline=None)
def test_nothing_but_a_model_error(events: list[Any], end: Any) -> None:
    try:
        *_, final = decode([*events, end])
    except ModelError as error:
        error.message.encode()
        return
    assert isinstance(final, Completed)
    msgspec.json.encode(final)  # clean enough for a journal
    said = Message("assistant", final.blocks, origin="openai:m")
    body = Encoder("m", origin="openai:m").encode(Request(request_id="r", messages=(user("go"), said)))
    assert all(isinstance(item, dict) for item in json.loads(body)["input"])
