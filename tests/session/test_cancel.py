"""Laws 6 and 7: cancelled at any instant, a run ends once, at once and cleanly."""

from __future__ import annotations

import asyncio
import gc

import pytest

import latchstep as ls
from latchstep.core import event as ev

from .fakes import (
    Chunks,
    FakeJournal,
    call,
    calling,
    done,
    forever,
    go,
    session_of,
    settled,
    until,
)


@ls.tool
async def hang(context: ls.Context) -> str:
    context.captured = "half"
    await forever()
    return "never"


@ls.tool
async def ready() -> str:
    return "ok"


ASK = {"policy": lambda call, traits: ls.Verdict("ask", "?")}


def test_the_interrupted_call_tells_what_was_captured_and_the_next_that_it_never_began() -> None:
    async def main() -> None:
        journal = FakeJournal()
        session = session_of(Chunks([calling(call("hang", "h"), call("ready", "r"))]), [hang, ready], journal=journal)
        async with session.stream("go") as run:
            await until(lambda: "tool.started" in journal.types())
            await settled()
            run.cancel("lunch")
        first, second = journal.of(ev.ToolFinished)
        assert (first.outcome, second.outcome) == ("interrupted", "not_started")
        assert "half" in str(first.content)
        assert "lunch" in str(first.content)
        assert "unknown" in str(first.content)
        assert "no effect" in str(second.content)
        assert [m.role for m in (await run.result()).messages] == ["user", "assistant"]

    go(main())


@pytest.mark.parametrize("when", ["before it is started", "before it has begun", "after its end"])
def test_cancelled_before_and_after(when: str) -> None:
    async def main() -> None:
        journal = FakeJournal()
        model = Chunks([done()])
        run = session_of(model, journal=journal).stream("go")
        if when == "before it is started":
            run.cancel("no")
        run.start()
        if when == "before it has begun":
            run.cancel("no")
        if when == "after its end":
            await run
            run.cancel("no")
        result = await run
        assert result.status == ("completed" if when == "after its end" else "cancelled")
        assert journal.types()[-1] == "run.finished"
        assert len(model.requests) == (when == "after its end")
        for _ in range(3):
            await asyncio.sleep(0)
        assert journal.types()[-1] == "run.finished"

    go(main())


def test_cancelled_while_the_beginning_is_written() -> None:
    async def main() -> None:
        journal = FakeJournal()
        journal.hold = asyncio.Event()
        model = Chunks([done()])
        run = session_of(model, journal=journal).stream("go").start()
        await until(lambda: journal.syncing)
        run.cancel()
        journal.hold.set()
        assert ((await run).status, model.requests) == ("cancelled", [])

    go(main())


def test_a_stale_handle_does_not_cancel_the_run_after_it() -> None:
    async def main() -> None:
        session = session_of(["one", "two"])
        first = session.stream("1")
        await first
        second = session.stream("2").start()
        first.cancel("too late")
        await first.stop()
        assert (await second).status == "completed"

    go(main())


def test_one_run_at_a_time_and_a_run_never_begun_blocks_nothing() -> None:
    async def main() -> None:
        session = session_of(Chunks([done()]))
        session.stream("never begun")
        other = session.stream("begun later")
        async with session.stream("go"):
            with pytest.raises(ls.SessionError, match="under way"):
                session.stream("again")
            with pytest.raises(ls.SessionError, match="under way"):
                other.start()
        assert (await other).status == "completed"

    go(main())


def test_cancelling_the_caller_cancels_the_run() -> None:
    async def main() -> None:
        journal = FakeJournal()
        session = session_of(Chunks([calling(call("hang"))]), [hang], journal=journal)
        running = asyncio.create_task(session.run("go"))
        await until(lambda: "tool.started" in journal.types())
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert journal.of(ev.RunFinished)[0].status == "cancelled"
        assert not session.unfinished

    go(main())


def test_a_timeout_around_a_run_is_a_timeout() -> None:
    async def main() -> None:
        agent = ls.Agent(Chunks([calling(call("hang"))]), [hang])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await agent.run("go")

    go(main())


def test_a_loop_that_shuts_down_gets_a_recorded_ending() -> None:
    journal = FakeJournal()

    async def main() -> None:
        session = session_of(Chunks([calling(call("hang"), call("ready"))]), [hang, ready], journal=journal)
        session.stream("go").start()
        await until(lambda: "tool.started" in journal.types())
        await settled()

    asyncio.run(main())  # nobody waits for the run: asyncio.run cancels every task
    gc.collect()
    assert journal.of(ev.RunFinished)[0].status == "cancelled"
    assert [event.outcome for event in journal.of(ev.ToolFinished)] == ["interrupted", "not_started"]


def test_a_loop_that_shuts_down_twice_over_still_ends_the_run_once() -> None:
    journal = FakeJournal()

    async def main() -> None:
        session = session_of(Chunks([calling(call("hang"))]), [hang], journal=journal)
        run = session.stream("go").start()
        await until(lambda: "tool.started" in journal.types())
        run.cancel("first")
        await asyncio.sleep(0)

    asyncio.run(main())
    gc.collect()
    assert journal.types().count("run.finished") == 1


def test_a_loop_that_shuts_down_during_a_barrier_waits_for_the_disk() -> None:
    journal = FakeJournal()
    effects: list[str] = []

    @ls.tool
    async def write() -> str:
        effects.append("x")
        return "ok"

    async def main() -> None:
        journal.hold, journal.held_type = asyncio.Event(), "tool.started"
        session = session_of(Chunks([calling(call("write"))]), [write], journal=journal)
        session.stream("go").start()
        await until(lambda: journal.syncing and "tool.started" in journal.types())
        asyncio.get_running_loop().call_later(0.05, journal.hold.set)

    asyncio.run(main())
    assert effects == []
    assert [event.outcome for event in journal.of(ev.ToolFinished)] == ["not_started"]
    assert journal.of(ev.RunFinished)[0].status == "cancelled"
