"""A `Request` becomes the body of a Gemini `generateContent` call.

Rule: the bytes of earlier messages never change from request to request, and each message is encoded once.
Whatever the messages are, the body is one that the API accepts: each turn of calls follows a user's turn, and is
followed by a turn with one response a call, in call order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from latchstep.core.message import Block, Image, Message, Provider, Text, Thinking, ToolCall, ToolResult
from latchstep.errors import DefinitionError
from latchstep.model.base import Request, ToolSpec
from latchstep.model.history import (
    NO_OUTPUT,
    NO_RESULT,
    History,
    check_options,
    digest,
    json_bytes,
    legal_name,
    pair,
    visible,
)

RESERVED = frozenset({"model", "contents", "systemInstruction", "candidateCount", "stream"})
"""Options that the adapter decides; a caller who sets one has made a mistake."""

TOP = frozenset({"tools", "toolConfig", "safetySettings", "cachedContent", "labels", "serviceTier"})
"""Options that are fields of the request; every other one is a field of its `generationConfig`."""

UNSIGNED = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
"""base64 of `skip_thought_signature_validator`, for a turn of calls that no signature of this model goes with.

Gemini 3 refuses such a turn; this is the placeholder that Google names for histories of other models
(https://ai.google.dev/gemini-api/docs/thought-signatures, FAQ). Models that check no signatures ignore it.
"""

GO_ON = "(go on)"
"""Said by the user where a turn of calls would not follow a user's turn, which the API insists on."""


class Encoder:
    """Encodes requests. `origin` is the model's name, whose own signatures, thoughts and ids go back to it."""

    def __init__(self, *, origin: str = "", options: dict[str, Any] | None = None) -> None:
        self._origin = origin
        self._options = options or {}
        self._history = History(self._exchange, opens=("user", "assistant"))
        self._tools: tuple[tuple[ToolSpec, ...], bytes] = ((), b"")

    def encode(self, request: Request) -> bytes:
        """The body. The request's options win over the model's. Raises DefinitionError for one of `RESERVED`."""
        (tail, config), (more, finer) = sort_options(self._options), sort_options(request.options)
        tail, config = {**tail, **more}, {**config, **finer}
        more_tools = tail.pop("tools", [])
        if request.max_output is not None:
            config = {"maxOutputTokens": request.max_output, **config}
        if request.output is not None:
            held = {"responseMimeType": "application/json", "responseJsonSchema": request.output.schema}
            config = {**config, **held}
        if config:
            tail["generationConfig"] = config
        kept, open_end = self._history.pieces(request.messages)
        contents = [*kept, *open_end]
        if contents:
            contents[0] = contents[0][1:]  # without its comma
        parts = [b"{"]
        if visible(request.system):
            parts.append(json_bytes({"systemInstruction": {"parts": [{"text": request.system}]}})[1:-1] + b",")
        if listed := [*self._declared(request.tools), *map(json_bytes, more_tools)]:
            parts.append(b'"tools":[' + b",".join(listed) + b"],")
        end = b"]," + json_bytes(tail)[1:] if tail else b"]}"
        return b"".join((*parts, b'"contents":[', *contents, end))

    def _declared(self, tools: tuple[ToolSpec, ...]) -> list[bytes]:
        if tools and self._tools[0] is not tools:
            declared = [
                {
                    "name": legal_function(tool.name),
                    "description": tool.description,
                    "parametersJsonSchema": tool.schema or {"type": "object", "properties": {}},
                }
                for tool in tools
            ]
            self._tools = (tools, json_bytes({"functionDeclarations": declared}))
        return [self._tools[1]] if tools else []

    def _exchange(self, exchange: list[Message], taken: set[str], place: int) -> tuple[list[bytes], set[str]]:
        """One message with the tool messages after it, and the call ids it uses.

        Among the ids stands a mark for the next message where no user's turn is right before that.
        """
        first = exchange[0]
        contents: list[dict[str, Any]] = []
        ids: set[str] = set()
        adrift = place == 0 or _mark(place) in taken
        if first.role == "user":
            contents = _content("user", _plain(first.blocks))
            adrift = adrift and not contents
        elif first.role == "assistant":
            own, calls = first.origin == self._origin, first.calls
            sent = _sent_ids(calls, taken) if own else [""] * len(calls)
            contents = _content("model", _assistant(first.blocks, sent, own))
            if calls:
                if adrift:
                    contents.insert(0, {"role": "user", "parts": [{"text": GO_ON}]})
                contents += _responses(calls, sent, pair(calls, exchange[1:]))
            ids = {id for id in sent if id}
            adrift = not calls and (adrift or bool(contents))
        if adrift:
            ids.add(_mark(place + len(exchange)))
        return [b"," + json_bytes(content) for content in contents], ids


def sort_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(fields of the request, fields of its `generationConfig`); names may be in snake case.

    `tools` are those that Google runs (`[{"googleSearch": {}}]`). Raises DefinitionError.
    """
    named = {_camel(name): value for name, value in options.items()}
    given = named.pop("generationConfig", {})
    if not isinstance(given, dict) or not isinstance(named.get("tools", []), list):
        raise DefinitionError("the option generationConfig is an object, and tools is a list of objects")
    named = {**{_camel(name): value for name, value in given.items()}, **named}
    check_options(named, RESERVED)
    return (
        {name: value for name, value in named.items() if name in TOP},
        {name: value for name, value in named.items() if name not in TOP},
    )


def legal_function(name: str) -> str:
    """The tool's name as Gemini takes it: as everywhere, and it begins with a letter or an underscore."""
    made = legal_name(name)
    return made if made[0].isalpha() or made[0] == "_" else f"t_{made[:49]}_{digest(name)[:12]}"


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


def _mark(place: int) -> str:
    return f"\0{place}"  # no id holds a NUL


def _content(role: str, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": role, "parts": parts}] if parts else []


def _plain(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Text) and visible(block.text):
            parts.append({"text": block.text})
        elif isinstance(block, Image):
            parts.append(_picture(block))
    return parts


def _picture(image: Image) -> dict[str, Any]:
    return {"inlineData": {"mimeType": image.media_type, "data": image.data}}


def _assistant(blocks: Sequence[Block], ids: list[str], own: bool) -> list[dict[str, Any]]:
    """What is signed goes back to its maker on the part it came with; other models' thoughts are left out."""
    parts: list[dict[str, Any]] = []
    free = iter(ids)
    for block in blocks:
        signed = _signature(block) if own else {}
        if isinstance(block, ToolCall):
            id = next(free)
            call = {"name": legal_function(block.name), "args": block.arguments}
            parts.append({"functionCall": {"id": id, **call} if id else call, **signed})
        elif isinstance(block, Thinking):
            if own and (signed or visible(block.text)):
                parts.append({"text": block.text, "thought": True, **signed})
        elif isinstance(block, Provider):
            if own and block.kind.startswith("gemini."):
                parts.append(block.data)
        elif isinstance(block, Text) and signed:
            parts.append({"text": block.text, **signed})
        else:
            parts += _plain((block,))
    if ids and not any("thoughtSignature" in part for part in parts):
        next(part for part in parts if "functionCall" in part)["thoughtSignature"] = UNSIGNED
    return parts


def _signature(block: Block) -> dict[str, Any]:
    opaque = block.opaque if isinstance(block, Text | Thinking | ToolCall) else None
    return {key: value for key, value in (opaque or {}).items() if key == "thoughtSignature"}


def _sent_ids(calls: Sequence[ToolCall], taken: set[str]) -> list[str]:
    """The ids that the model itself gave, "" for a call without one: Gemini matches responses by order."""
    ids: list[str] = []
    for call in calls:
        id = (call.opaque or {}).get("id")
        ids.append(id if isinstance(id, str) and id not in taken and id not in ids else "")
    return ids


def _responses(calls: Sequence[ToolCall], ids: list[str], results: list[ToolResult | None]) -> list[dict[str, Any]]:
    """One turn with all responses, then one with the pictures: older models take none inside a response."""
    parts: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for call, id, result in zip(calls, ids, results, strict=True):
        name = legal_function(call.name)
        text = NO_RESULT if result is None else result.text if visible(result.text) else ""
        content = result.content if result is not None else ""
        pictures = [_picture(part) for part in content if isinstance(part, Image)]
        if pictures:
            note = f"({len(pictures)} image{'s' if len(pictures) > 1 else ''} in the next user message)"
            text = f"{text}\n{note}" if text else note
            shown += [{"text": f"Returned by {name}:"}, *pictures]
        failed = result is None or result.is_error
        response = {"name": name, "response": {"error" if failed else "output": text or NO_OUTPUT}}
        parts.append({"functionResponse": {"id": id, **response} if id else response})
    return _content("user", parts) + _content("user", shown)
