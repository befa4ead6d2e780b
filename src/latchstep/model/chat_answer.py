"""The events of a Chat Completions stream become chunks.

Rule: an answer is over when its `finish_reason` was seen, and not before; whatever comes after it is still read.
Every server's dialect goes through here, and a whole answer that was not streamed does too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from latchstep.core.assemble import Assembler
from latchstep.core.chunk import Chunk, Delta, DeltaKind
from latchstep.core.message import Opaque, StopReason, Usage, clean, clean_json
from latchstep.errors import ModelError
from latchstep.model.failure import body_failure
from latchstep.model.sse import load_values

STOP_REASONS: dict[str, StopReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "max_output_tokens": "length",
    "content_filter": "filtered",
    "safety": "filtered",
    "sensitive": "filtered",
    "recitation": "filtered",
    "prohibited_content": "filtered",
    "guardrail_intervened": "filtered",
    "refusal": "refused",
}
"""What the words of all dialects mean: a server in front of another provider's model often passes its word on."""

RIDERS = ("extra_content", "provider_specific_fields")
"""Fields of a call that go back with it, such as Gemini's `thought_signature` (https://ai.google.dev/gemini-api/docs/openai)."""

_FAILURES = {
    "error": "server_error",
    "network_error": "server_error",
    "abort": "server_error",
    "insufficient_system_resource": "overloaded",
    "model_context_window_exceeded": "model_context_window_exceeded",
}
_MAX_COUNT = 2**53


class Decoder:
    """Feed it the data of each event, then `end()` it. `known` are the tool names as they were sent."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._assembler = Assembler(known)
        self._finish = ""
        self.usage = Usage()
        self._cost: float | None = None
        self._id = self._model = ""
        self._refused = self._called = False
        self._thinking: dict[str, dict[str, Any]] = {}  # opaque by field, completed at the end
        self._details: list[tuple[dict[str, Any], dict[str, list[str]]]] = []  # (fields, pieces of the growing ones)
        self._held: dict[DeltaKind, str] = {}
        self.done = False
        """`[DONE]` was seen: nothing more will come."""

    @property
    def finished(self) -> bool:
        """A `finish_reason` was seen: the answer is whole, only its usage may be missing."""
        return bool(self._finish)

    def feed(self, event: str, data: str) -> list[Chunk]:
        """Raises ModelError: what the server reported, or `protocol` for what is not JSON."""
        data = data.strip()
        if not data or self.done:
            return []
        if data == "[DONE]":
            self.done = True
            return []
        chunks: list[Chunk] = []
        for value in load_values(data):
            if isinstance(value, dict):
                self._event(value, chunks)
        return chunks

    def end(self) -> list[Chunk]:
        """The `Completed`. Raises ModelError("protocol") where the stream ended before the answer did."""
        if not self._finish:
            part = "in the middle of its answer" if not self._assembler.empty else "without an answer"
            raise ModelError("protocol", f"the server closed the stream {part} (no finish_reason)")
        if self._details:
            opaque = next(iter(self._thinking.values()), None)
            if opaque is None:
                opaque = self._opaque("reasoning_details")
                self._assembler.thinking("", opaque)
            opaque["reasoning_details"] = [
                {**entry, **{key: "".join(pieces) for key, pieces in grown.items()}} for entry, grown in self._details
            ]
        stop = STOP_REASONS.get(self._finish.lower(), "stop")
        if self._refused and stop in ("stop", "tool_calls"):
            stop = "refused"
        completed = self._assembler.finish(
            stop,
            raw_stop_reason=self._finish,
            usage=self.usage,
            cost=self._cost,
            response_id=self._id,
            model=self._model,
        )
        return [completed]

    def _event(self, event: dict[str, Any], chunks: list[Chunk]) -> None:
        error = event.get("error")
        choices = event.get("choices")
        if error or event.get("object") == "error":
            raise body_failure(event if error else {"error": event})
        if choices is None and "usage" not in event and _is_failure(event):
            raise body_failure(event)
        if isinstance(id := event.get("id"), str):
            self._id = self._id or id[:200]
        if isinstance(model := event.get("model"), str):
            self._model = self._model or model[:200]
        self._count(event.get("usage"))
        groq = event.get("x_groq")
        if isinstance(groq, dict):
            self._count(groq.get("usage"))
            if groq.get("error"):
                raise body_failure({"error": groq["error"]})
        if isinstance(choices, list):
            for choice in choices:
                if isinstance(choice, dict) and choice.get("index") in (0, None):
                    self._choice(choice, chunks)

    def _choice(self, choice: dict[str, Any], chunks: list[Chunk]) -> None:
        delta, whole = choice.get("delta"), False
        if choice.get("error"):
            raise body_failure(choice)
        if not delta and isinstance(message := choice.get("message"), dict):
            if not self._assembler.empty:  # what the deltas said, once more; calls where they said none
                message = {} if self._called else {"tool_calls": message.get("tool_calls")}
            delta, whole = message, True
        if isinstance(delta, dict):
            self._delta(delta, whole, chunks)
        if "usage" in choice:  # Moonshot
            self._count(choice["usage"])
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            if finish.lower() in _FAILURES:
                code = _FAILURES[finish.lower()]
                raise body_failure({"error": {"code": code, "message": f"the server ended the answer: {finish}"}})
            if STOP_REASONS.get(self._finish.lower(), "stop") in ("stop", "tool_calls"):
                self._finish = finish[:100]

    def _delta(self, delta: dict[str, Any], whole: bool, chunks: list[Chunk]) -> None:
        for field in ("reasoning_content", "reasoning"):
            thought = delta.get(field)
            if isinstance(thought, str) and thought:
                self._think(field, thought, chunks)
                break  # some servers send both, with the same text
        if isinstance(details := delta.get("reasoning_details"), list):
            self._add_details(details)
        content = delta.get("content")
        if isinstance(content, str):
            if content:
                self._assembler.text(content)
                self._show("text", content, chunks)
        elif isinstance(content, list):
            for part in content:
                self._part(part, chunks)
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._refused = True
            self._assembler.text(refusal)
            self._show("text", refusal, chunks)
        if isinstance(calls := delta.get("tool_calls"), list):
            for place, call in enumerate(calls):
                if isinstance(call, dict):
                    self._call(call, call.get("function"), whole, place, chunks)
        if isinstance(legacy := delta.get("function_call"), dict):
            self._call({}, legacy, whole, 0, chunks)

    def _part(self, part: Any, chunks: list[Chunk]) -> None:
        """One part of a content list; Mistral puts its reasoning there. What is unknown is kept and not sent back."""
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        if not isinstance(part, dict):
            return
        text = part.get("text")
        if part.get("type") == "thinking":
            inner = part.get("thinking")
            for piece in inner if isinstance(inner, list) else [inner]:
                thought = piece.get("text") if isinstance(piece, dict) else piece
                if isinstance(thought, str):
                    self._think("content", thought, chunks)
        elif isinstance(text, str):
            self._assembler.text(text)
            self._show("text", text, chunks)
        elif (data := _cleaned(part)) is not None:
            self._assembler.provider("openai-chat.content", data)

    def _call(self, call: dict[str, Any], function: Any, whole: bool, place: int, chunks: list[Chunk]) -> None:
        function = function if isinstance(function, dict) else call
        id, name, label = call.get("id"), function.get("name"), label_of(call.get("index"))
        id = id if isinstance(id, str) else str(id) if isinstance(id, int) else ""
        name = name if isinstance(name, str) else ""
        piece = argument_piece(function.get("arguments"))
        alone = whole or (place > 0 and bool(name) and not id and label is None)
        opened = self._assembler.call(piece, id=id, index=label, name=name, new=alone)
        if opened is not None:
            self._called = True
            if riders := _cleaned({key: call[key] for key in RIDERS if call.get(key)}):
                self._assembler.count(len(str(riders)))
                opened.opaque = {**(opened.opaque or {}), **riders}
            self._show("tool_call", piece, chunks, opened.id, opened.name)

    def _think(self, field: str, piece: str, chunks: list[Chunk]) -> None:
        self._assembler.thinking(piece, self._opaque(field))
        self._show("thinking", piece, chunks)

    def _opaque(self, field: str) -> dict[str, Any]:
        return self._thinking.setdefault(field, {"field": field})

    def _show(self, kind: DeltaKind, piece: str, chunks: list[Chunk], call_id: str = "", name: str = "") -> None:
        """A delta for watchers. A character whose two halves come in two pieces is shown with the second."""
        if not piece.isascii() or self._held:
            piece = self._held.pop(kind, "") + piece
            if "\ud800" <= piece[-1:] <= "\udbff":
                self._held[kind] = piece[-1]
                piece = piece[:-1]
            piece = clean(piece)
        if piece or kind == "tool_call":
            chunks.append(Delta(kind, piece, clean(call_id), clean(name)))

    def _add_details(self, details: list[Any]) -> None:
        """OpenRouter streams its `reasoning_details` in pieces that belong together by `index` and `type`."""
        for detail in details:
            entry = _cleaned(detail)
            if entry is None:
                continue
            grown = {key: [entry.pop(key)] for key in ("text", "summary", "data") if isinstance(entry.get(key), str)}
            self._assembler.count(len(detail) * 16 + sum(len(pieces[0]) for pieces in grown.values()))
            if self._details:
                last, pieces = self._details[-1]
                if (last.get("index"), last.get("type")) == (entry.get("index"), entry.get("type")):
                    last.update({key: value for key, value in entry.items() if value is not None})
                    for key, more in grown.items():
                        pieces.setdefault(key, []).extend(more)
                    continue
            self._details.append((entry, grown))

    def _count(self, usage: Any) -> None:
        """The last count wins, but for one of nothing at all; counts of one answer are never added."""
        if not isinstance(usage, dict) or not usage:
            return
        into, out = _sub(usage, "prompt_tokens_details"), _sub(usage, "completion_tokens_details")
        prompt, output = _number(usage, "prompt_tokens"), _number(usage, "completion_tokens")
        reasoning = _number(out, "reasoning_tokens")
        if reasoning and _number(usage, "total_tokens") == prompt + output + reasoning:
            output += reasoning  # xAI counts them beside the completion
        cached = _number(into, "cached_tokens") or _number(usage, "prompt_cache_hit_tokens")
        cached = cached or _number(usage, "cached_tokens")
        if prompt or output:
            self.usage = Usage(prompt, output, cached, _number(into, "cache_write_tokens"), reasoning)
        cost = usage.get("cost")
        if isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < _MAX_COUNT:
            self._cost = float(cost)


def _is_failure(event: dict[str, Any]) -> bool:
    """An error without an envelope: FastAPI's `detail`, or a bare message with a code."""
    bare = isinstance(event.get("message") or event.get("msg"), str) and (
        "code" in event or "error" in str(event.get("type"))
    )
    return bare or bool(event.get("detail"))


def label_of(index: Any) -> int | None:
    """An index, which some servers send as a text or as a fraction."""
    if isinstance(index, str) and index.isascii() and index.isdecimal():
        return int(index[:9])
    plain = isinstance(index, int | float) and not isinstance(index, bool)
    return int(index) if plain and abs(index) < _MAX_COUNT else None


def argument_piece(arguments: Any) -> str:
    """Arguments are text in pieces; some servers send the object itself, and an empty one means nothing yet."""
    if isinstance(arguments, str):
        return arguments
    if not arguments:
        return ""
    try:
        return json.dumps(arguments)
    except (ValueError, RecursionError):
        return "[]"  # not an object: it becomes a flaw


def _cleaned(value: Any) -> Opaque:
    try:
        return clean_json(value) if isinstance(value, dict) else None
    except ValueError:
        return None


def _sub(usage: dict[str, Any], key: str) -> dict[str, Any]:
    value = usage.get(key)
    return value if isinstance(value, dict) else {}


def _number(usage: dict[str, Any], key: str) -> int:
    value = usage.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MAX_COUNT:
        return 0
    return int(value)
