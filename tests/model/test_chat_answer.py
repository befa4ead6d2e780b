"""The decoder alone: vectors by id, dialects, recorded answers, and anything at all."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.core.message import Provider, Text, Thinking, ToolCall, Usage
from latchstep.errors import RETRYABLE, ModelError
from latchstep.model.chat_answer import Decoder
from latchstep.model.failure import body_failure, http_failure, load_body
from latchstep.model.sse import SSEParser
from tests.model.strict_chat import split
from tests.model.vectors import recorded, vector

TOOLS = ("echo", "read", "write", "bash", "count", "slow", "fail")


def decode(events: Iterable[Any], known: Iterable[str] = TOOLS) -> list[Chunk]:
    decoder = Decoder(known)
    chunks: list[Chunk] = []
    for event in events:
        if not (isinstance(event, str) and event.startswith("#")):
            chunks += decoder.feed("message", event if isinstance(event, str) else json.dumps(event))
    return chunks + decoder.end()


def completed(events: Iterable[Any], known: Iterable[str] = TOOLS) -> Completed:
    *deltas, last = decode(events, known)
    assert all(isinstance(chunk, Delta) for chunk in deltas)
    assert isinstance(last, Completed)
    return last


def calls(events: Iterable[Any], known: Iterable[str] = TOOLS) -> list[Any]:
    blocks = completed(events, known).blocks
    return [(block.id, block.name, block.arguments) for block in blocks if isinstance(block, ToolCall)]


def failure(events: Iterable[Any]) -> ModelError:
    with pytest.raises(ModelError) as caught:
        decode(events)
    return caught.value


def event(delta: Any = None, finish: Any = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more}


def with_call(**function: Any) -> list[Any]:
    return [
        event({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "echo", **function}}]}),
        event(None, "stop"),
    ]


# --- vectors -----------------------------------------------------------------------------------------


def test_b13_no_index() -> None:
    assert calls(vector("B13")) == [("call_a", "read", {"path": "a"}), ("call_b", "read", {"path": "b"})]


@pytest.mark.parametrize("blank_ids", [False, True])
def test_b14_index_reused(blank_ids: bool) -> None:
    events = vector("B14")
    if blank_ids:
        events = json.loads(json.dumps(events).replace("call_a", "").replace("call_b", ""))
    expected = [("call_a", "read", {"path": "a"}), ("call_b", "read", {"path": "b"})]
    assert calls(events) == [("", *call[1:]) if blank_ids else call for call in expected]


def test_b16_names_repeated_or_split() -> None:
    repeated, in_two = split(vector("B16"))
    assert calls(repeated) == [("c", "echo", {"text": 1})]
    assert calls(in_two) == [("c", "echo", {"text": "x"})]


def test_b17_one_id_for_two_calls_and_no_id() -> None:
    events = vector("B17")
    assert calls(events) == [("call_0", "count", {}), ("call_0", "echo", {"text": "x"})]
    for id in ("", None):
        events[0]["choices"][0]["delta"]["tool_calls"][0]["id"] = id
        events[0]["choices"][0]["delta"]["tool_calls"][1]["id"] = id
        assert calls(events) == [("", "count", {}), ("", "echo", {"text": "x"})]


def test_b18_no_arguments() -> None:
    assert calls(vector("B18")) == [(f"c{at}", "count" if at < 5 else "echo", {}) for at in range(1, 6)]
    cut = vector("B18")
    cut[0]["choices"][0]["finish_reason"] = "length"
    assert all(block.flaw for block in completed(cut).blocks if isinstance(block, ToolCall))


def test_b19_arguments_as_an_object() -> None:
    assert calls(vector("B19")) == [("c1", "echo", {"text": "x"})]


def test_b21_what_follows_the_object() -> None:
    good, prose, second = (with_call(arguments=text) for text in vector("B21", "json"))
    assert calls(good) == calls(prose) == [("c1", "echo", {"text": "x"})]
    (block,) = completed(second).blocks
    assert isinstance(block, ToolCall)
    assert block.flaw
    assert block.arguments == {}


@pytest.mark.parametrize(
    ("finish", "arguments", "stop", "flawed"),
    [
        ("length", '{"path":"/tmp/t/f"}', "length", False),
        ("length", '{"path": "/tmp/t/f", "content": "line1\\nli', "length", True),
        ("tool_calls", '{"path": "/tmp/t/f", "content": "line1\\nli', "length", True),
        ("stop", '{"path": "/tmp', "length", True),
        ("content_filter", '{"path": "/tmp', "filtered", True),
    ],
)
def test_b22_cut_by_the_limit(finish: str, arguments: str, stop: str, flawed: bool) -> None:
    events = with_call(arguments=arguments)
    events[-1]["choices"][0]["finish_reason"] = finish
    answer = completed(events)
    (block,) = answer.blocks
    assert isinstance(block, ToolCall)
    assert (answer.stop_reason, answer.raw_stop_reason, bool(block.flaw)) == (stop, finish, flawed)


def test_b23_stop_with_calls() -> None:
    answer = completed(vector("B23"))
    assert calls(vector("B23")) == [("c1", "echo", {"text": "x"})]
    assert answer.stop_reason == answer.raw_stop_reason == "stop"


def test_b24_calls_announced_and_none_there() -> None:
    answer = completed([event(None, "tool_calls")])
    assert (answer.blocks, answer.stop_reason) == ((), "tool_calls")


def test_b25_empty_turn_keeps_its_usage() -> None:
    answer = completed(vector("B25"))
    assert (answer.blocks, answer.usage) == ((), Usage(9, 2))


def test_b27_last_bytes_with_the_finish_reason() -> None:
    assert calls(vector("B27")) == [("c1", "echo", {"text": "x"})]
    assert completed(vector("B27")).usage == Usage(5, 7)


def test_b30_names_with_stray_characters() -> None:
    for name in ("search_files", "echo<|channel|>commentary", "n" * 70, ""):
        assert calls(with_call(name=name, arguments="{}")) == [("c1", name, {})]
    assert calls(with_call(name="echo ", arguments="{}")) == [("c1", "echo", {})]


def test_b31_ends_of_the_stream() -> None:
    half = [event({"content": "The answer is"})]
    assert failure(half).kind == "protocol"
    assert "middle" in failure(half).message
    assert failure([*half, "[DONE]"]).kind == "protocol"
    assert failure([]).kind == "protocol"
    assert completed([*half, event(None, "stop")]).blocks == (Text("The answer is"),)


def test_b33_error_events() -> None:
    assert failure(vector("B33")).kind == "server"
    assert failure(vector("B33")).status == 502
    for error, kind in [
        ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded"),
        ({"code": "rate_limit_exceeded", "message": "slow down"}, "rate_limited"),
        ({"code": 429, "message": "Provider returned error"}, "rate_limited"),
        ({"type": "invalid_request_error", "message": "bad"}, "bad_request"),
        ({"code": "invalid_api_key", "message": "bad"}, "auth"),
        ({"code": "insufficient_quota", "type": "insufficient_quota", "message": "pay"}, "quota"),
        ("upstream broke", "server"),
        ({"message": "x", "code": 403}, "permission"),
    ]:
        found = failure([event({"content": "Par"}), {"error": error}])
        assert found.kind == kind, error
        assert found.retryable == (kind in RETRYABLE)
    assert failure([{"object": "error", "message": "busy", "code": 503}]).kind == "overloaded"
    assert failure([{"detail": "Not authenticated"}]).message == "Not authenticated"
    assert failure([[{"error": {"code": 503, "message": "x", "status": "UNAVAILABLE"}}]]).kind == "overloaded"


def test_b45_context_overflow() -> None:
    overflow, other = vector("B45", "json"), vector("B45", "json", 1)
    for case in overflow:
        body = case["sse"]["response"] if "sse" in case else case["body"]
        status = case["status"] if case["status"] != 200 else None
        assert body_failure(body, status=status).kind == "context_overflow", case
    for case in other:
        assert body_failure(case["body"], status=case["status"]).kind != "context_overflow", case
    assert failure([event(None, "model_context_window_exceeded")]).kind == "context_overflow"


@pytest.mark.parametrize(
    "text",
    [
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens",
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        "Requested tokens (2100) exceed context window of 2048",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "Please reduce the length of the messages or completion.",
    ],
)
def test_more_wordings_of_overflow(text: str) -> None:
    assert body_failure({"error": {"message": text}}, status=400).kind == "context_overflow"
    assert body_failure({"error": {"message": text}}, status=429).kind == "rate_limited"


# --- dialects ----------------------------------------------------------------------------------------


def test_reasoning_is_kept_with_where_it_came_from() -> None:
    for field in ("reasoning_content", "reasoning"):
        answer = completed([event({field: "a"}), event({field: "b", "content": ""}), event({"content": "c"}, "stop")])
        assert answer.blocks == (Thinking("ab", {"field": field}), Text("c"))
    both = completed([event({"reasoning": "a", "reasoning_content": "a"}, "stop")])
    assert both.blocks == (Thinking("a", {"field": "reasoning_content"}),)


def test_reasoning_details_grow_together() -> None:
    def detail(**fields: Any) -> dict[str, Any]:
        return event({"reasoning": fields.get("text", ""), "reasoning_details": [fields]})

    answer = completed(
        [
            detail(type="reasoning.text", text="a", index=0, format="f"),
            detail(type="reasoning.text", text="b", index=0, signature=None),
            detail(type="reasoning.text", index=0, signature="s"),
            detail(type="reasoning.encrypted", data="x", index=1),
            detail(type="reasoning.encrypted", data="y", index=1),
            event({"content": "c"}, "stop"),
        ]
    )
    details = [
        {"type": "reasoning.text", "index": 0, "format": "f", "signature": "s", "text": "ab"},
        {"type": "reasoning.encrypted", "index": 1, "data": "xy"},
    ]
    assert answer.blocks[0] == Thinking("ab", {"field": "reasoning", "reasoning_details": details})
    only = completed([event({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}, "stop")])
    (block,) = only.blocks
    assert isinstance(block, Thinking)
    assert block.opaque is not None
    assert block.opaque["reasoning_details"] == [{"type": "reasoning.encrypted", "data": "x"}]


def test_content_lists() -> None:
    answer = completed(
        [
            event({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
            event({"content": [{"type": "text", "text": "a"}, "b", {"type": "odd", "n": 1}, 7, None]}, "stop"),
        ]
    )
    odd = Provider("openai-chat.content", {"type": "odd", "n": 1})
    assert answer.blocks == (Thinking("hm", {"field": "content"}), Text("ab"), odd)


def test_usage_dialects() -> None:
    def usage(**fields: Any) -> Any:
        return completed([event({"content": "x"}, "stop"), {"choices": [], **fields}])

    details = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2}}
    full = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14, "cost": 0.25, **details}
    assert usage(usage=full).usage == Usage(9, 5, 4, 0, 2)
    assert usage(usage=full).cost == 0.25
    moonshot = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 9, "cached_tokens": 2}}
    assert completed([{"choices": [moonshot]}]).usage == Usage(9, 0, 2)
    assert usage(usage={**full, "total_tokens": 16}).usage.output == 7
    assert usage(x_groq={"usage": {"prompt_tokens": 9, "completion_tokens": 5}}).usage == Usage(9, 5)
    assert usage(usage={"prompt_tokens": 9, "prompt_cache_hit_tokens": 3}).usage == Usage(9, 0, 3)
    assert usage(usage={"prompt_tokens": -1, "completion_tokens": "x", "cost": "y"}).usage == Usage()
    last = completed(
        [event({"content": "x"}, "stop", usage={"prompt_tokens": 1}), {"usage": {"prompt_tokens": 2}}, {"usage": None}]
    )
    assert last.usage == Usage(2)
    nothing = {"prompt_tokens": 0, "completion_tokens": 0}
    assert completed([event({"content": "x"}, usage=full), event(None, "stop", usage=nothing)]).usage.input == 9


def test_a_whole_answer_and_the_legacy_form() -> None:
    message = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "count", "arguments": ""}},
            {"id": "a", "type": "function", "function": {"name": "count", "arguments": "{}"}},
        ],
    }
    whole = {"id": "r", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    assert calls([whole]) == [("a", "count", {})] * 2
    legacy = [
        event({"function_call": {"name": "echo", "arguments": '{"te'}}),
        event({"function_call": {"arguments": 'xt":1}'}}, "function_call"),
    ]
    assert calls(legacy) == [("", "echo", {"text": 1})]
    assert completed(legacy).stop_reason == "tool_calls"


def test_a_refusal_and_other_stop_reasons() -> None:
    answer = completed([event({"refusal": "I can"}), event({"refusal": "not"}), event(None, "stop")])
    assert (answer.blocks, answer.stop_reason) == ((Text("I cannot"),), "refused")
    for raw, stop in [("STOP", "stop"), ("eos", "stop"), ("model_length", "length"), ("SAFETY", "filtered")]:
        assert completed([event({"content": "x"}, raw)]).stop_reason == stop
    assert completed([event({"content": "x"}, "length"), event(None, "stop")]).stop_reason == "length"
    assert failure([event({"content": "x"}, "insufficient_system_resource")]).kind == "overloaded"


def test_odd_events_are_survived() -> None:
    odd: list[Any] = [
        "7", "null", '"x"', "[]", "{}", '{"type":"ping"}', {"choices": None}, {"choices": [None, 7, {}]},
        {"choices": [{"index": 1, "delta": {"content": "other"}}]},
        {"choices": [{"index": 0, "delta": None}]},
        event({"content": None, "tool_calls": None, "role": None}),
        event({"tool_calls": [None, 7, {}, {"index": 0}, {"function": None}, {"function": {"arguments": None}}]}),
        '{"choices":[{"delta":{"content":"\\ud83e"}}]}',
        '{"choices":[{"delta":{"content":"\\udd80"}}]}\n{"choices":[{"delta":{"content":"!"}}]}',
    ]  # fmt: skip
    chunks = decode([*odd, event(None, "stop"), "[DONE]", "not read any more"])
    assert [chunk.piece for chunk in chunks if isinstance(chunk, Delta)] == ["🦀", "!"]
    assert completed([*odd, event(None, "stop")]).blocks == (Text("🦀!"),)
    assert failure(["<html>"]).kind == "protocol"
    assert failure(["[" * 100_000]).kind == "protocol"


def test_what_the_deltas_said_is_not_said_again_by_the_last_chunk() -> None:
    made = {"id": "c1", "type": "function", "function": {"name": "count", "arguments": "{}"}}
    deltas = [event({"content": "a"}), event({"tool_calls": [{"index": 0, **made}]})]
    again = {"role": "assistant", "content": "a", "tool_calls": [made]}
    for last in ({"message": again}, {"delta": {}, "message": again}, {"delta": None, "message": again}):
        found = completed([*deltas, {"choices": [{"index": 0, "finish_reason": "tool_calls", **last}]}])
        assert found.blocks == (Text("a"), ToolCall("c1", "count", {}))
        late = completed([deltas[0], {"choices": [{"index": 0, "finish_reason": "tool_calls", **last}]}])
        assert late.blocks == found.blocks


@pytest.mark.parametrize("label", [str, float], ids=["text", "fraction"])
def test_labels_of_another_type(label: Any) -> None:
    """Two calls that overlap: without their labels, the second would get the arguments of both."""
    begun = [{"index": label(at), "id": f"c{at}", "function": {"name": "read", "arguments": ""}} for at in (0, 1)]
    more = [{"index": label(at), "function": {"arguments": json.dumps({"path": str(at)})}} for at in (0, 1)]
    events = [event({"tool_calls": [one]}) for one in (*begun, *more)]
    assert calls([*events, event(None, "tool_calls")]) == [("c0", "read", {"path": "0"}), ("c1", "read", {"path": "1"})]


def test_a_call_without_its_wrapper() -> None:
    bare = {"index": 0, "id": "c", "name": "echo", "arguments": '{"text":"x"}'}
    assert calls([event({"tool_calls": [bare]}), event(None, "stop")]) == [("c", "echo", {"text": "x"})]


def test_an_error_within_the_choice() -> None:
    error = {"error": {"code": 429, "message": "slow down"}}
    found = failure(
        [event({"content": "a"}), {"choices": [{"index": 0, "delta": {}, "finish_reason": "error", **error}]}]
    )
    assert (found.kind, found.message) == ("rate_limited", "slow down")


def test_deltas_name_their_call() -> None:
    deltas = [chunk for chunk in decode(vector("B13")) if isinstance(chunk, Delta)]
    assert [(delta.call_id, delta.name) for delta in deltas] == [("call_a", "read")] + [("call_b", "read")] * 2


def recorded_events(row: dict[str, Any]) -> list[str]:
    if "events" in row:
        return list(row["events"])
    if not row["stream"]:
        return [row["response"]]
    parser = SSEParser()
    return [data for _, data in parser.feed(row["response"].encode()) + parser.flush()]


def test_recorded_answers_decode() -> None:
    answers = 0
    for row in recorded("openai_chat"):
        events = recorded_events(row)
        if row["status"] != 200 or not any('"choices"' in text for text in events):
            continue
        if any("tool_use_failed" in text for text in events):
            assert failure(events).kind == "protocol"
            continue
        tools = [tool.get("function", {}).get("name", "") for tool in (row["request"] or {}).get("tools") or []]
        answer = completed(events, tools)
        assert all(not block.flaw for block in answer.blocks if isinstance(block, ToolCall)), row["source"]
        assert len(answer.blocks) > 0 or answer.stop_reason == "length", row["source"]
        answers += 1
    assert answers > 400


def test_recorded_errors_are_classified() -> None:
    kinds = {400: {"bad_request", "protocol"}, 404: {"not_found"}, 429: {"rate_limited"}}
    rows = [row for row in recorded("openai_chat") if row["status"] != 200]
    assert len(rows) > 15
    for row in rows:
        error = http_failure(row["status"], {}, row["response"], "https://host/v1/chat/completions")
        assert error.kind in kinds[row["status"]], row["response"]
        assert error.status == row["status"]
        said = json.loads(row["response"])["error"]["message"]
        assert error.message.startswith(" ".join(said.split())[:80])


# --- anything at all ---------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def shaped(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional={key: value | json_values for key, value in fields.items()})


function = shaped(name=st.sampled_from(["echo", "ec", ""]), arguments=st.sampled_from(["{", "}", '"', "{}", "", "x"]))
call = shaped(id=st.sampled_from(["a", "b", ""]), index=st.integers(0, 2), function=function)
delta = shaped(
    content=st.text(max_size=3),
    reasoning=st.text(max_size=3),
    reasoning_details=st.lists(shaped(type=st.just("t"), text=st.text(max_size=2), index=st.just(0)), max_size=2),
    refusal=st.text(max_size=2),
    tool_calls=st.lists(call, max_size=3),
    function_call=function,
)
choice = shaped(
    index=st.just(0),
    delta=delta,
    message=delta,
    finish_reason=st.sampled_from(["stop", "length", "tool_calls", "error"]),
)
usage = shaped(prompt_tokens=st.integers(), completion_tokens=st.integers(), prompt_tokens_details=json_values)
any_event = shaped(choices=st.lists(choice, max_size=2), usage=usage, id=st.text(max_size=3), x_groq=json_values)


@given(st.lists(any_event | json_values | st.text(max_size=8) | st.just("[DONE]"), max_size=6))
@settings(max_examples=400, deadline=None)
def test_nothing_but_a_model_error(events: list[Any]) -> None:
    try:
        *_, last = decode(events)
    except ModelError as error:
        error.message.encode()
        return
    assert isinstance(last, Completed)
    msgspec.json.encode(last)  # clean enough for a journal


@given(json_values, st.sampled_from([None, 400, 401, 404, 413, 429, 500, 529]))
@settings(max_examples=200, deadline=None)
def test_any_error_body_is_classified(body: Any, status: int | None) -> None:
    error = body_failure(load_body(json.dumps(body)), status=status)
    assert error.message
    assert "\n" not in error.message
    error.message.encode()
