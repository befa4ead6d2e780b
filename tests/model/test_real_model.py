"""The Chat wire with a real, very small model and a real server that nobody here wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest

from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.core.message import Message, Text, ToolCall, ToolResult, user
from latchstep.errors import ModelError
from latchstep.model.base import Model, Request, ToolSpec
from latchstep.model.catalog import model
from tests.model.small_model import small_model

pytestmark = pytest.mark.real_model

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = ToolSpec("read", "Read the file", SCHEMA)
QUESTION = user("Read the file notes.txt")


@pytest.fixture(scope="module")
def smol() -> Iterator[Model]:
    with small_model() as url:
        yield model("llamacpp:smollm2", base_url=url, temperature=0)


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
    assert last.blocks == (Text(text),)
    assert last.usage.input > 0
    assert 0 < last.usage.output <= 12


def test_a_call_and_its_result(smol: Model) -> None:
    *_, last = ask(smol, QUESTION, tools=(READ,))
    assert isinstance(last, Completed)
    call = next(block for block in last.blocks if isinstance(block, ToolCall))
    assert (call.name, call.arguments, call.flaw) == ("read", {"path": "notes.txt"}, "")
    assert call.id
    said = Message("assistant", last.blocks, origin=smol.name)
    found = Message("tool", (ToolResult(call.id, "read", "The answer is 42."),))
    *_, last = ask(smol, QUESTION, said, found, tools=(READ,))
    assert isinstance(last, Completed)
    assert any(isinstance(block, Text) and block.text.strip() for block in last.blocks)


def test_a_limit_cuts_the_answer(smol: Model) -> None:
    for tools, limit in (((), 3), ((READ,), 8), ((READ,), 20)):
        *_, last = ask(smol, QUESTION, tools=tools, max_output=limit)
        assert isinstance(last, Completed)
        assert last.stop_reason == "length"
        assert all(block.flaw for block in last.blocks if isinstance(block, ToolCall))


def test_leaving_ends_the_generation(smol: Model) -> None:
    """The server has one slot: it answers the next question only when it has noticed that we hung up."""

    async def leave_and_ask() -> Chunk:
        long = Request(request_id="r", messages=(user("Tell a very long story."),), max_output=1_900)
        chunks: Any = smol.stream(long)
        async with aclosing(chunks):
            assert isinstance(await anext(chunks), Delta)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        short = Request(request_id="r", messages=(user("Say hello."),), max_output=2)
        async with asyncio.timeout(20):  # the whole story would take more than twice as long
            return [chunk async for chunk in smol.stream(short)][-1]

    assert isinstance(asyncio.run(leave_and_ask()), Completed)


def test_too_long_a_prompt_is_an_overflow(smol: Model) -> None:
    with pytest.raises(ModelError) as caught:
        ask(smol, user("word " * 5_000))
    assert caught.value.kind == "context_overflow"
