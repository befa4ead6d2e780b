"""A real, very small model over its real window: what does not fit is summarised by it, and it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Chunk
from latchstep.model.base import Model, Request
from latchstep.session.agent import memory_journal
from tests.model.small_model import small_model

pytestmark = pytest.mark.real_model

STORY = "The boat was red and its captain was called Ida. They sailed to the north and saw a whale. "
"""About twenty tokens; the model is given a window of 1,024."""


class Brief:
    """The model, which says no more than a few words: it would write a summary for as long as it may."""

    def __init__(self, model: Model) -> None:
        self.model, self.name = model, model.name

    def stream(self, request: Request) -> AsyncIterator[Chunk]:
        return self.model.stream(replace(request, max_output=40))


def test_a_conversation_over_the_window_goes_on() -> None:
    journal = memory_journal()

    async def main(url: str) -> list[ls.RunResult]:
        model = Brief(ls.model("llamacpp:smollm2", base_url=url, temperature=0))
        agent = ls.Agent(model, limits=ls.Limits(max_output=40), journal=journal)
        session = agent.session()
        return [await session.run(f"{STORY * times}\nSay hello.") for times in (25, 20)]

    with small_model(window=1024) as url:
        results = asyncio.run(main(url))
    assert {result.error.kind for result in results if result.error is not None} <= {"TRUNCATED"}, results
    assert all(result.final_text.strip() for result in results)
    events = list(journal.read())
    failed = [event for event in events if isinstance(event, ev.ModelFailed)]
    assert (failed[0].kind, failed[0].next) == ("CONTEXT_FULL", "compact")
    compacted = next(event for event in events if isinstance(event, ev.ContextCompacted))
    assert compacted.because == "overflow"
    assert compacted.after < compacted.before
    assert compacted.usage.output > 0
    assert compacted.message.text.strip()
