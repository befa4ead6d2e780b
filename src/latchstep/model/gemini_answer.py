"""The chunks of a Gemini stream become our chunks.

Rule: an answer is over when its `finishReason` (or the prompt's `blockReason`) was seen, and not before; only STOP
is a good end. A signed part is never joined with another, and is kept even where its text is empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import msgspec

from latchstep.core.assemble import Assembler, OpenCall
from latchstep.core.chunk import Chunk, Delta
from latchstep.core.message import (
    MAX_DEPTH,
    Block,
    Image,
    Opaque,
    Provider,
    StopReason,
    ToolCall,
    Usage,
    clean,
    clean_json,
)
from latchstep.errors import ModelError, ModelErrorKind
from latchstep.model.failure import MAX_WORDS, body_failure
from latchstep.model.sse import load_values

_STOP_REASONS: dict[str, StopReason] = {"STOP": "stop", "MAX_TOKENS": "length"}
"""Every other reason says that something was held back, or is one that we do not know: nothing of it may run."""

_FAILURES: dict[str, ModelErrorKind] = {
    "MALFORMED_FUNCTION_CALL": "protocol",
    "MALFORMED_RESPONSE": "protocol",
    "UNEXPECTED_TOOL_CALL": "protocol",
    "TOO_MANY_TOOL_CALLS": "protocol",
    "MISSING_THOUGHT_SIGNATURE": "bad_request",
}
_BESIDE = frozenset({"thought", "thoughtSignature", "partMetadata"})  # keys of a part that are not its content
_COUNTS = frozenset(
    f"{name}TokenCount" for name in ("prompt", "cachedContent", "candidates", "thoughts", "toolUsePrompt")
)
_MAX_COUNT = 2**53
_SLOT = 64  # characters that one step of a path counts as, for what it may create
_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]'"*]++)|\[(?P<index>[0-9]{1,9})\]"""
    r"""|\[(?P<quote>['"])(?P<quoted>(?:(?!(?P=quote))[^\\]|\\['"\\/])*+)(?P=quote)\]"""
)


class _Growing:
    """A string of streamed arguments."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[str] = []


class _Call:
    """A call with what the assembler does not know of it. `growing` is the string that more of is announced."""

    __slots__ = ("args", "flaw", "growing", "id", "name", "opaque", "open")

    def __init__(self, open: OpenCall, id: str, name: str) -> None:
        self.open, self.id, self.name = open, id, name
        self.opaque: dict[str, Any] = {"id": clean(id)} if id else {}
        self.args: Any = None
        self.growing: _Growing | None = None
        self.flaw = ""


class Decoder:
    """Feed it the data of each event, then `end()` it. `known` are the tool names as they were sent."""

    done = False
    """The stream has no last word: it ends with its connection."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._assembler = Assembler(known)
        self._calls: list[_Call] = []
        self._live: _Call | None = None
        self._stop: StopReason | None = None
        self._finish = self._id = self._model = ""
        self._counts: dict[str, int] = {}

    @property
    def usage(self) -> Usage:
        count = self._counts.get
        thoughts = count("thoughtsTokenCount", 0)
        return Usage(
            input=count("promptTokenCount", 0) + count("toolUsePromptTokenCount", 0),
            output=count("candidatesTokenCount", 0) + thoughts,
            cache_read=count("cachedContentTokenCount", 0),
            reasoning=thoughts,
        )

    @property
    def finished(self) -> bool:
        """A `finishReason` was seen: the answer is whole, only its usage may be missing."""
        return self._stop is not None

    def feed(self, event: str, data: str) -> list[Chunk]:
        """Raises ModelError: what the server reported, or `protocol` for what is not JSON."""
        chunks: list[Chunk] = []
        for value in load_values(data) if data.strip() else ():
            if isinstance(value, dict):
                self._event(value, chunks)
        return chunks

    def end(self) -> list[Chunk]:
        """The `Completed`. Raises ModelError("protocol") where the stream ended before the answer did."""
        if self._stop is None:
            part = "in the middle of its answer" if not self._assembler.empty else "without an answer"
            raise ModelError("protocol", f"the server closed the stream {part} (no finishReason)")
        chunks: list[Chunk] = []
        self._close(chunks)
        completed = self._assembler.finish(
            self._stop,
            raw_stop_reason=self._finish,
            usage=self.usage,
            response_id=self._id,
            model=self._model,
        )
        calls = iter(self._calls)
        blocks = tuple(_finished(block, calls) for block in completed.blocks)
        return [*chunks, msgspec.structs.replace(completed, blocks=blocks)]

    def _event(self, event: dict[str, Any], chunks: list[Chunk]) -> None:
        if event.get("error"):
            raise body_failure(event)
        self._id = self._id or _string(event.get("responseId"))[:200]
        self._model = self._model or _string(event.get("modelVersion"))[:200]
        usage = event.get("usageMetadata")
        for name, number in usage.items() if isinstance(usage, dict) else ():  # the last count of each wins
            whole = isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < _MAX_COUNT
            if whole and name in _COUNTS:
                self._counts[name] = int(number)
        feedback = event.get("promptFeedback")
        blocked = _string(feedback.get("blockReason")) if isinstance(feedback, dict) else ""
        if blocked and self._stop is None:
            self._stop, self._finish = "filtered", blocked[:100]
        candidates = event.get("candidates")
        for at, candidate in enumerate(candidates if isinstance(candidates, list) else ()):
            index = candidate.get("index") if isinstance(candidate, dict) else 1
            if (at if index is None else index) == 0:
                self._candidate(candidate, chunks)

    def _candidate(self, candidate: dict[str, Any], chunks: list[Chunk]) -> None:
        content = candidate.get("content")
        parts = content.get("parts") if isinstance(content, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict):
                self._part(part, chunks)
        finish = _string(candidate.get("finishReason"))[:100]
        if not finish or finish == "FINISH_REASON_UNSPECIFIED":
            return
        if finish.upper() in _FAILURES:
            why = " ".join(clean(_string(candidate.get("finishMessage")))[:MAX_WORDS].split())
            text = f"the server ended the answer: {clean(finish)}{': ' if why else ''}{why}"
            raise ModelError(_FAILURES[finish.upper()], text)
        if self._stop in (None, "stop"):
            self._stop, self._finish = _STOP_REASONS.get(finish.upper(), "filtered"), finish

    def _part(self, part: dict[str, Any], chunks: list[Chunk]) -> None:
        signature = _string(part.get("thoughtSignature"))
        opaque: Opaque = {"thoughtSignature": clean(signature)} if signature else None
        self._assembler.count(len(signature))
        kind = next((key for key, value in part.items() if key not in _BESIDE and value not in (None, "")), "text")
        call, text = part.get("functionCall"), _string(part.get("text"))
        if isinstance(call, dict):
            self._call(call, opaque or {}, chunks)
        elif text or kind == "text":
            thought = part.get("thought") is True
            (self._assembler.thinking if thought else self._assembler.text)(text, opaque)
            if text:
                chunks.append(Delta("thinking" if thought else "text", clean(text)))
        else:
            try:
                self._assembler.provider(f"gemini.{clean(kind)[:64]}", clean_json(part))
            except ValueError:
                pass  # what no journal can hold

    def _call(self, call: dict[str, Any], opaque: dict[str, Any], chunks: list[Chunk]) -> None:
        """A whole call, or a piece of one whose arguments are streamed: a piece without a name continues it."""
        id, name = _string(call.get("id")), _string(call.get("name"))
        args, partial = call.get("args"), call.get("partialArgs")
        live = self._live
        if live is not None and name and not (id and id == live.id):
            self._close(chunks)
            live = None
        if live is None:
            if not (id or name or args or partial):
                if self._calls:
                    self._calls[-1].opaque.update(opaque)
                return  # the end of a call that is closed
            opened = self._assembler.call("", id=id, name=name, new=True)
            assert opened is not None
            live = self._live = _Call(opened, id, name)
            self._calls.append(live)
        live.opaque.update(opaque)
        if args is not None:
            live.args = args
        for piece in partial if isinstance(partial, list) else ():
            if isinstance(piece, dict):
                path, value = _string(piece.get("jsonPath")), _string(piece.get("stringValue"))
                keys = _keys(path)
                self._assembler.count(len(path) + len(value) + _SLOT * len(keys))
                try:
                    _place(live, keys, piece)
                except (IndexError, TypeError):
                    live.flaw = f"a piece of the arguments has no place: {clean(path)[:80]!r}"
        if call.get("willContinue") is True:
            chunks.append(Delta("tool_call", "", clean(live.id), clean(live.name)))  # a sign of life
        else:
            self._close(chunks)

    def _close(self, chunks: list[Chunk]) -> None:
        live, self._live = self._live, None
        if live is None:
            return
        try:
            piece = _string(live.args)  # text, or nothing
            if live.args is not None and not isinstance(live.args, str):
                piece = json.dumps(live.args, default=lambda text: "".join(text.pieces))
        except (ValueError, RecursionError):
            piece, live.flaw = "", "the arguments are nested too deeply"
        if live.growing is not None:
            piece = piece[:-1]  # cut in the middle of a value: it must not look whole
        self._assembler.count(len(piece))
        live.open.pieces.append(piece)
        chunks.append(Delta("tool_call", piece, clean(live.id), clean(live.name)))


def _finished(block: Block, calls: Iterator[_Call]) -> Block:
    if isinstance(block, ToolCall):
        call = next(calls)
        if call.flaw:
            return msgspec.structs.replace(block, arguments={}, flaw=call.flaw, opaque=call.opaque or None)
        return msgspec.structs.replace(block, opaque=call.opaque or None)
    if isinstance(block, Provider) and block.data.keys() == {"inlineData"}:
        blob = block.data["inlineData"]
        kind = _string(blob.get("mimeType")) if isinstance(blob, dict) else ""
        if kind.startswith("image/") and isinstance(blob.get("data"), str):
            return Image(kind, blob["data"])
    return block


def _place(call: _Call, keys: list[str | int], piece: dict[str, Any]) -> None:
    """Put one piece of streamed arguments where `keys` lead. Raises TypeError or IndexError where they lead nowhere."""
    if call.args is None:
        call.args = {}
    holder: Any = call.args
    for key, following in pairwise(keys):
        holder = _slot(holder, key, [] if isinstance(following, int) else {})
    value = piece.get("stringValue", piece.get("numberValue", piece.get("boolValue")))
    there = _slot(holder, keys[-1], None)
    if isinstance(value, str):
        grown = there if isinstance(there, _Growing) and there is call.growing else _Growing()
        grown.pieces.append(value)
        call.growing = grown if piece.get("willContinue") is True else None
        value = grown
    elif isinstance(value, dict | list):
        raise TypeError
    holder[keys[-1]] = value


def _slot(holder: Any, key: str | int, new: Any) -> Any:
    """What stands at `key`, `new` where nothing does. Raises TypeError, or IndexError for a gap in a list."""
    if isinstance(holder, dict) and isinstance(key, str):
        return holder.setdefault(key, new)
    if not isinstance(holder, list) or not isinstance(key, int):
        raise TypeError
    if key == len(holder):
        holder.append(new)
    return holder[key]


def _keys(path: str) -> list[str | int]:
    """The steps of a JSON path that names one place; an empty list for any other."""
    keys: list[str | int] = []
    at = 1
    while path.startswith("$") and at < len(path) and len(keys) < MAX_DEPTH:
        step = _STEP.match(path, at)
        if step is None:
            return []
        name, index, quoted = step["name"], step["index"], step["quoted"]
        keys.append(int(index) if index else name if name else re.sub(r"\\(.)", r"\1", quoted))
        at = step.end()
    return keys if at >= len(path) else []


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
