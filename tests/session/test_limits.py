"""Every bound of a run: reached, it gives one ending that names the bound, the value and the limit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Failed
from latchstep.core.message import Usage
from latchstep.errors import ModelError

from .fakes import (
    Chunks,
    FakeJournal,
    call,
    calling,
    check_requests,
    cut,
    done,
    forever,
    go,
    results,
    session_of,
    until,
)


@ls.tool
async def act(n: int = 0) -> str:
    return f"acted {n}"


@ls.tool(effect="read")
async def look(n: int = 0) -> str:
    return f"saw {n}"


@ls.tool
async def hang(context: ls.Context) -> str:
    context.captured = "half"
    await forever()
    return ""


def run(model: Any, **limits: Any) -> tuple[ls.RunResult, FakeJournal]:
    async def main() -> tuple[ls.RunResult, FakeJournal]:
        journal = FakeJournal()
        session = session_of(model, [act, look, hang], journal=journal, limits=ls.Limits(**limits))
        return await session.run("go"), journal

    return go(main())


def ended(result: ls.RunResult) -> tuple[str, str]:
    return result.status, result.error.kind if result.error else ""


def test_max_steps_finishes_the_batch_and_asks_no_more() -> None:
    model = Chunks([calling(call("act", n=1), call("look", n=2), call("act", n=3))], [done()])
    result, _ = run(model, max_steps=1)
    assert ended(result) == ("max_steps", "MAX_STEPS")
    assert result.error is not None
    assert result.error.message == "max_steps is 1, reached with 1"
    assert [r.text for r in results(result)] == ["acted 1", "saw 2", "acted 3"]
    assert len(model.requests) == 1
    assert ended(run(Chunks([done()]), max_steps=1)[0]) == ("completed", "")


@pytest.mark.parametrize(
    ("limits", "kind", "words"),
    [
        ({"max_tokens": 100}, "MAX_TOKENS", "max_tokens is 100, reached with 120"),
        ({"max_cost": 0.5}, "MAX_COST", "max_cost is 0.5, reached with 0.75"),
    ],
)
def test_token_and_cost_budgets(limits: dict[str, Any], kind: str, words: str) -> None:
    model = Chunks([calling(call("act"), usage=Usage(100, 20), cost=0.75)], [done()])
    result, _ = run(model, **limits)
    assert ended(result) == ("budget", kind)
    assert result.error is not None
    assert result.error.message == words
    assert (result.usage, result.cost, len(results(result))) == (Usage(100, 20), 0.75, 1)
    final = Chunks([done(usage=Usage(100, 20), cost=0.75)])
    assert ended(run(final, **limits)[0]) == ("completed", "")


def test_a_follow_up_over_budget_is_kept_for_the_next_run() -> None:
    async def main() -> None:
        session = session_of(["one", "two"], limits=ls.Limits(max_steps=1))
        run = session.stream("go").start()
        await run.follow_up("more")
        assert ended(await run) == ("max_steps", "MAX_STEPS")
        assert [m.text for m in (await session.run("again")).messages if m.role == "user"] == ["go", "more", "again"]

    go(main())


def test_max_tool_calls_lets_the_model_answer_unless_a_call_was_held_back() -> None:
    two = [call("act", n=1), call("act", n=2)]
    assert ended(run(Chunks([calling(*two)], [done()]), max_tool_calls=2)[0]) == ("completed", "")
    result, journal = run(Chunks([calling(*two, call("look", n=3))], [done()]), max_tool_calls=2)
    assert ended(result) == ("budget", "MAX_TOOL_CALLS")
    assert [e.outcome for e in journal.of(ev.ToolFinished)] == ["ok", "ok", "not_started"]
    assert "max_tool_calls is 2" in str(journal.of(ev.ToolFinished)[2].content)
    reads = [call("look", n=n) for n in range(5)]
    result, journal = run(Chunks([calling(*reads)], [done()]), max_tool_calls=3)
    assert [e.outcome for e in journal.of(ev.ToolFinished)] == ["ok", "ok", "ok", "not_started", "not_started"]


def test_max_seconds_in_a_stream_and_in_a_tool() -> None:
    result, journal = run(Chunks([forever]), max_seconds=0.05)
    assert ended(result) == ("budget", "MAX_SECONDS")
    assert result.error is not None
    assert "max_seconds is 0.05" in result.error.message
    assert journal.of(ev.ClockPassed)[0].limit == "max_seconds"
    result, journal = run(Chunks([calling(call("hang"), call("act"))]), max_seconds=0.05)
    assert ended(result) == ("budget", "MAX_SECONDS")
    first, second = journal.of(ev.ToolFinished)
    assert (first.outcome, second.outcome) == ("interrupted", "not_started")
    assert "half" in str(first.content)
    assert "max_seconds" in str(first.content)


def test_max_seconds_in_the_beginning_of_a_run() -> None:
    result, _ = run(Chunks([forever]), max_seconds=0.0)
    assert ended(result) == ("budget", "MAX_SECONDS")


def test_wall_time_adds_up_over_resumes() -> None:
    async def main() -> None:
        ticks = iter(range(0, 100_000, 3))
        journal = FakeJournal()
        more: dict[str, Any] = {"limits": ls.Limits(max_seconds=1000.0), "monotonic": lambda: float(next(ticks))}
        model = Chunks([calling(call("act", "a"))], [forever])
        running = session_of(model, [act], journal=journal, **more).stream("go").start()
        await until(lambda: len(journal.of(ev.ModelRequested)) == 2)
        elapsed = journal.events[-1].elapsed
        copy = cut(journal, len(journal.events))
        running.cancel()
        await running
        assert elapsed > 10
        session = session_of(Chunks([done()]), [act], journal=copy, **more)
        before = len(copy.events)
        assert (await session.resume()).status == "completed"
        times = [event.elapsed for event in copy.events[before:]]
        assert times == sorted(times)
        assert times[0] >= elapsed
        assert {event.run_id for event in copy.events[before:]} == {journal.of(ev.RunStarted)[0].run_id}

    go(main())


def test_a_resumed_run_over_its_time_ends_at_once() -> None:
    async def main() -> None:
        journal = FakeJournal()
        limits = ls.Limits(max_seconds=10.0)
        ticks = iter(range(0, 100_000, 20))
        running = (
            session_of(Chunks([forever]), journal=journal, monotonic=lambda: float(next(ticks)), limits=limits)
            .stream("go")
            .start()
        )
        await until(lambda: "model.requested" in journal.types())
        copy = cut(journal, len(journal.events))
        running.cancel()
        await running
        model = Chunks([forever])
        assert ended(await session_of(model, journal=copy, limits=limits).resume()) == ("budget", "MAX_SECONDS")

    go(main())


# -- the same again and again ---------------------------------------------------------------------------


def told(result: ls.RunResult) -> int:
    return sum("same calls with the same results" in m.text for m in result.messages)


def test_repetition_is_told_once_and_then_ends_the_run() -> None:
    model = Chunks([calling(call("look", n=1))])
    result, _ = run(model)
    assert ended(result) == ("stalled", "STALLED")
    assert (len(model.requests), told(result)) == (5, 1)
    check_requests(model.requests)
    assert "5 times" in (result.error.message if result.error else "")


def test_after_being_told_something_else_is_a_new_beginning() -> None:
    same, other = calling(call("look", n=1)), calling(call("look", n=2))
    model = Chunks([same], [same], [same], [other], [same], [same], [done()])
    result, _ = run(model)
    assert (result.status, told(result)) == ("completed", 1)


def test_what_a_person_asks_for_again_is_no_loop() -> None:
    async def main() -> None:
        model = Chunks(*[[calling(call("look", n=1))], [done()]] * 8)
        session = session_of(model, [look])
        run = session.stream("check").start()
        for n in range(7):
            await run.follow_up(f"check again {n}")
            await until(lambda n=n: len(model.requests) >= 2 * n + 1)
        result = await run
        assert result.status == "completed"
        assert told(result) == 0

    go(main())


# -- checks ----------------------------------------------------------------------------------------------


class Checks:
    """Runs no command: says what the test wants."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.ran = list(answers), list[str]()

    async def __call__(self, command: str) -> tuple[int | None, str]:
        self.ran.append(command)
        answer = self.answers.pop(0) if self.answers else (0, "ok")
        if isinstance(answer, BaseException):
            raise answer
        if answer is forever:
            await forever()
        return answer  # type: ignore[no-any-return]


def checked(
    model: Any, checks: Checks, commands: tuple[str, ...] = ("make",), **more: Any
) -> tuple[ls.RunResult, FakeJournal]:
    async def main() -> tuple[ls.RunResult, FakeJournal]:
        journal = FakeJournal()
        session = session_of(model, [act, look], journal=journal, checks=commands, check=checks, **more)
        return await session.run("go"), journal

    return go(main())


WROTE = [calling(call("act"))]


def test_checks_run_after_changes_and_only_then() -> None:
    checks = Checks()
    assert checked(Chunks([calling(call("look"))], [done()]), checks)[0].status == "completed"
    assert checks.ran == []
    result, journal = checked(Chunks(WROTE, [done()]), checks, ("make", "lint"))
    assert (result.status, checks.ran) == ("completed", ["make", "lint"])
    assert [e.passed for e in journal.of(ev.CheckFinished)] == [True, True]


def test_a_failing_check_goes_back_as_data_and_a_repair_is_checked_again() -> None:
    checks = Checks((2, "E: broken"), (0, "fine"), (0, "ok"), (0, "ok"))
    model = Chunks(WROTE, [done("first")], [calling(call("act", n=2))], [done("second")])
    result, _ = checked(model, checks, ("make", "lint"))
    assert (result.status, result.final_text) == ("completed", "second")
    assert checks.ran == ["make", "lint", "make", "lint"]
    told = result.messages[-4].text
    assert "E: broken" in told
    assert "exit status 2" in told
    assert "not an instruction" in told
    assert "lint" not in told
    check_requests(model.requests)


def test_after_so_many_rounds_the_run_is_unverified() -> None:
    checks = Checks(*[(1, "no")] * 9)
    result, _ = checked(Chunks(WROTE, [done()]), checks, limits=ls.Limits(max_check_rounds=2))
    assert ended(result) == ("unverified", "UNVERIFIED")
    assert len(checks.ran) == 3
    assert result.error is not None
    assert "make" in result.error.message


@pytest.mark.parametrize("answer", [RuntimeError("no shell"), SystemExit(1), asyncio.CancelledError(), (None, "gone")])
def test_a_check_that_cannot_be_run_has_failed(answer: Any) -> None:
    result, journal = checked(Chunks(WROTE, [done()]), Checks(answer))
    assert result.status == "completed"  # the second round passes
    first = journal.of(ev.CheckFinished)[0]
    assert (first.passed, first.exit_status) == (False, None)
    assert first.output


def test_a_check_has_a_deadline() -> None:
    limits = ls.Limits(tool_timeout=0.05, max_check_rounds=0)
    result, journal = checked(Chunks(WROTE, [done()]), Checks(forever), limits=limits)
    assert ended(result) == ("unverified", "UNVERIFIED")
    assert "0.05" in journal.of(ev.CheckFinished)[0].output


def test_a_run_stopped_among_its_checks_leaves_them_armed() -> None:
    async def main() -> None:
        journal = FakeJournal()
        checks = Checks((0, "ok"), forever)
        session = session_of(Chunks(WROTE, [done()]), [act], journal=journal, checks=("make", "lint"), check=checks)
        run = session.stream("go").start()
        await until(lambda: len(checks.ran) == 2)
        run.cancel()
        assert (await run).status == "cancelled"
        assert (await session.run("and?")).status == "completed"
        assert checks.ran == ["make", "lint", "make", "lint"]
        assert (await session.run("and now?")).status == "completed"
        assert len(checks.ran) == 4

    go(main())


def test_a_check_running_at_a_crash_runs_again() -> None:
    async def main() -> None:
        journal = FakeJournal()
        session = session_of(
            Chunks(WROTE, [done()]), [act], journal=journal, checks=("make", "lint"), check=Checks((0, "ok"), forever)
        )
        run = session.stream("go").start()
        await until(lambda: journal.types().count("check.started") == 2)
        copy = cut(journal, len(journal.events))
        run.cancel()
        await run
        again = Checks()
        resumed = session_of(Chunks([done()]), [act], journal=copy, checks=("make", "lint"), check=again)
        assert (await resumed.resume()).status == "completed"
        assert again.ran == ["make", "lint"]

    go(main())


def test_steering_while_a_check_runs_is_answered_and_then_checked_again() -> None:
    async def main() -> None:
        journal = FakeJournal()
        checks = Checks()
        model = Chunks(WROTE, [done("one")], [done("two")])
        session = session_of(model, [act], journal=journal, checks=("make",), check=checks)
        async with session.stream("go") as run:
            async for event in run:
                if event.type == "check.started" and len(model.requests) == 2:
                    await run.steer("also that")
            result = await run.result()
        assert (result.status, result.final_text, checks.ran) == ("completed", "two", ["make", "make"])

    go(main())


# -- what failed attempts cost ------------------------------------------------------------------------------


def test_failed_attempts_that_were_counted_are_paid_for() -> None:
    again = Failed(kind="server", message="500", retry_in=0.0, usage=Usage(100, 1), cost=0.25)
    counted = ModelError("overloaded", "529", usage=Usage(10, 2), cost=0.125)
    result, journal = run(Chunks([again, counted]))
    assert [failed.cost for failed in journal.of(ev.ModelFailed)] == [0.25, 0.125]
    assert (result.status, result.usage, result.cost) == ("failed", Usage(110, 3), 0.375)
    result, _ = run(Chunks([again, calling(call("look"))], [done()]), max_cost=0.25)
    assert ended(result) == ("budget", "MAX_COST")
    empty = done().__class__(blocks=(), stop_reason="stop", usage=Usage(1, 0), cost=0.5)
    result, _ = run(Chunks([empty], [done(cost=0.25)]))
    assert (result.status, result.cost) == ("completed", 0.75)


def test_a_cost_that_is_none_is_unknown_in_the_record_as_in_the_run() -> None:
    result, journal = run(Chunks([done(cost=float("nan"))]))
    assert (result.status, result.cost, journal.of(ev.MessageCompleted)[0].cost) == ("completed", None, None)


def test_a_run_that_breaks_says_what_it_cost() -> None:
    @ls.tool
    def broken() -> str:
        raise ls.FatalToolError("no")

    result = go(session_of(Chunks([calling(call("broken"), cost=0.5)]), [broken]).run("go"))
    assert (result.status, result.cost) == ("failed", 0.5)


def test_the_model_reads_the_warning_once_after_the_results() -> None:
    model = Chunks(*[[calling(call("look", n=n))] for n in range(20)])
    result, journal = run(model, max_steps=10)
    assert ended(result) == ("max_steps", "MAX_STEPS")
    warned = [n for n, request in enumerate(model.requests, 1) if "8 of 10 steps" in request.messages[-1].text]
    assert warned == [9]
    assert [event.about for event in journal.of(ev.MessageAccepted)] == ["", "max_steps"]
    check_requests(model.requests)
