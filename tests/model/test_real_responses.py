"""The Responses wire with a real, very small model and a real server that nobody here wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.core.message import Message, Text, ToolCall, ToolResult, user
from latchstep.errors import ModelError
from latchstep.model.base import Model, Request, ToolSpec
from latchstep.model.openai_responses import build
from tests.model.small_model import small_model

pytestmark = pytest.mark.real_model

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = ToolSpec("read", "Read the file", SCHEMA)
QUESTION = user("Read the file notes.txt")


@pytest.fixture(scope="module")
def smol() -> Iterator[Model]:
    with small_model() as url:
        yield build("smollm2", url, options={"temperature": 0})


def ask(smol: Model, *messages: Message, tools: tuple[ToolSpec, ...] = (), max_output: int = 60) -> list[Chunk]:
    request = Request(request_id="r", messages=messages, tools=tools, max_output=max_output)

    async def collect() -> list[Chunk]:
        return [chunk async for chunk in smol.stream(request)]

    return asyncio.run(collect())


def test_text_streams(smol: Model) -> None:
    *deltas, last = ask(smol, user("Say hello."), max_output=12)
    assert isinstance(last, Completed)
    assert len(deltas) > 3
    text = "".join(delta.piece for delta in deltas if isinstance(delta, Delta) and delta.kind == "text")
    assert [block.text for block in last.blocks if isinstance(block, Text)] == [text]
    assert last.usage.input > 0
    assert 0 < last.usage.output <= 12


def test_a_call_and_its_result(smol: Model) -> None:
    *deltas, last = ask(smol, QUESTION, tools=(READ,))
    assert isinstance(last, Completed)
    assert last.stop_reason == "tool_calls"
    (call,) = (block for block in last.blocks if isinstance(block, ToolCall))
    assert (call.name, call.arguments, call.flaw) == ("read", {"path": "notes.txt"}, "")
    assert all(delta.call_id == call.id for delta in deltas if isinstance(delta, Delta) and delta.kind == "tool_call")
    found = Message("tool", (ToolResult(call.id, "read", "The answer is 42."),))
    for origin in (smol.name, "other:m"):  # with what only this server understands, and without
        *_, last = ask(smol, QUESTION, Message("assistant", (Text("So:"), call), origin=origin), found, tools=(READ,))
        assert isinstance(last, Completed)
        assert any(isinstance(block, Text) and block.text.strip() for block in last.blocks)


def test_a_call_that_a_limit_cuts_never_runs(smol: Model) -> None:
    """This server says `completed` all the same; where it shows the beginning of a call, the cut is seen."""
    *_, last = ask(smol, QUESTION, tools=(READ,), max_output=20)
    assert isinstance(last, Completed)
    assert last.stop_reason == "length"
    assert all(block.flaw for block in last.blocks if isinstance(block, ToolCall))
    *_, last = ask(smol, QUESTION, tools=(READ,), max_output=8)
    assert isinstance(last, Completed)
    assert not any(isinstance(block, ToolCall) for block in last.blocks)


def test_too_long_a_prompt_is_an_overflow(smol: Model) -> None:
    with pytest.raises(ModelError) as caught:
        ask(smol, user("word " * 5_000))
    assert caught.value.kind == "context_overflow"
