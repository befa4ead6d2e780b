"""What each wire costs, from bytes to events and from messages to bytes, in CPU; no socket is involved.

A stream is given to the parser as a server would flush it, one event at a time.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from time import process_time
from typing import Any

import latchstep as ls
from latchstep.core.chunk import Chunk, Completed
from latchstep.core.message import tool_message, user
from latchstep.core.project import View
from latchstep.model import (
    anthropic_answer,
    anthropic_request,
    chat_answer,
    chat_request,
    gemini_answer,
    gemini_request,
    responses_answer,
    responses_request,
)
from latchstep.model.base import Request, ToolSpec
from latchstep.model.sse import SSEParser

from .loop import cpu, marginal

ROUNDS = 3
PIECE = 32
"""Characters of one piece of a streamed argument."""

LENGTHS = (10, 1_000, 5_000)
"""Messages before the request that is encoded."""

NEXT = 20
"""Requests that are encoded at each length, each one exchange longer."""

TOOLS = (ToolSpec("write", "Write a file.", {"type": "object", "properties": {"content": {"type": "string"}}}),)

Pieces = Iterator[str]


def event(value: Any, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n"


def chat(pieces: Pieces, call: bool) -> Iterator[bytes]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def said(delta: Any, finish: str | None = None) -> bytes:
        return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    if call:
        begun = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "write", "arguments": ""}}
        yield said({"tool_calls": [begun]})
    for piece in pieces:
        yield said({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} if call else {"content": piece})
    yield said({}, "tool_calls" if call else "stop") + b"data: [DONE]\n\n"


def responses(pieces: Pieces, call: bool) -> Iterator[bytes]:
    item: dict[str, Any] = {"id": "i_1", "type": "message", "role": "assistant", "content": []}
    if call:
        item = {"id": "i_1", "type": "function_call", "call_id": "call_1", "name": "write", "arguments": ""}
    kind = f"response.{'function_call_arguments' if call else 'output_text'}.delta"
    yield event({"type": "response.output_item.added", "output_index": 0, "item": item})
    whole: list[str] = []
    for number, piece in enumerate(pieces):
        whole.append(piece)
        where = {"item_id": "i_1", "output_index": 0, "content_index": 0, "sequence_number": number}
        yield event({"type": kind, **where, "delta": piece, "obfuscation": "8kq2Tn5dXe"}, kind)
    text = "".join(whole)
    item |= {"arguments": text} if call else {"content": [{"type": "output_text", "text": text, "annotations": []}]}
    yield event({"type": "response.completed", "response": {"status": "completed", "output": [item]}})


def messages(pieces: Pieces, call: bool) -> Iterator[bytes]:
    def said(kind: str, **more: Any) -> bytes:
        return event({"type": kind, **more}, kind)

    block: dict[str, Any] = {"type": "text", "text": ""}
    if call:
        block = {"type": "tool_use", "id": "toolu_1", "name": "write", "input": {}}
    usage = {"input_tokens": 3, "output_tokens": 1}
    yield said("message_start", message={"id": "msg_1", "role": "assistant", "model": "m", "usage": usage})
    yield said("content_block_start", index=0, content_block=block)
    for piece in pieces:
        delta = {"type": "input_json_delta", "partial_json": piece} if call else {"type": "text_delta", "text": piece}
        yield said("content_block_delta", index=0, delta=delta)
    yield said("content_block_stop", index=0)
    yield said("message_delta", delta={"stop_reason": "tool_use" if call else "end_turn"}, usage=usage)
    yield said("message_stop")


def contents(pieces: Pieces, call: bool) -> Iterator[bytes]:
    def said(part: Any, **more: Any) -> bytes:
        candidate = {"content": {"role": "model", "parts": [part]}, "index": 0, **more}
        counts = {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5}
        return event(
            {"candidates": [candidate], "usageMetadata": counts, "modelVersion": "gemini-x", "responseId": "r1"}
        )

    if call:
        yield said({"functionCall": {"name": "write", "willContinue": True}})
    for piece in pieces:
        partial = {"jsonPath": "$.content", "stringValue": piece, "willContinue": True}
        yield said({"functionCall": {"partialArgs": [partial], "willContinue": True}} if call else {"text": piece})
    last = {"functionCall": {"partialArgs": [{"jsonPath": "$.content", "stringValue": ""}]}}
    yield said(last if call else {"text": ""}, finishReason="STOP")


WIRES: dict[str, tuple[Callable[[Pieces, bool], Iterator[bytes]], Callable[[], Any], Callable[[], Any]]] = {
    "openai-chat": (chat, chat_answer.Decoder, lambda: chat_request.Encoder("m", origin="w:m")),
    "openai": (responses, responses_answer.Decoder, lambda: responses_request.Encoder("m", origin="w:m")),
    "anthropic": (messages, anthropic_answer.Decoder, lambda: anthropic_request.Encoder("m", origin="w:m")),
    "gemini": (contents, gemini_answer.Decoder, lambda: gemini_request.Encoder(origin="w:m")),
}
"""The bytes of an answer made of these pieces, text or the argument of a call; a decoder; an encoder."""


def chunks(stream: list[bytes], decoder: Any) -> Iterator[Chunk]:
    parser = SSEParser()
    for data in stream:
        for name, text in parser.feed(data):
            yield from decoder.feed(name, text)
    yield from decoder.end()


class Recorded:
    """A model whose answer is these bytes."""

    name = "bench:recorded"

    def __init__(self, stream: list[bytes], decoder: Any) -> None:
        self.bytes, self.decoder = stream, decoder

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        for chunk in chunks(self.bytes, self.decoder):
            yield chunk


async def consumed(wire: str, deltas: int) -> float:
    """CPU seconds of a run that shows so many pieces of text, each consumed as an event."""
    write, decoder, _ = WIRES[wire]
    model = Recorded([*write(iter(["word "] * deltas), False)], decoder())
    began, seen = cpu(), 0
    async with ls.Agent(model).stream("go") as run:
        async for shown in run:
            seen += shown.type == "model.delta"
    assert seen >= deltas
    return cpu() - began


def decoded(wire: str, size: int) -> float:
    """CPU seconds to put together a call with an argument of so many characters, the best of some rounds."""
    write, decoder, _ = WIRES[wire]
    text = "x" * size if wire == "gemini" else json.dumps({"content": "x" * size})  # Gemini sends the text itself
    stream = [*write((text[at : at + PIECE] for at in range(0, len(text), PIECE)), True)]
    took = []
    for _ in range(ROUNDS):
        began = process_time()
        *_, last = chunks(stream, decoder())
        took.append(process_time() - began)
        assert isinstance(last, Completed)
        (call,) = last.blocks
        assert isinstance(call, ls.ToolCall)
        assert call.arguments == {"content": "x" * size}
    return min(took)


def exchange(number: int) -> list[ls.Message]:
    call = ls.ToolCall(f"call-{number}", "write", {"content": f"{number} " * 40})
    said = ls.Message("assistant", (ls.Text("I write that."), call), origin="w:m")
    return [said, tool_message(ls.ToolResult(call.id, call.name, "wrote it, " * 20))]


def encoded(wire: str, length: int, *, kept: bool = True) -> float:
    """CPU microseconds to encode the next request of a session, the average of `NEXT`. `kept`: by the encoder that
    encoded the one before."""
    make = WIRES[wire][2]
    base = [user("go")]
    while len(base) < length:
        base += exchange(len(base))
    encoder, took = make(), 0.0
    encoder.encode(Request(request_id="", messages=View(base, len(base)), tools=TOOLS))
    for _ in range(NEXT if kept else ROUNDS):
        base += exchange(len(base))
        encoder = encoder if kept else make()
        request = Request(request_id="", messages=View(base, len(base)), tools=TOOLS)
        began = process_time()
        body = encoder.encode(request)
        took += process_time() - began
        assert len(body) > 100 * len(base)
    return round(took / (NEXT if kept else ROUNDS) * 1e6, 1)


async def wires() -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for wire in WIRES:
        small, large = decoded(wire, 100_000), decoded(wire, 1_000_000)
        rows[wire] = {
            "delta_us": await marginal(lambda n, wire=wire: consumed(wire, n), 100, 5_100),  # type: ignore[misc]
            "argument_1mb_ms": round(large * 1e3, 1),
            "argument_1mb_over_100kb": round(large / small, 1),
            **{f"next_request_at_{length}_us": encoded(wire, length) for length in LENGTHS},
            f"afresh_at_{LENGTHS[-1]}_us": encoded(wire, LENGTHS[-1], kept=False),
        }
    return rows
