"""One journal object has one writer at a time, and a session that knows all of it."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.session import claim

from .fakes import Chunks, FakeJournal, done, go, session_of, settled, text, until

WRITER = "one writer at a time"


def waiting(gate: asyncio.Event) -> Chunks:
    return Chunks([text("a"), gate.wait, done()], [done()])


def test_an_agent_with_a_journal_runs_once_at_a_time() -> None:
    async def main() -> None:
        journal, gate = ls.MemoryJournal(), asyncio.Event()
        journal.append([ev.SessionCreated(session_id="s")])
        agent = ls.Agent(waiting(gate), journal=journal)
        first = asyncio.ensure_future(agent.run("one"))
        await until(lambda: any(event.type == "model.requested" for event in journal.read()))
        before = journal.head
        for attempt in (agent.session, lambda: agent.stream("two")):
            with pytest.raises(ls.SessionError, match=WRITER):
                attempt()
        with pytest.raises(ls.SessionError, match=WRITER):
            await agent.run("three")
        assert journal.head == before, "the refused one left nothing on record"
        gate.set()
        assert (await first).status == "completed"
        assert (await agent.run("four")).status == "completed"
        assert [e.message.text for e in journal.read() if isinstance(e, ev.MessageAccepted)] == ["one", "four"]

    go(main())


def test_a_run_made_before_is_refused_when_it_begins() -> None:
    async def main() -> None:
        journal, gate = FakeJournal(), asyncio.Event()
        one, two = session_of(waiting(gate), journal=journal), session_of(["x"], journal=journal)
        with pytest.raises(ls.SessionError, match="written to by another session"):
            one.stream("go")  # `two` has been opened since
        late = two.stream("go")
        three = session_of(waiting(gate), journal=journal)
        async with three.stream("go") as run:
            await settled()
            with pytest.raises(ls.SessionError):
                await late.result()
            with pytest.raises(ls.SessionError, match="written to by another session"):
                await two.send("and this")
            gate.set()
            assert (await run.result()).status == "completed"
        assert not [e for e in journal.events if isinstance(e, ev.MessageAccepted) and e.message.text == "and this"]

    go(main())


def test_nothing_is_kept_of_a_run_that_ended() -> None:
    async def main() -> weakref.ref[ls.Run]:
        session = session_of(["x"])
        run = session.stream("go")
        await run.result()
        return weakref.ref(run)

    run = go(main())
    gc.collect()
    assert run() is None
    assert not [writing for writing in claim._WRITING.values() if writing.under_way]
