"""The mature agents, rules 3, 4 and 7: again without a message, why the loop went on, counters that survive."""

from __future__ import annotations

from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.message import Usage
from tests.session.fakes import Chunks, FakeJournal, call, calling, check_requests, cut, done, go, session_of


@ls.tool(effect="read")
async def look(n: int = 0) -> str:
    return f"saw {n}"


def test_s4_03_the_last_turn_is_continued_where_a_user_or_a_tool_had_the_last_word() -> None:
    async def main() -> None:
        broken = RuntimeError("no route")
        model = Chunks([broken], [calling(call("look", n=1))], [broken], [done("fine")], [done()])
        session = session_of(model, [look])
        assert (await session.run("go")).status == "failed"  # the user had the last word
        assert (await session.run()).status == "failed"  # a tool had
        result = await session.run()
        assert (result.status, [m.role for m in result.messages]) == (
            "completed",
            ["user", "assistant", "tool", "assistant"],
        )
        with pytest.raises(ls.SessionError, match="nothing to answer"):
            await session.run()
        check_requests(model.requests)

    go(main())


def test_s4_04_each_request_says_why_the_loop_went_on() -> None:
    async def main() -> None:
        journal = FakeJournal()
        cut_off = calling(call("look", n=9)).__class__(blocks=(call("look", n=9),), stop_reason="length")
        model = Chunks(
            [calling(call("look", n=1))], [cut_off], [calling(call("look", n=2))], [done("a")], [RuntimeError("x")]
        )
        session = session_of(model, [look], journal=journal)
        async with session.stream("go") as run:
            async for event in run:
                if event.type == "tool.started" and len(model.requests) == 3:
                    await run.steer("also that")
                    await run.follow_up("then this")
            assert (await run.result()).status == "failed"
        session.kit.model = Chunks([done("b")])
        assert (await session.run()).status == "completed"
        because = [requested.because for requested in journal.of(ev.ModelRequested)]
        assert because == ["prompt", "results", "truncated", "steer", "follow_up", "retry"]

    go(main())


BOUNDS: dict[str, tuple[dict[str, Any], str]] = {
    "max_steps": ({"max_steps": 3}, "max_steps"),
    "max_tokens": ({"max_tokens": 33}, "budget"),
    "max_cost": ({"max_cost": 0.3}, "budget"),
    "max_tool_calls": ({"max_tool_calls": 2}, "budget"),
    "max_results": ({"max_results": 15}, "budget"),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_s4_07_what_a_run_has_spent_survives_a_crash_at_every_record(name: str) -> None:
    async def main() -> None:
        limits, status = BOUNDS[name]

        def turn(n: int) -> list[Any]:
            return [calling(call("look", f"c{n}", n=n), usage=Usage(10, 1), cost=0.1)]

        turns = [turn(n) for n in range(9)]
        whole = FakeJournal()
        expected = await session_of(Chunks(*turns), [look], journal=whole, limits=ls.Limits(**limits)).run("go")
        assert (expected.status, expected.steps) == (status, 3)
        for length in range(whole.types().index("run.started") + 1, len(whole.events)):
            copy = cut(whole, length)
            answered = len(copy.of(ev.MessageCompleted))
            session = session_of(Chunks(*turns[answered:]), [look], journal=copy, limits=ls.Limits(**limits))
            result = await session.resume()
            if name == "max_tool_calls":  # one that was lost and runs again is a call more
                assert (result.status, len(copy.of(ev.ToolStarted))) == (status, 2), length
            else:
                assert (result.status, result.steps) == (status, 3), length
                assert (result.usage, result.cost) == (expected.usage, expected.cost), length

    go(main())


def test_s4_07_a_loop_is_seen_over_a_crash() -> None:
    async def main() -> None:
        same = [calling(call("look", n=1))]
        whole = FakeJournal()
        assert (await session_of(Chunks(same), [look], journal=whole).run("go")).status == "stalled"
        for length in range(whole.types().index("run.started") + 1, len(whole.events)):
            copy = cut(whole, length)
            result = await session_of(Chunks(same), [look], journal=copy).resume()
            assert (result.status, result.steps) == ("stalled", 5), length

    go(main())
