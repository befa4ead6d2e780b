"""A loopback Responses server that is as strict as the real one, for tests.

    with strict([answer(text("hello")), ...]) as server:
        ... server.url ... server.requests ... server.refused ...

It refuses, with a 400, what the API refuses with `store: false`: items it never issued or that do not carry
everything, reasoning without what must follow it, results without a call, calls without a result, unknown fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tests.model.strict_chat import (
    ID,
    NAME,
    Refused,
    Script,
    StrictChat,
    _no_constant,
    _refuse_if,
    _strict_strings,
    held_schema,
)

FIELDS = {
    "model", "instructions", "input", "tools", "stream", "store", "include", "max_output_tokens", "temperature",
    "reasoning", "text", "tool_choice", "parallel_tool_calls", "prompt_cache_key", "service_tier", "metadata", "top_p",
}  # fmt: skip
INCLUDABLE = {"reasoning.encrypted_content", "web_search_call.action.sources", "message.output_text.logprobs"}
ITEMS = {  # type: (fields it must have, fields it may have)
    "message": ({"role", "content"}, {"type", "id", "status", "phase"}),
    "function_call": ({"type", "call_id", "name", "arguments"}, {"id", "status", "namespace", "caller"}),
    "function_call_output": ({"type", "call_id", "output"}, {"id", "status", "caller"}),
    "reasoning": ({"type", "id", "summary", "encrypted_content"}, {"content", "status"}),
    "web_search_call": ({"type", "id", "status"}, {"action"}),
    "program": ({"type", "id", "call_id", "code", "fingerprint"}, set()),
    "custom_tool_call": ({"type", "call_id", "name", "input"}, {"id", "status"}),
}
PARTS = {
    "input_text": ({"type", "text"}, set()),
    "input_image": ({"type", "image_url"}, {"detail"}),
    "output_text": ({"type", "text", "annotations"}, set()),
    "refusal": ({"type", "refusal"}, set()),
}
TURN = {"message", "function_call", "reasoning", "web_search_call", "program"}  # what a model says


# --- answers -----------------------------------------------------------------------------------------


def text(words: str, id: str = "msg_1", **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": words, "annotations": [], "logprobs": []}
    return {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": [part], **more}


def call(id: str, name: str = "echo", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    fields = {"call_id": id, "name": name, "arguments": arguments, "status": "completed"}
    return {"type": "function_call", "id": f"fc_{id}", **fields, **more}


def reasoning(id: str = "rs_1", encrypted: str | None = "gAAA", *summary: str) -> dict[str, Any]:
    parts = [{"type": "summary_text", "text": words} for words in summary]
    return {"type": "reasoning", "id": id, "summary": parts, "encrypted_content": encrypted}


def answer(*items: dict[str, Any], **response: Any) -> list[Any]:
    """The events of an answer that is made of these items."""
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    whole = {"id": "resp_1", "object": "response", "model": "m", "status": "completed", "output": list(items)}
    events: list[Any] = [{"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}]
    for at, item in enumerate(items):
        events.append({"type": "response.output_item.added", "output_index": at, "item": _begun(item)})
        where = {"output_index": at, "item_id": item.get("id")}
        for part in item["content"] if item["type"] == "message" else []:
            kind = "refusal" if part["type"] == "refusal" else "output_text"
            delta = part.get("text") or part.get("refusal")
            events.append({"type": f"response.{kind}.delta", "content_index": 0, "delta": delta, **where})
        if item["type"] == "function_call" and isinstance(item["arguments"], str):
            events.append({"type": "response.function_call_arguments.delta", "delta": item["arguments"], **where})
        events.append({"type": "response.output_item.done", "output_index": at, "item": item})
    final = {**whole, "usage": usage, **response}
    return [*events, {"type": f"response.{final['status']}", "response": final}]


def _begun(item: dict[str, Any]) -> dict[str, Any]:
    empty = {"message": {"content": []}, "function_call": {"arguments": ""}}.get(item["type"], {})
    return {**item, **empty, "status": "in_progress"}


# --- requests ----------------------------------------------------------------------------------------


def refusal(body: bytes, issued: dict[str, list[dict[str, Any]]] | None = None) -> str | None:
    """Why the API refuses this body, None where it accepts it. `issued`: by id, the turns in which it sent an item."""
    try:
        request = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except ValueError as error:
        return f"the body is not strict JSON: {error}"
    try:
        _strict_strings(request)
        _head(request)
        items = request.get("input")
        _refuse_if(not isinstance(items, list) or not items, "[] is too short - 'input'")
        for at, item in enumerate(items):
            _item(at, item)
        _pairs(items)
        _order(items)
        if issued is not None:
            _origin(items, issued)
    except Refused as why:
        return str(why)
    return None


def _head(request: dict[str, Any]) -> None:
    unknown = set(request) - FIELDS
    _refuse_if(bool(unknown), f"Unknown parameter: {sorted(unknown)}")
    _refuse_if(not isinstance(request.get("model"), str) or not request["model"], "you must provide a model parameter")
    _refuse_if(request.get("store") is not False, "this test wants store: false")
    include = request.get("include", [])
    _refuse_if(not set(include) <= INCLUDABLE, f"unknown include {include}")
    encrypted = "reasoning.encrypted_content" in include
    _refuse_if(encrypted and "gpt-4" in request["model"], "Encrypted content is not supported with this model.")
    _refuse_if(not request.get("instructions", "x").strip(), "blank instructions")
    _refuse_if("tools" in request and not request["tools"], "[] is too short - 'tools'")
    if "format" in request.get("text", {}):
        held = dict(request["text"]["format"])
        _refuse_if(held.pop("type", None) != "json_schema", "text.format.type")
        held_schema(held)
    for tool in request.get("tools", []):
        _refuse_if(set(tool) != {"type", "name", "description", "parameters", "strict"}, f"tool fields {sorted(tool)}")
        _refuse_if(tool["type"] != "function" or not NAME.fullmatch(tool["name"]), f"illegal tool {tool['name']!r}")
        _refuse_if(tool["parameters"].get("type") != "object", "parameters must be of type object")
        _refuse_if(tool["strict"] is not False, "strict is true where it is not said, and then the schema is refused")


def _fields(where: str, value: Any, known: dict[str, tuple[set[str], set[str]]]) -> str:
    _refuse_if(not isinstance(value, dict), f"{where} is not an object")
    kind = value.get("type", "message")
    _refuse_if(kind not in known, f"Invalid value: {kind!r} at {where}")
    needed, allowed = known[kind]
    _refuse_if(not needed <= set(value), f"Missing required parameter: {where}: {sorted(needed - set(value))}")
    unknown = set(value) - needed - allowed
    _refuse_if(bool(unknown), f"Unknown parameter: {where}: {sorted(unknown)}")
    return str(kind)


def _item(at: int, item: Any) -> None:
    where = f"input[{at}]"
    kind = _fields(where, item, ITEMS)
    if kind == "message":
        _refuse_if(item["role"] not in ("user", "assistant", "system", "developer"), f"{where}: unknown role")
        side = "output" if item["role"] == "assistant" else "input"
        _content(where, item["content"], side)
        if "id" in item:
            _refuse_if(not item["id"].startswith("msg"), f"{where}: expected an id that begins with 'msg'")
            _refuse_if(isinstance(item["content"], str) or "status" not in item, f"{where}: half an output message")
    elif kind == "function_call":
        _refuse_if(not item.get("id", "fc").startswith("fc"), f"{where}: expected an id that begins with 'fc'")
        _refuse_if(not NAME.fullmatch(item["name"]), f"{where}: illegal function name {item['name']!r}")
        _refuse_if(not isinstance(item["arguments"], str), f"{where}: arguments must be a string")
        try:
            _refuse_if(not isinstance(json.loads(item["arguments"]), dict), f"{where}: arguments are not an object")
        except ValueError as error:
            raise Refused(f"{where}: arguments are not JSON: {error}") from None
    elif kind == "function_call_output":
        _content(where, item["output"], "input")
    elif kind == "reasoning":
        missing = not isinstance(item["encrypted_content"], str) or not item["encrypted_content"]
        _refuse_if(missing, f"Item with id {item['id']!r} not found. Items are not persisted when `store` is false.")
    if "call_id" in item:
        _refuse_if(not ID.fullmatch(str(item["call_id"])), f"{where}: illegal call id {item['call_id']!r}")


def _content(where: str, content: Any, side: str) -> None:
    if isinstance(content, str):
        _refuse_if(not content.strip(), f"{where}: blank content")
        return
    _refuse_if(not isinstance(content, list) or not content, f"{where}: empty content")
    for part in content:
        kind = _fields(where, part, PARTS)
        _refuse_if(kind.startswith("input") != (side == "input"), f"{where}: {kind} in {side}")
        _refuse_if(not part.get("text", "x").strip() or not part.get("refusal", "x").strip(), f"{where}: blank part")
        _refuse_if(not part.get("image_url", "data:image/").startswith("data:image/"), f"{where}: not an image")


def _pairs(items: list[Any]) -> None:
    """Each call has exactly one result, at once after the turn and in call order."""
    waiting: list[str] = []
    seen: set[str] = set()
    ids: set[str] = set()
    for item in items:
        if "id" in item:
            _refuse_if(item["id"] in ids, f"Duplicate item found with id {item['id']}")
            ids.add(item["id"])
        if item.get("type") == "function_call":
            _refuse_if(item["call_id"] in seen, f"duplicate call_id {item['call_id']!r}")
            seen.add(item["call_id"])
            waiting.append(item["call_id"])
        elif item.get("type") == "function_call_output":
            _refuse_if(item["call_id"] not in seen, f"No tool call found for call_id {item['call_id']!r}.")
            _refuse_if(not waiting or item["call_id"] != waiting[0], f"result of {item['call_id']!r} out of order")
            waiting.pop(0)
        elif item.get("type") == "custom_tool_call":
            raise Refused(f"No tool output found for custom tool call {item['call_id']}.")
        elif item.get("role") == "user":
            _refuse_if(bool(waiting), f"No tool output found for function call {waiting}.")
    _refuse_if(bool(waiting), f"No tool output found for function call {waiting}.")


def _order(items: list[Any]) -> None:
    for item, follower in zip(items, [*items[1:], {}], strict=True):
        if item.get("type") == "reasoning":
            follows = follower.get("type") in TURN and follower.get("role") != "user"
            why = f"Item {item['id']!r} of type 'reasoning' was provided without its required following item."
            _refuse_if(not follows, why)


def _origin(items: list[Any], issued: dict[str, list[dict[str, Any]]]) -> None:
    ids = {item["id"] for item in items if "id" in item}
    for item in items:
        if "id" not in item:
            continue
        turn = issued.get(item["id"])
        _refuse_if(turn is None, f"Item with id {item['id']!r} not found.")
        assert turn is not None
        at = next(at for at, other in enumerate(turn) if other.get("id") == item["id"])
        for other in turn[:at]:
            why = f"Item {item['id']!r} was provided without its required 'reasoning' item: {other.get('id')!r}."
            _refuse_if(other["type"] == "reasoning" and other["id"] not in ids, why)
        if item["type"] == "reasoning":
            _refuse_if(item != turn[at], f"Item {item['id']!r}: the encrypted content could not be verified")


def strict(scripts: Sequence[Script], *, strict: bool = True, tls: Any = None) -> StrictChat:
    """The server. It knows the items of its scripts, and no others."""
    issued: dict[str, list[dict[str, Any]]] = {}
    for script in scripts:
        for event in script if isinstance(script, list) else []:
            if isinstance(event, dict) and event.get("type") in ("response.completed", "response.incomplete"):
                turn = event["response"].get("output") or []
                issued.update({item["id"]: turn for item in turn if "id" in item})
    check: Callable[[bytes], str | None] = lambda body: refusal(body, issued)  # noqa: E731
    return StrictChat(scripts, strict=strict, tls=tls, check=check)
