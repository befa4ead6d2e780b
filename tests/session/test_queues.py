"""Waiting messages: how many one request delivers, how one is changed, and how a run is continued without any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.state import fold
from latchstep.journal.store import Store
from latchstep.session.build import build_kit, build_rules
from latchstep.session.session import Session

from .fakes import Chunks, FakeJournal, call, calling, check_requests, cut, done, forever, go, session_of, until


@ls.tool
async def act() -> str:
    return "acted"


def said(result: ls.RunResult) -> list[str]:
    return [m.text for m in result.messages if m.role == "user"]


def delivered(model: Chunks) -> list[list[str]]:
    """What each request said in words that the one before had not."""
    texts = [[m.text for m in request.messages if m.role == "user"] for request in model.requests]
    return [now[len(before) :] for before, now in zip([[], *texts], texts, strict=False)]


# -- how many at once ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, [["go"], ["s0", "s1", "s2"], ["f0", "f1", "f2"]]),
        ({"steering": "one"}, [["go"], ["s0"], ["s1"], ["s2"], ["f0", "f1", "f2"]]),
        ({"follow_ups": "one"}, [["go"], ["s0", "s1", "s2"], ["f0"], ["f1"], ["f2"]]),
        (
            {"steering": "one", "follow_ups": "one"},
            [["go"], ["s0"], ["s1"], ["s2"], ["f0"], ["f1"], ["f2"]],
        ),
    ],
)
@pytest.mark.parametrize("crash", [False, True])
def test_one_and_all(limits: dict[str, Any], expected: list[list[str]], crash: bool) -> None:
    async def main() -> None:
        journal = FakeJournal()
        model = Chunks([calling(call("act"))], [calling(call("act"))], *[[done(str(n))] for n in range(9)])
        rules = ls.Limits(**limits)
        run = session_of(model, [act], journal=journal, limits=rules).stream("go")
        async with run:
            async for event in run:
                if event.type == "tool.started" and len(model.requests) == 1:
                    for n in range(3):
                        await run.follow_up(f"f{n}")
                        await run.steer(f"s{n}")
                    if crash:
                        break
            if crash:
                journal = cut(journal, len(journal.events))
                run.cancel()
        if crash:
            session = session_of(model, [act], journal=journal, limits=rules)
            result = await session.resume()
        else:
            result = await run
        assert (result.status, [new for new in delivered(model) if new]) == ("completed", expected)
        check_requests(model.requests)
        carried = [n for r in journal.of(ev.ModelRequested) for n in r.carries]
        assert len(carried) == len(set(carried)) == 7

    go(main())


def test_what_an_earlier_run_left_opens_the_next_one_whole() -> None:
    async def main() -> None:
        model = Chunks([forever], [done()], [done()])
        session = session_of(model, limits=ls.Limits(steering="one", follow_ups="one"))
        run = session.stream("go").start()
        await until(lambda: model.requests)
        for n in range(2):
            await run.follow_up(f"f{n}")
            await run.steer(f"s{n}")
        run.cancel()
        assert (await run).status == "cancelled"
        assert said(await session.run("next")) == ["go", "f0", "s0", "f1", "s1", "next"]
        assert len(model.requests) == 2

    go(main())


def test_a_follow_up_waits_for_the_end_even_where_an_answer_was_paused_or_cut() -> None:
    async def main() -> None:
        paused = done("one").__class__(blocks=done("hm").blocks, stop_reason="paused")
        length = done("one").__class__(blocks=done("so").blocks, stop_reason="length")
        model = Chunks([paused], [length], [done("end")], [done("more")])
        journal = FakeJournal()
        session = session_of(model, journal=journal, limits=ls.Limits(max_continuations=1))
        async with session.stream("go") as run:
            await run.follow_up("then")
            assert (await run.result()).status == "completed"
        assert [r.because for r in journal.of(ev.ModelRequested)] == ["prompt", "paused", "truncated", "follow_up"]
        texts = delivered(model)
        assert (texts[0], texts[1], len(texts[2]), texts[3]) == (["go"], [], 1, ["then"])

    go(main())


def test_a_thousand_steers_are_on_disk_in_order_and_all_are_delivered(tmp_path: Path) -> None:
    async def main() -> None:
        store = Store(tmp_path)
        kit = build_kit(Chunks([calling(call("act"))], [done()]), [act])
        session = Session(store.create("many", time=0.0), kit, build_rules(kit))
        async with session.stream("go") as run:
            async for event in run:
                if event.type == "tool.started":
                    for n in range(1000):
                        await run.steer(f"m{n}")
            result = await run.result()
        await session.close()
        expected = ["go", *(f"m{n}" for n in range(1000))]
        assert (result.status, said(result)) == ("completed", expected)
        with store.open("many") as journal:
            assert [m.text for m in fold(journal.live()).transcript if m.role == "user"] == expected

    go(main())


def test_the_queue_is_bounded() -> None:
    async def main() -> None:
        session = session_of(Chunks([done()]), limits=ls.Limits(max_waiting=2))
        for n in range(2):
            await session.send(f"m{n}")
        with pytest.raises(ls.SessionError, match="2 messages wait to be delivered; max_waiting is 2"):
            await session.send("m2")
        assert said(await session.run("go")) == ["m0", "m1", "go"]

    go(main())


def test_only_a_person_speaks_through_it() -> None:
    async def main() -> None:
        journal = FakeJournal()
        with pytest.raises(ls.DefinitionError, match="'notice'"):
            await session_of(["x"], journal=journal).send("m", "notice")
        assert "message.accepted" not in journal.types()

    go(main())


# -- changing what waits -------------------------------------------------------------------------------------


def test_an_edited_message_keeps_its_id_and_its_place_also_over_a_crash() -> None:
    async def main() -> None:
        journal = FakeJournal()
        session = session_of(Chunks([done()]), journal=journal)
        ids = [await session.send(f"m{n}") for n in range(3)]
        await session.edit(ids[1], "other words")
        assert journal.log[-2:] == ["sync", "synced"]
        for there in (session, session_of(Chunks([done()]), journal=cut(journal, len(journal.events)))):
            result = await there.run("go")
            assert said(result) == ["m0", "other words", "m2", "go"]
            assert [m.id for m in result.messages if m.role == "user"][:3] == ids
        with pytest.raises(ls.SessionError, match="not waiting"):
            await session.edit(ids[1], "too late")

    go(main())


def test_an_edit_is_a_message_like_any_other_and_nothing_else_can_be_edited() -> None:
    async def main() -> None:
        session = session_of(Chunks([done()]))
        message_id = await session.send("m")
        with pytest.raises(ls.SessionError, match="blank"):
            await session.edit(message_id, " ")
        with pytest.raises(ls.SessionError, match="not waiting"):
            await session.edit("nothing", "x")
        await session.withdraw(message_id)
        with pytest.raises(ls.SessionError, match="not waiting"):
            await session.edit(message_id, "x")

    go(main())


# -- again, without a new message ----------------------------------------------------------------------------

AGAIN: dict[str, tuple[list[Any], ls.Limits]] = {
    "failed": ([[RuntimeError("x")]], ls.Limits()),
    "cancelled": ([[calling(call("act"))], [forever]], ls.Limits()),
    "max_steps": ([[calling(call("act"))]] * 2, ls.Limits(max_steps=2)),
    "budget": ([[calling(call("act"), cost=0.5)]], ls.Limits(max_cost=0.5)),
    "stalled": ([[calling(call("act"))]] * 5, ls.Limits()),
}


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("status", AGAIN)
def test_a_turn_is_asked_again_after_every_ending_with_a_fresh_budget(status: str, crash: bool) -> None:
    async def main() -> None:
        answers, limits = AGAIN[status]
        model = Chunks(*answers, [calling(call("act"))], [done("fine")])
        journal = FakeJournal()
        session = session_of(model, [act], journal=journal, limits=limits)
        run = session.stream("go").start()
        if status == "cancelled":
            await until(lambda: len(model.requests) == 2)
            run.cancel()
        first = await run
        assert first.status == status
        if crash:
            journal = cut(journal, len(journal.events))
            session = session_of(model, [act], journal=journal, limits=limits)
        before = len(journal.of(ev.ModelRequested))
        again = await session.run()
        assert (again.status, again.final_text, again.steps) == ("completed", "fine", 2)
        assert said(again) == said(first)
        assert [r.because for r in journal.of(ev.ModelRequested)][before:] == ["retry", "results"]
        check_requests(model.requests)

    go(main())


def test_where_the_model_had_the_last_word_there_is_nothing_to_ask_again() -> None:
    async def main() -> None:
        cut_off = done().__class__(blocks=done("half a").blocks, stop_reason="length")
        for answer, status in ((done(), "completed"), (cut_off, "failed")):
            journal = FakeJournal()
            session = session_of(Chunks([answer]), journal=journal)
            assert (await session.run("go")).status == status
            before = len(journal.events)
            with pytest.raises(ls.SessionError, match="nothing to answer: the model had the last word"):
                session.stream()
            assert len(journal.events) == before
            await session.send("more")
            assert said(await session.run()) == ["go", "more"]

    go(main())


# -- stopping after a turn -----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["model.requested", "message.completed", "tool.started", "tool.finished"])
@pytest.mark.parametrize("crash", [False, True])
def test_a_run_stops_when_its_turn_is_complete(moment: str, crash: bool) -> None:
    async def main() -> None:
        journal = FakeJournal()
        model = Chunks([calling(call("act", "a"), call("act", "b"))], [done("one")])
        session = session_of(model, [act], journal=journal)
        async with session.stream("go") as run:
            async for event in run:
                if event.type == moment and "cancel.requested" not in journal.types():
                    await run.stop_after_turn("enough")
                    await run.steer("later")
                    if crash:
                        copy = cut(journal, len(journal.events))
            result = await run.result()
        assert (result.status, result.final_text, len(model.requests)) == ("cancelled", "", 1)
        assert [e.outcome for e in journal.of(ev.ToolFinished)] == ["ok", "ok"]
        if crash:
            session = session_of(Chunks([calling(call("act", "a"), call("act", "b"))]), [act], journal=copy)
            assert (await session.resume()).status == "cancelled"
            assert len(copy.of(ev.MessageCompleted)) == (
                0 if moment == "model.requested" else 1
            )  # lost with its process
            session.kit.model = Chunks([done("one")])
        else:
            session.kit.model = again = Chunks([done("one")])
        result = await session.run("and?")
        assert said(result) == ["go", "later", "and?"]
        if not crash:
            check_requests(again.requests)

    go(main())


def test_an_answer_that_needs_nothing_more_is_completed_though_a_stop_was_wanted() -> None:
    async def main() -> None:
        journal = FakeJournal()
        async with session_of(Chunks([done("one")]), journal=journal).stream("go") as run:
            async for event in run:
                if event.type == "model.requested":
                    await run.stop_after_turn()
            assert (await run.result()).status == "completed"
        session = session_of(Chunks([done()]))
        await session.stop_after_turn()  # nothing is under way
        assert (await session.run("go")).status == "completed"

    go(main())


def test_a_prompt_given_with_the_resume_of_a_stopping_run_opens_a_run_of_its_own() -> None:
    async def main() -> None:
        journal = FakeJournal()
        run = session_of(Chunks([forever]), journal=journal).stream("go").start()
        await until(lambda: "model.requested" in journal.types())
        await run.stop_after_turn()
        copy = cut(journal, len(journal.events))
        run.cancel()
        await run
        result = await session_of(Chunks([done("hello")]), journal=copy).resume("and now?")
        assert (result.status, said(result)) == ("completed", ["go", "and now?"])
        assert [e.status for e in copy.of(ev.RunFinished)] == ["cancelled", "completed"]

    go(main())
