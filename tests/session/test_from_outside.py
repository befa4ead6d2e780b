"""What reaches a run from outside its driver: words and answers of the one who iterates it, and early cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import latchstep as ls
from latchstep.core.event import ApprovalRequested, Event
from latchstep.core.message import user

CALL = ls.ToolCall("call-1", "touch", {})


def drive(run: ls.Run, react: Callable[[ls.Run, Event], Awaitable[Any]]) -> ls.RunResult:
    async def whole() -> ls.RunResult:
        async with asyncio.timeout(20):
            async for event in run:
                await react(run, event)
            return await run

    return asyncio.run(whole())


def touching(ran: list[str]) -> ls.Tool:
    @ls.tool
    def touch() -> str:
        ran.append("touch")
        return "touched"

    return touch


@pytest.mark.parametrize("say", ["steer", "follow_up"])
def test_the_iterating_task_may_say_something(say: str) -> None:
    async def react(run: ls.Run, event: Event) -> None:
        if event.type == "tool.started":
            await getattr(run, say)("and more")

    model = ls.ScriptedModel([CALL, "one", "two"])
    result = drive(ls.run_loop(messages=[user("go")], model=model, tools=[touching([])]), react)
    assert result.status == "completed"
    assert "and more" in [message.text for message in result.messages]


def test_the_iterating_task_may_take_back_what_it_said() -> None:
    async def react(run: ls.Run, event: Event) -> None:
        if event.type == "tool.started":
            await run.session.withdraw(await run.steer("and more"))

    model = ls.ScriptedModel([CALL, "one"])
    result = drive(ls.run_loop(messages=[user("go")], model=model, tools=[touching([])]), react)
    assert [message.text for message in result.messages if message.role == "user"] == ["go"]


@pytest.mark.parametrize("decision", ["allow", "deny"])
def test_the_iterating_task_may_answer_a_question(decision: Any) -> None:
    ran: list[str] = []

    async def react(run: ls.Run, event: Event) -> None:
        if isinstance(event, ApprovalRequested):
            await run.answer(event.questions[0].call_id, decision)

    model = ls.ScriptedModel([CALL, "done"])
    run = ls.run_loop(
        messages=[user("go")],
        model=model,
        tools=[touching(ran)],
        policy=lambda call, traits: ls.Verdict("ask", "why not"),
    )
    assert drive(run, react).status == "completed"
    assert ran == (["touch"] if decision == "allow" else [])


@pytest.mark.parametrize("entered", [True, False])
def test_a_cancel_before_the_run_has_begun_is_kept(entered: bool) -> None:
    async def whole() -> ls.RunResult:
        run = ls.run_loop(messages=[user("go")], model=ls.ScriptedModel(["never"]))
        async with asyncio.timeout(20):
            if entered:
                async with run:
                    run.cancel("changed my mind")
                    return await run
            run.cancel("changed my mind")
            return await run

    result = asyncio.run(whole())
    assert result.status == "cancelled"
    assert [message.text for message in result.messages] == ["go"]


def test_a_cancel_of_one_run_does_not_touch_the_next() -> None:
    async def whole() -> list[str]:
        session = ls.Agent(ls.ScriptedModel(["one", "two"]), journal=ls.MemoryJournal()).session()
        first = session.stream("a")
        first.cancel()
        async with asyncio.timeout(20):
            ended = [(await first).status, (await session.run("b")).status]
            session.cancel()
            return [*ended, (await session.run("c")).status]

    assert asyncio.run(whole()) == ["cancelled", "completed", "completed"]


def test_one_repeat_allowed_still_reaches_the_model() -> None:
    run = ls.run_loop(
        messages=[user("go")], model=ls.ScriptedModel(["done"]), limits=ls.Limits(max_repeats=1, max_steps=3)
    )
    assert asyncio.run(asyncio.wait_for(run.result(), 20)).status == "completed"


@pytest.mark.parametrize(("most", "status"), [(0, "failed"), (1, "failed"), (2, "completed")])
def test_max_empty_is_how_often_an_empty_answer_is_asked_again(most: int, status: str) -> None:
    model = ls.ScriptedModel([ls.Reply([]), ls.Reply([]), "third"])
    run = ls.run_loop(messages=[user("go")], model=model, limits=ls.Limits(max_empty=most))
    result = asyncio.run(asyncio.wait_for(run.result(), 20))
    assert result.status == status
    assert result.error is None or result.error.kind == "EMPTY_RESPONSE"


@pytest.mark.parametrize(("questions", "asked"), [("together", [2, 0]), ("in_turn", [1, 1])])
def test_questions_come_together_or_each_in_its_turn(questions: Any, asked: list[int]) -> None:
    ran: list[str] = []
    seen: list[tuple[int, int]] = []

    async def react(run: ls.Run, event: Event) -> None:
        if isinstance(event, ApprovalRequested):
            seen.append((len(event.questions), len(ran)))

    model = ls.ScriptedModel([[CALL, ls.ToolCall("call-2", "touch", {})], "done"])
    run = ls.run_loop(
        messages=[user("go")],
        model=model,
        tools=[touching(ran)],
        policy=lambda call, traits: ls.Verdict("ask"),
        approve=lambda question: True,
        questions=questions,
    )
    drive(run, react)
    assert [count for count, _ in seen] == [count for count in asked if count]
    assert [done for _, done in seen] == ([0] if questions == "together" else [0, 1])
    assert ran == ["touch", "touch"]


def test_an_unknown_way_to_ask_is_refused() -> None:
    with pytest.raises(ls.DefinitionError, match="questions"):
        ls.run_loop(messages=[user("go")], model=ls.ScriptedModel([]), questions="never")  # type: ignore[arg-type]
