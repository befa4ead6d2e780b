"""Law 1: on record, then in front of the caller's iterator, then done; other watchers at their own pace."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.session.hub import AHEAD

from .fakes import Chunks, FakeJournal, call, done, forever, go, session_of, text, until


def tool_that(log: list[str]) -> ls.Tool:
    @ls.tool
    async def act() -> str:
        log.append("effect")
        return "acted"

    return act


def test_a_tool_starts_only_when_the_caller_took_its_event_and_came_back() -> None:
    async def main() -> None:
        log: list[str] = []
        session = session_of([call("act"), "done"], [tool_that(log)])
        async with session.stream("go") as run:
            steps = aiter(run)
            async for event in steps:
                if event.type == "tool.started":
                    break
            for _ in range(50):
                await asyncio.sleep(0)
            assert log == []
            log.append("back")
            assert (await anext(steps)).type == "tool.finished"
            assert log == ["back", "effect"]
            assert (await run.result()).status == "completed"

    go(main())


def test_each_event_is_on_record_before_the_caller_sees_it() -> None:
    async def main() -> None:
        session = session_of([call("act"), "done"], [tool_that([])])
        journal = session.journal
        async with session.stream("go") as run:
            seen = []
            async for event in run:
                if event.part == 0:
                    ahead = 1 if event.type == "message.accepted" else 0  # written with `run.started`
                    assert journal.head == event.seq + ahead, "the driver ran ahead of the caller"
                    assert next(iter(journal.read(event.seq - 1))).type == event.type
                seen.append(event)
        stored = [event for event in seen if not event.part]
        assert [event.seq for event in stored] == list(range(stored[0].seq, journal.head + 1))
        assert stored[0].type == "message.accepted"
        assert [event.type for event in stored].count("run.finished") == 1
        assert stored[-1].type == "run.finished"
        parts: dict[int, int] = {}
        for event in seen:
            if event.part:
                parts[event.seq] = parts.get(event.seq, 0) + 1
                assert event.part == parts[event.seq]
                assert event.run_id == stored[-1].run_id

    go(main())


def test_dropping_the_iterator_detaches_and_the_run_goes_on() -> None:
    async def main() -> None:
        session = session_of([call("act"), call("act"), "done"], [tool_that([])])
        run = session.stream("go").start()
        async for event in run:
            if event.type == "model.requested":
                break
        watched = [event async for event in _through(session.watch(), "run.finished")]
        assert watched[-1].type == "run.finished"
        assert (await run.result()).status == "completed"

    go(main())


async def _through(events: Any, last: str) -> Any:
    async for event in events:
        yield event
        if event.type == last:
            await events.aclose()
            return


def test_an_iterator_dropped_before_its_first_event_detaches_too() -> None:
    async def main() -> None:
        run = session_of(["done"]).stream("go").start()
        aiter(run)
        gc.collect()
        await until(lambda: run.finished)
        assert [event.type async for event in run][-1] == "run.finished"

    go(main())


def test_leaving_the_block_cancels() -> None:
    async def main() -> None:
        journal = FakeJournal()
        session = session_of(Chunks([forever]), journal=journal)
        async with session.stream("go") as run:
            async for event in run:
                if event.type == "model.requested":
                    break
        assert (await run.result()).status == "cancelled"
        assert journal.of(ev.CancelRequested)[0].reason == "left"

    go(main())


def test_leaving_the_block_at_once_cancels() -> None:
    async def main() -> None:
        model = Chunks([done()])
        async with session_of(model).stream("go") as run:
            pass
        result = await run.result()
        assert result.status == "cancelled"
        assert model.requests == []

    go(main())


def test_leaving_the_block_with_the_last_event_in_hand_does_not_hang() -> None:
    async def main() -> None:
        async with session_of(["done"]).stream("go") as run:
            steps = aiter(run)
            while (await anext(steps)).type != "run.finished":
                pass
        assert (await run.result()).status == "completed"
        assert [event async for event in steps] == []

    go(main())


def test_a_run_that_nobody_iterates_just_runs() -> None:
    async def main() -> None:
        run = session_of([call("act"), "done"], [tool_that([])]).stream("go").start()
        await until(lambda: run.finished)
        assert (await run).final_text == "done"
        assert (await run).final_text == "done"

    go(main())


def test_result_inside_the_iteration_does_not_deadlock() -> None:
    async def main() -> None:
        async with session_of([call("act"), "done"], [tool_that([])]).stream("go") as run:
            seen = []
            async for event in run:
                seen.append(event.type)
                if event.type == "tool.started":
                    result = await asyncio.wait_for(run.result(), 10)  # in a task of its own, as 3.11 does it
                    assert result.status == "completed"
            assert seen[-1] == "run.finished"

    go(main())


def test_awaiting_the_result_elsewhere_leaves_the_iterator_all_events() -> None:
    async def main() -> None:
        session = session_of([call("act"), "done"], [tool_that([])])
        run = session.stream("go").start()
        seen: list[str] = []

        async def show() -> None:
            async for event in run:
                seen.append(event.type)
                await asyncio.sleep(0)

        showing = asyncio.create_task(show())
        await until(lambda: seen)
        assert (await run.result()).status == "completed"
        await showing
        assert [t for t in seen if t != "model.delta"] == [e.type for e in session.journal.read(1)]

    go(main())


def test_steering_and_answering_from_inside_the_iteration_do_not_deadlock() -> None:
    async def main() -> None:
        session = session_of(
            [call("act", "c1"), "done"], [tool_that([])], policy=lambda call, traits: ls.Verdict("ask", "sure?")
        )
        async with session.stream("go") as run:
            async for event in run:
                if isinstance(event, ev.ApprovalRequested):
                    await run.steer("and be quick")
                    await session.withdraw(await run.steer("never mind"))
                    await run.answer("c1", "allow")
            result = await run.result()
        assert result.status == "completed"
        assert [m.text for m in result.messages if m.role == "user"][1] == "and be quick"

    go(main())


def test_cancelling_from_inside_the_iteration_stops_before_the_tool() -> None:
    async def main() -> None:
        log: list[str] = []
        session = session_of([call("act"), "done"], [tool_that(log)])
        async with session.stream("go") as run:
            async for event in run:
                if event.type == "tool.started":
                    run.cancel("no")
            result = await run.result()
        assert (result.status, log) == ("cancelled", [])
        (finished,) = session.journal.of(ev.ToolFinished)  # type: ignore[attr-defined]
        assert finished.outcome == "not_started"

    go(main())


def test_two_iterators_are_refused_and_a_second_after_the_first_is_fine() -> None:
    async def main() -> None:
        run = session_of([call("act"), "done"], [tool_that([])]).stream("go").start()
        first = aiter(run)
        await anext(first)
        with pytest.raises(ls.SessionError, match="watch"):
            aiter(run)
        del first
        types = [event.type async for event in run]
        assert (types[0], types[-1]) == ("message.accepted", "run.finished")

    go(main())


def test_a_finished_run_can_be_iterated_and_shows_no_later_run() -> None:
    async def main() -> None:
        session = session_of(["one", "two"])
        first = session.stream("1")
        await first
        second = session.stream("2")
        await second
        kept = aiter(second)  # held, and no obstacle to whoever comes later
        await anext(kept)
        assert [event.run_id for event in [e async for e in first] if event.type == "run.finished"] == [
            (await first).run_id
        ]
        assert await session.run("3") is not None

    go(main())


def test_a_kept_iterator_of_an_earlier_run_does_not_stand_in_the_way() -> None:
    async def main() -> None:
        session = session_of([call("act"), "one", "two"], [tool_that([])])
        first = session.stream("1").start()
        kept = aiter(first)
        await anext(kept)
        assert (await first.result()).status == "completed"
        async with session.stream("2") as second:
            assert [event.type async for event in second][-1] == "run.finished"
        assert [event.run_id async for event in kept][-1] == (await first).run_id

    go(main())


def test_a_slow_caller_holds_the_stream_and_a_cancelled_wait_for_an_event_loses_none() -> None:
    async def main() -> None:
        many = [text(str(n)) for n in range(10 * AHEAD)]
        made = 0

        class Counting(Chunks):
            async def stream(self, request: Any) -> Any:
                nonlocal made
                async for chunk in super().stream(request):
                    made += 1
                    yield chunk

        run = session_of(Counting([*many, done()])).stream("go").start()
        steps = aiter(run)
        pieces: list[str] = []
        async for event in steps:
            if isinstance(event, ev.ModelDelta):
                pieces.append(event.piece)
                break
        for _ in range(500):
            await asyncio.sleep(0)
        assert made <= 2 * AHEAD + 2
        waiting = asyncio.ensure_future(anext(steps))
        await asyncio.sleep(0)
        if not waiting.done():
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        else:
            pieces.append(waiting.result().piece)
        async for event in steps:
            if isinstance(event, ev.ModelDelta):
                pieces.append(event.piece)
        assert pieces == [chunk.piece for chunk in many]

    go(main())
