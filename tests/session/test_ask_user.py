"""A question of the model to a person: never answered by a rule, kept over a crash, answered by whoever comes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.policy.preset import preset
from latchstep.tool.ask_user import ask_user_tool

from .fakes import FakeJournal, call, cut, go, results, session_of, settled, until

ASKING = call("ask_user", "q", question="Which colour?", choices=["red", "blue"])


def asking(journal: Any = None, *, tools: Any = None, answers: Any = None, **more: Any) -> Any:
    given = [ask_user_tool()] if tools is None else tools
    return session_of(answers or [ASKING, "done"], given, journal=journal, **more)


@pytest.mark.parametrize("policy", [None, preset("unconfined"), lambda call, traits: ls.Verdict("run", rule="any")])
def test_whatever_the_policy_lets_run_a_question_goes_to_a_person(policy: Any) -> None:
    async def main() -> None:
        journal = FakeJournal()
        session = asking(journal, policy=policy)
        run = session.stream("go").start()
        await until(lambda: session.questions)
        await settled()
        (question,) = journal.of(ev.ApprovalRequested)[0].questions
        assert (question.about, question.name) == ("answer", "ask_user")
        assert not journal.of(ev.ToolStarted)
        await session.answer("q", "allow", by="anna", note="green, as the sea")
        (answered,) = results(await run)
        assert (answered.outcome, answered.text) == ("ok", "The person answered: green, as the sea")
        assert journal.of(ev.ApprovalAnswered)[0].note == "green, as the sea"

    go(main())


def test_a_policy_that_refuses_is_obeyed() -> None:
    async def main() -> None:
        refused = asking(policy=lambda call, traits: ls.Verdict("refuse", "no questions on Sundays"))
        assert "no questions on Sundays" in results(await refused.run("go"))[0].text
        nobody = asking(policy=preset("unconfined", asks=False))
        (told,) = results(await nobody.run("go"))
        assert (told.outcome, told.is_error) == ("denied", False)
        assert "nobody can be asked here. Decide it yourself" in told.text
        assert "say at the end what you assumed" in told.text

    go(main())


@pytest.mark.parametrize(
    ("said", "outcome", "text"),
    [
        ("blue", "ok", "The person answered: blue"),
        ("allow", "ok", "The person answered: allow"),  # any text is an answer
        (True, "ok", "The person agreed, without words."),
        ("", "ok", "The person agreed, without words."),
        (False, "denied", "Declined by approver. There is no answer: decide as fits best"),
        (None, "denied", "Declined by approver"),
        (RuntimeError("no terminal"), "denied", "Declined by approver: the approver failed: RuntimeError: no terminal"),
    ],
)
def test_what_an_approver_may_say_to_a_question(said: Any, outcome: str, text: str) -> None:
    async def main() -> None:
        asked: list[ev.Question] = []

        async def approve(question: ev.Question) -> Any:
            asked.append(question)
            if isinstance(said, Exception):
                raise said
            return said

        (answered,) = results(await asking(approve=approve).run("go"))
        assert answered.outcome == outcome
        assert answered.text.startswith(text)
        assert asked[0].about == "answer"
        assert asked[0].arguments == {"question": "Which colour?", "choices": ["red", "blue"]}

    go(main())


def test_a_text_allows_nothing_but_an_answer() -> None:
    """The same approver, asked for a permission: only its `allow` is one."""

    async def main() -> None:
        ran: list[str] = []

        @ls.tool
        async def act() -> str:
            ran.append("act")
            return "acted"

        def policy(call: ls.ToolCall, traits: Any) -> ls.Verdict:
            return ls.Verdict("ask")

        session = asking(tools=[act], answers=[call("act", "a"), "done"], policy=policy, approve=lambda q: "sure")
        assert results(await session.run("go"))[0].outcome == "denied"
        assert ran == []

    go(main())


def test_a_question_open_at_a_crash_is_asked_again_and_answered_by_the_next_process() -> None:
    async def main() -> None:
        journal = FakeJournal()
        run = asking(journal).stream("go").start()
        await until(lambda: "approval.requested" in journal.types())
        copy = cut(journal, len(journal.events))
        run.cancel()
        await run
        session = asking(copy)
        again = session.stream().start()
        await until(lambda: session.questions)
        assert len(copy.of(ev.ApprovalRequested)) == 2
        await session.answer("q", "allow", note="red")
        assert results(await again)[0].text == "The person answered: red"

    go(main())


async def answered_journal() -> FakeJournal:
    """A whole run with an answer, as recorded."""
    journal = FakeJournal()
    session = asking(journal)
    run = session.stream("go").start()
    await until(lambda: session.questions)
    await session.answer("q", "allow", note="red")
    await run
    return journal


@pytest.mark.parametrize("last", ["approval.answered", "tool.started"])
@pytest.mark.parametrize("policy", [None, preset("ask", asks=False)], ids=["asks", "nobody to ask"])
def test_an_answer_on_record_is_used_wherever_the_process_died_after_it(last: str, policy: Any) -> None:
    """Words are no grant: nothing but this call can come of them, so nobody is asked twice."""

    async def main() -> None:
        whole = await answered_journal()
        copy = cut(whole, whole.types().index(last) + 1)
        result = await asking(copy, policy=policy, approve=lambda question: pytest.fail("asked again")).resume()
        assert result.status == "completed"
        assert results(result)[0].text == "The person answered: red"
        assert len(copy.of(ev.ApprovalRequested)) == 1

    go(main())


def test_a_refusal_on_record_is_kept() -> None:
    async def main() -> None:
        whole = await answered_journal()
        at = whole.types().index("approval.answered")
        whole.events[at] = msgspec.structs.replace(whole.events[at], decision="deny", note="ask Ben")
        copy = cut(whole, at + 1)
        (declined,) = results(await asking(copy, approve=lambda question: pytest.fail("asked again")).resume())
        assert declined.outcome == "denied"
        assert declined.text.startswith("Declined: ask Ben. There is no answer")

    go(main())


def test_an_answer_survives_a_snapshot() -> None:
    async def main() -> None:
        whole = await answered_journal()
        copy = cut(whole, whole.types().index("approval.answered") + 1)
        state = ev.SessionSnapshot(needed=0, state=msgspec.Raw(asking(cut(copy, len(copy.events))).state.snapshot()))
        copy.append([state])
        assert results(await asking(copy).resume())[0].text == "The person answered: red"

    go(main())


def test_an_answer_whose_tool_is_gone_is_told_truthfully() -> None:
    async def main() -> None:
        whole = await answered_journal()
        for last in ("approval.answered", "tool.started"):
            copy = cut(whole, whole.types().index(last) + 1)
            result = await asking(copy, tools=[]).resume()
            assert result.status == "completed"
            assert results(result)[0].outcome in ("rejected", "interrupted")

    go(main())


def test_another_answer_cannot_be_slipped_under_a_question() -> None:
    """A recorded answer is bound to its question, as a grant is: arguments that changed are not what was asked."""

    async def main() -> None:
        whole = await answered_journal()
        copy = cut(whole, whole.types().index("approval.answered") + 1)
        session = asking(copy)
        entry = session.state.open_call("q")
        entry.call = msgspec.structs.replace(entry.call, arguments={"question": "May I delete all?"})
        result = await session.resume()
        assert result.error is not None
        assert (result.status, result.error.kind) == ("failed", "TOOL")

    go(main())


def test_a_tool_of_ones_own_may_ask_and_then_act() -> None:
    async def main() -> None:
        done: list[str] = []

        @ls.tool(asks=True)
        async def deploy(where: str, context: ls.Context) -> str:
            done.append(f"{where} as {context.answer}")
            return "deployed"

        session = asking(tools=[deploy], answers=[call("deploy", "d", where="here"), "done"])
        run = session.stream("go").start()
        await until(lambda: session.questions)
        assert done == []
        await session.answer("d", "allow", note="anna")
        await run
        assert done == ["here as anna"]

    go(main())


def test_a_cancel_at_the_question_leaves_it_unanswered() -> None:
    async def main() -> None:
        session = asking()
        run = session.stream("go").start()
        await until(lambda: session.questions)
        run.cancel()
        result = await run
        assert result.status == "cancelled"
        await asyncio.sleep(0)
        assert not session.questions

    go(main())
