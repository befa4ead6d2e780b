"""The events of a Responses stream become chunks.

Rule: an answer is over at `response.completed`, `response.incomplete` or an error, and not before. What it is made of
is the `output` of that event; where that is empty, the items as they came. A whole response goes through here too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from latchstep.core.assemble import Assembler
from latchstep.core.chunk import Chunk, Completed, Delta, DeltaKind
from latchstep.core.message import Opaque, StopReason, Text, Thinking, ToolCall, Usage, clean, clean_json
from latchstep.errors import ModelError
from latchstep.model.failure import body_failure
from latchstep.model.sse import load_values

KIND = "openai."
"""A `Provider` block that holds a whole item is of this kind and the item's type."""

_SHOWN: dict[str, DeltaKind] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "thinking",
    "response.reasoning_text.delta": "thinking",
    "response.function_call_arguments.delta": "tool_call",
}
_ENDS = {"completed", "incomplete", "failed", "cancelled", "done"}
_VETOES = ("failed", "cancelled", "incomplete")
_FILTERS = ("content_filter", "safety", "moderation")
_CODES = (  # codes that only occur here, as those that everybody knows
    (re.compile(r"usage_(?:limit_reached|not_included)"), "insufficient_quota"),
    (re.compile(r"slow_down"), "overloaded"),
    (re.compile(r"vector_store_timeout"), "timeout_error"),
    (re.compile(r".*_policy|.*policy_violation"), "content_filter"),
    (re.compile(r"invalid_prompt|data_residency_mismatch|.*image.*|unsupported_.*"), "invalid_request_error"),
)
_MAX_COUNT = 2**53


class _Item:
    """An output item as the stream has shown it so far. `done`: it came whole."""

    __slots__ = ("arguments", "done", "refusal", "text", "value")

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}
        self.done = False
        self.text: list[str] = []
        self.refusal: list[str] = []
        self.arguments: list[str] = []

    def whole(self) -> dict[str, Any]:
        """The item, made of its pieces where it never came whole. A call that showed no arguments was cut."""
        kind = self.value.get("type") or ("message" if self.text or self.refusal else "")
        if kind == "function_call" and self.arguments and not (self.done and self.value.get("arguments")):
            return {**self.value, "arguments": "".join(self.arguments)}
        if self.done:
            return self.value
        if kind == "message":
            parts = [{"type": "output_text", "text": "".join(self.text), "annotations": []}]
            if self.refusal:
                parts.append({"type": "refusal", "refusal": "".join(self.refusal)})
            return {"type": kind, "role": "assistant", **self.value, "content": parts}
        return {**self.value, "status": "incomplete"} if kind == "function_call" else {}


class Decoder:
    """Feed it the events, then `end()` it. `known` are the tool names as they were sent."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = tuple(known)
        self._items: dict[int | str, _Item] = {}
        self._labels: dict[str, int | str] = {}  # by item id
        self._kept = Assembler()  # counts what is kept of the stream
        self.usage = Usage()
        self._cost: float | None = None
        self._id = self._model = ""
        self._shown = False
        self._held: dict[DeltaKind, str] = {}
        self._completed: Completed | None = None

    @property
    def finished(self) -> bool:
        """The terminal event was seen."""
        return self._completed is not None

    @property
    def done(self) -> bool:
        """As `finished`: nothing comes after the terminal event."""
        return self._completed is not None

    def feed(self, event: str, data: str) -> list[Chunk]:
        """Raises ModelError: what the server reported, or `protocol` for what is not JSON."""
        data = data.strip()
        if not data or self.finished or data == "[DONE]":
            return []
        chunks: list[Chunk] = []
        for value in load_values(data):
            if isinstance(value, dict) and not self.finished:
                self._event(event, value, len(data), chunks)
        return chunks

    def end(self) -> list[Chunk]:
        """The `Completed`. Raises ModelError("protocol") where the stream ended before the answer did."""
        if self._completed is None:
            part = "in the middle of its answer" if self._items else "without an answer"
            raise ModelError("protocol", f"the server closed the stream {part} (no response.completed)")
        return [self._completed]

    def _event(self, name: str, event: dict[str, Any], size: int, chunks: list[Chunk]) -> None:
        kind = _string(event, "type") or name
        if kind in _SHOWN or kind == "response.function_call_arguments.done":
            self._piece(kind, event, chunks)
            return
        response = event.get("response")
        if isinstance(response, dict) and kind.startswith("response."):
            self._head(response)
            if kind[9:] in _ENDS:
                self._finish(kind[9:], response, chunks)
        elif "type" not in event and (event.get("object") == "response" or isinstance(event.get("output"), list)):
            self._head(event)
            self._finish(_string(event, "status") or "completed", event, chunks)
        elif kind in ("error", "response.error") or ("type" not in event and _is_failure(event)):
            raise _failure(event.get("error") or event)
        elif kind in ("response.output_item.added", "response.output_item.done"):
            if isinstance(item := event.get("item"), dict):
                self._kept.count(size)
                self._item(kind, event, item, chunks)
        elif kind == "response.reasoning_summary_part.added" and event.get("summary_index"):
            self._show("thinking", "\n\n", chunks)

    def _head(self, response: dict[str, Any]) -> None:
        self._id = self._id or _string(response, "id")[:200]
        self._model = self._model or _string(response, "model")[:200]
        self._count(response.get("usage"))

    def _open(self, event: dict[str, Any], id: str) -> _Item:
        """The item that an event is about: by its place, which some servers leave out, else by its id, else the last
        one that is not whole."""
        index = event.get("output_index")
        label: int | str = self._labels.get(id, id)
        if isinstance(index, int) and not isinstance(index, bool):
            label = index
        if label == "":
            last = next(reversed(self._items), "")
            label = last if last in self._items and not self._items[last].done else f"#{len(self._items)}"
        if id:
            self._labels[id] = label
        return self._items.setdefault(label, _Item())

    def _item(self, kind: str, event: dict[str, Any], value: dict[str, Any], chunks: list[Chunk]) -> None:
        item = self._open(event, _string(value, "id") or _string(value, "call_id"))
        item.value, item.done = value, kind.endswith("done")
        if not item.done and value.get("type") == "function_call":
            self._show("tool_call", "", chunks, item)

    def _piece(self, kind: str, event: dict[str, Any], chunks: list[Chunk]) -> None:
        whole = kind.endswith("done")
        piece = _string(event, "arguments" if whole else "delta")
        if not piece:
            return
        self._kept.count(len(piece))
        item = self._open(event, _string(event, "item_id"))
        if whole:
            item.arguments = [piece]
            return
        if kind == "response.refusal.delta":
            item.refusal.append(piece)
        elif _SHOWN[kind] == "text":
            item.text.append(piece)
        elif _SHOWN[kind] == "tool_call":
            item.arguments.append(piece)
        self._show(_SHOWN[kind], piece, chunks, item)

    def _show(self, kind: DeltaKind, piece: str, chunks: list[Chunk], item: _Item | None = None) -> None:
        """A delta for watchers. A character whose two halves come in two pieces is shown with the second."""
        self._shown = True
        if not piece.isascii() or self._held:
            piece = self._held.pop(kind, "") + piece
            if "\ud800" <= piece[-1:] <= "\udbff":
                self._held[kind] = piece[-1]
                piece = piece[:-1]
            piece = clean(piece)
        call = item.value if item is not None and kind == "tool_call" else {}
        if piece or call:
            chunks.append(Delta(kind, piece, clean(_string(call, "call_id")), clean(_string(call, "name"))))

    def _finish(self, end: str, response: dict[str, Any], chunks: list[Chunk]) -> None:
        status = _string(response, "status")
        details = response.get("incomplete_details")
        reason = _string(details, "reason") if isinstance(details, dict) else ""
        end = status if status in _VETOES else "incomplete" if reason else end
        if end in ("failed", "cancelled") or response.get("error"):
            raise _failure(response.get("error") or {"code": "server_error", "message": f"the response was {end}"})
        stop: StopReason = "stop"
        if end == "incomplete":
            stop = "filtered" if any(word in reason for word in _FILTERS) else "length"
        elif end not in ("completed", "complete", "done"):
            raise ModelError(
                "protocol", f"the server answered with a response that is not finished (status {end[:40]!r})"
            )
        output = response.get("output")
        items = [self._filled(item) for item in output if isinstance(item, dict)] if isinstance(output, list) else []
        self._completed = self._assemble(items or self._collected(), stop, reason or end)
        if not self._shown:
            self._show_whole(self._completed, chunks)

    def _filled(self, item: dict[str, Any]) -> dict[str, Any]:
        """An item of the output; a call that has no arguments there has those that were streamed."""
        shown = self._items.get(self._labels.get(_string(item, "id"), ""))
        if shown is None or item.get("type") != "function_call" or item.get("arguments"):
            return item
        return {**item, "arguments": "".join(shown.arguments)}

    def _collected(self) -> list[dict[str, Any]]:
        """The items as the stream showed them, in the order of their places."""
        labels = list(self._items)
        if all(isinstance(label, int) for label in labels):
            labels.sort()
        return [self._items[label].whole() for label in labels]

    def _assemble(self, items: list[dict[str, Any]], stop: StopReason, raw: str) -> Completed:
        assembler, called = Assembler(self._known), False
        seen: dict[str, dict[str, Any]] = {}
        for item in items:
            kind, cleaned = _string(item, "type"), _cleaned(item)
            if (own_id := _string(item, "id")) and seen.setdefault(own_id, item) == item and seen[own_id] is not item:
                continue  # said twice
            if kind == "message":
                stop = "refused" if _add_message(assembler, item) and stop == "stop" else stop
            elif kind == "reasoning":
                assembler.thinking(_thought(item), cleaned)
            elif kind == "function_call":
                if item.get("status") == "incomplete" and stop == "stop":
                    stop = "length"
                name, id = _string(item, "name"), _string(item, "call_id") or _string(item, "id")
                opened = assembler.call(_arguments(item), id=id, name=name, new=True)
                assert opened is not None
                opened.opaque = _without(cleaned, "type", "call_id", "name", "arguments") or None
                called = True
            elif kind and cleaned is not None:
                assembler.provider(clean(KIND + kind), cleaned)
        if called and stop == "stop":
            stop = "tool_calls"
        return assembler.finish(
            stop,
            raw_stop_reason=raw[:100],
            usage=self.usage,
            cost=self._cost,
            response_id=self._id,
            model=self._model,
        )

    def _show_whole(self, completed: Completed, chunks: list[Chunk]) -> None:
        for block in completed.blocks:
            if isinstance(block, Text):
                chunks.append(Delta("text", block.text))
            elif isinstance(block, Thinking) and block.text:
                chunks.append(Delta("thinking", block.text))
            elif isinstance(block, ToolCall):
                piece = msgspec.json.encode(block.arguments).decode()
                chunks.append(Delta("tool_call", piece, block.id, block.name))

    def _count(self, usage: Any) -> None:
        """The last count wins; counts of one answer are never added."""
        if not isinstance(usage, dict) or not usage:
            return
        into, out = usage.get("input_tokens_details"), usage.get("output_tokens_details")
        self.usage = Usage(
            _number(usage, "input_tokens"),
            _number(usage, "output_tokens"),
            _number(into, "cached_tokens"),
            _number(into, "cache_write_tokens"),
            _number(out, "reasoning_tokens"),
        )
        cost = usage.get("cost")
        if isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < _MAX_COUNT:
            self._cost = float(cost)  # OpenRouter


def _add_message(assembler: Assembler, item: dict[str, Any]) -> bool:
    """One block a part, with what is needed to send it back. Answers whether a part is a refusal."""
    head = _without(_cleaned(_without(item, "content")))
    content, refused = item.get("content"), False
    for part in content if isinstance(content, list) else [{"type": "output_text", "text": content}]:
        if not isinstance(part, dict):
            continue
        key = "refusal" if part.get("type") == "refusal" else "text"
        text = part.get(key)
        rest = _cleaned(_without(part, key, "logprobs"))
        if isinstance(text, str):
            refused = refused or key == "refusal"
            if text.strip():
                assembler.text(text, {"message": head, "part": rest} if head and rest else None)
        elif rest is not None and part.get("type") not in ("output_text", "refusal"):
            assembler.provider(clean(f"{KIND}message.{_string(part, 'type')}"), rest)
    return refused


def _thought(item: dict[str, Any]) -> str:
    """What a reasoning item says in words: its summary, or the reasoning itself where a server shows it."""
    for key in ("summary", "content"):
        parts = item.get(key)
        texts = [_string(part, "text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        if any(texts):
            return "\n\n".join(texts)
    return ""


def _is_failure(event: dict[str, Any]) -> bool:
    return any(event.get(key) for key in ("error", "detail", "message"))


def _failure(error: Any) -> ModelError:
    """The typed error of an event or of a failed response."""
    if isinstance(error, dict):
        code = (_string(error, "code") or _string(error, "type")).lower()
        known = next((known for pattern, known in _CODES if pattern.fullmatch(code)), None)
        error = {**error, "code": known} if known else error
    return body_failure({"error": error})


def _arguments(item: dict[str, Any]) -> str:
    """Argument text; some servers send the object itself."""
    arguments = item.get("arguments")
    if isinstance(arguments, str) or not arguments:
        return arguments or ""
    try:
        return json.dumps(arguments)
    except (ValueError, RecursionError):
        return "[]"  # not an object: it becomes a flaw


def _without(item: Opaque, *names: str) -> dict[str, Any]:
    """The other fields, but for empty ones: an id that is null or "" would be refused."""
    return {key: value for key, value in (item or {}).items() if key not in names and value not in (None, "")}


def _cleaned(value: dict[str, Any]) -> Opaque:
    try:
        return clean_json(value)  # type: ignore[no-any-return]
    except ValueError:
        return None


def _string(value: dict[str, Any], key: str) -> str:
    found = value.get(key)
    return found if isinstance(found, str) else ""


def _number(usage: Any, key: str) -> int:
    value = usage.get(key) if isinstance(usage, dict) else 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MAX_COUNT:
        return 0
    return int(value)
