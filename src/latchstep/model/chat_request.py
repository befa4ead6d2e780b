"""A `Request` becomes the body of a Chat Completions call.

Rule: the bytes of earlier messages never change from request to request, and each message is encoded once.
Whatever the messages are, the body is one that a strict server accepts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from latchstep.core.message import Block, Image, Message, Text, Thinking, ToolCall, ToolResult
from latchstep.model.base import Request, ToolSpec
from latchstep.model.chat_answer import RIDERS
from latchstep.model.history import (
    NO_OUTPUT,
    NO_RESULT,
    History,
    check_options,
    json_bytes,
    json_schema,
    legal_name,
    pair,
    visible,
    wire_ids,
)

RESERVED = frozenset({"model", "messages", "tools", "stream", "n"})
"""Options that the adapter decides; a caller who sets one has made a mistake."""

_LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """Where services differ. max_tokens: the field that caps the answer. short_ids: call ids are exactly nine
    letters and digits (Mistral). usage: whether `stream_options` is understood."""

    max_tokens: str = "max_tokens"
    short_ids: bool = False
    usage: bool = True


class Encoder:
    """Encodes requests to one model. `origin` is the model's name, whose own reasoning goes back to it."""

    def __init__(
        self,
        model: str,
        *,
        origin: str = "",
        dialect: Dialect = Dialect(),  # noqa: B008 - frozen
        options: dict[str, Any] | None = None,
    ) -> None:
        self._model, self._origin, self._dialect = model, origin, dialect
        self._options = options or {}
        self._history = History(self._exchange, opens=("user", "assistant"))
        self._tools: tuple[tuple[ToolSpec, ...], bytes] = ((), b"")

    def encode(self, request: Request) -> bytes:
        """The body. The request's options win over the model's. Raises DefinitionError for one of `RESERVED`."""
        settings = {**self._options, **request.options}
        check_options(settings, RESERVED)
        head: dict[str, Any] = {"model": self._model}
        tail: dict[str, Any] = {"stream": True}
        if self._dialect.usage:
            tail["stream_options"] = {"include_usage": True}
        if request.max_output is not None:
            tail[self._dialect.max_tokens] = request.max_output
        tail.update(settings)
        if request.output is not None:
            tail["response_format"] = {"type": "json_schema", "json_schema": json_schema(request.output)}
        kept, open_end = self._history.pieces(request.messages)
        system = request.system if visible(request.system) else ""
        first = json_bytes({"role": "system", "content": system}) if system else b""
        parts = [
            json_bytes(head)[:-1],
            b',"messages":[',
            first,
            *kept,
            *open_end,
            b"],",
            self._tool_list(request.tools),
        ]
        if not system:
            parts[3] = parts[3].removeprefix(b",")
        return b"".join((*parts, json_bytes(tail)[1:]))

    def _tool_list(self, tools: tuple[ToolSpec, ...]) -> bytes:
        if not tools:
            return b""
        if self._tools[0] is not tools:
            listed = [
                {
                    "type": "function",
                    "function": {
                        "name": legal_name(tool.name),
                        "description": tool.description,
                        "parameters": tool.schema or {"type": "object", "properties": {}},
                    },
                }
                for tool in tools
            ]
            self._tools = (tools, b'"tools":' + json_bytes(listed) + b",")
        return self._tools[1]

    def _exchange(self, exchange: list[Message], taken: set[str], place: int) -> tuple[list[bytes], set[str]]:
        """One message with the tool messages after it, and the call ids it uses.

        Each call gets exactly one result, at once after it and in call order; a result of no call is left out.
        """
        first = exchange[0]
        if first.role == "tool":
            return [], set()
        if first.role == "user":
            return [b"," + json_bytes(body) for body in [_user(first)] if body], set()
        short = self._dialect.short_ids
        ids = wire_ids(first.calls, taken, place, _SHORT_ID if short else _LEGAL_ID, short)
        body = _assistant(first, ids, first.origin == self._origin)
        pieces = [b"," + json_bytes(body)] if body else []
        pictures: list[dict[str, Any]] = []
        for at, result in enumerate(pair(first.calls, exchange[1:])):
            text, shown = _result(result)
            pieces.append(b"," + json_bytes({"role": "tool", "tool_call_id": ids[at], "content": text}))
            pictures += shown
        if pictures:
            pieces.append(b"," + json_bytes({"role": "user", "content": pictures}))
        return pieces, set(ids)


def _user(message: Message) -> dict[str, Any] | None:
    if any(isinstance(block, Image) for block in message.blocks):
        return {"role": "user", "content": _parts(message.blocks)}
    text = "\n\n".join(block.text for block in message.blocks if isinstance(block, Text) and visible(block.text))
    return {"role": "user", "content": text} if text else None


def _parts(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Text) and visible(block.text):
            parts.append({"type": "text", "text": block.text})
        elif isinstance(block, Image):
            parts.append({"type": "image_url", "image_url": {"url": f"data:{block.media_type};base64,{block.data}"}})
    return parts


def _assistant(message: Message, ids: list[str], own: bool) -> dict[str, Any] | None:
    text = "".join(block.text for block in message.blocks if isinstance(block, Text))
    text = text if visible(text) else ""
    calls = [_call(call, id, own) for call, id in zip(message.calls, ids, strict=True)]
    if not text and not calls:
        return None
    body: dict[str, Any] = {"role": "assistant", "content": text or None}
    if own:
        _add_thinking(body, [block for block in message.blocks if isinstance(block, Thinking)], text)
    if calls:
        body["tool_calls"] = calls
    return body


def _call(call: ToolCall, id: str, own: bool) -> dict[str, Any]:
    function = {"name": legal_name(call.name), "arguments": json_bytes(call.arguments).decode()}
    riders = {key: value for key, value in (call.opaque or {}).items() if own and key in RIDERS}
    return {"id": id, "type": "function", "function": function, **riders}


def _add_thinking(body: dict[str, Any], blocks: list[Thinking], text: str) -> None:
    """Reasoning goes back in the field it came in, and only to the model it came from."""
    details: list[Any] = []
    fields: dict[str, str] = {}
    for block in blocks:
        opaque = block.opaque or {}
        if isinstance(opaque.get("reasoning_details"), list):
            details += opaque["reasoning_details"]
        elif opaque.get("field") in ("reasoning", "reasoning_content", "content"):
            fields[opaque["field"]] = fields.get(opaque["field"], "") + block.text
    thought = fields.pop("content", "")
    if thought:  # Mistral: a part of the content
        shown = [{"type": "text", "text": text}] if text else []
        body["content"] = [{"type": "thinking", "thinking": [{"type": "text", "text": thought}]}, *shown]
    body.update(fields)
    if details:
        body["reasoning_details"] = details


def _result(result: ToolResult | None) -> tuple[str, list[dict[str, Any]]]:
    """The text of a tool message, and its pictures for a user message: tool messages carry text only."""
    if result is None:
        return NO_RESULT, []
    text = result.text if visible(result.text) else ""
    shown: list[dict[str, Any]] = []
    if not isinstance(result.content, str):
        shown = [part for part in _parts(result.content) if part["type"] == "image_url"]
    if not shown:
        return text or NO_OUTPUT, []
    name = legal_name(result.name)
    note = f"({len(shown)} image{'s' if len(shown) > 1 else ''} in the next user message)"
    return f"{text}\n{note}" if text else note, [{"type": "text", "text": f"Returned by {name}:"}, *shown]
