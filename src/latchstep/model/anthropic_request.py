"""A `Request` becomes the body of an Anthropic Messages call.

Rule: the bytes of earlier messages never change from request to request, but for the marks of the prompt cache, which
only move forward. Whatever the messages are, the body is one that the API accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from latchstep.core.message import Block, Image, Message, Provider, Text, Thinking, ToolCall, ToolResult
from latchstep.model.anthropic_answer import KIND, LOST, field_text
from latchstep.model.base import Request, ToolSpec
from latchstep.model.history import (
    NO_OUTPUT,
    NO_RESULT,
    History,
    check_options,
    json_bytes,
    legal_name,
    pair,
    visible,
    wire_ids,
)

RESERVED = frozenset({"model", "messages", "stream", "system", "betas"})
"""Options that the adapter decides; a caller who sets one has made a mistake."""

MAX_TOKENS = 32_000
"""The API wants a bound on each answer: this one where neither the request nor the options have one."""

IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})

BEGIN = "(the conversation begins here)"
GO_ON = "Go on."

_LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_THOUGHT = ("thinking", "redacted_thinking")
_USER = b',{"role":"user"'


class Encoder:
    """Encodes requests to one model. `origin` is its name, `PROVIDER:MODEL`: its own thinking goes back to it, what
    only its provider understands to any model of that provider."""

    def __init__(self, model: str, *, origin: str = "", options: dict[str, Any] | None = None) -> None:
        self._model, self._origin, self._options = model, origin, options or {}
        self._history = History(self._exchange, opens=("assistant",))
        self._tools: tuple[tuple[ToolSpec, ...], list[bytes]] = ((), [])

    def encode(self, request: Request) -> bytes:
        """The body. The request's options win over the model's. Raises DefinitionError for one of `RESERVED`."""
        settings = {**self._options, **request.options}
        check_options(settings, RESERVED)
        mark = settings.pop("cache_control", {"type": "ephemeral"})
        splice = b',"cache_control":' + json_bytes(mark) if mark else b""
        more = settings.pop("tools", ())
        head = {"model": self._model, "max_tokens": request.max_output or MAX_TOKENS, **settings, "stream": True}
        if request.output is not None:
            held = {"type": "json_schema", "schema": request.output.schema}
            head["output_config"] = {**(settings.get("output_config") or {}), "format": held}
        system = {"type": "text", "text": request.system} if visible(request.system) else None
        tools = [json_bytes(tool) for tool in more] + self._tool_list(request.tools)
        if system:
            first = b',"system":[' + json_bytes(system)[:-1] + splice + b"}]"
        elif request.tools:
            first = b""
            tools[-1] = tools[-1][:-1] + splice + b"}"
        else:
            first = b""
        kept, open_end = self._history.pieces(request.messages)
        parts = [*kept, *open_end]
        if not parts or not parts[0].startswith(_USER):
            parts.insert(0, _message("user", [{"type": "text", "text": BEGIN}]))
        if not parts[-1].startswith(_USER) and not self._paused(request.messages[-1]):
            parts.append(_message("user", [{"type": "text", "text": GO_ON}]))  # the API continues no text of its own
        for at in _marked(parts):
            parts[at] = parts[at][:-3] + splice + parts[at][-3:]
        parts[0] = parts[0][1:]
        listed = b',"tools":[' + b",".join(tools) + b"]" if tools else b""
        return b"".join((json_bytes(head)[:-1], listed, first, b',"messages":[', *parts, b"]}"))

    def _tool_list(self, tools: tuple[ToolSpec, ...]) -> list[bytes]:
        if not tools:
            return []
        if self._tools[0] is not tools:
            listed = []
            for tool in tools:
                said = {"description": tool.description} if visible(tool.description) else {}
                schema = tool.schema or {"type": "object", "properties": {}}
                listed.append(json_bytes({"name": legal_name(tool.name), **said, "input_schema": schema}))
            self._tools = (tools, listed)
        return list(self._tools[1])

    def _paused(self, last: Message) -> bool:
        if last.role != "assistant" or not self._own(last):
            return False
        return any(isinstance(block, Provider) and _provider(block) for block in last.blocks)

    def _own(self, message: Message) -> bool:
        return message.origin.partition(":")[0] == self._origin.partition(":")[0]

    def _exchange(self, exchange: list[Message], taken: set[str], place: int) -> tuple[list[bytes], set[str]]:
        """An assistant message with all that was answered to it, and the call ids it uses.

        Each call gets exactly one result, in the very next message and in call order; a result of no call is left
        out. What users said follows in the same message.
        """
        first = exchange[0] if exchange[0].role == "assistant" else None
        said = [part for message in exchange if message.role == "user" for part in _parts(message.blocks)]
        if first is None:
            return ([_message("user", said)] if said else []), set()
        calls = first.calls
        ids = wire_ids(calls, taken, place, _LEGAL_ID)
        results = map(_result, ids, pair(calls, exchange[1:]))
        pieces: list[bytes] = []
        for content in _segments(self._content(first, ids, answered=len(exchange) > 1)):
            here = [next(results) for part in content if part["type"] == "tool_use"]
            while content and content[-1]["type"] in _THOUGHT:
                content.pop()  # the API refuses a message that ends in thinking
            if content:
                pieces.append(_message("assistant", content))
            if here:
                pieces.append(_message("user", here))
        if said and pieces and pieces[-1].startswith(_USER):
            pieces[-1] = pieces[-1][:-2] + b"," + json_bytes(said)[1:] + b"}"
        elif said:
            pieces.append(_message("user", said))
        return pieces, set(ids)

    def _content(self, message: Message, ids: Sequence[str], answered: bool) -> list[dict[str, Any]]:
        """The blocks of an assistant message in their order, without those that this model would not take."""
        mine, own = message.origin == self._origin, self._own(message)
        open_uses = _open_uses(message.blocks) if answered and not ids else ()
        wire = iter(ids)
        content: list[dict[str, Any]] = []
        for block in message.blocks:
            opaque = getattr(block, "opaque", None) or {}
            if isinstance(block, ToolCall):
                extra = {key: opaque[key] for key in opaque if own and key != "provider_id"}
                name = legal_name(block.name)
                content.append({**extra, "type": "tool_use", "id": next(wire), "name": name, "input": block.arguments})
            elif isinstance(block, Text) and visible(block.text):
                content.append({**(opaque if own else {}), "type": "text", "text": block.text})
            elif isinstance(block, Thinking) and mine and field_text(opaque, "redacted"):
                rest = {key: opaque[key] for key in opaque if key != "redacted"}
                content.append({**rest, "type": "redacted_thinking", "data": opaque["redacted"]})
            elif isinstance(block, Thinking) and mine and field_text(opaque, "signature"):
                content.append({**opaque, "type": "thinking", "thinking": block.text})
            elif isinstance(block, Provider) and own and field_text(block.data, "id") not in open_uses:
                content += _provider(block)
        return content


def _segments(content: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The content of one message as the API takes it: no text and no thinking after a call.

    What stands between calls splits the message, so that thinking keeps its place before its call; what stands after
    the last call moves before the calls of its part.
    """
    segments: list[list[dict[str, Any]]] = [[]]
    called = False
    for part in content:
        words = part["type"] == "text" or part["type"] in _THOUGHT
        if called and words:
            segments.append([])
            called = False
        called = called or part["type"] == "tool_use"
        segments[-1].append(part)
    if len(segments) > 1 and not any(part["type"] == "tool_use" for part in segments[-1]):
        late, last = segments.pop(), segments[-1]
        at = next(at for at, part in enumerate(last) if part["type"] == "tool_use")
        last[at:at] = late
    return segments


def _open_uses(blocks: Iterable[Block]) -> set[str]:
    """Ids of server tool uses that a cut answer left without their result."""
    found = [block.data for block in blocks if isinstance(block, Provider)]
    done = {field_text(data, "tool_use_id") for data in found}
    return {id for data in found if (id := field_text(data, "id")) and id not in done}


def _provider(block: Provider) -> list[dict[str, Any]]:
    known = block.kind.startswith(KIND) and not block.kind.startswith(LOST)
    if not known or field_text(block.data, "type") in ("", "tool_use", "tool_result"):  # calls have one form only
        return []
    return [{key: value for key, value in block.data.items() if key != "cache_control"}]


def _parts(blocks: Iterable[Block]) -> list[dict[str, Any]]:
    """What a user may send: text, pictures, and blocks in the API's own form (`Provider("anthropic.document", …)`)."""
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Text) and visible(block.text):
            parts.append({"type": "text", "text": block.text})
        elif isinstance(block, Image) and block.media_type in IMAGES:
            source = {"type": "base64", "media_type": block.media_type, "data": block.data}
            parts.append({"type": "image", "source": source})
        elif isinstance(block, Image):
            parts.append({"type": "text", "text": f"(a picture of type {block.media_type}, which cannot be shown)"})
        elif isinstance(block, Provider):
            parts += _provider(block)
    return parts


def _result(id: str, result: ToolResult | None) -> dict[str, Any]:
    content: Any = NO_RESULT
    if result is not None:
        given = result.content
        content = (given if visible(given) else "") if isinstance(given, str) else _parts(given)
    failed = {"is_error": True} if result is None or result.is_error else {}
    return {"type": "tool_result", "tool_use_id": id, "content": content or NO_OUTPUT, **failed}


def _message(role: str, content: list[dict[str, Any]]) -> bytes:
    return b"," + json_bytes({"role": role, "content": content})


def _marked(parts: list[bytes]) -> list[int]:
    """Where to mark the end of the cached prefix: at the last user message and at the one before it, with which the
    last request ended: the API looks back over 20 blocks only, and one step may have more.
    (https://platform.claude.com/docs/en/build-with-claude/prompt-caching)"""
    found: list[int] = []
    for at in range(len(parts) - 1, -1, -1):
        if parts[at].startswith(_USER):
            found.append(at)
            if len(found) == 2:
                break
    return found
