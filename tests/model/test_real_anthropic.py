"""Anthropic's wire with a real, very small model, and a server that nobody here wrote: llama.cpp speaks it too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from latchstep.core.chunk import Completed, Delta
from latchstep.core.message import Message, Text, ToolCall, ToolResult, user
from latchstep.errors import ModelError
from latchstep.model.base import Model
from latchstep.model.catalog import model
from tests.model.small_model import small_model
from tests.model.test_real_model import QUESTION, READ, ask

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def smol() -> Iterator[Model]:
    with small_model() as url:
        yield model("anthropic:smollm2", base_url=url, api_key="none", temperature=0)


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
    assert last.stop_reason == "tool_calls"
    call = next(block for block in last.blocks if isinstance(block, ToolCall))
    assert (call.name, call.arguments, call.flaw) == ("read", {"path": "notes.txt"}, "")
    assert call.id
    said = Message("assistant", last.blocks, origin=smol.name)
    found = Message("tool", (ToolResult(call.id, "read", "The answer is 42."),))
    *_, last = ask(smol, QUESTION, said, found, tools=(READ,))
    assert isinstance(last, Completed)
    assert any(isinstance(block, Text) and block.text.strip() for block in last.blocks)


def test_a_limit_cuts_the_answer(smol: Model) -> None:
    """The server ends a cut call as if it were whole, with `{}`: it must not run."""
    for tools, limit in (((), 3), ((READ,), 8), ((READ,), 20)):
        *_, last = ask(smol, QUESTION, tools=tools, max_output=limit)
        assert isinstance(last, Completed)
        assert last.stop_reason == "length"
        assert all(block.flaw for block in last.blocks if isinstance(block, ToolCall))


def test_too_long_a_prompt_is_an_overflow(smol: Model) -> None:
    with pytest.raises(ModelError) as caught:
        ask(smol, user("word " * 5_000))
    assert caught.value.kind == "context_overflow"
