"""A history as the Responses API has it, a list of its items, to and from the library's messages.

Rule: an item that came from the API goes back as it came; an item that cannot go back is left out before it is sent.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from itertools import groupby
from typing import Any

import latchstep as ls
from latchstep.core.chunk import Chunk, Completed
from latchstep.core.message import Block, Provider, Thinking, clean, tool_message
from latchstep.model.base import Request
from latchstep.model.responses_answer import KIND, Decoder

Item = dict[str, Any]
CALL, OUTPUT = "function_call", "function_call_output"


class Once:
    """The model, asked once: only its completed event ends an answer, and a stream without it ends the loop."""

    def __init__(self, model: Any) -> None:
        self.model, self.name = getattr(model, "inner", model), model.name

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        async with aclosing(self.model.stream(request)) as chunks:
            async for chunk in chunks:
                match chunk:
                    case Completed(stop_reason="length" | "filtered", raw_stop_reason=raw) if raw != "completed":
                        raise ls.ModelError("protocol", f"the response is not complete: {raw}")
                yield chunk


def compatible(history: Iterable[Any]) -> list[Item]:
    """Without what the API would refuse: foreign forms, system prompts, blanks, and half a pair of call and output."""
    kept: dict[Any, Item] = {}  # of calls and outputs the first of each id
    for at, item in enumerate(item for item in history if isinstance(item, dict) and _sendable(item)):
        kind, id = _kind(item), item.get("call_id")
        if kind not in (CALL, OUTPUT):
            kept[at] = item
        elif kind == CALL or (CALL, id) in kept:
            kept.setdefault((kind, id), item)
    return [item for item in kept.values() if _kind(item) != CALL or (OUTPUT, item["call_id"]) in kept]


def messages_of(items: Iterable[Item], origin: str) -> list[ls.Message]:
    """`compatible` items as messages: one for each turn of the model called `origin`, one for each output."""
    out: list[ls.Message] = []
    names: dict[str, str] = {}
    for side, group in groupby(items, key=_side):
        said = list(group)
        if side == "model":
            decoder = Decoder()
            decoder.feed("", json.dumps({"output": [{"type": _kind(item), **item} for item in said]}))
            blocks = [block for end in decoder.end() if isinstance(end, Completed) for block in end.blocks]
            out.append(ls.Message("assistant", tuple(blocks), origin=origin))
            names.update({call.id: call.name for call in out[-1].calls})
        elif side == "user":
            out += [ls.Message("user", _blocks(item["content"])) for item in said]
        else:
            ids = [(item["call_id"], _blocks(item["output"])) for item in said]
            out += [tool_message(ls.ToolResult(id, names.get(id, ""), blocks)) for id, blocks in ids]
    return out


def items_of(messages: Iterable[ls.Message]) -> list[Item]:
    """What was said, as items: everything that the model sent, its reasoning too."""
    items: list[Item] = []
    for message in messages:
        for block in message.blocks:
            opaque = getattr(block, "opaque", None) or {}
            match block:
                case ls.ToolResult():
                    items.append({"type": OUTPUT, "call_id": block.call_id, "output": block.text})
                case ls.ToolCall():
                    rest = {key: value for key, value in opaque.items() if key != "provider_id"}
                    call = {"call_id": block.id, "name": block.name, "arguments": json.dumps(block.arguments)}
                    items.append({"type": CALL, **rest, **call})
                case ls.Text() if isinstance(head := opaque.get("message"), dict):
                    key = "refusal" if opaque["part"].get("type") == "refusal" else "text"
                    part = {**opaque["part"], key: block.text}
                    if items and "id" in head and items[-1].get("id") == head["id"]:
                        items[-1]["content"].append(part)
                    else:
                        items.append({**head, "content": [part]})
                case ls.Text():
                    items.append({"role": message.role, "content": block.text})
                case Thinking() if opaque:
                    items.append(opaque)
                case Provider() if block.kind == f"{KIND}{block.data.get('type')}":
                    items.append(block.data)
    return items


def _kind(item: Item) -> Any:
    return item.get("type") or ("message" if "role" in item else "")


def _side(item: Item) -> str:
    if _kind(item) == OUTPUT:
        return "tool"
    return "user" if item.get("role") == "user" else "model"


def _sendable(item: Item) -> bool:
    match _kind(item), item:
        case "message", {"role": "user", "content": content}:
            return bool(_blocks(content))
        case "message", {"role": "assistant", "content": str(text)}:
            return bool(text.strip())
        case "message", {"role": "assistant", "content": list(parts)}:
            return bool(parts)
        case "function_call", {"call_id": str(id), "name": str(name), "arguments": str()}:
            return bool(id and name)
        case "function_call_output", {"call_id": str(id), "output": output}:
            return bool(id) and isinstance(output, str | list)
        case str(kind), _:
            return kind not in ("", "message", CALL, OUTPUT, "item_reference")
    return False


def _blocks(content: Any) -> tuple[Any, ...]:
    """The texts and pictures of a content; none where it holds anything else, or nothing that can be seen."""
    blocks: list[Block] = []
    for part in [{"text": content}] if isinstance(content, str) else content if isinstance(content, list) else ():
        match part:
            case {"image_url": str(url)} if url.startswith("data:") and ";base64," in url:
                media_type, _, data = url[5:].partition(";base64,")
                blocks.append(ls.Image(media_type, data))
            case {"text": str(text)}:
                blocks += [ls.Text(clean(text))] if text.strip() else []
            case _:
                return ()
    return tuple(blocks)
