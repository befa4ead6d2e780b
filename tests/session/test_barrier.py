"""Law 2: intents on disk before effects, messages before acknowledgement, the ending before anyone sees it.

The journal refuses by itself whatever is appended while a sync is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev

from .fakes import Chunks, FakeJournal, call, calling, done, forever, go, session_of, settled, until


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
            try:
                await until(lambda: journal.syncing or accepting.done())
                assert not accepting.done()
            finally:
                journal.hold.set()  # the run ends on this disk too
            message_id = await accepting
            kept = journal.of(ev.MessageAccepted)[-1]
            assert (kept.message_id, kept.source, kept.seq) == (message_id, how, journal.synced)

    go(main())


def test_an_answer_is_on_disk_before_it_is_acknowledged() -> None:
    async def main() -> None:
        journal = FakeJournal()

        @ls.tool(effect="read")
        async def look() -> str:
            return "seen"

        session = session_of(
            [call("look", "a"), "done"], [look], journal=journal, policy=lambda call, traits: ls.Verdict("ask", "?")
        )
        run = session.stream("go").start()
        await until(lambda: session.questions)
        journal.hold, journal.held_type = asyncio.Event(), "approval.answered"
        answering = asyncio.create_task(run.answer("a", "allow"))
        await until(lambda: "approval.answered" in journal.types())
        await settled()
        assert not answering.done()
        assert "tool.started" not in journal.types()
        journal.hold.set()
        await answering
        assert (await run).status == "completed"

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
    return await run


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
        session = session_of(
            [[call("write", "w1"), call("write", "w2")], "done"], tools_of(journal.log), journal=journal
        )
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
