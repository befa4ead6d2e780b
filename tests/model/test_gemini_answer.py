"""The Gemini decoder alone: vectors by id, recorded answers against Google's own types, and anything at all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core import assemble
from latchstep.core.arguments import CUT
from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.core.message import Block, Image, Message, Provider, Text, Thinking, ToolCall, ToolResult, Usage, user
from latchstep.errors import ModelError
from latchstep.model.base import ToolSpec
from latchstep.model.failure import body_failure, http_failure, load_body
from latchstep.model.gemini_answer import Decoder, _keys
from latchstep.model.gemini_request import UNSIGNED, Encoder
from tests.model.strict_gemini import SIGNATURE, call, chunk, refusal, text_answer
from tests.model.test_chat_answer import any_event, json_values, recorded_events, shaped
from tests.model.test_chat_request import request
from tests.model.vectors import recorded, vector

SIGNED = {"thoughtSignature": SIGNATURE}


def decode(events: Iterable[Any], known: Iterable[str] = ("echo", "count")) -> list[Chunk]:
    decoder = Decoder(known)
    chunks: list[Chunk] = []
    for event in events:
        chunks += decoder.feed("message", event if isinstance(event, str) else json.dumps(event))
    return chunks + decoder.end()


def completed(events: Iterable[Any]) -> Completed:
    *deltas, last = decode(events)
    assert all(isinstance(delta, Delta) for delta in deltas)
    assert isinstance(last, Completed)
    return last


def answer(*parts: dict[str, Any], finish: str = "STOP") -> tuple[Block, ...]:
    """The blocks of an answer in one chunk; in a chunk for each part they are the same."""
    blocks = completed([chunk(*parts, finish=finish)]).blocks
    assert blocks == completed([*map(chunk, parts), chunk(finish=finish)]).blocks
    return blocks


def failure(events: Iterable[Any]) -> ModelError:
    with pytest.raises(ModelError) as caught:
        decode(events)
    return caught.value


def streamed(*pieces: dict[str, Any]) -> list[dict[str, Any]]:
    """Chunks of one call whose arguments are streamed; each piece is its `functionCall`."""
    return [chunk({"functionCall": piece}) for piece in pieces]


def piece(path: str, more: bool = False, goes_on: bool = True, **value: Any) -> dict[str, Any]:
    return {
        "partialArgs": [{"jsonPath": path, **value, **({"willContinue": True} if more else {})}],
        **({"willContinue": True} if goes_on else {}),
    }


# --- vectors -----------------------------------------------------------------------------------------


def test_b17d_ids() -> None:
    one = call("count", {}, id="g1")
    assert answer(one, one, call("echo", {"text": 1}), call("count", id="")) == (
        ToolCall("g1", "count", opaque={"id": "g1"}),
        ToolCall("g1", "count", opaque={"id": "g1"}),
        ToolCall("", "echo", {"text": 1}),
        ToolCall("", "count"),
    )
    assert answer({"functionCall": {"name": "count", "id": None, "args": None}}) == (ToolCall("", "count"),)


@pytest.mark.parametrize("args", [{}, None, "", " \n", "{}"])
def test_b18_no_arguments(args: Any) -> None:
    part = {"functionCall": {"name": "count", "args": args}}
    assert answer(call("count"), part) == (ToolCall("", "count"),) * 2


@pytest.mark.parametrize("args", [[], "x", 7, True, "[]", [{"a": 1}]])
def test_arguments_that_are_no_object(args: Any) -> None:
    (block,) = answer({"functionCall": {"name": "echo", "args": args}})
    assert isinstance(block, ToolCall)
    assert block.flaw
    assert block.arguments == {}


def test_b22_cut_by_the_limit() -> None:
    whole = completed([chunk(call("echo", {"text": "x"}), finish="MAX_TOKENS")])
    assert (whole.stop_reason, whole.raw_stop_reason) == ("length", "MAX_TOKENS")
    assert whole.blocks == (ToolCall("", "echo", {"text": "x"}),)
    bare = completed([chunk(call("echo"), finish="MAX_TOKENS")])
    assert all(block.flaw.startswith(CUT) for block in bare.blocks if isinstance(block, ToolCall))
    for finish in ("MAX_TOKENS", "STOP"):
        events = streamed({"name": "echo", "willContinue": True}, piece("$.a[0].text", more=True, stringValue="x"))
        cut = completed([*events, chunk(finish=finish)])
        (block,) = cut.blocks
        assert isinstance(block, ToolCall)
        assert block.flaw.startswith(CUT)
        assert (block.arguments, cut.stop_reason, cut.raw_stop_reason) == ({}, "length", finish)


def test_b31_ends_of_the_stream() -> None:
    half = [chunk({"text": "The answer is"}), chunk(call("count", {}))]
    assert failure(half).kind == "protocol"
    assert "middle" in failure(half).message
    assert failure([]).kind == "protocol"
    assert failure([chunk({"text": ""}, finish="FINISH_REASON_UNSPECIFIED")]).kind == "protocol"
    assert completed([*half, chunk(finish="STOP"), "[DONE]"]).blocks == (
        Text("The answer is"),
        ToolCall("", "count"),
    )


def rpc(code: int, status: str, message: str = "x", *details: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


QUOTA = "type.googleapis.com/google.rpc.QuotaFailure"
MINUTE = {"quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "quotaValue": "5"}
DAY = {"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier", "quotaValue": "250"}
RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}
NO_KEY = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
ERRORS: list[tuple[dict[str, Any], str, float | None]] = [
    (rpc(429, "RESOURCE_EXHAUSTED", "quota", {"@type": QUOTA, "violations": [MINUTE]}, RETRY), "rate_limited", 34.07),
    (rpc(429, "RESOURCE_EXHAUSTED", "quota", {"@type": QUOTA, "violations": [MINUTE, DAY]}, RETRY), "quota", 34.07),
    (rpc(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota)."), "rate_limited", None),
    (rpc(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", NO_KEY), "auth", None),
    (rpc(400, "INVALID_ARGUMENT", "Please ensure that the number of function response parts …"), "bad_request", None),
    (rpc(400, "INVALID_ARGUMENT", "The input token count (1200000) exceeds the maximum number of tokens allowed"
                                  " (1048576)."), "context_overflow", None),
    (rpc(400, "INVALID_ARGUMENT", "Request payload size exceeds the limit: 20971520 bytes."), "context_overflow", None),
    (rpc(400, "FAILED_PRECONDITION", "User location is not supported for the API use."), "permission", None),
    (rpc(401, "UNAUTHENTICATED"), "auth", None),
    (rpc(403, "PERMISSION_DENIED"), "permission", None),
    (rpc(404, "NOT_FOUND"), "not_found", None),
    (rpc(499, "CANCELLED"), "server", None),
    (rpc(500, "INTERNAL"), "server", None),
    (rpc(503, "UNAVAILABLE", "The model is overloaded. Please try again later."), "overloaded", None),
    (rpc(504, "DEADLINE_EXCEEDED"), "timeout", None),
]  # fmt: skip


@pytest.mark.parametrize(("body", "kind", "wait"), ERRORS)
def test_b33_b45_errors_before_and_within_the_stream(body: dict[str, Any], kind: str, wait: float | None) -> None:
    status = body["error"]["code"]
    for shape in (body, [body]):
        before = http_failure(status, {}, json.dumps(shape), "https://host/v1beta/models/m")
        within = failure([chunk({"text": "Par"}), shape])
        for error in (before, within):
            assert (error.kind, error.status, error.retry_after) == (kind, status, wait)
            assert error.message.startswith(body["error"]["message"][:60])
    assert http_failure(status, {"retry-after": "2"}, json.dumps(body), "u").retry_after == 2


def test_b45_other_wordings() -> None:
    for case in vector("B45", "json"):
        if case["status"] != 200:
            assert body_failure(case["body"], status=case["status"]).kind == "context_overflow"
    for case in vector("B45", "json", 1):
        assert body_failure(case["body"], status=case["status"]).kind != "context_overflow"


@pytest.mark.parametrize(
    "details", [7, [7], {}, [{"reason": 7, "violations": 7, "retryDelay": 7}], [{"retryDelay": "xs"}]]
)
def test_odd_error_details(details: Any) -> None:
    error = body_failure({"error": {"code": 429, "message": "x", "details": details}})
    assert (error.kind, error.retry_after) == ("rate_limited", None)


# --- parts -------------------------------------------------------------------------------------------


def test_signed_parts_are_kept_apart() -> None:
    assert answer(
        {"text": "why ", "thought": True},
        {"text": "not", "thought": True},
        {"text": "!", "thought": True, **SIGNED},
        {"text": "a"},
        {"videoMetadata": {}, "text": "b"},
        {"text": "c", **SIGNED},
        {"text": "d", "thoughtSignature": "second"},
        {"text": "e"},
        {"text": ""},
        {"text": "f", "thoughtSignature": ""},
        {"text": "", **SIGNED},
        SIGNED,
        call("count", {}, signature=SIGNATURE),
        call("count", {}),
    ) == (
        Thinking("why not"),
        Thinking("!", SIGNED),
        Text("ab"),
        Text("c", SIGNED),
        Text("d", {"thoughtSignature": "second"}),
        Text("ef"),
        Text("", SIGNED),
        Text("", SIGNED),
        ToolCall("", "count", opaque=SIGNED),
        ToolCall("", "count"),
    )


def test_other_parts_keep_their_place() -> None:
    code = {"executableCode": {"code": "print(1)", "language": "PYTHON"}, **SIGNED}
    ran = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}
    picture = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    sound = {"inlineData": {"mimeType": "audio/wav", "data": "aGk="}}
    file = {"fileData": {"fileUri": "https://host/x", "mimeType": "image/png"}}
    new = {"thought": True, "text": "", "newThing": {"n": 1}}
    odd = [{"inlineData": "x"}, {"inlineData": {"mimeType": "image/png"}}, {"inlineData": {"data": "aGk="}}]
    assert answer({"text": "a"}, code, ran, picture, sound, {**picture, **SIGNED}, file, new, *odd, {"text": "b"}) == (
        Text("a"),
        Provider("gemini.executableCode", code),
        Provider("gemini.codeExecutionResult", ran),
        Image("image/png", "aGk="),
        Provider("gemini.inlineData", sound),
        Provider("gemini.inlineData", {**picture, **SIGNED}),
        Provider("gemini.fileData", file),
        Provider("gemini.newThing", new),
        *(Provider("gemini.inlineData", part) for part in odd),
        Text("b"),
    )


def test_streamed_arguments() -> None:
    events = [
        chunk({"functionCall": {"name": "echo", "id": "g", "willContinue": True}}),
        *streamed(
            piece("$.text", more=True, stringValue="Bo"),
            piece("$.text", more=True, stringValue="st"),
            piece("$.text", stringValue="on"),
            piece("$.list[0].n", numberValue=0.5),
            piece("$.list[0]['a.b']", boolValue=True),
            {"willContinue": True},
            piece('$["list"][1]["it\\"s"]', nullValue="NULL_VALUE"),
            piece("$.again", stringValue="x"),
            piece("$.again", stringValue="y"),
            {},
        ),
        chunk({"functionCall": {}, "thoughtSignature": SIGNATURE}),
        *streamed(
            {"name": "count", "willContinue": True},
            {"name": "count", "willContinue": True},
            piece("$.n", goes_on=False, numberValue=1),
            {"name": "echo", "willContinue": True},
        ),
        chunk(finish="STOP"),
    ]
    expected = {"text": "Boston", "list": [{"n": 0.5, "a.b": True}, {'it"s': None}], "again": "y"}
    assert completed(events).blocks == (
        ToolCall("g", "echo", expected, opaque={"id": "g", **SIGNED}),
        ToolCall("", "count"),
        ToolCall("", "count", {"n": 1}),
        ToolCall("", "echo"),
    )
    pieces = [delta.piece for delta in decode(events) if isinstance(delta, Delta) and delta.call_id == "g"]
    assert json.loads("".join(pieces)) == expected


@pytest.mark.parametrize(
    "paths",
    [["$"], [""], ["x"], ["$.a[1]"], ["$.a[*]"], ["$..a"], ["$.a", "$.a.b"], ["$[0]"], ["$.a[0]", "$.a.b"],
     ["$.a[999999999]"], ["$" + ".a" * 70], ["$['a\\u0062']"], ["$.a["], ["$['a"]],
)  # fmt: skip
def test_pieces_without_a_place_are_a_flaw(paths: list[str]) -> None:
    events = streamed({"name": "echo", "willContinue": True}, *(piece(path, stringValue="x") for path in paths), {})
    done = completed([*events, chunk(finish="STOP")])
    (block,) = done.blocks
    assert isinstance(block, ToolCall)
    assert "no place" in block.flaw
    assert (block.arguments, done.stop_reason) == ({}, "stop")


def test_a_streamed_value_is_a_scalar() -> None:
    events = streamed({"name": "echo", "willContinue": True}, piece("$.a", numberValue={"b": 1}), {})
    (block,) = completed([*events, chunk(finish="STOP")]).blocks
    assert isinstance(block, ToolCall)
    assert "no place" in block.flaw


def test_json_paths() -> None:
    assert _keys("$.a-b.c d[0]['x\\'y'][\"]\"]") == ["a-b", "c d", 0, "x'y", "]"]


# --- ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason", ["SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE", "OTHER", "safety", "NEW"]
)
def test_whatever_is_no_good_end_is_filtered(reason: str) -> None:
    done = completed([chunk({"text": "a"}), chunk(call("count", {}), finish=reason), chunk(finish="STOP")])
    assert (done.stop_reason, done.raw_stop_reason) == ("filtered", reason)
    blocked = completed([{"promptFeedback": {"blockReason": reason}, "usageMetadata": {"promptTokenCount": 4}}])
    assert blocked == Completed(blocks=(), stop_reason="filtered", raw_stop_reason=reason, usage=Usage(4))


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("MALFORMED_FUNCTION_CALL", "protocol"),
        ("UNEXPECTED_TOOL_CALL", "protocol"),
        ("TOO_MANY_TOOL_CALLS", "protocol"),
        ("MALFORMED_RESPONSE", "protocol"),
        ("MISSING_THOUGHT_SIGNATURE", "bad_request"),
    ],
)
def test_calls_that_the_server_could_not_read_fail_the_attempt(reason: str, kind: str) -> None:
    event = chunk(call("count", {}), finish=reason)
    event["candidates"][0]["finishMessage"] = "Malformed function call:\nprint(default_api.x"
    error = failure([event])
    assert error.kind == kind
    assert error.message == f"the server ended the answer: {reason}: Malformed function call: print(default_api.x"


def test_other_candidates_are_not_read() -> None:
    def candidate(text: str, **fields: Any) -> dict[str, Any]:
        return {"content": {"parts": [{"text": text}]}, **fields}

    events = [
        {"candidates": [candidate("a"), candidate("x")]},
        {"candidates": [candidate("x", index=1), candidate("b", index=0)]},
        {"candidates": [candidate("x", index=1, finishReason="SAFETY")]},
        {"candidates": [candidate("c", index=None, finishReason="STOP")]},
    ]
    assert completed(events).blocks == (Text("abc"),)


def test_usage_merges_field_by_field() -> None:
    done = completed(
        [
            chunk({"text": "x"}, usageMetadata={"promptTokenCount": 9, "cachedContentTokenCount": 4}),
            chunk(usageMetadata={"promptTokenCount": 10, "candidatesTokenCount": 2, "toolUsePromptTokenCount": 100}),
            chunk(usageMetadata={"candidatesTokenCount": 5, "thoughtsTokenCount": 7, "totalTokenCount": 122}),
            chunk(usageMetadata={"candidatesTokenCount": -1, "thoughtsTokenCount": "8", "promptTokenCount": None}),
            chunk(usageMetadata=7, finish="STOP"),
        ]
    )
    assert done.usage == Usage(110, 12, 4, 0, 7)
    assert (done.response_id, done.model) == ("r1", "gemini-x")


@pytest.mark.parametrize("shape", [lambda events: events, lambda events: [events], lambda events: events[::-1][:1]])
def test_a_whole_answer_that_was_not_streamed(shape: Any) -> None:
    assert completed(shape([chunk({"text": "hello"}, finish="STOP")])).blocks == (Text("hello"),)
    assert completed([json.dumps(text_answer("hello"), indent=1)]).usage == Usage(3, 2)


def test_odd_events_are_survived() -> None:
    odd: list[Any] = [
        "7", "null", "[]", "{}", "[DONE]", {"candidates": None}, {"candidates": [None, 7, {}]}, {"promptFeedback": 7},
        {"candidates": [{"content": None}]}, {"candidates": [{"content": {"parts": [None, 7, {}]}}]},
        chunk({"functionCall": {}}), chunk({"functionCall": None}), chunk({"thought": True}), chunk({"text": None}),
        chunk({"partMetadata": {}}), chunk({"executableCode": float("nan")}),
        '{"candidates":[{"content":{"parts":[{"text":"\\ud83e\\u0000"}]}}]}',
    ]  # fmt: skip
    assert completed([*odd, chunk(finish="STOP")]).blocks == (Text("\ufffd␀"),)
    assert failure(["<html>"]).kind == "protocol"
    assert failure(["[" * 100_000]).kind == "protocol"


def test_deep_arguments() -> None:
    """However close to the interpreter's own limit the nesting comes, it is a flaw or an event that is not JSON."""
    text = '{"candidates":[{"content":{"parts":[{"functionCall":{"name":"echo","args":%s}}]},"finishReason":"STOP"}]}'
    for depth in (200, *range(700, 1_050), 100_000):
        for opens, closes in (('{"a":', "}"), ("[", "]")):
            try:
                (block,) = completed([text % (opens * depth + "1" + closes * depth)]).blocks
            except ModelError:
                continue
            assert isinstance(block, ToolCall)
            assert block.flaw


def test_only_content_is_a_delta() -> None:
    """Whatever is a delta counts as progress, so an empty part must not be one."""
    parts = ({"text": "", **SIGNED}, {"text": "", "thought": True}, {"executableCode": {}}, {"functionCall": {}})
    assert decode([*map(chunk, parts), chunk({"text": "a"}, finish="STOP")])[:-1] == [Delta("text", "a")]


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [chunk(*[call("count", {})] * (assemble.MAX_CALLS + 1), finish="STOP")]
    assert "MAX_CALLS" in failure(many).message
    monkeypatch.setattr(assemble, "MAX_ANSWER", 10_000)
    for part in (
        {"text": "x" * 6_000},
        {"text": "", "thoughtSignature": "x" * 6_000},
        call("echo", {"a": "x" * 6_000}),
    ):
        assert "MAX_ANSWER" in failure([chunk(part), chunk(part)]).message
    start, more = streamed({"name": "echo", "willContinue": True}, piece("$.a", more=True, stringValue="x" * 600))
    assert "MAX_ANSWER" in failure([start, *[more] * 20]).message


# --- recorded answers --------------------------------------------------------------------------------

NO_ANSWERS = {
    "test_model_name_suggestion[google]": "an error (404)",
    "google-live-speech-translation": "events of the Live API, over a web socket",
}


def recorded_answers() -> list[tuple[dict[str, Any], list[Any]]]:
    """(row, its decoded events) of every row that is a model's answer."""
    rows = recorded("gemini")
    found = [row for row in rows if not any(name in row["source"] for name in NO_ANSWERS)]
    assert len(rows) - len(found) == len(NO_ANSWERS)
    return [(row, [json.loads(event) for event in recorded_events(row)]) for row in found]


def test_recorded_answers_decode_and_can_be_sent_back() -> None:
    """Every signed part comes back as it was; the whole body is one that the strict server takes."""
    answers = recorded_answers()
    assert len(answers) > 250
    signed = 0
    for row, events in answers:
        done = completed(events)
        calls = [block for block in done.blocks if isinstance(block, ToolCall)]
        assert not any(block.flaw for block in calls), row["source"]
        assert len(done.blocks) > 0 or done.stop_reason == "length", row["source"]
        body = sent_back(done)
        assert refusal(body) is None, row["source"]
        sent = [part for content in json.loads(body)["contents"] for part in content["parts"]]
        came = [part for event in events for part in event["candidates"][0]["content"].get("parts", ())]
        streams = "willContinue" in str(came)
        was, now = (
            [bare(part, streams) for part in parts if part.get("thoughtSignature", UNSIGNED) != UNSIGNED]
            for parts in (came, sent)
        )
        assert now == was, row["source"]
        signed += len(was)
    assert signed > 150


def sent_back(done: Completed) -> bytes:
    """The body of the request after this answer, with a result for each call."""
    results = [
        Message("tool", (ToolResult(block.id, block.name, "ok"),))
        for block in done.blocks
        if isinstance(block, ToolCall)
    ]
    said = Message("assistant", done.blocks, origin="gemini:m")
    tools = (ToolSpec("echo", "Say it.", {"type": "object", "properties": {}}),)
    history = request([user("go"), said, *results, user("on")], system="s", tools=tools, options={"temperature": 1})
    return Encoder(origin="gemini:m").encode(history)


def bare(part: dict[str, Any], streams: bool) -> dict[str, Any]:
    """The part, without a call's arguments where there are none or they are streamed."""
    if "functionCall" not in part:
        return part
    kept = {key: value for key, value in part["functionCall"].items() if key in ("id", "name", "args")}
    if streams or not kept.get("args"):
        kept.pop("args", None)
    return {**part, "functionCall": kept}


def test_recorded_answers_against_googles_own_types() -> None:
    """Text, thoughts, calls and usage are those of the SDK's types, and so is the body that sends an answer back.

    Known differences: the types do not put streamed arguments together, and one answer whose last count leaves out
    a field that an earlier one had.
    """
    types = pytest.importorskip("google.genai.types", reason="google-genai is not installed (pip install google-genai)")
    differing: Counter[str] = Counter()
    for row, events in recorded_answers():
        for event in events:
            event.get("usageMetadata", {}).pop("serviceTier", None)  # newer than the types
        responses = [types.GenerateContentResponse.model_validate(event) for event in events]
        done = completed(events)
        parts = [part for one in responses for part in one.candidates[0].content.parts or ()]
        calls = [(part.function_call.name, part.function_call.args or {}) for part in parts if part.function_call]
        ours = [(block.name, block.arguments) for block in done.blocks if isinstance(block, ToolCall)]
        assert "".join(part.text or "" for part in parts if not part.thought) == "".join(
            block.text for block in done.blocks if isinstance(block, Text)
        ), row["source"]
        assert "".join(part.text or "" for part in parts if part.thought) == "".join(
            block.text for block in done.blocks if isinstance(block, Thinking)
        ), row["source"]
        if ours != calls:
            assert any("partialArgs" in str(event) for event in events), row["source"]
            differing["streamed arguments"] += 1
        last = responses[-1].usage_metadata
        thoughts = last.thoughts_token_count or 0
        if done.usage != Usage(
            (last.prompt_token_count or 0) + (last.tool_use_prompt_token_count or 0),
            (last.candidates_token_count or 0) + thoughts,
            last.cached_content_token_count or 0,
            0,
            thoughts,
        ):
            differing["usage"] += 1
        body = json.loads(sent_back(done))
        for content in (*body["contents"], body["systemInstruction"]):
            types.Content.model_validate(content)
        for tool in body["tools"]:
            types.Tool.model_validate(tool)
        types.GenerationConfig.model_validate(body["generationConfig"])
    assert differing == {"streamed arguments": 3, "usage": 1}


def test_the_recorded_error() -> None:
    (row,) = (row for row in recorded("gemini") if row["status"] != 200)
    error = http_failure(row["status"], {}, row["response"], "https://host/v1beta/models/m")
    assert (error.kind, error.status) == ("not_found", 404)


# --- anything at all ---------------------------------------------------------------------------------

string = st.text(max_size=3)
partial = shaped(
    jsonPath=st.sampled_from(["$.a", "$.a[0]", "$.a[1].b", "$.b", "$", "$['a']", "$.a.b"]),
    stringValue=string,
    numberValue=st.integers(),
    boolValue=st.booleans(),
    willContinue=st.booleans(),
)
function = shaped(
    name=st.sampled_from(["echo", "count", ""]),
    id=st.sampled_from(["", "a", "b"]),
    args=st.dictionaries(string, st.integers(), max_size=2),
    partialArgs=st.lists(partial, max_size=3),
    willContinue=st.booleans(),
)
part = shaped(
    text=string,
    thought=st.booleans(),
    thoughtSignature=st.sampled_from(["", SIGNATURE, "x\ud83d"]),
    functionCall=function,
    inlineData=shaped(mimeType=st.sampled_from(["image/png", "x"]), data=string),
    executableCode=json_values,
)
finish = st.sampled_from(["STOP", "STOP", "MAX_TOKENS", "SAFETY", "MALFORMED_FUNCTION_CALL", ""])
candidate = shaped(
    index=st.sampled_from([0, 0, 1]), content=shaped(parts=st.lists(part, max_size=3)), finishReason=finish
)
usage = shaped(promptTokenCount=st.integers(), candidatesTokenCount=st.floats(), thoughtsTokenCount=st.integers(0, 9))
gemini_event = shaped(
    candidates=st.lists(candidate, max_size=2),
    usageMetadata=usage,
    promptFeedback=shaped(blockReason=st.just("SAFETY")),
    responseId=string,
)


@given(st.lists(gemini_event | gemini_event | any_event | json_values | st.text(max_size=8), max_size=6), st.booleans())
@settings(max_examples=400, deadline=None)
def test_nothing_but_a_model_error(events: list[Any], ended: bool) -> None:
    try:
        *_, last = decode([*events, chunk(finish="STOP")] if ended else events)
    except ModelError as error:
        error.message.encode()
        return
    assert isinstance(last, Completed)
    msgspec.json.encode(last)  # clean enough for a journal
    if any(isinstance(block, ToolCall) and block.flaw.startswith(CUT) for block in last.blocks):
        assert last.stop_reason != "stop"
    signatures = all(
        not (getattr(block, "opaque", None) or {}).get("thoughtSignature", "").startswith("x") for block in last.blocks
    )
    if signatures and not any(isinstance(block, Provider | Image) for block in last.blocks):
        assert refusal(sent_back(last)) is None


@given(json_values, st.sampled_from([None, 400, 429, 500]))
@settings(max_examples=100, deadline=None)
def test_any_error_detail_is_classified(details: Any, status: int | None) -> None:
    error = body_failure(load_body(json.dumps([{"error": {"message": "x", "details": [details]}}])), status=status)
    error.message.encode()
