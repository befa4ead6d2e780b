"""A loopback Messages server that is as strict as Anthropic's, for tests. Scripts are those of `StrictChat`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from tests.model.strict_chat import Refused, Script, StrictChat, _no_constant, _refuse_if, _strict_strings

ID = re.compile(r"[a-zA-Z0-9_-]+")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
MAX_MARKS = 4
THOUGHT = ("thinking", "redacted_thinking")
PLAIN = (*THOUGHT, "text", "image", "document", "tool_use", "tool_result")


def strict_anthropic(scripts: Sequence[Script] = (), **options: Any) -> StrictChat:
    """The server. Its events are named, as Anthropic's are."""
    return StrictChat([_named(script) for script in scripts], check=refusal, **options)


def _named(script: Script) -> Script:
    if isinstance(script, str | bytes) or (script and str(script[0]).startswith("#STATUS")):
        return script
    return [f"{json.dumps(event)}\nevent: {event['type']}" if isinstance(event, dict) else event for event in script]


def sign(thinking: str) -> str:
    """A signature that the server takes for this text and for no other."""
    return hashlib.sha256(thinking.encode()).hexdigest()


def started(**message: Any) -> dict[str, Any]:
    base = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    return {"type": "message_start", "message": {**base, "usage": {"input_tokens": 3, "output_tokens": 1}, **message}}


def block_events(at: int, block: dict[str, Any]) -> list[dict[str, Any]]:
    """The events that stream one block."""
    kind, deltas, start = block["type"], [], block
    if kind == "text":
        start, deltas = (
            {**block, "text": ""},
            [{"type": "text_delta", "text": piece} for piece in halves(block["text"])],
        )
    elif kind == "thinking":
        start = {"type": kind, "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in halves(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif "input" in block:
        start = {**block, "input": {}}
        text = json.dumps(block["input"]) if block["input"] else ""
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in halves(text)]
    return [
        {"type": "content_block_start", "index": at, "content_block": start},
        *({"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": at},
    ]


def halves(text: str) -> list[str]:
    return [piece for piece in (text[: len(text) // 2], text[len(text) // 2 :]) if piece]


def ended(stop: str | None, **usage: int) -> list[dict[str, Any]]:
    delta = {"stop_reason": stop, "stop_sequence": None}
    return [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5, **usage}},
        {"type": "message_stop"},
    ]


def streamed(*blocks: dict[str, Any], stop: str | None = "end_turn") -> list[dict[str, Any]]:
    """The events of an answer of these blocks."""
    content = [event for at, block in enumerate(blocks) for event in block_events(at, block)]
    return [started(), *content, *ended(stop)]


def refusal(body: bytes) -> str | None:
    """Why the API refuses this request body, None where it accepts it."""
    try:
        request = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except ValueError as error:
        return f"the body is not strict JSON: {error}"
    try:
        _strict_strings(request)
        _refuse_if(not isinstance(request.get("model"), str) or not request["model"], "model: Field required")
        bound = request.get("max_tokens")
        _refuse_if(not isinstance(bound, int) or bound < 1, "max_tokens: Field required, at least 1")
        for option in ("temperature", "top_p", "top_k"):
            _refuse_if(option in request, f"`{option}` is not supported by this model")
        _refuse_if(body.count(b'"cache_control"') > MAX_MARKS, f"more than {MAX_MARKS} blocks with cache_control")
        system = request.get("system", "x")
        _refuse_if(not system, "system: empty")
        for part in system if isinstance(system, list) else [{"type": "text", "text": system}]:
            _refuse_if(part["type"] != "text" or not part["text"].strip(), "system: text content must be non-empty")
        if "format" in request.get("output_config", {}):
            _format(request["output_config"]["format"])
        _tools(request.get("tools", []))
        messages = request.get("messages")
        _refuse_if(not isinstance(messages, list) or not messages, "messages: at least one message is required")
        _messages(messages)
    except Refused as why:
        return str(why)
    return None


def _format(held: Any) -> None:
    _refuse_if(set(held) != {"type", "schema"} or held["type"] != "json_schema", "output_config.format: fields")
    parts = [held["schema"]]
    while parts:
        part = parts.pop()
        if part.get("type") == "object":
            why = (
                "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false"
            )
            _refuse_if(part.get("additionalProperties") is not False, why)
        for word in ("minimum", "maximum", "minLength", "maxLength"):
            _refuse_if(word in part, f"output_config.format.schema: property {word!r} is not supported")
        for key in ("properties", "$defs"):
            parts += part.get(key, {}).values()
        parts += [part["items"]] if "items" in part else []


def _tools(tools: list[Any]) -> None:
    names = [tool.get("name") for tool in tools]
    _refuse_if(len(set(names)) != len(names), "tools: Tool names must be unique")
    for tool in tools:
        _refuse_if(not NAME.fullmatch(tool.get("name", "")), f"tools: illegal name {tool.get('name')!r}")
        if "type" not in tool:
            _refuse_if(set(tool) - {"name", "description", "input_schema", "cache_control"} != set(), "tools: extra")
            _refuse_if(tool["input_schema"].get("type") != "object", "tools: input_schema.type: must be object")
            _refuse_if("description" in tool and not tool["description"].strip(), "tools: blank description")


def _messages(messages: list[Any]) -> None:
    waiting: list[str] = []
    seen: set[str] = set()
    _refuse_if(messages[0].get("role") != "user", 'messages: first message must use the "user" role')
    for at, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        _refuse_if(set(message) != {"role", "content"}, f"messages.{at}: extra inputs are not permitted")
        _refuse_if(role not in ("user", "assistant"), f"messages.{at}: unknown role {role!r}")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        _refuse_if(not isinstance(content, list) or not content, f"messages.{at}: content must be non-empty")
        results = [block["tool_use_id"] for block in content[: len(waiting)] if block["type"] == "tool_result"]
        _refuse_if(results != waiting, f"messages.{at}: `tool_use` ids {waiting} without `tool_result` blocks at once")
        late = any(block["type"] == "tool_result" for block in content[len(waiting) :])
        _refuse_if(late or (bool(waiting) and role != "user"), f"messages.{at}: unexpected `tool_result` blocks")
        for block in content:
            _block(at, role, block)
        waiting = [_call(block, seen) for block in content if block["type"] == "tool_use"]
        if role == "assistant":
            _assistant(at, content, last=at == len(messages) - 1)
    _refuse_if(bool(waiting), f"`tool_use` ids {waiting} without `tool_result` blocks")


def _assistant(at: int, content: list[Any], last: bool) -> None:
    kinds = [block["type"] for block in content]
    _refuse_if(kinds[-1] in THOUGHT, f"messages.{at}: the final block in an assistant message cannot be thinking")
    after = kinds[kinds.index("tool_use") :] if "tool_use" in kinds else []
    _refuse_if("text" in after or set(after) & set(THOUGHT) != set(), f"messages.{at}: text or thinking after a call")
    _refuse_if(last and set(kinds) <= set(PLAIN), "the conversation must end with a user message: no prefill")
    done = {block.get("tool_use_id") for block in content}
    uses = {block["id"] for block in content if block["type"] in ("server_tool_use", "mcp_tool_use")}
    _refuse_if(not last and "tool_use" not in kinds and bool(uses - done), f"messages.{at}: server tool without result")


def _block(at: int, role: str, block: Any) -> None:
    kind = block["type"]
    if kind == "text":
        _refuse_if(not block["text"].strip(), f"messages.{at}: text content blocks must contain non-whitespace text")
    elif kind == "thinking":
        _refuse_if(block.get("signature") != sign(block["thinking"]), f"messages.{at}: invalid `signature`")
    elif kind == "image":
        _refuse_if(block["source"]["media_type"] not in IMAGES, f"messages.{at}: image media type")
    elif kind == "tool_result":
        content = block["content"]
        _refuse_if(isinstance(content, str) and not content.strip(), f"messages.{at}: blank result")
        for part in content if isinstance(content, list) else ():
            _refuse_if(part["type"] not in ("text", "image"), f"messages.{at}: result part {part['type']!r}")
            _block(at, role, part)
    allowed = ("text", "image", "document", "tool_result") if role == "user" else None
    wrong = kind not in allowed if allowed else kind in ("image", "document", "tool_result")
    _refuse_if(wrong, f"messages.{at}: {kind!r} in a message of role {role}")


def _call(block: Any, seen: set[str]) -> str:
    id = block.get("id")
    _refuse_if(not isinstance(id, str) or not ID.fullmatch(id), f"tool_use.id {id!r}: should match {ID.pattern}")
    _refuse_if(id in seen, f"`tool_use` ids must be unique: {id}")
    seen.add(id)
    _refuse_if(not NAME.fullmatch(block.get("name", "")), f"illegal name {block.get('name')!r}")
    _refuse_if(not isinstance(block.get("input"), dict), "tool_use.input must be an object")
    return str(id)
