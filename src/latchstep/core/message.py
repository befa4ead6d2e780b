"""What was said: messages of blocks, in one neutral form that every wire reads and writes.

Provider-only data (signatures, encrypted reasoning, item ids) rides along in `opaque` and goes back
verbatim to the provider named in `Message.origin`, and to no other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Role = Literal["user", "assistant", "tool"]

Outcome = Literal["ok", "error", "denied", "rejected", "truncated", "timed_out", "interrupted", "not_started"]
"""How a call ended. Each is worded differently for the model; none is ever guessed."""

StopReason = Literal["stop", "tool_calls", "length", "filtered", "refused", "paused"]
"""Why the model stopped, normalised over providers; the raw word is kept beside it."""

Opaque = dict[str, Any] | None


class Text(msgspec.Struct, frozen=True, tag="text", omit_defaults=True):
    """Plain text."""

    text: str
    opaque: Opaque = None


class Thinking(msgspec.Struct, frozen=True, tag="thinking", omit_defaults=True):
    """Reasoning shown by the model. `opaque` holds its signature or encrypted form."""

    text: str
    opaque: Opaque = None


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call", omit_defaults=True):
    """A request to run a tool.

    `arguments` is always one JSON object. Where what the model sent was not one, `flaw` says so in words,
    `arguments` is empty and the call never runs.
    """

    id: str = ""
    name: str = ""
    arguments: dict[str, Any] = {}
    flaw: str = ""
    opaque: Opaque = None


class Image(msgspec.Struct, frozen=True, tag="image", omit_defaults=True):
    """A picture: `data` is base64 of the bytes."""

    media_type: str
    data: str


class ToolResult(msgspec.Struct, frozen=True, tag="tool_result", omit_defaults=True):
    """What a call led to. `content` is text, or text and pictures where a tool returned any."""

    call_id: str
    name: str
    content: str | tuple[Text | Image, ...]
    outcome: Outcome = "ok"
    is_error: bool = False

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, Text))


class Provider(msgspec.Struct, frozen=True, tag="provider"):
    """Something only its provider understands (server tools, unknown items). Kept in order, never executed."""

    kind: str
    data: dict[str, Any]


Block = Text | Thinking | ToolCall | ToolResult | Image | Provider


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. A tool message holds exactly one `ToolResult`; a wire may join several.

    `origin` is the name of the model that wrote it (`provider:model`), empty for people and tools.
    """

    role: Role
    blocks: tuple[Block, ...]
    id: str = ""
    origin: str = ""

    @property
    def text(self) -> str:
        """All text blocks joined, as a person would read the message."""
        return "".join(block.text for block in self.blocks if isinstance(block, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(block for block in self.blocks if isinstance(block, ToolCall))


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens as the provider counted them. `input` includes cached ones; `output` includes reasoning."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
        )

    @property
    def total(self) -> int:
        return self.input + self.output


def user(text: str, id: str = "") -> Message:
    """A user message of one text block, with lone surrogates made harmless."""
    return Message("user", (Text(clean(text)),), id)


IMAGE_TOKENS = 1_500
"""What a picture counts for in an estimate."""


def estimate(message: Message) -> int:
    """Tokens of a message, roughly: four bytes each, and a few for every block."""
    size = 0
    for block in message.blocks:
        match block:
            case Text(text=text) | Thinking(text=text):
                size += _bytes(text)
            case ToolResult(content=str(text)):
                size += _bytes(text)
            case ToolResult(content=tuple(parts)):
                size += sum(4 * IMAGE_TOKENS if isinstance(part, Image) else _bytes(part.text) for part in parts)
            case Image():
                size += 4 * IMAGE_TOKENS
            case ToolCall() | Provider():
                size += len(_ENCODER.encode(block))
    return size // 4 + 8 * len(message.blocks)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


_ENCODER = msgspec.json.Encoder()


def tool_message(result: ToolResult) -> Message:
    return Message("tool", (result,), f"tool-result-{result.call_id}")


def clean(text: str) -> str:
    """The text as strict UTF-8 can carry it: lone surrogates become U+FFFD, NUL becomes U+2400.

    Strict providers refuse both, and one of them in a stored message would brick its session.
    """
    if "\0" in text:
        text = text.replace("\0", "␀")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


MAX_DEPTH = 64


def clean_json(value: Any, depth: int = 0) -> Any:
    """A JSON value with clean strings; raises ValueError for what strict JSON cannot carry.

    Refused: NaN and infinities, integers beyond 64 bits, nesting over `MAX_DEPTH`, foreign types.
    """
    if isinstance(value, str):
        return clean(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise ValueError("an integer does not fit in 64 bits")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("NaN and Infinity are not JSON")
        return value
    if depth >= MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, Mapping):
        return {clean(str(key)): clean_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item, depth + 1) for item in value]
    raise ValueError(f"{type(value).__name__} is not JSON")
