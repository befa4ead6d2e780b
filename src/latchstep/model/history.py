"""The history as a wire has encoded it, and what every wire needs to encode a message.

Rule: each message is encoded once. What lies before the open end never changes from request to request, byte for
byte, so that a provider's prompt cache holds and a step costs no more in a long session.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any
from weakref import ref

import msgspec

from latchstep.core.message import Message, ToolCall, ToolResult, clean, clean_json
from latchstep.errors import DefinitionError
from latchstep.model.base import OutputSpec

MAX_CACHED = 1_024
"""Histories whose encoded form is kept for the next request, the latest ones, up to `MAX_CACHED_BYTES` in all.
One that nobody holds any more, as after a compaction, is let go."""

MAX_CACHED_BYTES = 64 * 1024 * 1024

NO_OUTPUT = "(no output)"
NO_RESULT = "(the result of this call is not on record)"

EncodeExchange = Callable[[list[Message], set[str], int], tuple[list[bytes], set[str]]]
"""(messages of one exchange, call ids taken before it, place of its first message) -> (pieces, call ids it takes)."""

_LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_encoder = msgspec.json.Encoder()


class Encoded:
    """What is encoded of one history: whole exchanges only, as none of them can change any more."""

    __slots__ = ("base", "count", "ids", "last", "pieces", "size")

    def __init__(self, base: Callable[[], object]) -> None:
        self.base = base
        self.count = 0  # messages behind `pieces`
        self.last: Message | None = None
        self.pieces: list[bytes] = []
        self.ids: set[str] = set()
        self.size = 0


class History:
    """Encodes histories for one wire and keeps the result.

    A message of a role in `opens` begins a new exchange. The last exchange is open and encoded anew each time.
    """

    def __init__(self, encode: EncodeExchange, opens: Collection[str]) -> None:
        self._encode, self._opens = encode, opens
        self._kept: dict[int, Encoded] = {}
        self._kept_bytes = 0

    def pieces(self, messages: Sequence[Message]) -> tuple[list[bytes], list[bytes]]:
        """(those kept for the next request, not to be changed; those of the open end)."""
        kept = self._recall(messages)
        exchange: list[Message] = []
        for at in range(kept.count, len(messages)):
            message = messages[at]
            if exchange and message.role in self._opens:
                self._keep(kept, exchange, at)
                exchange = []
            exchange.append(message)
        open_end = self._encode(exchange, kept.ids, kept.count)[0] if exchange else []
        return kept.pieces, open_end

    def _recall(self, messages: Sequence[Message]) -> Encoded:
        base = getattr(messages, "base", None)
        if base is None:
            return Encoded(lambda: None)
        kept = self._kept.pop(id(base), None)
        if kept is not None and not _continues(kept, messages):
            self._kept_bytes -= kept.size
            kept = None
        key = id(base)
        if kept is None:
            try:
                kept = Encoded(ref(base, lambda _: self._let_go(key)))
            except TypeError:  # somebody's own list
                kept = Encoded(lambda: base)
        self._kept[key] = kept  # now the latest
        while len(self._kept) > 1 and (len(self._kept) > MAX_CACHED or self._kept_bytes > MAX_CACHED_BYTES):
            self._let_go(next(iter(self._kept)))
        return kept

    def _let_go(self, key: int) -> None:
        if (kept := self._kept.pop(key, None)) is not None:
            self._kept_bytes -= kept.size

    def _keep(self, kept: Encoded, exchange: list[Message], count: int) -> None:
        pieces, ids = self._encode(exchange, kept.ids, kept.count)
        size = sum(map(len, pieces))
        kept.pieces += pieces
        kept.ids |= ids
        kept.size += size
        kept.count, kept.last = count, exchange[-1]
        if kept.base() is not None:
            self._kept_bytes += size


def _continues(kept: Encoded, messages: Sequence[Message]) -> bool:
    if kept.base() is not getattr(messages, "base", None) or kept.count > len(messages):
        return False
    return kept.count == 0 or messages[kept.count - 1] is kept.last


def check_options(options: Iterable[str], reserved: Collection[str]) -> None:
    """Raises DefinitionError for an option that the adapter decides: a caller who sets one has made a mistake."""
    for name in options:
        if name in reserved:
            raise DefinitionError(f"the option {name!r} is set by latchstep itself and cannot be passed")


def json_bytes(value: Any) -> bytes:
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


_STRICT = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const"}
    | {"$defs", "$ref", "title", "description"}
)
"""What every model with structured outputs takes in a strict schema
(https://platform.openai.com/docs/guides/structured-outputs, supported schemas)."""


def json_schema(output: OutputSpec) -> dict[str, Any]:
    """The schema in OpenAI's form. `strict` holds each token to it, and takes only schemas without optional fields,
    open objects and most constraints; any other schema is a hint."""
    return {"name": output.name, "schema": output.schema, "strict": _strict(output.schema)}


def _strict(part: Any) -> bool:
    if not isinstance(part, dict) or not part.keys() <= _STRICT:
        return False
    if not part.keys() & {"type", "anyOf", "$ref"}:
        return False
    fields = part.get("properties", {})
    if part.get("type") == "object" and (
        part.get("additionalProperties") is not False or set(part.get("required", ())) != fields.keys()
    ):
        return False
    inner = [*fields.values(), *part.get("$defs", {}).values(), *part.get("anyOf", ())]
    return all(map(_strict, inner + ([part["items"]] if "items" in part else [])))


def visible(text: str) -> bool:
    """Whether a strict server takes it as text: there is something beside blanks."""
    return bool(clean(text).strip())


def pair(calls: Sequence[ToolCall], messages: Iterable[Message]) -> list[ToolResult | None]:
    """The result of each call. Of several results for one call the latest counts; equal ids pair up in order."""
    found: dict[str, list[ToolResult]] = {}
    for message in messages:
        for block in message.blocks:
            if isinstance(block, ToolResult):
                found.setdefault(block.call_id, []).append(block)
    count = Counter(call.id for call in calls)
    queues = {id: iter(results[-count[id] :]) for id, results in found.items() if count[id]}
    return [next(queues.get(call.id, iter(())), None) for call in calls]


def wire_ids(
    calls: Sequence[ToolCall], taken: set[str], place: int, legal: re.Pattern[str], short: bool = False
) -> list[str]:
    """For each call an id that matches `legal`, the same in each request, and not yet taken in this one.

    An id that has to be made is nine letters and digits where `short`, else at most 37 characters.
    """
    ids: list[str] = []
    for at, call in enumerate(calls):
        id = call.id or f"call_{place}_{at}"
        wire, turn = id, 0
        while turn == 0 or wire in taken or wire in ids:
            if turn or not legal.fullmatch(id):
                made = digest(f"{id}#{turn}" if turn else id)
                wire = made[:9] if short else f"{_ILLEGAL.sub('_', id)[:24]}_{made[:12]}"
            turn += 1
        ids.append(wire)
    return ids


def legal_name(name: str) -> str:
    """The tool's name as an API takes it: itself where it can be, else made of it, always the same and distinct."""
    if _LEGAL.fullmatch(name):
        return name
    return f"{_ILLEGAL.sub('_', name)[:51] or 'tool'}_{digest(name)[:12]}"


def digest(text: str) -> str:
    from hashlib import sha256

    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
