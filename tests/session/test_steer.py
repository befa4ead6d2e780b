"""What a person says while a run is under way: accepted at any moment, delivered once, in order, never lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.message import Text

from .fakes import Chunks, FakeJournal, call, calling, check_requests, cut, done, forever, go, session_of, text, until


@ls.tool
async def act() -> str:
    return "acted"


def said(result: ls.RunResult) -> list[str]:
    return [m.text for m in result.messages if m.role == "user"]


MOMENTS = ["message.accepted", "model.requested", "model.delta", "message.completed", "tool.started", "tool.finished"]


@pytest.mark.parametrize("moment", [*MOMENTS, "run.finished"])
def test_steering_at_every_moment(moment: str) -> None:
    async def main() -> None:
        model = Chunks([text("hm"), calling(call("act", "a"), call("act", "b"))], [done("one")], [done("two")])
        journal = FakeJournal()
        session = session_of(model, [act], journal=journal)
        async with session.stream("go") as run:
            steered = False
            async for event in run:
                if event.type == moment and not steered:
                    steered = True
                    await run.steer("use B instead")
            result = await run.result()
        assert result.status == "completed"
        if moment == "run.finished":  # undelivered: it opens the next run
            assert said(result) == ["go"]
            result = await session.run("and?")
            assert said(result) == ["go", "use B instead", "and?"]
        assert said(result).count("use B instead") == 1
        check_requests(model.requests)
        assert len(model.requests) == (3 if moment == "run.finished" else 2)

    go(main())


def test_steering_at_the_final_answer_continues_the_run() -> None:
    async def main() -> None:
        journal = FakeJournal()
        session = session_of(["one", "two"], journal=journal)
        async with session.stream("go") as run:
            async for event in run:
                if event.type == "message.completed" and len(journal.of(ev.MessageCompleted)) == 1:
                    await run.steer("wait")
            result = await run.result()
        assert (result.final_text, said(result)) == ("two", ["go", "wait"])

    go(main())


def test_follow_ups_come_at_the_end_after_steering_and_in_order() -> None:
    async def main() -> None:
        journal = FakeJournal()
        model = Chunks([calling(call("act", "a"))], [done("one")], [done("two")], [done("three")])
        session = session_of(model, [act], journal=journal)
        async with session.stream("go") as run:
            async for event in run:
                if event.type == "tool.started":
                    await run.follow_up("then this")
                    await run.steer("now this")
                    await run.follow_up("and that")
                if event.type == "message.completed" and event.message.text == "one":  # type: ignore[attr-defined]
                    await run.steer("hurry")
            result = await run.result()
        assert said(result) == ["go", "now this", "hurry", "then this", "and that"]
        assert [r.because for r in journal.of(ev.ModelRequested)] == ["prompt", "steer", "steer", "follow_up"]
        check_requests(model.requests)

    go(main())


def test_withdrawn_messages_are_not_delivered_and_others_keep_their_order() -> None:
    async def main() -> None:
        journal = FakeJournal()
        session = session_of(Chunks([done()]), journal=journal)
        ids = [await session.send(f"m{n}") for n in range(4)]
        await session.withdraw(ids[1])
        with pytest.raises(ls.SessionError, match="not waiting"):
            await session.withdraw(ids[1])
        with pytest.raises(ls.SessionError, match="not waiting"):
            await session.withdraw("nothing")
        result = await session.run("go")
        assert said(result) == ["m0", "m2", "m3", "go"]
        with pytest.raises(ls.SessionError):
            await session.withdraw(ids[0])

    go(main())


@pytest.mark.parametrize("status", ["cancelled", "failed", "max_steps"])
def test_undelivered_messages_open_the_next_run(status: str) -> None:
    async def main() -> None:
        answers: list[Any] = {
            "cancelled": [[forever], [forever], [done()]],
            "failed": [[RuntimeError("x")], [done()]],
            "max_steps": [[calling(call("act"))], [done()]],
        }[status]
        model = Chunks(*answers)
        journal = FakeJournal()
        session = session_of(model, [act], journal=journal, limits=ls.Limits(max_steps=1))
        run = session.stream("go").start()
        first = await run.steer("early")
        await until(lambda: model.requests)
        await run.steer("late")
        if status == "cancelled":
            run.cancel()
        assert (await run).status == status
        model.answers = ([], [done("fine")])
        copy = cut(journal, len(journal.events))
        model.requests.clear()
        model.answers = ([done("fine")],)
        result = await session.run("next")
        assert result.status == "completed"
        assert said(result) == ["go", "early", "late", "next"]
        reopened = await session_of(Chunks([done("fine")]), [act], journal=copy).run("next")
        assert said(reopened) == said(result)
        assert first

    go(main())


def test_many_at_once_are_all_there_in_order() -> None:
    async def main() -> None:
        session = session_of(Chunks([text("x"), forever]))
        async with session.stream("go") as run:
            ids = await asyncio.gather(*(run.steer(f"m{n}") for n in range(50)))
            assert len(set(ids)) == 50
        session.kit.model = Chunks([done()])
        result = await session.run("end")
        assert said(result) == ["go", *(f"m{n}" for n in range(50)), "end"]

    go(main())


# -- prompts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", ["", " ", "\n\t ", "\u2003"])
def test_blank_prompts_are_refused_at_the_door(blank: str) -> None:
    async def main() -> None:
        journal = FakeJournal()
        session = session_of(["done"], journal=journal)
        with pytest.raises(ls.SessionError, match="blank"):
            await session.run(blank)
        with pytest.raises(ls.SessionError, match="blank"):
            await session.send(blank)
        assert journal.types() == ["session.created", "session.opened"]
        assert (await session.run("go")).status == "completed"

    go(main())


def test_what_is_no_string_or_too_long_is_refused_with_the_bound() -> None:
    async def main() -> None:
        session = session_of(["done"])
        with pytest.raises(ls.DefinitionError, match="int"):
            await session.run(5)  # type: ignore[arg-type]
        with pytest.raises(ls.SessionError, match="10000000 characters; max_prompt is 4000000"):
            await session.run("x" * 10_000_000)
        generous = session_of(["done"], limits=ls.Limits(max_prompt=10_000_000))
        assert len((await generous.run("x" * 10_000_000)).messages[0].text) == 10_000_000

    go(main())


def test_nul_and_lone_surrogates_are_made_harmless() -> None:
    result = go(session_of(["done"]).run("a\0b\ud83dc \ud83d\ude00"))
    assert said(result) == ["a␀b�c 😀"]


def test_nothing_to_answer_is_a_failure_and_not_an_empty_request() -> None:
    async def main() -> None:
        model = Chunks([done()])
        result = await session_of(model).run()
        assert (result.status, result.error.kind if result.error else "") == ("failed", "INVALID_TRANSCRIPT")
        blank = ls.Message("user", (Text("  "),))
        result = await ls.run_loop(messages=[blank], model=model)
        assert (result.status, model.requests) == ("failed", [])

    go(main())


def test_without_a_prompt_the_last_turn_is_asked_again() -> None:
    async def main() -> None:
        model = Chunks([RuntimeError("x")], [done("ok")])
        session = session_of(model)
        assert (await session.run("go")).status == "failed"
        assert (await session.run()).final_text == "ok"
        assert [m.text for m in model.requests[1].messages] == ["go"]

    go(main())
