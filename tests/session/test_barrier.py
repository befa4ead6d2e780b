"""Law 2: intents on disk before effects, messages before acknowledgement, the ending before anyone sees it.

The journal refuses by itself whatever is appended while a sync is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.errors import JournalPoisoned

from .fakes import Chunks, FakeJournal, call, calling, cut, done, forever, go, session_of, text, until


def tools_of(log: list[str]) -> list[ls.Tool]:
    @ls.tool
    async def write(n: int = 0) -> str:
        log.append(f"effect {n}")
        return "wrote"

    @ls.tool(effect="read")
    async def read(n: int = 0) -> str:
        log.append(f"read {n}")
        return "seen"

    return [write, read]


def test_the_order_of_a_run_with_effects() -> None:
    async def main() -> None:
        journal = FakeJournal()
        log = journal.log
        session = session_of([[call("write", n=1), call("write", n=2)], "done"], tools_of(log), journal=journal)
        run = session.stream("go")
        shown: list[str] = []
        async with run:
            async for event in run:
                if not event.part:
                    shown.append(event.type)
                    if event.type == "run.finished":
                        log.append("ending shown")
        assert log == [
            "append session.opened",
            "append message.accepted run.started",
            "sync",
            "synced",
            "append model.requested",
            "append message.completed",
            "append tool.started",
            "sync",
            "synced",
            "effect 1",
            "append tool.finished",
            "append tool.started",
            "sync",
            "synced",
            "effect 2",
            "append tool.finished",
            "append model.requested",
            "append message.completed",
            "append run.finished",
            "sync",
            "synced",
            "ending shown",
        ]

    go(main())


def test_turns_that_only_read_need_no_barrier() -> None:
    async def main() -> None:
        journal = FakeJournal()
        calls = [[call("read", n=n), call("read", n=n + 1)] for n in range(0, 10, 2)]
        await session_of([*calls, "done"], tools_of(journal.log), journal=journal).run("go")
        assert journal.log.count("sync") == 2  # the prompt, the ending

    go(main())


def test_a_group_of_reads_before_a_write_is_covered_by_its_one_barrier() -> None:
    async def main() -> None:
        journal = FakeJournal()
        batch = [call("read"), call("read"), call("write"), call("read")]
        await session_of([batch, "done"], tools_of(journal.log), journal=journal).run("go")
        assert journal.log.count("sync") == 3
        assert journal.log[journal.log.index("effect 0") - 1] == "synced"

    go(main())


@pytest.mark.parametrize("how", ["steer", "follow_up"])
def test_a_message_is_on_disk_before_it_is_acknowledged(how: str) -> None:
    async def main() -> None:
        journal = FakeJournal()
        session = session_of(Chunks([forever]), journal=journal)
        async with session.stream("go") as run:
            await until(lambda: "model.requested" in journal.types())
            journal.hold = asyncio.Event()
            accepting = asyncio.create_task(getattr(run, how)("more"))
            await until(lambda: journal.syncing)
            assert not accepting.done()
            journal.hold.set()
            message_id = await accepting
            kept = journal.of(ev.MessageAccepted)[-1]
            assert (kept.message_id, kept.source, kept.seq) == (message_id, how, journal.synced)

    go(main())


def test_nothing_is_done_for_a_prompt_that_is_not_on_disk() -> None:
    async def main() -> None:
        journal = FakeJournal()
        model = Chunks([done()])
        journal.hold = asyncio.Event()
        run = session_of(model, journal=journal).stream("go").start()
        await until(lambda: journal.syncing)
        for _ in range(20):
            await asyncio.sleep(0)
        assert model.requests == []
        journal.hold.set()
        assert (await run).status == "completed"

    go(main())


def test_the_ending_is_on_disk_before_anyone_sees_it() -> None:
    async def main() -> None:
        journal = FakeJournal()
        session = session_of(["done"], journal=journal)
        seen: dict[str, list[ev.Event]] = {"caller": [], "watcher": [], "late": []}

        async def follow(name: str, events: Any) -> None:
            async for event in events:
                seen[name].append(event)

        journal.hold, journal.held_type = asyncio.Event(), "run.finished"
        run = session.stream("go").start()
        tasks = [asyncio.create_task(follow("caller", run)), asyncio.create_task(follow("watcher", session.watch()))]
        await until(lambda: journal.syncing and "run.finished" in journal.types())
        assert journal.types()[-1] == "run.finished"
        tasks.append(asyncio.create_task(follow("late", session.watch())))
        more = asyncio.create_task(session.send("next"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not run.finished
        assert not any(event.type == "run.finished" for events in seen.values() for event in events)
        journal.hold.set()
        assert (await run).status == "completed"
        await more
        await session.close()
        await asyncio.gather(*tasks)
        for events in seen.values():
            stored = [event.seq for event in events if not event.part]
            assert stored == list(range(stored[0], stored[0] + len(stored))), "missed, doubled or out of order"
            assert [event.type for event in events].count("run.finished") == 1
        assert seen["watcher"][-1].type == "message.accepted"

    go(main())


def test_an_iterator_begun_while_the_ending_is_written_sees_it_once() -> None:
    async def main() -> None:
        journal = FakeJournal()
        journal.hold, journal.held_type = asyncio.Event(), "run.finished"
        run = session_of(["done"], journal=journal).stream("go").start()
        await until(lambda: journal.syncing and "run.finished" in journal.types())
        steps = aiter(run)
        journal.hold.set()
        assert [event.type async for event in steps].count("run.finished") == 1

    go(main())


# -- nothing is appended while a sync is under way: the journal asserts it ------------------------------


async def while_syncing(meanwhile: Callable[[ls.Run, FakeJournal], Coroutine[Any, Any, Any]]) -> ls.RunResult:
    """A run whose write's barrier is held while something else happens."""
    journal = FakeJournal()
    session = session_of([[call("write", "w1"), call("write", "w2")], "done"], tools_of(journal.log), journal=journal)
    journal.hold, journal.held_type = asyncio.Event(), "tool.started"
    run = session.stream("go").start()
    await until(lambda: journal.syncing and "tool.started" in journal.types())
    doing = asyncio.create_task(meanwhile(run, journal))
    for _ in range(20):
        await asyncio.sleep(0)
    assert "effect 0" not in journal.log[-1:]
    journal.hold.set()
    await doing
    result = await run
    return result


def test_steering_during_a_sync() -> None:
    async def meanwhile(run: ls.Run, journal: FakeJournal) -> None:
        await asyncio.gather(*(run.steer(f"s{n}") for n in range(3)))

    result = go(while_syncing(meanwhile))
    assert result.status == "completed"
    assert [m.text for m in result.messages if m.role == "user"] == ["go", "s0", "s1", "s2"]


def test_cancelling_during_a_sync_runs_nothing() -> None:
    async def meanwhile(run: ls.Run, journal: FakeJournal) -> None:
        run.cancel()

    async def main() -> None:
        journal = FakeJournal()
        journal.hold, journal.held_type = asyncio.Event(), "tool.started"
        session = session_of([[call("write", "w1"), call("write", "w2")], "done"], tools_of(journal.log), journal=journal)
        run = session.stream("go").start()
        await until(lambda: journal.syncing and "tool.started" in journal.types())
        run.cancel()
        await asyncio.sleep(0)
        journal.hold.set()
        assert (await run).status == "cancelled"
        assert not any(line.startswith("effect") for line in journal.log)
        assert [event.outcome for event in journal.of(ev.ToolFinished)] == ["not_started", "not_started"]

    go(main())


def test_a_task_cancelled_while_it_waits_for_a_sync_opens_no_gate() -> None:
    """The sync goes on though nobody waits for it any more; what is recorded next still waits for its end."""

    async def main() -> None:
        journal = FakeJournal()
        session = session_of(Chunks([forever]), journal=journal)
        async with session.stream("go") as run:
            await until(lambda: "model.requested" in journal.types())
            journal.hold = asyncio.Event()
            steering = asyncio.create_task(run.steer("one"))
            await until(lambda: journal.syncing)
            steering.cancel()
            await asyncio.gather(steering, return_exceptions=True)
            assert journal.syncing
            another = asyncio.create_task(run.steer("two"))
            for _ in range(20):
                await asyncio.sleep(0)
            journal.hold.set()
            await another
        assert [m.message.text for m in journal.of(ev.MessageAccepted)] == ["go", "one", "two"]

    go(main())


def test_a_tool_that_ends_during_a_sync_is_recorded_after_it() -> None:
    async def main() -> None:
        journal = FakeJournal()
        ready = asyncio.Event()

        @ls.tool(effect="read")
        async def wait() -> str:
            await ready.wait()
            return "ok"

        run = session_of([call("wait"), "done"], [wait], journal=journal).stream("go").start()
        await until(lambda: "tool.started" in journal.types())
        journal.hold = asyncio.Event()
        steering = asyncio.create_task(run.steer("hm"))
        await until(lambda: journal.syncing)
        ready.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert "tool.finished" not in journal.types()
        journal.hold.set()
        await steering
        assert (await run).status == "completed"

    go(main())


def test_what_is_withdrawn_during_a_sync_is_not_sent_and_what_was_sent_cannot_be_withdrawn() -> None:
    async def main() -> None:
        journal = FakeJournal()
        model = Chunks([calling(call("read", "c1"))], [done()])
        session = session_of(model, tools_of([]), journal=journal)
        first, second = await session.send("first"), await session.send("second")
        journal.hold, journal.held_type = asyncio.Event(), "run.started"
        run = session.stream("go").start()
        await until(lambda: journal.syncing and "run.started" in journal.types())
        withdrawing = asyncio.create_task(session.withdraw(first))
        await asyncio.sleep(0)
        journal.hold.set()
        outcome = (await asyncio.gather(withdrawing, return_exceptions=True))[0]
        result = await run
        sent = [message.text for message in model.requests[-1].messages if message.role == "user"]
        assert sent == [m.text for m in result.messages if m.role == "user"]
        assert ("first" in sent) == isinstance(outcome, ls.SessionError)
        with pytest.raises(ls.SessionError, match="not waiting"):
            await session.withdraw(second)

    go(main())


# -- a journal that fails -------------------------------------------------------------------------------


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
