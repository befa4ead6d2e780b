"""The events of an Anthropic Messages stream become chunks.

Rule: blocks are put together as the API means them, and only then read; a whole answer is read the same way. An
answer is over with `message_stop` and not before. What only Anthropic understands is kept as it came.
Source: https://platform.claude.com/docs/en/build-with-claude/streaming
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from latchstep.core.arguments import parse_arguments, parse_pieces
from latchstep.core.assemble import MAX_ANSWER, MAX_CALLS, resolve_name
from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.core.message import Block, Provider, StopReason, Text, Thinking, ToolCall, Usage, clean, clean_json
from latchstep.errors import ModelError
from latchstep.model.chat_answer import STOP_REASONS, argument_piece, label_of
from latchstep.model.failure import body_failure
from latchstep.model.sse import load_values

KIND = "anthropic."
"""What the kind of each `Provider` block begins with; then the API's own type follows."""

LOST = KIND + "lost."
"""Kinds that are kept for the record and never sent back: their call was withdrawn, or part of them not understood."""

_STOP_REASONS: dict[str, StopReason] = {
    **STOP_REASONS,
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "paused",
    "compaction": "paused",
}
_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_EVENT = 64  # what an event counts beside its characters
_MAX_COUNT = 2**53


class _Block:
    """One content block that still grows: `data` as it began, and the pieces of the fields that are streamed."""

    __slots__ = ("data", "odd", "pieces")

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.pieces: dict[str, list[str]] = {}
        self.odd = False  # a delta of an unknown type came: the block is not what the API holds it to be

    @property
    def type(self) -> str:
        return field_text(self.data, "type")

    def joined(self, field: str) -> str:
        return field_text(self.data, field) + "".join(self.pieces.get(field, ()))


class Decoder:
    """Feed it each event, then `end()` it. `known` are the tool names as they were sent."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = frozenset(known)
        self._blocks: list[_Block] = []
        self._at: dict[int | None, _Block] = {}  # by index; None where a server gives none
        self._size = self._calls = 0
        self._usage: dict[str, int] = {}
        self._id = self._model = self._stop = self._why = ""
        self.done = False
        """The answer is over: nothing more is read."""

    @property
    def finished(self) -> bool:
        return self.done

    @property
    def usage(self) -> Usage:
        count = self._usage.get
        read, write = count("cache_read_input_tokens", 0), count("cache_creation_input_tokens", 0)
        into = count("input_tokens", 0) + read + write
        return Usage(into, count("output_tokens", 0), read, write, count("thinking_tokens", 0))

    def feed(self, event: str, data: str) -> list[Chunk]:
        """Raises ModelError: what the server reported, or `protocol`."""
        data = data.strip()
        if self.done or not data or data == "[DONE]":
            return []
        self._size += len(data) + _EVENT
        if self._size > MAX_ANSWER:
            raise ModelError("protocol", f"the answer is larger than MAX_ANSWER ({self._size} of {MAX_ANSWER})")
        chunks: list[Chunk] = []
        for value in load_values(data):
            if isinstance(value, dict) and not self.done:
                self._event(value, chunks)
        return chunks

    def end(self) -> list[Chunk]:
        """The `Completed`. Raises ModelError("protocol") where the stream ended before the answer did."""
        if not self.done:
            part = "in the middle of its answer" if self._blocks else "without an answer"
            raise ModelError("protocol", f"the server closed the stream {part} (no message_stop)")
        stop = _STOP_REASONS.get(self._stop.lower(), "stop")
        whole = stop in ("stop", "tool_calls")
        fallbacks = [at for at, block in enumerate(self._blocks) if block.type == "fallback"]
        blocks: list[Block] = []
        for at, block in enumerate(self._blocks):
            built, cut = self._build(block, whole, withdrawn=bool(fallbacks) and at < fallbacks[-1])
            blocks += built
            if cut and whole:
                stop = "length"
        if stop == "refused" and self._why and not any(isinstance(block, Text) for block in blocks):
            blocks.append(Text(clean(self._why)))
        completed = Completed(
            blocks=tuple(blocks),
            stop_reason=stop,
            raw_stop_reason=clean(self._stop),
            usage=self.usage,
            response_id=clean(self._id),
            model=clean(self._model),
        )
        return [completed]

    def _event(self, event: dict[str, Any], chunks: list[Chunk]) -> None:
        kind = event.get("type")
        self._count(event.get("usage"))
        if event.get("error") or kind == "error":
            raise body_failure(event)
        if kind == "content_block_delta":
            block = self._at.get(label_of(event.get("index")))
            if block is None:
                raise ModelError("protocol", "the server sent a piece of a block that it never began")
            if isinstance(delta := event.get("delta"), dict):
                self._delta(block, delta, chunks)
        elif kind == "content_block_start":
            self._begin(label_of(event.get("index")), event.get("content_block"), chunks)
        elif kind == "message_start":
            self._start(event.get("message"), chunks)
        elif kind == "message":  # an answer that was not streamed
            self._start(event, chunks)
            self.done = True
        elif kind == "message_delta":
            if isinstance(delta := event.get("delta"), dict):
                self._stopped(delta)
        elif kind == "message_stop":
            self.done = True

    def _start(self, message: Any, chunks: list[Chunk]) -> None:
        """`message_start` usually begins an empty message; it may carry a whole one."""
        if not isinstance(message, dict):
            return
        id = field_text(message, "id")[:200]
        if self._id or self._blocks:
            if id == self._id:
                return  # said twice
            raise ModelError("protocol", "the server began another message in the middle of this one")
        self._id, self._model = id, field_text(message, "model")[:200]
        self._count(message.get("usage"))
        content = message.get("content")
        for at, data in enumerate(content if isinstance(content, list) else []):
            self._begin(at, data, chunks)
        self._stopped(message)

    def _stopped(self, delta: dict[str, Any]) -> None:
        reason, details = delta.get("stop_reason"), delta.get("stop_details")
        if isinstance(reason, str) and reason:
            if reason == "model_context_window_exceeded":
                words = "the answer was cut because the model's context window is full"
                raise body_failure({"error": {"code": reason, "message": words}})
            self._stop = reason[:100]
        if isinstance(details, dict):
            self._why = field_text(details, "explanation")[:2_000]

    def _begin(self, index: int | None, data: Any, chunks: list[Chunk]) -> None:
        if not isinstance(data, dict):
            return
        block, last = _Block(data), self._at.get(index)
        if last is not None and block.type == "tool_use" and data.get("id") and data["id"] == last.data.get("id"):
            return  # said twice
        self._blocks.append(block)
        self._at[index] = block
        if block.type == "tool_use":
            self._calls += 1
            if self._calls > MAX_CALLS:
                raise ModelError("protocol", f"the answer has more tool calls than MAX_CALLS ({MAX_CALLS})")
            chunks.append(Delta("tool_call", "", clean(field_text(data, "id")), clean(field_text(data, "name"))))
        elif block.type == "fallback" and isinstance(to := data.get("to"), dict):
            self._model = field_text(to, "model")[:200] or self._model
        elif (text := field_text(data, block.type)) and block.type in ("text", "thinking"):
            self._show(block, text, chunks)

    def _delta(self, block: _Block, delta: dict[str, Any], chunks: list[Chunk]) -> None:
        kind = delta.get("type")
        field = _FIELDS.get(kind) if isinstance(kind, str) else None
        if field is not None:
            piece = argument_piece(delta.get(field)) if field == "partial_json" else field_text(delta, field)
            block.pieces.setdefault(field, []).append(piece)
            if piece:
                self._show(block, piece, chunks)
            return
        if kind == "citations_delta":
            if not isinstance(block.data.get("citations"), list):
                block.data["citations"] = []
            block.data["citations"].append(delta.get("citation"))
        elif kind == "signature_delta":
            block.data["signature"] = delta.get("signature")
        elif kind == "compaction_delta":
            block.data.update({key: value for key, value in delta.items() if key != "type"})
        else:
            block.odd = True

    def _show(self, block: _Block, piece: str, chunks: list[Chunk]) -> None:
        """A delta for watchers."""
        if block.type == "tool_use":
            id, name = clean(field_text(block.data, "id")), clean(field_text(block.data, "name"))
            chunks.append(Delta("tool_call", clean(piece), id, name))
        elif block.type == "text":
            chunks.append(Delta("text", clean(piece)))
        elif block.type == "thinking":
            chunks.append(Delta("thinking", clean(piece)))

    def _count(self, usage: Any) -> None:
        """The last value of each field wins, but a request of no tokens at all, as some servers end with, is none.
        What `iterations` bill apart (advisors, compactions) is not in it."""
        if not isinstance(usage, dict):
            return
        details = usage.get("output_tokens_details")
        said: dict[str, int] = {}
        for source in (usage, details if isinstance(details, dict) else {}):
            for key, value in source.items():
                if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MAX_COUNT:
                    said[key] = int(value)
        empty = not any(said.get(key) for key in _INPUT)
        self._usage.update({key: value for key, value in said.items() if not (empty and key in _INPUT)})

    def _build(self, block: _Block, whole: bool, withdrawn: bool) -> tuple[list[Block], bool]:
        """(the block, or none where it holds nothing; whether its arguments stop in the middle)."""
        data, kind = block.data, block.type
        if kind == "text":
            text = clean(block.joined("text"))
            opaque = _rest(data, "type", "text")
            return ([Text(text, opaque)] if text or opaque else []), False
        if kind == "thinking":
            thought = block.joined("thinking")
            signed = _rest(data, "type", "thinking") if thought == clean(thought) else None  # else it is not theirs
            return ([Thinking(clean(thought), signed)] if thought or signed else []), False
        if kind == "redacted_thinking":
            return [
                Thinking("", _plain({"redacted": field_text(data, "data"), **(_rest(data, "type", "data") or {})}))
            ], False
        arguments, flaw, cut = _arguments(block, whole)
        if kind == "tool_use" and not withdrawn:
            name = clean(resolve_name([field_text(data, "name")], self._known))
            opaque = _rest(data, "type", "id", "name", "input")
            if opaque and opaque.get("caller") == {"type": "direct"}:
                del opaque["caller"]  # the default
            return [ToolCall(clean(field_text(data, "id")), name, arguments, flaw, opaque or None)], cut
        for field in block.pieces.keys() - {"partial_json"}:
            data = {**data, field: block.joined(field)}
        if "partial_json" in block.pieces:
            data = {**data, "input": arguments}
        lost = block.odd or (withdrawn and kind == "tool_use")
        return [Provider((LOST if lost else KIND) + clean(kind)[:100], _plain(data))], False


def _arguments(block: _Block, whole: bool) -> tuple[dict[str, Any], str, bool]:
    """As `parse_pieces`. Without pieces it is the input that the block began with: the answer was not streamed,
    or there are no arguments."""
    pieces, given = block.pieces.get("partial_json", []), block.data.get("input")
    if any(map(str.strip, pieces)) or not given:
        return parse_pieces(pieces, whole=whole)
    if isinstance(given, str):
        return parse_arguments(given, whole=whole)
    try:
        if isinstance(given, dict):
            return clean_json(given), "", False
    except ValueError as error:
        return {}, f"the arguments are not plain JSON: {error}", False
    return {}, "the arguments are not a JSON object", False


def _rest(data: dict[str, Any], *known: str) -> dict[str, Any] | None:
    """The other fields of a block that say something, None where there are none."""
    return _plain({key: value for key, value in data.items() if key not in known and value not in (None, [])}) or None


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    try:
        cleaned: dict[str, Any] = clean_json(data)
    except ValueError as error:
        raise ModelError("protocol", f"the server sent a block that is not plain JSON: {error}") from None
    return cleaned


def field_text(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""
