"""Pieces of a streamed answer, in arrival order, become one `Completed`.

Rule: nothing a server sends makes this raise, except an answer beyond a bound. What is not one JSON object
becomes a call with a `flaw`; arguments that stop in the middle mean that the whole answer was cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from latchstep.core.arguments import parse_pieces
from latchstep.core.chunk import Completed
from latchstep.core.message import Block, Opaque, Provider, StopReason, Text, Thinking, ToolCall, Usage, clean
from latchstep.errors import ModelError

MAX_ANSWER = 64 * 1024 * 1024
"""Characters of one answer, with `_PIECE` for each piece; more is refused."""

MAX_CALLS = 1_000
"""Tool calls in one answer; more is refused."""

MAX_NAME_PIECES = 256
"""Pieces of one streamed tool name that are kept."""

_PIECE = 64
_IN_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.S)
_STRUCTURE = re.compile(r'["{}\[\]]')


class _Part:
    """Text or thinking that still grows."""

    __slots__ = ("kind", "opaque", "pieces")

    def __init__(self, kind: type[Text] | type[Thinking], opaque: Opaque) -> None:
        self.kind, self.opaque = kind, opaque
        self.pieces: list[str] = []

    def build(self) -> Text | Thinking:
        return self.kind(clean("".join(self.pieces)), self.opaque)


class OpenCall:
    """A call that still grows. `state` says how far its arguments are: `blank`, `open` or `done`."""

    __slots__ = (
        "again", "depth", "escaped", "id", "in_string", "index", "names", "opaque", "pieces", "scanned", "started"
    )  # fmt: skip

    def __init__(self, id: str, index: int | None) -> None:
        self.id, self.index = id, index
        self.names: list[str] = []
        self.pieces: list[str] = []
        self.opaque: Opaque = None
        self.again = ""  # a name that came once more after complete arguments: a repetition, or a call to come
        self.scanned = self.depth = 0
        self.started = self.in_string = self.escaped = False

    @property
    def name(self) -> str:
        """The name as far as it is known, for watchers."""
        return self.names[0] if len(set(self.names)) == 1 else "".join(self.names)

    @property
    def state(self) -> str:
        """Reads each piece once in the call's life, and only when somebody asks."""
        while self.scanned < len(self.pieces) and not self._closed:
            self._scan(self.pieces[self.scanned])
            self.scanned += 1
        return "done" if self._closed else "open" if self.started else "blank"

    @property
    def _closed(self) -> bool:
        return self.started and self.depth <= 0 and not self.in_string

    def _scan(self, piece: str) -> None:
        at, end = 0, len(piece)
        while at < end and not self._closed:
            if self.escaped:
                self.escaped, at = False, at + 1
            elif self.in_string:
                match = _IN_STRING.match(piece, at)
                at = match.end() if match else end
                if at < end:
                    self.escaped = piece[at] == "\\"
                    self.in_string = self.escaped
                    at += 1
            else:
                found = _STRUCTURE.search(piece, at)
                if found is None:
                    return
                self.started, at = True, found.end()
                if found.group() == '"':
                    self.in_string = True
                else:
                    self.depth += 1 if found.group() in "{[" else -1


class Assembler:
    """Collects one answer. `known` are the tool names that were offered, as the model knows them."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = frozenset(known)
        self._parts: list[_Part | OpenCall | Provider] = []
        self._calls: list[OpenCall] = []
        self._by_id: dict[str, list[OpenCall]] = {}
        self._by_index: dict[int, OpenCall] = {}
        self._size = 0

    @property
    def empty(self) -> bool:
        return not self._parts

    def text(self, piece: str, opaque: Opaque = None) -> None:
        self._append(Text, piece, opaque)

    def thinking(self, piece: str, opaque: Opaque = None) -> None:
        """`opaque` is kept by reference until `finish`, so a wire may still complete it (a late signature)."""
        self._append(Thinking, piece, opaque)

    def provider(self, kind: str, data: dict[str, Any]) -> None:
        self.count(len(str(data)))
        self._parts.append(Provider(kind, data))

    def call(
        self, piece: str, *, id: str = "", index: int | None = None, name: str = "", new: bool = False
    ) -> OpenCall | None:
        """Take one fragment of a call and answer the call it belongs to, None for a fragment of nothing.

        `index` is a label and not an identity: servers omit it, or give every call the same one.
        `new` says that the fragment surely begins a call of its own.
        """
        filled = bool(piece) and not piece.isspace()
        if not (new or id or name or filled):
            return None
        self.count(len(piece) + len(name))
        call = self._begin(id, index) if new or not self._calls else self._route(id, index, name, filled)
        if name and len(call.names) < MAX_NAME_PIECES:
            if call.names and call.state == "done":
                call.again = name
            else:
                call.names.append(name)
        if piece:
            call.pieces.append(piece)
        return call

    def finish(
        self,
        stop_reason: StopReason,
        *,
        raw_stop_reason: str = "",
        usage: Usage = Usage(),  # noqa: B008 - frozen
        cost: float | None = None,
        response_id: str = "",
        model: str = "",
    ) -> Completed:
        """The whole answer. `stop_reason` becomes `length` where a call's arguments stop in the middle."""
        blocks: list[Block] = []
        whole = stop_reason in ("stop", "tool_calls")
        for part in self._parts:
            if isinstance(part, OpenCall):
                arguments, flaw, cut = parse_pieces(part.pieces, whole=whole)
                if cut and whole:
                    stop_reason = "length"
                name = clean(resolve_name(part.names, self._known))
                blocks.append(ToolCall(clean(part.id), name, arguments, flaw, part.opaque))
            else:
                blocks.append(part.build() if isinstance(part, _Part) else part)
        return Completed(
            blocks=tuple(blocks),
            stop_reason=stop_reason,
            raw_stop_reason=clean(raw_stop_reason),
            usage=usage,
            cost=cost,
            response_id=clean(response_id),
            model=clean(model),
        )

    def _append(self, kind: type[Text] | type[Thinking], piece: str, opaque: Opaque) -> None:
        last = self._parts[-1] if self._parts else None
        if not (isinstance(last, _Part) and last.kind is kind and last.opaque is opaque):
            if not piece and not opaque:
                return
            last = _Part(kind, opaque)
            self._parts.append(last)
        if piece:
            self.count(len(piece))
            last.pieces.append(piece)

    def count(self, size: int) -> None:
        """Every piece counts against `MAX_ANSWER`; a wire counts here what it keeps by itself."""
        self._size += size + _PIECE
        if self._size > MAX_ANSWER:
            raise ModelError("protocol", f"the answer is larger than MAX_ANSWER ({self._size} of {MAX_ANSWER})")

    def _begin(self, id: str, index: int | None) -> OpenCall:
        if len(self._calls) >= MAX_CALLS:
            raise ModelError("protocol", f"the answer has more tool calls than MAX_CALLS ({MAX_CALLS})")
        call = OpenCall(id, index)
        self._calls.append(call)
        self._parts.append(call)
        if id:
            self._by_id.setdefault(id, []).append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _route(self, id: str, index: int | None, name: str, filled: bool) -> OpenCall:
        last = self._calls[-1]
        labelled = self._by_index.get(index) if index is not None else last
        if id:
            return self._route_by_id(id, index, name, filled, labelled)
        if labelled is None:  # a label nobody has yet
            late = last.index is None and last.state != "done" and (not name or name == last.name)
            if not late and (name or last.state != "open"):
                return self._begin("", index)
            labelled = last
        if not self._starts_anew(labelled, name, filled):
            return labelled
        call = self._begin("", index)
        if not name:
            call.names.append(labelled.again)
            labelled.again = ""
        return call

    def _route_by_id(self, id: str, index: int | None, name: str, filled: bool, labelled: OpenCall | None) -> OpenCall:
        owners = self._by_id.get(id)
        if owners:
            call = next((owner for owner in owners if owner.index == index), owners[-1])
            other_label = index is not None and call.index is not None and index != call.index
            if name and other_label and call.state != "open":
                return self._begin(id, index)  # two calls under one id
            if name and filled and call.state == "done" and name != call.name:
                return self._begin(id, index)
            return call
        if labelled is not None and labelled.state != "done":
            if not labelled.id and not (name and labelled.names):
                labelled.id = id  # the id came late
                self._by_id[id] = [labelled]
                return labelled
            if not name and labelled.state == "open":
                return labelled  # a server that makes up an id for each fragment
        return self._begin(id, index)

    def _starts_anew(self, call: OpenCall, name: str, filled: bool) -> bool:
        """Whether a fragment without an id begins a new call instead of continuing `call`."""
        done = call.state == "done"
        if not name:
            return done and filled and bool(call.again)
        if done:
            return filled or name != call.name
        if self._by_id or not call.names or name in (call.names[-1], call.name):
            return False
        joined = "".join(call.names)
        grows = name.startswith(joined) and joined not in self._known
        return not grows and not any(known.startswith(joined + name) for known in self._known)


def resolve_name(pieces: list[str], known: frozenset[str]) -> str:
    """The tool meant by the pieces of a name, which some servers split and others repeat.

    The joined name wins where it is known, then a single piece, then the pieces without repetitions; then the
    same without blanks around. Nothing else is guessed: an unknown name stays as it came.
    """
    joined = "".join(pieces)
    distinct = list(dict.fromkeys(pieces))
    unrepeated = "".join(piece for at, piece in enumerate(pieces) if at == 0 or piece != pieces[at - 1])
    candidates = [joined, *distinct, unrepeated, "".join(distinct)]
    forms: tuple[Callable[[str], str], ...] = (str, str.strip)
    for form in forms:
        for candidate in candidates:
            if form(candidate) in known:
                return form(candidate)
    return distinct[0] if len(distinct) == 1 else joined
