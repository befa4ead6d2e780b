"""A long run over each wire, against servers with a small window that refuse what does not fit in their own words."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import msgspec
import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.message import estimate
from latchstep.journal.base import MemoryJournal
from latchstep.model.base import Request
from latchstep.session.agent import memory_journal

from .wire_servers import WIRES, speaking

WINDOW, STEPS = 3_000, 40

TOO_LONG = {
    "anthropic": "prompt is too long: {size} tokens > {window} maximum",
    "openai": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "openai-chat": "This model's maximum context length is {window} tokens. However, your messages resulted in {size}.",
    "gemini": "The input token count ({size}) exceeds the maximum number of tokens allowed ({window}).",
}


@ls.tool(effect="read")
async def look(n: int) -> str:
    """Look at something."""
    return f"{n}: " + "what was found there " * 30


class Server:
    """Counts what it is sent, and calls `look` until it has answered often enough."""

    def __init__(self, wire: str) -> None:
        self.wire = wire
        self.answered = 0
        self.refused = 0
        self.bodies: list[Request] = []

    def reply(self, request: Request) -> ls.Reply:
        size = sum(map(estimate, request.messages)) + len(request.system) // 4
        if size > WINDOW:
            self.refused += 1
            raise OverflowError(TOO_LONG[self.wire].format(size=size, window=WINDOW))
        self.bodies.append(request)
        usage = ls.Usage(size, 20)
        if not request.tools:
            return ls.Reply("What was looked at, and what was found.", usage=usage)
        self.answered += 1
        if self.answered > STEPS:
            return ls.Reply("Seen.", usage=usage)
        call = ls.ToolCall(id=f"c{self.answered}", name="look", arguments={"n": self.answered})
        return ls.Reply([ls.Text("on"), call], usage=usage)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("known", [True, False], ids=["threshold", "overflow"])
def test_a_long_run_with_a_small_window(wire: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, "key")
    server, journal = Server(wire), memory_journal()
    assert isinstance(journal, MemoryJournal)
    limits = ls.Limits(max_context=WINDOW if known else None, compact_at=0.7, max_steps=STEPS + 1)
    with speaking(wire, server.reply) as spoken:
        model = ls.model(f"{wire}:demo", base_url=spoken.url)
        agent = ls.Agent(model, [look], "You look at things.", limits=limits, journal=journal)
        result = asyncio.run(agent.run("Look at everything."))
    assert result.status == "completed", result.error
    assert result.steps == STEPS + 1
    events = list(journal.read())
    compacted = [event for event in events if isinstance(event, ev.ContextCompacted)]
    failed = [event for event in events if isinstance(event, ev.ModelFailed)]
    assert len(compacted) > 2
    assert {event.because for event in compacted} == {"threshold" if known else "overflow"}
    assert len(failed) == server.refused == (0 if known else len(compacted))
    assert len(spoken.refused) == server.refused, "nothing else was wrong with a request"
    plain = [[msgspec.json.encode(m.blocks) for m in body.messages] for body in server.bodies if body.tools]
    anew = [later for earlier, later in pairwise(plain) if later[: len(earlier)] != earlier]
    assert len(anew) == len(compacted), "but for compactions each request begins as the one before it"
    assert all(b"Look at everything." in later[0] for later in anew)
