"""Recorded answers of the Responses API: each decodes, goes back as it came, and is what the official SDK makes of it.

`openai` is optional here: without it two of these tests skip and say so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Required, Union, get_args, get_origin, get_type_hints

import pytest

from latchstep.core.chunk import Completed
from latchstep.core.message import Message, Provider, Text, Thinking, ToolCall, Usage, user
from latchstep.errors import ModelError
from latchstep.model.base import Request
from latchstep.model.failure import http_failure
from latchstep.model.responses_answer import Decoder
from latchstep.model.responses_request import Encoder
from latchstep.model.sse import SSEParser
from tests.model.vectors import recorded

WHY = "the official SDK is optional: `pip install openai`"

NO_ANSWER = {
    "/input_tokens": "a count of tokens",
    "/compact": "a compaction, asked for at another address",
    "queued": "a background response that has not begun",
    "in_progress": "a background response that is not over",
}
"""Rows that are no model answers, by the end of their path or by their status, and why."""

SDK_FAILS = {
    "Lifecycle response identity changed.": "a stream whose first event has another response id than its last",
    "You exceeded your current quota": "an error event, which is an error here, too",
}
"""What the SDK does not decode, by the beginning of its words; nothing else may differ."""

NOT_TYPED = {"file_search_call": "the SDK's parameters lack `vector_store_id`, which the API puts into its results"}
"""Items that go back as they came although the SDK's types do not know each of their fields."""


def bodies(row: dict[str, Any]) -> Iterator[list[str]]:
    """The events of each response in a row; a whole response is one event. A body may hold several responses."""
    if "events" in row:
        events = list(row["events"])
    elif row["stream"]:
        parser = SSEParser()
        events = [data for _, data in parser.feed(row["response"].encode()) + parser.flush()]
    else:
        yield [row["response"]]
        return
    begins = [at for at, data in enumerate(events) if '"type":"response.created"' in data.replace(": ", ":")[:60]]
    for start, stop in zip(begins or [0], [*begins[1:], len(events)], strict=True):
        yield events[start:stop]


def no_answer(row: dict[str, Any], events: list[str]) -> str:
    """Why this is no model answer, "" where it is one."""
    status = json.loads(events[0]).get("status", "") if len(events) == 1 else ""
    path = row.get("path") or ""
    return next((why for end, why in NO_ANSWER.items() if path.endswith(end) or status == end), "")


def answers() -> Iterator[tuple[dict[str, Any], list[str]]]:
    for row in recorded("openai_responses"):
        if row["status"] == 200:
            yield from ((row, events) for events in bodies(row) if not no_answer(row, events))


def decode(events: list[str], row: dict[str, Any]) -> Completed:
    tools = (row["request"] or {}).get("tools") or []
    decoder = Decoder(tool.get("name", "") for tool in tools)
    for data in events:
        decoder.feed("message" if len(events) > 1 else "", data)
    (last,) = decoder.end()
    assert isinstance(last, Completed)
    return last


def next_request(answer: Completed) -> Any:
    said = Message("assistant", answer.blocks, origin="openai:m")
    return json.loads(Encoder("m", origin="openai:m").encode(Request(request_id="r", messages=(user("go"), said))))


def test_every_row_is_an_answer_an_error_or_listed() -> None:
    rows, decoded, quota, errors, listed = 0, 0, 0, 0, 0
    for row in recorded("openai_responses"):
        rows += 1
        if row["status"] != 200:
            error = http_failure(row["status"], {}, row["response"], "https://host/v1/responses")
            assert error.kind == ("not_found" if "model_not_found" in row["response"] else "bad_request")
            errors += 1
            continue
        for events in bodies(row):
            if no_answer(row, events):
                listed += 1
            elif any('"response.failed"' in data for data in events):
                with pytest.raises(ModelError) as caught:
                    decode(events, row)
                assert (caught.value.kind, caught.value.retryable) == ("quota", False)
                quota += 1
            else:
                answer = decode(events, row)
                assert answer.blocks, row["source"]
                assert all(not block.flaw for block in answer.blocks if isinstance(block, ToolCall)), row["source"]
                assert answer.stop_reason in ("stop", "tool_calls")
                decoded += 1
    assert (rows, errors, quota) == (295, 6, 1)
    assert decoded + errors + quota + listed >= rows
    assert decoded > 270


def test_what_an_answer_is_made_of_goes_back_as_it_came() -> None:
    """Every item of the final output, but for those that must not go back: reasoning that is not encrypted or that
    nothing follows, blank messages, and calls that only the caller's own code could have answered."""
    left_out: Counter[str] = Counter()
    for row, events in answers():
        last = json.loads(events[-1])
        response = last.get("response", last)
        if response["status"] == "failed":
            continue
        output = response["output"]
        sent = [item for item in next_request(decode(events, row))["input"] if item["type"] != "function_call_output"]
        sent = sent[1:]
        encrypted = all(item.get("encrypted_content") for item in output if item["type"] == "reasoning")
        left_out += Counter(item["type"] for item in output) - Counter(item["type"] for item in sent)
        for item in sent:
            assert item.get("id") or not encrypted, row["source"]
        if encrypted and len(output) == len(sent):
            for came, went in zip(output, sent, strict=True):
                assert comparable(went) == comparable(came), row["source"]
    assert left_out == {
        "reasoning": 21,
        "message": 2,
        "tool_search_call": 2,
        "apply_patch_call": 2,
        "custom_tool_call": 1,
        "local_shell_call": 1,
    }


def comparable(item: Any) -> Any:
    """Without log probabilities, which never go back, and with arguments as the object they are."""
    item = json.loads(json.dumps(item))
    for part in item.get("content") or []:
        part.pop("logprobs", None)
    if item["type"] == "function_call":
        item["arguments"] = json.loads(item["arguments"] or "{}")
    return item


# --- the official SDK --------------------------------------------------------------------------------


def sdk_response(openai: Any, events: list[str], stream: bool) -> Any:
    """What the SDK's own helper makes of a body. Raises what it raises."""
    import httpx2

    if stream:
        text = "".join(f"event: {json.loads(data)['type']}\ndata: {data}\n\n" for data in events)
        kind = "text/event-stream"
    else:
        text, kind = events[0], "application/json"
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers={"content-type": kind}, text=text))
    with openai.OpenAI(api_key="k", http_client=httpx2.Client(transport=transport), max_retries=0) as client:
        if not stream:
            return client.responses.create(model="m", input="x")
        with client.responses.stream(model="m", input="x") as streamed:
            return streamed.get_final_response()


def sdk_items(response: Any) -> list[Any]:
    """The SDK's response in our own terms."""
    found: list[Any] = []
    for item in response.output:
        if item.type == "message":
            texts = [part.refusal if part.type == "refusal" else part.text for part in item.content]
            found += [("text", item.id, text) for text in texts if text.strip()]
        elif item.type == "function_call":
            found.append(("call", item.id, item.call_id, item.name, json.loads(item.arguments or "{}")))
        else:
            found.append((item.type, item.to_dict(mode="json", exclude_none=False)))
    return found


def our_items(answer: Completed) -> list[Any]:
    found: list[Any] = []
    for block in answer.blocks:
        opaque: dict[str, Any] = getattr(block, "opaque", None) or {}
        if isinstance(block, Text):
            found.append(("text", opaque["message"]["id"], block.text))
        elif isinstance(block, ToolCall):
            found.append(("call", opaque["id"], block.id, block.name, block.arguments))
        elif isinstance(block, Thinking):
            found.append(("reasoning", opaque))
        elif isinstance(block, Provider):
            found.append((block.data["type"], block.data))
    return found


def test_the_official_sdk_reads_the_same() -> None:
    openai = pytest.importorskip("openai", reason=WHY)
    same, failed = 0, []
    for row, events in answers():
        try:
            response = sdk_response(openai, events, len(events) > 1)
        except Exception as error:
            failed.append(str(error))
            continue
        if response.status == "failed":
            continue
        answer = decode(events, row)
        assert our_items(answer) == sdk_items(response), row["source"]
        assert (answer.response_id, answer.model) == (response.id, response.model)
        assert response.status in ("completed", "complete")
        calls = any(item.type == "function_call" for item in response.output)
        assert answer.stop_reason == ("tool_calls" if calls else "stop")
        usage = response.usage
        into, out = usage.input_tokens_details, usage.output_tokens_details
        written = getattr(into, "cache_write_tokens", None) or 0
        counts = Usage(usage.input_tokens, usage.output_tokens, into.cached_tokens, written, out.reasoning_tokens)
        assert answer.usage == counts
        same += 1
    assert same > 270
    assert len(failed) == 2
    assert all(error.startswith(tuple(SDK_FAILS)) for error in failed)


def test_the_official_sdk_knows_every_field_that_is_sent() -> None:
    pytest.importorskip("openai", reason=WHY)
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming as Params
    from openai.types.responses.response_input_item_param import ResponseInputItemParam

    checked = 0
    for row, events in answers():
        try:
            answer = decode(events, row)
        except ModelError:
            continue
        body = next_request(answer)
        known = []
        for item in body["input"]:
            why = misfit(item, ResponseInputItemParam, item["type"])
            assert not why or ("vector_store_id" in why and item["type"] in NOT_TYPED), (row["source"], why)
            known += [] if why else [item]
        assert not misfit({**body, "input": known}, Params, "body")
        checked += 1
    assert checked > 270
    assert misfit({"model": "m", "stream": True, "odd": 1}, Params, "body") == "body: unknown odd"
    bad = {"model": "m", "stream": True, "input": [{"type": "message", "role": "person", "content": "x"}]}
    assert misfit(bad, Params, "body")


@cache
def hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def misfit(value: Any, kind: Any, where: str) -> str:
    """Why a value is not of a type made of TypedDicts, "" where it is. Unknown keys are refused."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Required:
        return misfit(value, arguments[0], where)
    if kind is Any or kind is object:
        return ""
    if origin in (Union, UnionType):
        whys = [misfit(value, option, where) for option in arguments]
        return "" if "" in whys else next((why for why in whys if why.count(".") > where.count(".")), whys[0])
    if origin is Literal:
        return "" if value in arguments else f"{where}: {value!r} is none of {arguments}"
    if hasattr(kind, "__total__"):  # a TypedDict, of whatever module
        if not isinstance(value, dict):
            return f"{where}: not an object"
        known = hints(kind)
        missing = [key for key, hint in known.items() if get_origin(hint) is Required and key not in value]
        unknown = [key for key in value if key not in known]
        if missing or unknown:
            return f"{where}: unknown {', '.join(unknown)}" if unknown else f"{where}: missing {', '.join(missing)}"
        return next((why for key in value if (why := misfit(value[key], known[key], f"{where}.{key}"))), "")
    if origin is dict:
        return "" if isinstance(value, dict) else f"{where}: not an object"
    if origin is not None and issubclass(origin, Iterable):
        if not isinstance(value, list):
            return f"{where}: not a list"
        return next((why for at, item in enumerate(value) if (why := misfit(item, arguments[0], f"{where}[{at}]"))), "")
    plain = {float: (int, float), NoneType: NoneType}.get(kind, kind)
    fits = isinstance(value, plain) and not (isinstance(value, bool) and kind is not bool)
    return "" if fits else f"{where}: {value!r} is no {kind}"
