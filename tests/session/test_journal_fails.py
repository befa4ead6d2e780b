"""A journal that fails, at each place: one ending, nothing acknowledged that is not on disk, nothing left running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.errors import JournalPoisoned

from .fakes import Chunks, FakeJournal, call, calling, cut, done, forever, go, session_of, text, until
from .test_barrier import tools_of


def has(*types: str) -> Callable[[Sequence[ev.Event]], bool]:
    return lambda events: any(event.type in types for event in events)


PHASES = [
    "run.started",
    "model.requested",
    "model.failed",
    "message.completed",
    "approval.requested",
    "approval.answered",
    "tool.started",
    "tool.finished",
    "check.started",
    "check.finished",
    "run.finished",
]


@pytest.mark.parametrize("phase", PHASES)
def test_an_append_that_fails_ends_the_run(phase: str) -> None:
    async def main() -> None:
        journal = FakeJournal()
        journal.fail_append = has(phase)

        async def check(command: str) -> tuple[int, str]:
            return 0, ""

        from latchstep.core.chunk import Failed

        retried = Failed(kind="overloaded", message="busy", retry_in=0.0)
        model = Chunks([text("hm"), retried, calling(call("write", "w"))], [done()])
        session = session_of(
            model,
            tools_of(journal.log),
            journal=journal,
            checks=["make"],
            check=check,
            policy=lambda call, traits: ls.Verdict("ask", "?"),
            approve=lambda question: True,
        )
        async with session.stream("go") as run:
            seen = [event async for event in run]
            result = await run.result()
        assert (result.status, result.error.kind if result.error else "") == ("failed", "JOURNAL")
        assert "no space left" in result.error.message
        assert seen[-1].type == "run.finished"
        assert [event.type for event in seen].count("run.finished") == 1
        assert seen[-1].part == 1
        assert phase not in [event.type for event in seen[:-1]]
        if PHASES.index(phase) <= PHASES.index("tool.started"):
            assert "effect 0" not in journal.log
        # later use refuses, clearly, and the iterator of the finished run still shows how it ended
        with pytest.raises(JournalPoisoned):
            await session.send("more")
        again = await session.run("again")
        assert (again.status, again.error.kind if again.error else "") == ("failed", "JOURNAL")
        if phase != "run.started":
            assert result.run_id
        assert [event async for event in run][-1].type == "run.finished"
        # and a new opening of what is on disk goes on
        journal = cut(journal, len(journal.events))
        reopened = session_of(Chunks([done()]), tools_of(journal.log), journal=journal, check=check)
        assert (await reopened.run("and now?")).status == "completed"

    go(main())


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_sync_that_fails_ends_the_run(number: int) -> None:
    """1: the prompt's, 2: the answer's, 3: the write's, 4: the ending's."""

    async def main() -> None:
        journal = FakeJournal()
        journal.fail_sync = lambda: journal.log.count("sync") == number
        session = session_of(
            [call("write", "w"), "done"],
            tools_of(journal.log),
            journal=journal,
            policy=lambda call, traits: ls.Verdict("ask", "?"),
            approve=lambda question: True,
        )
        async with session.stream("go") as run:
            seen = [event async for event in run]
            result = await run.result()
        assert (result.status, result.error.kind if result.error else "") == ("failed", "JOURNAL")
        assert [event.type for event in seen].count("run.finished") == 1
        assert ("effect 0" in journal.log) == (number == 4)
        assert not session.unfinished or number < 4

    go(main())


def test_a_failing_steer_is_not_acknowledged_and_ends_a_run_that_waits() -> None:
    async def main() -> None:
        for hold in (False, True):
            journal = FakeJournal()
            session = session_of(
                [call("write", "w"), "done"],
                tools_of(journal.log),
                journal=journal,
                policy=lambda call, traits: ls.Verdict("ask", "?"),
            )
            run = session.stream("go").start()
            await until(lambda session=session: session.questions)
            if hold:
                journal.fail_sync = lambda: True
            else:
                journal.fail_append = has("message.accepted")
            with pytest.raises(JournalPoisoned):
                await run.steer("hello")
            result = await run
            assert (result.status, result.error.kind if result.error else "") == ("failed", "JOURNAL")

    go(main())


def test_everyone_who_waits_for_a_failing_sync_hears_of_it() -> None:
    """A failed sync rolls the record back, so that 'nothing left to sync' must not be taken for success."""

    async def main() -> None:
        journal = FakeJournal()
        session = session_of(Chunks([forever]), journal=journal)
        run = session.stream("go").start()
        await until(lambda: "model.requested" in journal.types())
        journal.hold = asyncio.Event()
        journal.fail_sync = lambda: True
        first = asyncio.create_task(run.steer("one"))
        await until(lambda: journal.syncing)
        second = asyncio.create_task(run.steer("two"))
        third = asyncio.create_task(session.sync())
        await asyncio.sleep(0)
        journal.hold.set()
        outcomes = await asyncio.gather(first, second, third, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [JournalPoisoned] * 3
        assert (await run).status == "failed"

    go(main())


def test_a_poisoned_journal_leaves_no_tool_running() -> None:
    async def main() -> None:
        journal = FakeJournal()
        journal.fail_append = has("tool.finished")
        stopped: list[str] = []

        @ls.tool(effect="read")
        async def quick() -> str:
            return "ok"

        @ls.tool(effect="read")
        async def slow() -> str:
            try:
                await forever()
            finally:
                stopped.append("slow")
            return ""

        result = await session_of([[call("slow"), call("quick")], "done"], [quick, slow], journal=journal).run("go")
        assert result.error is not None
        assert result.error.kind == "JOURNAL"
        assert stopped == ["slow"]

    go(main())


def test_an_event_the_journal_refuses_without_being_poisoned_still_gives_a_recorded_ending() -> None:
    async def main() -> None:
        class Picky(FakeJournal):
            def append(self, events: Sequence[ev.Event]) -> int:
                if has("tool.finished")(events):
                    raise ls.JournalError("a tool.finished event has 1 bytes; MAX_LINE allows 0")
                return super().append(events)

        journal = Picky()
        session = session_of([call("write"), "done"], tools_of([]), journal=journal)
        result = await session.run("go")
        assert result.error is not None
        assert (result.error.kind, journal.types()[-1]) == ("JOURNAL", "run.finished")
        assert "MAX_LINE" in result.error.message
        again = session_of(Chunks([done()]), tools_of([]), journal=cut(journal, len(journal.events)))
        assert (await again.run("and now?")).status == "completed"
        # the same session, too: a call without a result must not keep its next run waiting
        session.kit.model = Chunks([done()])
        assert (await asyncio.wait_for(session.run("and now?"), 5)).status == "completed"

    go(main())


def test_a_run_that_cannot_be_gone_on_with_stays_unfinished() -> None:
    """It has an open call, and whoever comes when there is room again goes on with it."""

    class Full(FakeJournal):
        def put_blob(self, data: bytes) -> str:
            raise ls.JournalError("a blob cannot be kept: no space left")

    async def main() -> None:
        journal = FakeJournal()
        await session_of([call("write", "w"), "done"], tools_of([]), journal=journal).run("go")
        dead = journal.events[: journal.types().index("tool.started") + 1]
        full = Full(dead)
        session = session_of(Chunks([done()]), tools_of([]), journal=full)
        result = await session.resume()
        assert (result.status, result.error and result.error.kind) == ("failed", "JOURNAL")
        assert session.unfinished
        assert full.types()[-1] == "session.opened"
        again = session_of(Chunks([done()]), tools_of([]), journal=cut(full, len(full.events)))
        assert (await again.resume()).status == "completed"

    go(main())


def test_a_tools_own_journal_error_is_an_error_of_the_tool() -> None:
    async def main() -> None:
        @ls.tool
        async def nested() -> str:
            raise JournalPoisoned("another journal")

        result = await session_of([call("nested"), "done"], [nested]).run("go")
        assert result.status == "completed"

    go(main())


def test_a_closed_session_refuses() -> None:
    async def main() -> None:
        session = session_of(["done"])
        await session.close()
        await session.close()
        with pytest.raises(JournalPoisoned):
            await session.send("hello")
        assert (await session.run("hello")).status == "failed"

    go(main())


def test_closing_a_session_stops_its_run() -> None:
    async def main() -> None:
        session = session_of(Chunks([forever]))
        run = session.stream("go").start()
        await asyncio.sleep(0)
        await session.close()
        assert (await run).status == "cancelled"

    go(main())


def test_snapshots_are_written_and_fold_to_the_same_state() -> None:
    from latchstep.core.state import fold

    async def main() -> None:
        journal = FakeJournal()

        @ls.tool(effect="read", thread=False)
        def big(n: int) -> str:
            return str(n) * 90_000

        session = session_of([*(call("big", n=n) for n in range(15)), "done"], [big], journal=journal)
        await session.run("go")
        assert journal.of(ev.SessionSnapshot)
        assert fold(journal.events) == session.state

    go(main())
