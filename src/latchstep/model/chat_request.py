"""A `Request` becomes the body of a Chat Completions call.

Rule: the bytes of earlier messages never change from request to request, and each message is encoded once.
Whatever the messages are, the body is one that a strict server accepts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from latchstep.core.message import Block, Image, Message, Text, Thinking, ToolCall, ToolResult, clean, clean_json
from latchstep.errors import DefinitionError
from latchstep.model.base import Request, ToolSpec

RESERVED = frozenset({"model", "messages", "tools", "stream", "n"})
"""Options that the adapter decides; a caller who sets one has made a mistake."""

MAX_CACHED = 1_024
"""Histories whose encoded form is kept for the next request, the latest ones, up to `MAX_CACHED_BYTES` in all."""

MAX_CACHED_BYTES = 64 * 1024 * 1024

NO_OUTPUT = "(no output)"
NO_RESULT = "(the result of this call is not on record)"

_LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_encoder = msgspec.json.Encoder()


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """Where services differ. max_tokens: the field that caps the answer. short_ids: call ids are exactly nine
    letters and digits (Mistral). usage: whether `stream_options` is understood."""

    max_tokens: str = "max_tokens"
    short_ids: bool = False
    usage: bool = True


class Encoded:
    """What is encoded of one history: whole exchanges only, as none of them can change any more."""

    __slots__ = ("base", "count", "ids", "last", "pieces", "size")

    def __init__(self, base: object) -> None:
        self.base = base
        self.count = 0  # messages behind `pieces`
        self.last: Message | None = None
        self.pieces: list[bytes] = []
        self.ids: set[str] = set()
        self.size = 0


class Encoder:
    """Encodes requests to one model. `origin` is the model's name, whose own reasoning goes back to it."""

    def __init__(self, model: str, *, origin: str = "", dialect: Dialect = Dialect()) -> None:  # noqa: B008 - frozen
        self._model, self._origin, self._dialect = model, origin, dialect
        self._kept: dict[int, Encoded] = {}
        self._kept_bytes = 0
        self._tools: tuple[tuple[ToolSpec, ...], bytes] = ((), b"")

    def encode(self, request: Request, options: dict[str, Any] | None = None) -> bytes:
        """The body. `options` are the model's own; the request's win. Raises DefinitionError for one of `RESERVED`."""
        settings = {**(options or {}), **request.options}
        check_options(settings)
        head: dict[str, Any] = {"model": self._model}
        tail: dict[str, Any] = {"stream": True}
        if self._dialect.usage:
            tail["stream_options"] = {"include_usage": True}
        if request.max_output is not None:
            tail[self._dialect.max_tokens] = request.max_output
        tail.update(settings)
        kept, open_end = self._messages(request.messages)
        system = request.system if _visible(request.system) else ""
        first = _json({"role": "system", "content": system}) if system else b""
        parts = [_json(head)[:-1], b',"messages":[', first, *kept, *open_end, b"],", self._tool_list(request.tools)]
        if not system:
            parts[3] = parts[3].removeprefix(b",")
        return b"".join((*parts, _json(tail)[1:]))

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
            self._tools = (tools, b'"tools":' + _json(listed) + b",")
        return self._tools[1]

    def _messages(self, messages: Sequence[Message]) -> tuple[list[bytes], list[bytes]]:
        """Encoded messages, each after a comma: those kept for the next request, and those of the open end."""
        kept = self._recall(messages)
        start = kept.count
        exchange: list[Message] = []
        for at in range(start, len(messages)):
            message = messages[at]
            if exchange and message.role != "tool":
                self._keep(kept, exchange, at)
                exchange = []
            exchange.append(message)
        open_end, _ = self._exchange(exchange, kept.ids, kept.count)
        return kept.pieces, open_end

    def _recall(self, messages: Sequence[Message]) -> Encoded:
        base = getattr(messages, "base", None)
        if base is None:
            return Encoded(None)
        kept = self._kept.pop(id(base), None)
        if kept is not None and not _continues(kept, messages):
            self._kept_bytes -= kept.size
            kept = None
        kept = self._kept[id(base)] = kept or Encoded(base)  # now the latest
        while len(self._kept) > 1 and (len(self._kept) > MAX_CACHED or self._kept_bytes > MAX_CACHED_BYTES):
            self._kept_bytes -= self._kept.pop(next(iter(self._kept))).size
        return kept

    def _keep(self, kept: Encoded, exchange: list[Message], count: int) -> None:
        pieces, ids = self._exchange(exchange, kept.ids, kept.count)
        size = sum(map(len, pieces))
        kept.pieces += pieces
        kept.ids |= ids
        kept.size += size
        kept.count, kept.last = count, exchange[-1]
        if kept.base is not None:
            self._kept_bytes += size

    def _exchange(self, exchange: list[Message], taken: set[str], place: int) -> tuple[list[bytes], set[str]]:
        """One message with the tool messages after it, and the call ids it uses.

        Each call gets exactly one result, at once after it and in call order; a result of no call is left out.
        """
        if not exchange or exchange[0].role == "tool":
            return [], set()
        first = exchange[0]
        if first.role == "user":
            return [b"," + _json(body) for body in [_user(first)] if body], set()
        ids: dict[int, str] = {}
        used: set[str] = set()
        for at, call in enumerate(first.calls):
            ids[at] = self._wire_id(call.id or f"call_{place}_{at}", taken | used if used else taken)
            used.add(ids[at])
        body = _assistant(first, list(ids.values()), first.origin == self._origin)
        pieces = [b"," + _json(body)] if body else []
        pictures: list[dict[str, Any]] = []
        for at, result in enumerate(_pair(first.calls, exchange[1:])):
            text, shown = _result(result)
            pieces.append(b"," + _json({"role": "tool", "tool_call_id": ids[at], "content": text}))
            pictures += shown
        if pictures:
            pieces.append(b"," + _json({"role": "user", "content": pictures}))
        return pieces, used

    def _wire_id(self, id: str, taken: set[str]) -> str:
        """An id the server accepts, the same in each request, and not yet taken in this one."""
        legal = _SHORT_ID if self._dialect.short_ids else _LEGAL_ID
        wire, turn = id, 0
        while turn == 0 or wire in taken:
            if turn or not legal.fullmatch(id):
                digest = _digest(f"{id}#{turn}" if turn else id)
                wire = digest[:9] if self._dialect.short_ids else f"{_ILLEGAL.sub('_', id)[:24]}_{digest[:12]}"
            turn += 1
        return wire


def check_options(options: dict[str, Any]) -> None:
    for name in options:
        if name in RESERVED:
            raise DefinitionError(f"the option {name!r} is set by latchstep itself and cannot be passed")


def legal_name(name: str) -> str:
    """The tool's name as the API takes it: itself where it can be, else made of it, always the same and distinct."""
    if _LEGAL.fullmatch(name):
        return name
    return f"{_ILLEGAL.sub('_', name)[:51] or 'tool'}_{_digest(name)[:12]}"


def _digest(text: str) -> str:
    from hashlib import sha256

    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _json(value: Any) -> bytes:
    """Strict UTF-8 JSON: a lone surrogate or NUL anywhere makes the whole value cleaned first."""
    try:
        encoded = _encoder.encode(value)
        if b"\\u0000" not in encoded:
            return encoded
    except UnicodeEncodeError:
        pass
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DefinitionError(f"part of the request is not JSON: {error}") from None
    try:
        return _encoder.encode(clean_json(value))
    except ValueError as error:
        raise DefinitionError(f"part of the request is not JSON: {error}") from None


def _continues(kept: Encoded, messages: Sequence[Message]) -> bool:
    if kept.base is not getattr(messages, "base", None) or kept.count > len(messages):
        return False
    return kept.count == 0 or messages[kept.count - 1] is kept.last


def _pair(calls: Sequence[ToolCall], messages: list[Message]) -> list[ToolResult | None]:
    """The result of each call. Of several results for one call the latest counts; equal ids pair up in order."""
    found: dict[str, list[ToolResult]] = {}
    for message in messages:
        for block in message.blocks:
            if isinstance(block, ToolResult):
                found.setdefault(block.call_id, []).append(block)
    count = Counter(call.id for call in calls)
    queues = {id: iter(results[-count[id] :]) for id, results in found.items() if count[id]}
    return [next(queues.get(call.id, iter(())), None) for call in calls]


def _user(message: Message) -> dict[str, Any] | None:
    if any(isinstance(block, Image) for block in message.blocks):
        return {"role": "user", "content": _parts(message.blocks)}
    text = "\n\n".join(block.text for block in message.blocks if isinstance(block, Text) and _visible(block.text))
    return {"role": "user", "content": text} if text else None


def _parts(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Text) and _visible(block.text):
            parts.append({"type": "text", "text": block.text})
        elif isinstance(block, Image):
            parts.append({"type": "image_url", "image_url": {"url": f"data:{block.media_type};base64,{block.data}"}})
    return parts


def _assistant(message: Message, ids: list[str], own: bool) -> dict[str, Any] | None:
    text = "".join(block.text for block in message.blocks if isinstance(block, Text))
    text = text if _visible(text) else ""
    calls = [_call(call, id) for call, id in zip(message.calls, ids, strict=True)]
    if not text and not calls:
        return None
    body: dict[str, Any] = {"role": "assistant", "content": text or None}
    if own:
        _add_thinking(body, [block for block in message.blocks if isinstance(block, Thinking)], text)
    if calls:
        body["tool_calls"] = calls
    return body


def _call(call: ToolCall, id: str) -> dict[str, Any]:
    arguments = _json(call.arguments).decode()
    return {"id": id, "type": "function", "function": {"name": legal_name(call.name), "arguments": arguments}}


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
    text = result.text if _visible(result.text) else ""
    shown: list[dict[str, Any]] = []
    if not isinstance(result.content, str):
        shown = [part for part in _parts(result.content) if part["type"] == "image_url"]
    if not shown:
        return text or NO_OUTPUT, []
    name = legal_name(result.name)
    note = f"({len(shown)} image{'s' if len(shown) > 1 else ''} in the next user message)"
    return f"{text}\n{note}" if text else note, [{"type": "text", "text": f"Returned by {name}:"}, *shown]


def _visible(text: str) -> bool:
    return bool(clean(text).strip())
