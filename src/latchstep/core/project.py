"""The transcript → messages that every provider accepts. Repair happens here, never in the record.

Each call has exactly one result, at once after it, in call order, before any user text; nothing is blank;
ids are legal and distinct. What was projected once never changes: a prompt cache can rely on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import overload

import msgspec
from msgspec.structs import replace

from .accept import LEGAL_ID
from .message import Block, Image, Message, Text, ToolCall, ToolResult, clean, tool_message
from .wording import NO_OUTPUT

MISSING = "No result of this call is known: it was not recorded."


class View(Sequence[Message]):
    """The first `length` messages of a list that only grows: a request keeps its view, nothing is copied."""

    __slots__ = ("base", "length")

    def __init__(self, base: list[Message], length: int) -> None:
        self.base, self.length = base, length

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self.base[i] for i in range(*index.indices(self.length))]
        if index < 0:
            index += self.length
        if not 0 <= index < self.length:
            raise IndexError(index)
        return self.base[index]

    def __iter__(self) -> Iterator[Message]:
        for index in range(self.length):
            yield self.base[index]


class Said(list[Message]):
    """A list that whoever keeps something made of it can hold weakly."""

    __slots__ = ("__weakref__",)


class Projection:
    """Holds what was projected so far; `feed` takes only what is new. One per session, and a new one after each
    compaction, from which on the prefix is the same again.

    repaired: how often it had to change what was said. `missing` results were made up as unknown, `superseded` and
    `orphan` ones left out, ids `renamed`, `blank` text left out.
    """

    def __init__(self) -> None:
        self.repaired: Counter[str] = Counter()
        self.messages = Said()
        self._taken: set[str] = set()
        self._digest = sha256()

    def feed(self, fresh: Sequence[Message]) -> View:
        """A view of everything said so far, `fresh` being what is new. Call it when no call is open."""
        results: dict[str, list[ToolResult]] = {}
        owners: dict[str, int] = {}
        for message in fresh:
            for block in message.blocks:
                if isinstance(block, ToolResult):
                    results.setdefault(block.call_id, []).append(block)
                elif isinstance(block, ToolCall):
                    owners[block.id] = owners.get(block.id, 0) + 1
        for call_id, found in results.items():
            if owners.get(call_id, 0) == 1:
                self.repaired["superseded"] += len(found) - 1
                del found[:-1]  # a late result replaces an earlier one
        for message in fresh:
            if message.role != "tool":
                self._add(message, results)
        self.repaired["orphan"] += sum(map(len, results.values()))
        return View(self.messages, len(self.messages))

    def _add(self, message: Message, results: dict[str, list[ToolResult]]) -> None:
        self.repaired["blank"] += sum(map(_blank, message.blocks))
        kept = (block for block in message.blocks if not isinstance(block, ToolResult) and not _blank(block))
        blocks = tuple(self._block(block) for block in kept)
        if not blocks:
            return
        sent = message if blocks == message.blocks else replace(message, blocks=blocks)
        self._put(sent)
        for call, wire in zip(message.calls, sent.calls, strict=True):
            found = results.get(call.id)
            self.repaired["missing"] += not found
            result = found.pop(0) if found else ToolResult(call.id, call.name, MISSING, "interrupted", True)
            content = _said(result.content)
            if wire.id != result.call_id or content is not result.content:
                result = replace(result, call_id=wire.id, content=content)
            self._put(tool_message(result))

    def _put(self, message: Message) -> None:
        self.messages.append(message)
        self._digest.update(_ENCODER.encode((message.role, message.blocks, message.origin)))

    def _block(self, block: Block) -> Block:
        if isinstance(block, Text):
            text = clean(block.text)
            return block if text == block.text else replace(block, text=text)
        if isinstance(block, ToolCall):
            wire = self._wire_id(block.id)
            self.repaired["renamed"] += wire != block.id
            return block if wire == block.id else replace(block, id=wire)
        return block

    def _wire_id(self, call_id: str) -> str:
        """A legal id, distinct from all before it, the same whenever the same transcript is projected."""
        stem = call_id
        if not LEGAL_ID.fullmatch(call_id):
            stem = "call-" + sha256(call_id.encode("utf-8", "replace")).hexdigest()[:16]
        wire, suffix = stem, 2
        while wire in self._taken:
            wire, suffix = f"{stem[:34]}-{suffix}", suffix + 1
        self._taken.add(wire)
        return wire

    def sha256(self, *context: bytes) -> str:
        """Digest of all messages projected so far and of whatever else goes into the request.

        Message ids stay out of it: no wire sends them, and a replay mints others.
        """
        digest = self._digest.copy()
        for part in context:
            digest.update(part)
        return digest.hexdigest()


_ENCODER = msgspec.json.Encoder()


def _blank(block: Block) -> bool:
    return isinstance(block, Text) and not block.text.strip() and block.opaque is None


def _said(content: str | tuple[Text | Image, ...]) -> str | tuple[Text | Image, ...]:
    """What a result says, without blank parts; a fixed marker for nothing."""
    if isinstance(content, str):
        return content if content.strip() else NO_OUTPUT
    said = tuple(part for part in content if isinstance(part, Image) or part.text.strip())
    return content if said == content else said or NO_OUTPUT
