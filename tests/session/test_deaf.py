"""What does not stop when told to is left behind within the grace, named, and heard no more."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Failed
from latchstep.tool.hooks import before_tool

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
    text,
    until,
)
from .test_cancel import ASK, ready


def test_a_tool_that_swallows_the_cancellation_is_interrupted_all_the_same() -> None:
    async def main() -> None:
        @ls.tool
        async def stubborn() -> str:
            try:
                await forever()
            except asyncio.CancelledError:
                return "all is well"
            return ""

        journal = FakeJournal()
        model = Chunks([calling(call("stubborn"))], [done()])
        async with session_of(model, [stubborn], journal=journal).stream("go") as run:
            await until(lambda: "tool.started" in journal.types())
            await settled()
            run.cancel()
        (finished,) = journal.of(ev.ToolFinished)
        assert finished.outcome == "interrupted"
        assert "all is well" not in str(finished.content)
        assert len(model.requests) == 1

    go(main())


def test_a_deaf_coroutine_is_left_behind_within_the_grace_and_named() -> None:
    async def main() -> None:
        free = asyncio.Event()

        @ls.tool
        async def deaf(context: ls.Context) -> str:
            context.captured = "some"
            while not free.is_set():
                try:
                    await free.wait()
                except asyncio.CancelledError:
                    context.progress("no")
            return "freed"

        journal = FakeJournal()
        session = session_of(Chunks([calling(call("deaf"))]), [deaf], journal=journal, limits=ls.Limits(grace=0.05))
        run = session.stream("go").start()
        await until(lambda: "tool.started" in journal.types())
        await settled()
        run.cancel()
        result = await run
        assert result.status == "cancelled"
        (finished,) = journal.of(ev.ToolFinished)
        assert finished.outcome == "interrupted"
        assert "may still be running" in str(finished.content)
        assert "some" in str(finished.content)
        length = len(journal.events)
        free.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(journal.events) == length

    go(main())


def test_a_deaf_thread_is_left_behind_and_does_not_hold_the_loop() -> None:
    free = threading.Event()

    async def main() -> None:
        @ls.tool
        def deaf() -> str:
            free.wait(30)
            return "freed"

        journal = FakeJournal()
        session = session_of(
            Chunks([calling(call("deaf"), call("ready"))]), [deaf, ready], journal=journal, limits=ls.Limits(grace=0.05)
        )
        run = session.stream("go").start()
        await until(lambda: "tool.started" in journal.types())
        await settled()
        run.cancel()
        assert (await run).status == "cancelled"
        first, second = journal.of(ev.ToolFinished)
        assert (first.outcome, second.outcome) == ("interrupted", "not_started")
        assert "may still be running" in str(first.content)

    try:
        go(main())
    finally:
        free.set()


def test_a_thread_that_ends_within_the_grace_is_not_called_deaf() -> None:
    async def main() -> None:
        began = threading.Event()
        free = threading.Event()

        @ls.tool
        def brief() -> str:
            began.set()
            free.wait(30)
            return "ok"

        journal = FakeJournal()
        run = session_of(Chunks([calling(call("brief"))]), [brief], journal=journal).stream("go").start()
        await until(began.is_set)
        run.cancel()
        await asyncio.sleep(0)
        free.set()
        assert (await run).status == "cancelled"
        (finished,) = journal.of(ev.ToolFinished)
        assert finished.outcome == "interrupted"
        assert "still be running" not in str(finished.content)

    go(main())


def test_a_model_deaf_to_cancellation_says_nothing_more() -> None:
    async def main() -> None:
        free = asyncio.Event()

        class Deaf:
            name = "fake:deaf"

            async def stream(self, request: Any) -> Any:
                while not free.is_set():
                    try:
                        await asyncio.sleep(0)
                        yield text("x")
                        yield Failed(kind="server", message="again", retry_in=1000.0)
                    except asyncio.CancelledError:
                        pass

        journal = FakeJournal()
        session = session_of(Deaf(), journal=journal, limits=ls.Limits(grace=0.05))
        run = session.stream("go").start()
        await until(lambda: "model.failed" in journal.types())
        run.cancel()
        assert (await run).status == "cancelled"
        length, part = len(journal.events), session._part
        for _ in range(20):
            await asyncio.sleep(0)
        assert (len(journal.events), session._part) == (length, part)
        free.set()
        await until(lambda: len(asyncio.all_tasks()) == 1)

    go(main())


@pytest.mark.parametrize("what", ["model", "check", "prepare", "hook"])
def test_whatever_is_left_behind_at_its_deadline_is_named(what: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> str:
        free = asyncio.Event()

        async def deaf(*_: Any) -> Any:
            while not free.is_set():
                try:
                    await free.wait()
                except asyncio.CancelledError:
                    pass

        def made_() -> str:
            return "ran"

        made = ls.tool(made_, name="made", prepare=deaf if what == "prepare" else None)
        made = before_tool(made, deaf) if what == "hook" else made
        limits = ls.Limits(grace=0.05, tool_timeout=0.05, stream_timeout=0.05 if what == "model" else 60.0)
        model = Chunks([deaf]) if what == "model" else Chunks([calling(call("made"))], [done()], [done()])
        journal, checks = FakeJournal(), ["make test"] if what == "check" else []
        result = await session_of(model, [made], journal=journal, limits=limits, checks=checks, check=deaf).run("go")
        free.set()
        await until(lambda: len(asyncio.all_tasks()) == 1)
        told = [event.output for event in journal.of(ev.CheckFinished)] if what == "check" else []
        told += [str(event.content) for event in journal.of(ev.ToolFinished)] if what in ("prepare", "hook") else []
        return "".join(told or [result.error.message if result.error else ""])

    caplog.set_level("INFO", "latchstep")
    said = go(main())
    assert "may still be running" in said
    assert "\n" not in said
    assert "may still be running" in caplog.text


def test_a_deaf_approver_does_not_hold_the_run() -> None:
    async def main() -> None:
        free = asyncio.Event()

        async def approve(question: ev.Question) -> bool:
            while not free.is_set():
                try:
                    await free.wait()
                except asyncio.CancelledError:
                    pass
            return True

        journal = FakeJournal()
        session = session_of(
            Chunks([calling(call("ready"))]),
            [ready],
            journal=journal,
            approve=approve,
            limits=ls.Limits(grace=0.05),
            **ASK,
        )
        run = session.stream("go").start()
        await until(lambda: "approval.requested" in journal.types())
        await asyncio.sleep(0)
        run.cancel()
        assert (await run).status == "cancelled"
        assert "tool.started" not in journal.types()
        free.set()
        await asyncio.sleep(0)

    go(main())


def test_a_run_leaves_no_timer_behind() -> None:
    """A deadline's timer would keep the session alive for as long as a tool might have taken."""

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        await session_of([call("ready"), "done"], [ready], limits=ls.Limits(max_seconds=500)).run("go")
        due = [handle for handle in loop._scheduled if not handle.cancelled()]
        assert len(due) <= 1, due  # the test's own

    go(main())
