"""Decoding Anthropic's streams: synthetic ones, vectors, everything recorded, and anything at all."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.core.message import Message, Provider, Text, Thinking, ToolCall, ToolResult, Usage, user
from latchstep.errors import ModelError
from latchstep.model import anthropic_answer
from latchstep.model.anthropic_answer import Decoder
from latchstep.model.anthropic_request import Encoder
from latchstep.model.base import Request, ToolSpec
from latchstep.model.sse import SSEParser
from tests.model.strict_anthropic import block_events, ended, sign, started, streamed
from tests.model.vectors import recorded, vector

MAKER = "anthropic:m"


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


def use(id: str, name: str = "echo", input: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input or {}, **fields}


def chunks_of(events: Iterable[Any], known: Iterable[str] = ("echo", "count", "write")) -> list[Chunk]:
    decoder, chunks = Decoder(known), list[Chunk]()
    for event in events:
        if isinstance(event, str) and event.startswith("#"):
            continue
        chunks += decoder.feed("message", event if isinstance(event, str) else json.dumps(event))
    return chunks + decoder.end()


def decode(events: Iterable[Any]) -> Completed:
    last = chunks_of(events)[-1]
    assert isinstance(last, Completed)
    return last


def failure(events: Iterable[Any]) -> ModelError:
    with pytest.raises(ModelError) as caught:
        chunks_of(events)
    return caught.value


def whole(*content: dict[str, Any], stop: str = "end_turn", **fields: Any) -> str:
    message = started(content=list(content), stop_reason=stop, **fields)["message"]
    return json.dumps(message)


CITED = text("b", citations=[{"type": "char_location", "cited_text": "é"}])
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result", "url": "u"}]}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
EVERYTHING = (
    {"type": "thinking", "thinking": "hm\u2028 ", "signature": sign("hm\u2028 ")},
    {"type": "redacted_thinking", "data": "EmwK"},
    text("a"),
    SEARCH,
    FOUND,
    CITED,
    use("c1", "echo", {"text": "é"}),
    use("c2", "echo", {"text": "y"}, caller={"type": "code_execution_20250825", "tool_id": "s1"}),
)


def test_everything_streamed_or_whole() -> None:
    streamed_answer, answer = (
        decode(streamed(*EVERYTHING, stop="tool_use")),
        decode([whole(*EVERYTHING, stop="tool_use")]),
    )
    assert (
        streamed_answer.blocks
        == answer.blocks
        == (
            Thinking("hm\u2028 ", {"signature": sign("hm\u2028 ")}),
            Thinking("", {"redacted": "EmwK"}),
            Text("a"),
            Provider("anthropic.server_tool_use", SEARCH),
            Provider("anthropic.web_search_tool_result", FOUND),
            Text("b", {"citations": CITED["citations"]}),
            ToolCall("c1", "echo", {"text": "é"}),
            ToolCall(
                "c2", "echo", {"text": "y"}, opaque={"caller": {"type": "code_execution_20250825", "tool_id": "s1"}}
            ),
        )
    )
    assert (answer.stop_reason, answer.raw_stop_reason) == ("tool_calls", "tool_use")
    assert (answer.response_id, answer.model) == ("msg_1", "m")
    message = Message("assistant", answer.blocks, origin=MAKER)
    history = (user("go"), message, Message("tool", ()), user("on"))
    body = Encoder("m", origin=MAKER).encode(Request(request_id="r", messages=history))
    assert json.loads(body)["messages"][1]["content"] == list(EVERYTHING)


def test_deltas_are_shown_as_they_come() -> None:
    chunks = chunks_of(streamed(text("hello"), use("c1", "echo", {"text": "x"}), stop="tool_use"))
    shown = [chunk for chunk in chunks if isinstance(chunk, Delta)]
    assert "".join(delta.piece for delta in shown if delta.kind == "text") == "hello"
    calls = [delta for delta in shown if delta.kind == "tool_call"]
    assert {(delta.call_id, delta.name) for delta in calls} == {("c1", "echo")}
    assert json.loads("".join(delta.piece for delta in calls)) == {"text": "x"}
    assert calls[0].piece == ""  # a call is shown at once, before its arguments


def test_citations_and_compaction_come_in_deltas() -> None:
    events = [
        started(),
        {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": None}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": "so far"}},
        {"type": "content_block_start", "index": 1, "content_block": text("", citations=None)},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a"}},
        *(
            {"type": "content_block_delta", "index": 1, "delta": {"type": "citations_delta", "citation": {"n": n}}}
            for n in (1, 2)
        ),
        *ended("compaction"),
    ]
    answer = decode(events)
    assert answer.blocks == (
        Provider("anthropic.compaction", {"type": "compaction", "content": "so far"}),
        Text("a", {"citations": [{"n": 1}, {"n": 2}]}),
    )
    assert answer.stop_reason == "paused"


def test_what_is_not_understood_is_not_sent_back() -> None:
    odd = {"type": "content_block_delta", "index": 0, "delta": {"type": "new_delta", "x": "y"}}
    new = {"type": "new_block", "data": {"x": [1, None]}}
    answer = decode([started(), *block_events(0, new)[:1], odd, *block_events(1, new), *ended("end_turn")])
    assert answer.blocks == (Provider("anthropic.lost.new_block", new), Provider("anthropic.new_block", new))
    fallback = {"type": "fallback", "from": {"model": "m"}, "to": {"model": "n"}}
    answer = decode(streamed(use("c1"), fallback, use("c2"), stop="tool_use"))
    assert [block.kind for block in answer.blocks if isinstance(block, Provider)] == [
        "anthropic.lost.tool_use",  # of the model that declined
        "anthropic.fallback",
    ]
    assert [block.id for block in answer.blocks if isinstance(block, ToolCall)] == ["c2"]
    assert answer.model == "n"
    dirty = decode(streamed({"type": "thinking", "thinking": "a\0", "signature": "s"}))
    assert dirty.blocks == (Thinking("a␀"),)  # no longer what was signed


@pytest.mark.parametrize(
    ("raw", "stop"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("pause_turn", "paused"),
        ("compaction", "paused"),
        ("refusal", "refused"),
        ("length", "length"),
        ("content_filter", "filtered"),
        ("guardrail_intervened", "filtered"),
        ("SAFETY", "filtered"),
        ("new_reason", "stop"),
        (None, "stop"),
    ],
)
def test_stop_reasons(raw: str | None, stop: str) -> None:
    answer = decode(streamed(text("a"), stop=raw))
    assert (answer.stop_reason, answer.raw_stop_reason) == (stop, raw or "")


def test_a_refusal_says_why() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "This request was blocked."}
    delta = {"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_details": details}}
    assert decode([started(), delta, {"type": "message_stop"}]).blocks == (Text("This request was blocked."),)
    partly = decode([started(), *block_events(0, text("a")), delta, {"type": "message_stop"}])
    assert partly.blocks == (Text("a"),)
    assert partly.stop_reason == "refused"


def test_b01_two_calls_that_overlap() -> None:
    answer = decode(vector("B01", "sse-anthropic"))
    assert answer.blocks == (ToolCall("toolu_01", "slow", {"s": 30}), ToolCall("toolu_02", "count"))


def test_b18_no_arguments() -> None:
    for events in (streamed(use("c", "count"), stop="tool_use"), [whole(use("c", "count"), stop="tool_use")]):
        assert decode(events).blocks == (ToolCall("c", "count"),)
    blank = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": " \n"}}
    started_call = {"type": "content_block_start", "index": 0, "content_block": use("c", "count")}
    assert decode([started(), started_call, blank, *ended("tool_use")]).blocks == (ToolCall("c", "count"),)
    odd = {**started_call, "content_block": {**use("c"), "input": [1]}}
    (call,) = decode([started(), odd, *ended("tool_use")]).blocks
    assert isinstance(call, ToolCall)
    assert "not a JSON object" in call.flaw


def test_b22_a_cut_answer() -> None:
    answer = decode(event for event in vector("B22", "sse-anthropic") if event != "#---")
    assert answer.stop_reason == "length"
    assert [(block.id, bool(block.flaw)) for block in answer.blocks if isinstance(block, ToolCall)] == [
        ("toolu_ok", True),  # may be missing its arguments
        ("toolu_cut", True),
    ]
    pieces = streamed(use("c", "write", {"path": "x"}), stop="tool_use")
    del pieces[3]  # the second half of the arguments
    answer = decode(pieces)
    assert (answer.stop_reason, answer.raw_stop_reason) == ("length", "tool_use")
    assert decode(streamed(use("c", "write", {"path": "x"}), stop="max_tokens")).stop_reason == "length"


def test_b24_tool_use_without_a_call() -> None:
    answer = decode(event for event in vector("B24", "sse-anthropic") if not str(event).startswith("#"))
    assert (answer.blocks, answer.stop_reason) == ((), "tool_calls")


def test_b31_a_stream_that_ends_early() -> None:
    events = vector("B31", "sse-anthropic")
    assert failure(events).kind == "protocol"
    answer = streamed(text("a"), use("c", "count"), stop="tool_use")
    for at in range(len(answer)):
        assert failure(answer[:at]).kind == "protocol"
    assert decode([*answer, "not JSON"]).stop_reason == "tool_calls"  # nothing is read any more


def test_b33_errors_in_the_stream() -> None:
    assert failure(vector("B33", "sse-anthropic")).kind == "overloaded"
    for kind, expected in [
        ("rate_limit_error", "rate_limited"),
        ("api_error", "server"),
        ("timeout_error", "timeout"),
        ("authentication_error", "auth"),
        ("permission_error", "permission"),
        ("billing_error", "quota"),
        ("not_found_error", "not_found"),
        ("request_too_large", "context_overflow"),
        ("invalid_request_error", "bad_request"),
        ("brand_new_error", "server"),
    ]:
        error = {"type": "error", "error": {"type": kind, "message": "words"}}
        assert (failure([started(), error]).kind, failure([error]).message) == (expected, "words")
    assert failure([started(), {"type": "error"}]).kind == "server"
    full = failure(streamed(text("a"), stop="model_context_window_exceeded"))
    assert full.kind == "context_overflow"


def test_b39_the_last_value_of_each_field_counts() -> None:
    answer = decode(vector("B39", "sse-anthropic"))
    assert answer.usage == Usage(input=2 + 47119, output=64, cache_write=47119)
    details = {"output_tokens_details": {"thinking_tokens": 4}, "cache_read_input_tokens": 7, "input_tokens": None}
    events = [*streamed(text("a"))[:-2], *ended("end_turn", **details)]  # type: ignore[arg-type]
    assert decode(events).usage == Usage(input=3 + 7, output=5, cache_read=7, reasoning=4)


@pytest.mark.parametrize("nothing", [{"input_tokens": 0}, {"input_tokens": 0, "cache_read_input_tokens": 0}])
def test_a_count_of_nothing_at_the_end_is_none(nothing: dict[str, int]) -> None:
    begun, *rest = streamed(text("a"))
    begun["message"]["usage"] = {"input_tokens": 90, "cache_read_input_tokens": 7, "output_tokens": 1}
    assert decode([begun, *rest[:-2], *ended("end_turn", **nothing)]).usage == Usage(97, 5, 7)
    cached = {"input_tokens": 0, "cache_read_input_tokens": 99}
    assert decode([begun, *rest[:-2], *ended("end_turn", **cached)]).usage == Usage(99, 5, 99)
    late = {"type": "message_stop", "usage": {"output_tokens": 8}}
    assert decode([begun, *rest[:-1], late]).usage == Usage(97, 8, 7)


def test_a_call_begun_twice_is_one() -> None:
    begun, start, delta, stop, *end = streamed(use("c", "echo", {"t": 1}), stop="tool_use")
    for script in ([begun, start, start, delta, stop, *end], [begun, start, delta, stop, start, stop, *end]):
        assert decode(script).blocks == (ToolCall("c", "echo", {"t": 1}),)
    other = {**start, "index": 1}
    assert len(decode([begun, start, delta, stop, other, delta, *end]).blocks) == 2


def test_labels_that_are_text() -> None:
    """Two blocks that overlap: without their labels, the second would get the arguments of the first."""
    starts = [{"type": "content_block_start", "index": str(at), "content_block": use(f"c{at}")} for at in (0, 1)]
    delta = {"type": "input_json_delta", "partial_json": '{"t": 1}'}
    piece = {"type": "content_block_delta", "index": "0", "delta": delta}
    blocks = decode([started(), *starts, piece, *ended("tool_use")]).blocks
    assert blocks == (ToolCall("c0", "echo", {"t": 1}), ToolCall("c1", "echo", {}))


@pytest.mark.parametrize(
    "pieces",
    [['{"t": 1}'], [{"t": 1}], ["{}", '{"t": 1}'], ['{"t', '{"t": 1}'], ['"{\\"t\\": 1}"'], ['{"t":1}', '{"t": 1}']],
    ids=["plain", "object", "nothing first", "all so far", "text in text", "once more"],
)
def test_forms_of_arguments(pieces: list[Any]) -> None:
    begun, start, *_ = streamed(use("c"))
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    events = [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    assert decode([begun, start, *events, *ended("tool_use")]).blocks == (ToolCall("c", "echo", {"t": 1}),)
    given = {**start, "content_block": use("c", "echo", '{"t": 1}')}
    assert decode([begun, given, *ended("tool_use")]).blocks == (ToolCall("c", "echo", {"t": 1}),)


def test_message_start_said_twice_and_in_the_middle() -> None:
    first, *rest = streamed(text("a"))
    assert decode([first, first, *rest[:1], first, *rest[1:]]).blocks == (Text("a"),)
    other = started(id="msg_2")
    for at in range(len(rest) - 1):
        assert failure([first, *rest[:at], other, *rest[at:]]).kind == "protocol"
    begun = started(content=[text("a"), use("c", "echo", {"text": "x"})], stop_reason="tool_use")
    answer = decode([begun, {"type": "message_stop"}])
    assert answer.blocks == (Text("a"), ToolCall("c", "echo", {"text": "x"}))
    assert answer.stop_reason == "tool_calls"


def test_bounds() -> None:
    many = [use(f"c{at}") for at in range(anthropic_answer.MAX_CALLS + 1)]
    assert "MAX_CALLS" in failure([whole(*many)]).message
    decoder = Decoder()
    piece = json.dumps(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x" * 2**20}}
    )
    decoder.feed("", json.dumps(block_events(0, text(""))[0]))
    with pytest.raises(ModelError, match="MAX_ANSWER"):
        [decoder.feed("", piece) for _ in range(100)]


# --- everything recorded -----------------------------------------------------------------------------


def streams(row: dict[str, Any]) -> list[list[str]]:
    """The data of each answer in a recording: some hold several, one after the other."""
    if "events" in row:
        events = [event if isinstance(event, str) else json.dumps(event) for event in row["events"]]
    elif row["response"].lstrip()[:1] in ("{", "["):
        return [[row["response"]]]
    else:
        parser = SSEParser()
        events = [data for _, data in parser.feed(row["response"].encode()) + parser.flush()]
    found: list[list[str]] = [[]]
    for event in events:
        found[-1].append(event)
        if '"message_stop"' in event:
            found.append([])
    return [events for events in found if events]


def is_answer(row: dict[str, Any]) -> bool:
    return row["status"] == 200 and not str(row.get("path")).endswith("/count_tokens")


def damaged(events: list[str]) -> bool:
    """Recordings whose JSON was broken when addresses were removed from them."""
    return any("someone@example.com" in event for event in events) and not all(map(is_json, events))


def is_json(event: str) -> bool:
    try:
        json.loads(event)
    except ValueError:
        return False
    return True


def test_all_that_was_recorded() -> None:
    rows = recorded("anthropic_messages")
    answers = [events for row in rows if is_answer(row) for events in streams(row)]
    assert len(answers) > 300
    failed = []
    for events in answers:
        try:
            answer = decode(events)
        except ModelError:
            failed.append(events)
            continue
        assert answer.blocks
        assert all(not block.flaw for block in answer.blocks if isinstance(block, ToolCall))
        assert answer.response_id
    spliced = [events for events in failed if not damaged(events)]
    assert [failure(events).kind for events in failed] == ["protocol"] * 3
    assert len(spliced) == 1  # one message begins in the middle of another
    for row in rows:
        if row["status"] != 200:
            assert failure([row["response"]]).kind in ("not_found", "bad_request")


def plain(value: Any) -> Any:
    """Without fields that say nothing."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if item not in (None, [])}
    return [plain(item) for item in value] if isinstance(value, list) else value


def oracle(events: list[str]) -> Any:
    """The message that the SDK's helper makes of the same events."""
    anthropic = pytest.importorskip("anthropic", reason="the official SDK, to compare with: pip install anthropic")
    from anthropic.lib.streaming._beta_messages import accumulate_event

    if len(events) == 1:
        return anthropic.types.beta.BetaMessage.construct(**json.loads(events[0]))
    snapshot, buffers = None, dict[int, bytes]()
    for event in map(json.loads, events):
        if event["type"] in ("ping",):
            continue
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers, request_headers={})
    return snapshot


def sent_again(answer: Completed) -> list[Any]:
    message = Message("assistant", answer.blocks, origin=MAKER)
    encoder = Encoder("m", origin=MAKER, options={"cache_control": None})
    sent = json.loads(encoder.encode(Request(request_id="r", messages=(user("go"), message, user("on")))))
    return [block for turn in sent["messages"] if turn["role"] == "assistant" for block in turn["content"]]


def undirected(content: list[Any]) -> Any:
    return [
        {key: value for key, value in plain(block).items() if (key, value) != ("caller", {"type": "direct"})}
        for block in content
    ]


def test_the_official_sdk_reads_the_same() -> None:
    """Blocks as they go back, stop reason and usage. `caller: direct` is the default and not sent back."""
    compared = 0
    for row in recorded("anthropic_messages"):
        for events in streams(row) if is_answer(row) else []:
            if not all(map(is_json, events)) or row["source"].endswith("spliced-message-start.chunks.txt"):
                continue
            answer, theirs = decode(events), oracle(events)
            message = plain(json.loads(theirs.to_json()) if hasattr(theirs, "to_json") else theirs)
            if answer.stop_reason != "refused":
                content = [block for block in message["content"] if block["type"] != "text" or block["text"].strip()]
                assert undirected(sent_again(answer)) == undirected(content)
            assert answer.raw_stop_reason == message["stop_reason"]
            usage = message["usage"]
            read, written = usage.get("cache_read_input_tokens", 0), usage.get("cache_creation_input_tokens", 0)
            assert answer.usage.input == usage["input_tokens"] + read + written
            assert (answer.usage.output, answer.usage.cache_read, answer.usage.cache_write) == (
                usage["output_tokens"],
                read,
                written,
            )
            compared += 1
    assert compared > 300


NEWER = ("abort_reason",)
"""Fields of recorded answers that the SDK does not know, neither in answers nor in requests."""


@cache
def hints_of(form: Any) -> dict[str, Any]:
    return get_type_hints(form)


def misfit(value: Any, hint: Any, at: str = "body") -> str | None:
    """Why a value is not what a type of the SDK's parameters says, None where it is. Unknown keys are refused."""
    if get_origin(hint) in (Required, NotRequired, Annotated):
        hint = get_args(hint)[0]
        return misfit(value, hint, at)
    if hint in (Any, object):
        return None
    if hasattr(hint, "__required_keys__"):
        hints = hints_of(hint)
        if not isinstance(value, dict) or value.keys() - hints.keys() or hint.__required_keys__ - value.keys():
            return f"{at}: {value!r:.200} is no {hint.__name__}"
        return next((why for key in value if (why := misfit(value[key], hints[key], f"{at}.{key}"))), None)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        whys = [misfit(value, arg, at) for arg in args]
        return None if None in whys else max(map(str, whys), key=len)
    if origin is Literal:
        return None if value in args else f"{at}: {value!r} is not in {args}"
    if origin is dict:
        return None if isinstance(value, dict) else f"{at}: no object"
    if origin is not None:  # a list, an iterable or a sequence
        if not isinstance(value, list):
            return f"{at}: no list"
        return next((why for item in value if (why := misfit(item, args[0], f"{at}[]"))), None)
    return None if isinstance(value, hint) else f"{at}: {value!r} is no {hint.__name__}"


def test_what_goes_back_is_what_the_official_sdk_may_send() -> None:
    pytest.importorskip("anthropic", reason="the official SDK, to compare with: pip install anthropic")
    from anthropic.types.beta.message_create_params import MessageCreateParamsStreaming

    assert misfit({"model": "m"}, MessageCreateParamsStreaming)
    checked = 0
    for row in recorded("anthropic_messages"):
        for events in streams(row) if is_answer(row) else []:
            try:
                answer = decode(events)
            except ModelError:
                continue
            calls = [block for block in answer.blocks if isinstance(block, ToolCall)]
            results = [Message("tool", (ToolResult(call.id, call.name, "ok"),)) for call in calls]
            history = [user("go"), Message("assistant", answer.blocks, origin=MAKER), *results, user("on")]
            body = Encoder("m", origin=MAKER).encode(
                Request(request_id="r", messages=history, system="s", tools=(ToolSpec("x", "y", {"type": "object"}),))
            )
            known = json.loads(body, object_pairs_hook=lambda pairs: {k: v for k, v in pairs if k not in NEWER})
            why = misfit(known, MessageCreateParamsStreaming)
            assert why is None, why
            checked += 1
    assert checked > 300


# --- anything at all ---------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers(-1, 3) | st.floats() | st.sampled_from(["", "x", "tool_use", "text"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text"]), inner),
    max_leaves=4,
)
kinds = st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "fallback", "x"])
content = values | st.fixed_dictionaries(
    {"type": kinds | values},
    optional=dict.fromkeys(("id", "name", "input", "text", "thinking", "signature", "data", "citations", "to"), values),
)
deltas = values | st.fixed_dictionaries(
    {"type": st.sampled_from(["text_delta", "thinking_delta", "input_json_delta", "signature_delta", "citations_delta",
                              "compaction_delta", "x"])},
    optional={"text": values, "thinking": values, "partial_json": values | st.just('{"a'), "citation": values},
)  # fmt: skip
indexes = st.sampled_from([0, 0, 0, 1, None, "0", [0]])
events = st.one_of(
    values,
    st.fixed_dictionaries({"type": st.just("content_block_start"), "index": indexes, "content_block": content}),
    st.fixed_dictionaries({"type": st.just("content_block_delta"), "index": indexes, "delta": deltas}),
    st.fixed_dictionaries(
        {
            "type": st.just("message_start"),
            "message": values | st.fixed_dictionaries({"id": values, "content": st.lists(content)}),
        }
    ),
    st.fixed_dictionaries({"type": st.just("message_delta"), "delta": values, "usage": values}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["message_delta"]), "delta": st.fixed_dictionaries({"stop_reason": kinds})}
    ),
    st.sampled_from(
        [{"type": "message_stop"}, {"type": "error"}, {"type": "ping"}, {"type": "message", "content": {}}]
    ),
)


@given(st.lists(events.map(json.dumps) | st.text(max_size=8), max_size=8))
@settings(max_examples=400, deadline=None)
def test_whatever_comes_it_is_an_answer_or_a_model_error(stream: list[str]) -> None:
    try:
        *_, last = chunks_of([started(), *stream, {"type": "message_stop"}])
    except ModelError:
        return
    assert isinstance(last, Completed)
    json.dumps(sent_again(last), allow_nan=False).encode()
