"""What the tests of the nano agent share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nano

import latchstep as ls
from latchstep.core.chunk import Chunk
from latchstep.core.event import Question
from latchstep.model.anthropic import build
from latchstep.model.base import Model, Request
from tests.model.strict_anthropic import streamed, strict_anthropic


class Lines:
    """A scripted model that goes on in its list over many sessions, and remembers what it was asked."""

    name = "scripted:lines"

    def __init__(self, *replies: Any) -> None:
        self.replies, self.requests = list(replies), list[Request]()

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        reply = ls.ScriptedModel([self.replies.pop(0)])
        async for chunk in reply.stream(Request(request_id=request.request_id, messages=request.messages)):
            yield chunk


class Heard:
    """A model, and what it was asked."""

    def __init__(self, model: Model) -> None:
        self.model, self.name, self.requests = model, model.name, list[Request]()

    def stream(self, request: Request) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        return self.model.stream(request)


@contextmanager
def messages_api(*replies: Any) -> Iterator[Heard]:
    """A model behind a strict Messages server that gives these replies, all of which must be wanted."""
    with strict_anthropic([_streamed(reply) for reply in replies]) as server:
        yield Heard(build("m", server.url, "sk-x"))
        assert (server.refused, server.scripts) == ([], [])


def _streamed(reply: str | ls.ToolCall) -> list[Any]:
    if isinstance(reply, str):
        return streamed({"type": "text", "text": reply})
    use = {"type": "tool_use", "id": reply.id, "name": reply.name, "input": reply.arguments}
    return streamed(use, stop="tool_use")


@contextmanager
def scripted(*replies: Any) -> Iterator[Lines]:
    yield Lines(*replies)


def call(number: int, name: str, **arguments: Any) -> ls.ToolCall:
    return ls.ToolCall(f"toolu_{number:02d}", name, arguments)


def allow(question: Question) -> bool:
    return True


def deny(question: Question) -> bool:
    return False


def never(question: Question) -> bool:
    raise AssertionError(f"asked about {question.name}")


def converse(messages: list[ls.Message], model: Any, folder: Path, approve: Any = never) -> None:
    asyncio.run(asyncio.wait_for(nano.agent(messages, model, folder, approve), 30))


def results(message: ls.Message) -> list[ls.ToolResult]:
    assert message.role == "user"
    return [block for block in message.blocks if isinstance(block, ls.ToolResult)]


def roles(messages: Sequence[ls.Message]) -> list[str]:
    return [message.role for message in messages]
