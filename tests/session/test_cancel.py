"""Laws 6 and 7: cancelled at any instant, a run ends once, at once and cleanly."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Failed

from .fakes import (
    Chunks,
    FakeJournal,
    call,
    calling,
    check_requests,
    done,
    forever,
    go,
    session_of,
    settled,
    text,
    until,
)


@ls.tool
async def hang(context: ls.Context) -> str:
    context.captured = "half"
    await forever()
    return "never"


async def _prepared(arguments: dict[str, Any], context: ls.Context) -> Any:
    return await forever()


@ls.tool(prepare=_prepared)
async def unprepared() -> str:
    return "never"


@ls.tool
async def ready() -> str:
    return "ok"


async def endless_check(command: str) -> tuple[int, str]:
    await forever()
    return 0, ""


async def passing_check(command: str) -> tuple[int, str]:
    return 0, ""


RETRY = Failed(kind="overloaded", message="busy", retry_in=30.0)
ASK = {"policy": lambda call, traits: ls.Verdict("ask", "?")}

STATES: dict[str, tuple[list[list[Any]], dict[str, Any], str]] = {
    # name: the model's answers, the session's options, the event after which the run is cancelled
    "waiting for the first piece": ([[forever]], {}, "model.requested"),
    "in the middle of the stream": ([[text("a"), text("b"), forever]], {}, "model.delta"),
    "waiting for the terminal event": ([[text("a"), forever, done()]], {}, "model.delta"),
    "in a tool": ([[calling(call("hang"), call("ready"))]], {}, "tool.started"),
    "in prepare": ([[calling(call("unprepared"))]], {}, "message.completed"),
    "between two calls": ([[calling(call("ready"), call("hang"))]], {}, "tool.finished"),
    "at an approval": ([[calling(call("ready"))]], ASK, "approval.requested"),
    "at a slow approver": ([[calling(call("ready"))]], {**ASK, "approve": lambda q: forever()}, "approval.requested"),
    "in a check": ([[calling(call("ready"))], [done()]], {"checks": ["make"], "check": endless_check}, "check.started"),
    "in a retry's wait": ([[RETRY, forever]], {}, "model.failed"),
    "at the first event": ([[done()]], {}, "message.accepted"),
    "at the answer": ([[calling(call("ready"))]], {}, "message.completed"),
}


async def by_run(run: ls.Run) -> None:
    run.cancel("enough")


async def twice(run: ls.Run) -> None:
    run.cancel("enough")
    await asyncio.sleep(0)
    run.cancel("more than enough")


async def by_task(run: ls.Run) -> None:
    """As a loop that shuts down does it: every task but the current one."""
    for task in asyncio.all_tasks() - {asyncio.current_task(), *KEPT}:
        task.cancel()


KEPT: set[asyncio.Task[Any]] = set()


@pytest.mark.parametrize("how", [by_run, twice, by_task])
@pytest.mark.parametrize("state", STATES)
def test_cancelled_in_every_state(state: str, how: Callable[[ls.Run], Awaitable[None]]) -> None:
    answers, options, after = STATES[state]

    async def main() -> None:
        KEPT.clear()
        KEPT.update(asyncio.all_tasks())
        journal = FakeJournal()
        model = Chunks(*answers)
        session = session_of(model, [hang, ready, unprepared], journal=journal, **options)
        seen: list[ev.Event] = []
        if after in ("model.delta", "message.accepted"):
            async with session.stream("go") as run:
                async for event in run:
                    if event.type == after and not any(e.type == after for e in seen):
                        await how(run)
                    seen.append(event)
        else:
            run = session.stream("go").start()
            await until(lambda: after in journal.types())
            await settled()
            await how(run)
        result = await run.result()
        asked = len(model.requests)
        assert result.status == "cancelled"
        assert journal.types().count("run.finished") == 1
        assert journal.types()[-1] == "run.finished"
        assert journal.types().count("cancel.requested") == 1
        assert len(journal.of(ev.ToolFinished)) == sum(len(m.calls) for m in result.messages)
        for finished in journal.of(ev.ToolFinished):
            started = any(e.call_id == finished.call_id for e in journal.of(ev.ToolStarted))
            assert finished.outcome in (("ok", "interrupted", "not_started") if started else ("not_started",))
        assert all(message.role != "tool" or message.blocks for message in result.messages)
        assert model.closed == asked
        # not bricked: the next plain message is answered, and the request is valid
        session.kit.check = passing_check
        model.answers = (*[[]] * asked, [done("here")])
        again = await session.run("still there?")
        assert (again.status, again.final_text) == ("completed", "here")
        check_requests(model.requests[asked:])

    go(main())
    gc.collect()


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
