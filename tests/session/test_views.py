"""Turns and messages as a view of the events: each begins once and ends once, whatever happens in between."""

from __future__ import annotations

from typing import Any

import pytest

import latchstep as ls
from latchstep.core.chunk import Failed
from latchstep.session.views import Moment, Turns, turns

from .fakes import Chunks, FakeJournal, call, calling, done, forever, go, session_of, text


@ls.tool(effect="read")
async def look(n: int = 0) -> str:
    return f"saw {n}"


@ls.tool
async def hang() -> str:
    await forever()
    return ""


def check(moments: list[Moment]) -> None:
    """Turns do not overlap; within them messages do not; updates only while an answer is under way."""
    turn = message = False
    for moment in moments:
        match moment.kind:
            case "turn_start":
                assert (turn, message) == (False, False)
                turn = True
            case "message_start":
                assert (turn, message) == (True, False)
                message = True
            case "message_update":
                assert message
            case "message_end":
                assert message
                message = False
            case "turn_end":
                assert (turn, message) == (True, False)
                turn = False
    assert (turn, message) == (False, False)


def told(moments: list[Moment]) -> list[str]:
    shown = {"turn_start": "(", "turn_end": ")", "message_update": "+"}
    said = []
    for moment in moments:
        if moment.kind in shown:
            said.append(shown[moment.kind])
        elif moment.kind == "message_end":
            said.append(f"{moment.message.role}" if moment.message is not None else "void")
    return said


def seen(model: Any, *, steer_at: str = "", cancel_at: str = "") -> tuple[list[Moment], FakeJournal]:
    async def main() -> tuple[list[Moment], FakeJournal]:
        journal = FakeJournal()
        moments: list[Moment] = []
        steer = steer_at
        session = session_of(model, [look, hang], journal=journal, limits=ls.Limits(max_ahead=0))
        async with session.stream("go") as run:
            async for moment in turns(run):
                moments.append(moment)
                if steer and moment.event.type == steer:
                    await run.steer("B")
                    steer = ""
                if cancel_at and moment.event.type == cancel_at:
                    run.cancel()
        check(moments)
        return moments, journal

    return go(main())


def test_a_run_as_turns_and_messages() -> None:
    model = Chunks([text("I "), text("look"), calling(call("look", "a", n=1), call("look", "b", n=2))], [done()])
    moments, journal = seen(model, steer_at="message.completed")
    turn = ["(", "user", "+", "+", "assistant", "tool", "tool", ")", "(", "user", "assistant", ")"]
    assert told(moments) == turn
    first, last = (moment for moment in moments if moment.kind == "turn_end")
    assert [result.text for result in first.results] == ["saw 1", "saw 2"]
    assert (last.message.text if last.message else "", last.results) == ("done", ())
    assert [m.message.text for m in moments if m.kind == "message_end" and m.message and m.message.role == "user"] == [
        "go",
        "B",
    ]
    view = Turns()
    stored = [moment for event in journal.events for moment in view.feed(event)]
    assert told(stored) == [mark for mark in turn if mark != "+"], "the record tells the same, but for the pieces"


def test_an_attempt_that_failed_is_void_and_its_turn_goes_on() -> None:
    failed = Failed(kind="overloaded", message="529", retry_in=0.0)
    moments, _ = seen(Chunks([text("ha"), failed, text("hello"), done("hello")]))
    assert told(moments) == ["(", "user", "+", "void", "+", "assistant", ")"]


@pytest.mark.parametrize(
    ("answer", "cancel_at", "expected"),
    [
        ([text("ha"), forever], "model.delta", ["(", "user", "+", "void", ")"]),
        ([calling(call("hang"), call("look"))], "message.completed", ["(", "user", "assistant", "tool", "tool", ")"]),
        ([text("ha"), RuntimeError("x")], "", ["(", "user", "+", "void", ")"]),
    ],
)
def test_what_is_cut_off_ends_too(answer: list[Any], cancel_at: str, expected: list[str]) -> None:
    assert told(seen(Chunks(answer), cancel_at=cancel_at)[0]) == expected


def test_edited_and_withdrawn_messages_are_told_as_they_were_delivered() -> None:
    async def main() -> None:
        journal = FakeJournal()
        session = session_of(Chunks([done()]), journal=journal)
        ids = [await session.send(f"m{n}") for n in range(3)]
        await session.edit(ids[0], "other")
        await session.withdraw(ids[1])
        await session.run("go")
        view = Turns()
        moments = [moment for event in journal.events for moment in view.feed(event)]
        check(moments)
        said = [m.message.text for m in moments if m.kind == "message_end" and m.message is not None]
        assert said == ["other", "m2", "go", "done"]

    go(main())


def test_a_run_may_be_stopped_at_the_end_of_a_turn() -> None:
    async def main() -> None:
        model = Chunks([calling(call("look", n=1))], [done()])
        async with session_of(model, [look]).stream("go") as run:
            async for moment in turns(run):
                if moment.kind == "turn_end" and moment.results:
                    await run.stop_after_turn("enough")
            assert (await run.result()).status == "cancelled"
        assert len(model.requests) == 1

    go(main())
