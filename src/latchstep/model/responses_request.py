"""A `Request` becomes the body of a Responses call.

Rule: nothing is stored at the provider; every item goes along, and what only the provider understands goes back as it
came, to the model that wrote it and to no other. The bytes of earlier items never change from request to request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from latchstep.core.message import Block, Image, Message, Provider, Text, Thinking, ToolCall, ToolResult
from latchstep.model.base import Request, ToolSpec
from latchstep.model.history import (
    NO_OUTPUT,
    NO_RESULT,
    History,
    check_options,
    json_bytes,
    json_schema,
    legal_name,
    pair,
    visible,
    wire_ids,
)
from latchstep.model.responses_answer import KIND

RESERVED = frozenset(
    {"model", "input", "instructions", "stream", "store", "background", "conversation", "previous_response_id"}
)
"""Options that the adapter decides; a caller who sets one has made a mistake."""

ENCRYPTED = "reasoning.encrypted_content"

_LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_REASONING = re.compile(r"(?:.*[:/])?(?:gpt-[34]|chatgpt-).*|.*-chat(?:-.*)?")
"""Models that refuse to be asked for encrypted reasoning ("Encrypted content is not supported with this model")."""

_NEUTRAL = {"message", "reasoning", "function_call", "function_call_output"}
"""Items that have a form of their own here and are never opaque."""

Item = dict[str, Any]


class Encoder:
    """Encodes requests to one model. `origin` is the model's name, whose own items go back to it."""

    def __init__(self, model: str, *, origin: str = "", options: dict[str, Any] | None = None) -> None:
        self._model, self._origin = model, origin
        self._options = options or {}
        self._history = History(self._exchange, opens=("user", "assistant"))
        self._tools: tuple[tuple[ToolSpec, ...], list[bytes]] = ((), [])

    def encode(self, request: Request) -> bytes:
        """The body. The request's options win over the model's; `tools` among them are the provider's own, in its form.

        Raises DefinitionError for an option of `RESERVED`.
        """
        settings = {**self._options, **request.options}
        check_options(settings, RESERVED)
        head: dict[str, Any] = {"model": self._model}
        if visible(request.system):
            head["instructions"] = request.system
        tools = [*map(json_bytes, settings.pop("tools", ())), *self._tool_list(request.tools)]
        listed = b',"tools":[' + b",".join(tools) + b"]" if tools else b""
        tail: dict[str, Any] = {"stream": True, "store": False}
        if not _NO_REASONING.fullmatch(self._model):
            tail["include"] = [ENCRYPTED]
        if request.max_output is not None:
            tail["max_output_tokens"] = request.max_output
        tail.update(settings)
        if request.output is not None:
            tail["text"] = {
                **(tail.get("text") or {}),
                "format": {"type": "json_schema", **json_schema(request.output)},
            }
        kept, open_end = self._history.pieces(request.messages)
        items = [*kept, *open_end]
        if items:
            items[0] = items[0].removeprefix(b",")
        return b"".join((json_bytes(head)[:-1], listed, b',"input":[', *items, b"],", json_bytes(tail)[1:]))

    def _tool_list(self, tools: tuple[ToolSpec, ...]) -> list[bytes]:
        """Without `strict` the API would make every property of a schema a required one."""
        if self._tools[0] is not tools:
            listed = []
            for tool in tools:
                schema = tool.schema or {"type": "object", "properties": {}}
                said = {"name": legal_name(tool.name), "description": tool.description, "parameters": schema}
                listed.append(json_bytes({"type": "function", **said, "strict": False}))
            self._tools = (tools, listed)
        return self._tools[1]

    def _exchange(self, exchange: list[Message], taken: set[str], place: int) -> tuple[list[bytes], set[str]]:
        """One message with the tool messages after it, and the ids it uses: of calls, and of items with a `#` before.

        Each call gets exactly one result, after the message and in call order; a result of no call is left out.
        """
        first = exchange[0]
        if first.role == "tool":
            return [], set()
        if first.role == "user":
            content = _content(first.blocks)
            body = {"type": "message", "role": "user", "content": content}
            return [b"," + json_bytes(body)] if content else [], set()
        ids = wire_ids(first.calls, taken, place, _LEGAL_ID)
        own = first.origin == self._origin
        items = _own_items(first, ids, taken) if own else _plain_items(first.blocks, ids)
        used = {f"#{item['id']}" for item in items if "id" in item}
        for call, id, result in zip(first.calls, ids, pair(first.calls, exchange[1:]), strict=True):
            item = {"type": "function_call_output", "call_id": id, "output": _output(result)}
            caller = (call.opaque or {}).get("caller") if own else None
            items.append({**item, "caller": caller} if isinstance(caller, dict) else item)
        return [b"," + json_bytes(item) for item in items], {*ids, *used}


def _content(blocks: Sequence[Block]) -> str | list[Item]:
    """What a person or a tool said: text, or a list of parts where there are pictures. Nothing is blank."""
    said = [block for block in blocks if isinstance(block, Image) or (isinstance(block, Text) and visible(block.text))]
    if not any(isinstance(block, Image) for block in said):
        return "\n\n".join(block.text for block in said if isinstance(block, Text))
    return [
        {"type": "input_text", "text": block.text}
        if isinstance(block, Text)
        else {"type": "input_image", "image_url": f"data:{block.media_type};base64,{block.data}", "detail": "auto"}
        for block in said
    ]


def _output(result: ToolResult | None) -> str | list[Item]:
    if result is None:
        return NO_RESULT
    if not isinstance(result.content, str) and any(isinstance(part, Image) for part in result.content):
        return _content(result.content)
    return result.text if visible(result.text) else NO_OUTPUT


def _plain_items(blocks: Sequence[Block], ids: list[str]) -> list[Item]:
    """What any model may read: text and calls."""
    items: list[Item] = []
    rest = iter(ids)
    for block in blocks:
        if isinstance(block, ToolCall):
            items.append(_call(block, next(rest)))
        elif isinstance(block, Text) and visible(block.text):
            items.append(_said(block.text))
    return items


def _said(text: str) -> Item:
    return {"type": "message", "role": "assistant", "content": text}


def _call(call: ToolCall, id: str) -> Item:
    arguments = json_bytes(call.arguments).decode()
    return {"type": "function_call", "call_id": id, "name": legal_name(call.name), "arguments": arguments}


def _own_items(message: Message, ids: list[str], taken: set[str]) -> list[Item]:
    """The items as they came.

    Reasoning is left out where it is not encrypted or what must follow it is left out. The calls and texts of an
    answer whose reasoning is incomplete go without their ids, by which the API would miss the rest, and so do those
    whose id a server gave twice.
    """
    found: list[Item | None] = []
    rest = iter(ids)
    for block in message.blocks:
        opaque = getattr(block, "opaque", None) or {}
        if isinstance(block, ToolCall):
            rider = {key: value for key, value in opaque.items() if key != "provider_id"}
            found.append({**rider, **_call(block, next(rest))})
        elif isinstance(block, Text):
            _add_text(block, opaque, found)
        elif isinstance(block, Thinking):
            found.append(opaque if opaque.get("type") == "reasoning" and opaque.get("encrypted_content") else None)
        elif isinstance(block, Provider):
            found.append(block.data if _is_settled(block, message.blocks) else None)
    items: list[Item] = []
    follower: Item | None = None
    for item in reversed(found):
        lost = item is not None and item.get("type") == "reasoning" and follower is None
        follower = None if lost else item
        if follower is not None:
            items.append(follower)
    items.reverse()
    thoughts = sum(isinstance(block, Thinking) for block in message.blocks)
    complete = sum(item.get("type") == "reasoning" for item in items) == thoughts
    seen: set[str] = set()
    for at, item in enumerate(items):
        tag = f"#{item.get('id')}"
        if not complete or tag in seen or tag in taken:
            items[at] = _without_id(item)
        seen.add(tag)
    return items


def _add_text(block: Text, opaque: dict[str, Any], found: list[Item | None]) -> None:
    """A text is a part of the message it came in; parts of one message are together again."""
    head, part = opaque.get("message"), opaque.get("part")
    if not visible(block.text):
        found.append(None)
    elif not isinstance(head, dict) or not isinstance(part, dict):
        found.append(_said(block.text))
    else:
        part = {**part, "refusal" if part.get("type") == "refusal" else "text": block.text}
        last = found[-1] if found else None
        if "id" not in head:
            found.append(_without_id({**head, "content": [part]}))
        elif last is not None and last.get("type") == "message" and last.get("id") == head["id"]:
            last["content"].append(part)
        else:
            found.append({**head, "content": [part]})


def _is_settled(block: Provider, blocks: Sequence[Block]) -> bool:
    """Whether the item can go back: a call that somebody else should have answered, and did not, cannot."""
    kind, call_id = block.data.get("type"), block.data.get("call_id")
    if not isinstance(kind, str) or block.kind != KIND + kind or kind in _NEUTRAL:
        return False
    if not kind.endswith("_call") or not call_id:
        return True
    return any(
        isinstance(other, Provider) and other.data.get("call_id") == call_id and other.kind == f"{block.kind}_output"
        for other in blocks
    )


def _without_id(item: Item) -> Item:
    if item.get("type") == "function_call":
        return {key: value for key, value in item.items() if key != "id"}
    if item.get("type") == "message" and isinstance(item.get("content"), list):
        text = "".join(part.get("text") or part.get("refusal") or "" for part in item["content"])
        return {**_said(text), **{key: item[key] for key in ("phase",) if item.get(key)}}
    return item
