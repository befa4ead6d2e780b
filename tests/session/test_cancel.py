"""Laws 6 and 7: cancelled at any instant, a run ends once, at once and cleanly."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Failed
from latchstep.session.session import Session

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


# -- tools that do not stop ------------------------------------------------------------------------------


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


# -- from synchronous code -------------------------------------------------------------------------------

PROGRAM = """
import asyncio, gc, os, signal, sys, threading, warnings
warnings.simplefilter("error")
import latchstep as ls
from latchstep.journal.base import MemoryJournal
from latchstep.core import event as ev

journal = MemoryJournal()
journal.append([ev.SessionCreated(session_id="s")])

@ls.tool
{tool}

agent = ls.Agent(ls.ScriptedModel([ls.ToolCall("c1", "act", {{}}), "done"]), [act], journal=journal,
                 limits=ls.Limits(grace=0.1))
try:
    {call}
except KeyboardInterrupt:
    print("KeyboardInterrupt")
gc.collect()
print([e.outcome for e in journal.read() if isinstance(e, ev.ToolFinished)])
print([e.status for e in journal.read() if isinstance(e, ev.RunFinished)])
"""

TOOLS = {
    "coroutine": """
async def act() -> str:
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(60)
    return "no"
""",
    "thread": """
def act() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(60)
    return "no"
""",
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("call", ["agent.run_sync('go')", "asyncio.run(agent.run('go'))"])
def test_ctrl_c_ends_the_run_and_is_raised(tool: str, call: str) -> None:
    program = textwrap.dedent(PROGRAM).format(tool=TOOLS[tool].strip(), call=call)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == ["KeyboardInterrupt", "['interrupted']", "['cancelled']"]
    assert ended.returncode == 0


def test_run_sync_refuses_inside_a_loop_and_restores_the_signal_handler() -> None:
    agent = ls.Agent(ls.ScriptedModel(["done"]))
    assert agent.run_sync("go").final_text == "done"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    async def main() -> None:
        with pytest.raises(ls.LatchstepError, match="await"):
            agent.run_sync("go")

    go(main())
    gc.collect()


def test_run_sync_in_a_thread() -> None:
    said: list[str] = []
    agent = ls.Agent(ls.ScriptedModel(["done"]))
    thread = threading.Thread(target=lambda: said.append(agent.run_sync("go").final_text))
    thread.start()
    thread.join(20)
    assert said == ["done"]


def test_a_cancelled_session_is_a_session(tmp_path: Any) -> None:
    """Resume after the record ends in `cancel.requested`: the old run gets its ending, the prompt its answer."""

    async def main() -> None:
        journal = FakeJournal()
        session: Session = session_of(Chunks([calling(call("hang"))]), [hang], journal=journal)
        async with session.stream("go") as run:
            await until(lambda: "tool.started" in journal.types())
            run.cancel()
        end = journal.types().index("cancel.requested") + 1
        from .fakes import cut

        reopened = session_of(Chunks([done("here")]), [hang], journal=cut(journal, end))
        assert reopened.unfinished
        result = await reopened.run("and now?")
        assert (result.status, result.final_text) == ("completed", "here")
        assert [e.status for e in reopened.journal.of(ev.RunFinished)] == ["cancelled", "completed"]  # type: ignore[attr-defined]
        alone = session_of(Chunks([done("here")]), [hang], journal=cut(journal, end))
        assert (await alone.resume()).status == "cancelled"

    go(main())
