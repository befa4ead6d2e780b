"""Questions: asked together, bound to what was shown, answered by a person, an approver or the next process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev

from .fakes import FakeJournal, call, cut, forever, go, results, session_of, settled, until


def asking(call: ls.ToolCall, traits: Any) -> ls.Verdict:
    return ls.Verdict("run") if traits.effect == "read" else ls.Verdict("ask", f"{call.name} writes")


def acting(log: list[str]) -> list[ls.Tool]:
    @ls.tool
    async def act(n: int = 0) -> str:
        log.append(f"act {n}")
        return "acted"

    @ls.tool(effect="read")
    async def look() -> str:
        log.append("look")
        return "seen"

    return [act, look]


def test_all_questions_of_a_turn_are_asked_together_before_anything_runs() -> None:
    async def main() -> None:
        journal = FakeJournal()
        log: list[str] = []
        batch = [call("look"), call("act", "a", n=1), call("act", "b", n=2)]
        session = session_of([batch, "done"], acting(log), journal=journal, policy=asking)
        run = session.stream("go").start()
        await until(lambda: session.questions)
        await settled()
        (asked,) = journal.of(ev.ApprovalRequested)
        assert [q.call_id for q in asked.questions] == ["a", "b"]
        assert [q.reason for q in asked.questions] == ["act writes", "act writes"]
        assert len({q.sha256 for q in asked.questions}) == 2
        assert log == []
        await run.answer("b", "deny", by="me", note="not now")
        await settled()
        assert log == []
        await run.answer("a", "allow", by="me")
        result = await run
        assert log == ["look", "act 1"]
        denied = results(result)[2]
        assert (denied.outcome, denied.is_error) == ("denied", False)
        assert denied.text == "This call was declined by me: not now. It was not run."
        assert [e.call_id for e in journal.of(ev.ToolStarted)][1:] == ["a"]

    go(main())


def test_wrong_answers_are_refused() -> None:
    async def main() -> None:
        session = session_of([call("act", "a"), "done"], acting([]), policy=asking)
        with pytest.raises(ls.SessionError, match="no question"):
            await session.answer("a", "allow")
        run = session.stream("go").start()
        await until(lambda: session.questions)
        with pytest.raises(ls.SessionError, match="no question"):
            await run.answer("b", "allow")
        with pytest.raises(ls.DefinitionError, match="allow"):
            await run.answer("a", "yes")  # type: ignore[arg-type]
        await run.answer("a", "allow")
        with pytest.raises(ls.SessionError, match="no question"):
            await run.answer("a", "deny")
        assert (await run).status == "completed"

    go(main())


def test_two_answers_at_once_only_one_counts() -> None:
    async def main() -> None:
        journal = FakeJournal()
        session = session_of([call("act", "a"), "done"], acting(journal.log), journal=journal, policy=asking)
        run = session.stream("go").start()
        await until(lambda: session.questions)
        outcomes = await asyncio.gather(
            run.answer("a", "deny"), run.answer("a", "allow"), run.answer("a", "allow"), return_exceptions=True
        )
        assert [type(o).__name__ for o in outcomes] == ["NoneType", "SessionError", "SessionError"]
        assert results(await run)[0].outcome == "denied"
        assert len(journal.of(ev.ApprovalAnswered)) == 1

    go(main())


class Odd:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("do not compare me")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("answer", "runs"),
    [
        (True, True),
        ("allow", True),
        (False, False),
        (None, False),
        ("deny", False),
        ("yes", False),
        (1, False),
        (Odd(), False),
        (RuntimeError("no terminal"), False),
        (asyncio.CancelledError(), False),
        (SystemExit(1), False),
        (KeyboardInterrupt(), False),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_what_an_approver_may_say(answer: Any, runs: bool, later: bool) -> None:
    async def main() -> None:
        asked: list[ev.Question] = []

        def approve(question: ev.Question) -> Any:
            asked.append(question)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        async def approve_later(question: ev.Question) -> Any:
            await asyncio.sleep(0)
            return approve(question)

        log: list[str] = []
        how = approve_later if later else approve
        session = session_of([call("act", "a", n=7), "done"], acting(log), policy=asking, approve=how)
        result = await session.run("go")
        assert result.status == "completed"
        assert (log == ["act 7"]) is runs
        assert results(result)[0].outcome == ("ok" if runs else "denied")
        (question,) = asked
        assert (question.arguments, question.name, question.call_id) == ({"n": 7}, "act", "a")

    go(main())


def test_an_approver_and_a_person_answer_the_same_batch() -> None:
    async def main() -> None:
        asked: list[str] = []
        gate = asyncio.Event()

        async def approve(question: ev.Question) -> bool:
            asked.append(question.call_id)
            await gate.wait()
            return True

        log: list[str] = []
        batch = [call("act", "a", n=1), call("act", "b", n=2), call("act", "c", n=3)]
        session = session_of([batch, "done"], acting(log), policy=asking, approve=approve)
        run = session.stream("go").start()
        await until(lambda: asked)
        await run.answer("b", "deny")  # while the approver thinks about a
        await run.answer("a", "allow")  # and then about a itself
        await until(lambda: "c" in asked)
        gate.set()
        assert (await run).status == "completed"
        assert log == ["act 1", "act 3"]
        assert asked == ["a", "c"]

    go(main())


def test_a_grant_is_bound_to_what_was_shown() -> None:
    async def main() -> None:
        looks = 0

        def prepare(arguments: dict[str, Any], context: ls.Context) -> Any:
            nonlocal looks
            looks += 1
            return {"look": looks}

        ran: list[Any] = []

        @ls.tool(prepare=prepare)
        async def edit(context: ls.Context) -> str:
            ran.append(context.found)
            return "ok"

        journal = FakeJournal()
        session = session_of([call("edit", "e"), "done"], [edit], journal=journal, policy=asking)
        run = session.stream("go").start()
        await until(lambda: session.questions)
        shown = journal.of(ev.ApprovalRequested)[0].questions[0]
        session.state.open_call("e").found = {"look": "forged"}
        await run.answer("e", "allow")
        result = await run
        assert (result.status, result.error.kind if result.error else "") == ("failed", "TOOL")
        assert ran == []
        assert shown.found == {"look": 1}
        assert journal.types()[-1] == "run.finished"

    go(main())


def waiting(journal: FakeJournal, log: list[str], **more: Any) -> Any:
    return session_of([[call("act", "a"), call("act", "b")], "done"], acting(log), journal=journal, **more)


@pytest.mark.parametrize("policy", ["ask", "abandon"])
def test_a_question_pending_at_a_crash(policy: str) -> None:
    async def main() -> None:
        journal, log = FakeJournal(), []
        run = waiting(journal, log, policy=asking).stream("go").start()
        await until(lambda: "approval.requested" in journal.types())
        await run.answer("a", "allow")
        await settled()
        copy = cut(journal, len(journal.events))
        run.cancel()
        await run
        session = waiting(copy, log, policy=asking, on_stale_approval=policy)
        again = session.stream().start()
        if policy == "ask":
            await until(lambda: session.questions)
            assert [entry.call.id for entry in session.questions] == ["a", "b"]  # an unused grant dies with its process
            await again.answer("a", "allow")
            await again.answer("b", "deny")
        else:
            await until(lambda: session.questions)
            assert [entry.call.id for entry in session.questions] == ["a"]
            (abandoned,) = copy.of(ev.ApprovalAbandoned)
            assert abandoned.call_ids == ("b",)
            await again.answer("a", "allow")
        result = await again
        assert result.status == "completed"
        assert log == ["act 0"]
        assert results(result)[1].outcome == ("denied" if policy == "ask" else "not_started")

    go(main())


def test_after_a_reopening_a_call_is_prepared_anew() -> None:
    async def main() -> None:
        seen: list[str] = ["old"]

        def prepare(arguments: dict[str, Any], context: ls.Context) -> Any:
            return seen[-1]

        ran: list[Any] = []

        @ls.tool(prepare=prepare)
        async def edit(context: ls.Context) -> str:
            ran.append(context.found)
            return "ok"

        journal = FakeJournal()
        run = session_of([call("edit", "e"), "done"], [edit], journal=journal, policy=asking).stream("go").start()
        await until(lambda: "approval.requested" in journal.types())
        copy = cut(journal, len(journal.events))
        run.cancel()
        await run
        seen.append("new")
        # the policy now lets it run unasked: it must run with what is true now
        assert (await session_of([call("edit", "e"), "done"], [edit], journal=copy).resume()).status == "completed"
        assert ran == ["new"]

    go(main())


def test_time_runs_at_an_approval() -> None:
    async def main() -> None:
        log: list[str] = []
        for approve in (None, lambda question: forever()):
            session = session_of(
                [call("act"), "done"],
                acting(log),
                policy=asking,
                approve=approve,
                limits=ls.Limits(max_seconds=0.05, grace=0.05),
            )
            result = await session.run("go")
            assert (result.status, result.error.kind if result.error else "") == ("budget", "MAX_SECONDS")
        assert log == []

    go(main())


@pytest.mark.parametrize(
    "policy",
    [
        lambda call, traits: 1 / 0,
        lambda call, traits: None,
        lambda call, traits: True,
        lambda call, traits: ls.Verdict("maybe"),
        lambda call, traits: ls.Verdict("refuse", "not on Sundays"),
    ],
)
def test_a_policy_that_fails_or_refuses_permits_nothing(policy: Any) -> None:
    async def main() -> None:
        log: list[str] = []
        result = await session_of([call("act"), "done"], acting(log), policy=policy).run("go")
        assert (result.status, log) == ("completed", [])
        (refused,) = results(result)
        assert (refused.outcome, refused.is_error) == ("denied", False)
        assert "declined" in refused.text

    go(main())


def test_a_question_times_out_by_rule() -> None:
    async def main() -> None:
        for approve in (None, lambda question: forever()):
            journal, log = FakeJournal(), list[str]()
            batch = [call("look"), call("act", "a"), call("act", "b")]
            session = session_of(
                [batch, "done"],
                acting(log),
                journal=journal,
                policy=asking,
                approve=approve,
                limits=ls.Limits(approval_timeout=0.05, grace=0.05),
            )
            result = await session.run("go")
            assert (result.status, log) == ("completed", ["look"])
            assert [r.outcome for r in results(result)] == ["ok", "denied", "denied"]
            said = "This call was declined: nobody answered within 0.05 s. It was not run."
            assert [r.text for r in results(result)[1:]] == [said, said]

    go(main())


def test_each_batch_of_questions_has_its_own_time() -> None:
    async def main() -> None:
        log: list[str] = []
        session = session_of(
            [call("act", "a", n=1), call("act", "b", n=2), "done"],
            acting(log),
            policy=asking,
            limits=ls.Limits(approval_timeout=600),
        )
        run = session.stream("go").start()
        timers = []
        for name in ("a", "b"):
            await until(lambda name=name: [entry.call.id for entry in session.questions] == [name])
            await settled()
            timers.append(run._expiry)
            await run.answer(name, "allow")
        assert ((await run).status, log) == ("completed", ["act 1", "act 2"])
        first, second = timers
        assert first is not None
        assert second is not None
        assert first is not second
        assert first.cancelled()
        assert second.cancelled()

    go(main())


def test_an_open_question_can_be_withdrawn() -> None:
    async def main() -> None:
        journal, log = FakeJournal(), list[str]()
        batch = [call("act", "a", n=1), call("act", "b", n=2)]
        session = session_of([batch, "done"], acting(log), journal=journal, policy=asking)
        run = session.stream("go").start()
        await until(lambda: session.questions)
        await session.withdraw("a")
        with pytest.raises(ls.SessionError, match="no question"):
            await run.answer("a", "allow")
        await run.answer("b", "allow")
        result = await run
        assert (result.status, log) == ("completed", ["act 2"])
        assert [r.outcome for r in results(result)] == ["not_started", "ok"]
        assert "withdrawn" in results(result)[0].text
        (abandoned,) = journal.of(ev.ApprovalAbandoned)
        assert (abandoned.call_ids, abandoned.reason) == (("a",), "withdrawn")

    go(main())


def test_a_withdrawn_question_is_not_waited_for_by_its_approver() -> None:
    async def main() -> None:
        log: list[str] = []
        session = session_of([call("act", "a"), "done"], acting(log), policy=asking, approve=lambda question: forever())
        run = session.stream("go").start()
        await until(lambda: session.questions)
        await settled()
        await session.withdraw("a")
        assert ((await run).status, log) == ("completed", [])

    go(main())


def test_an_approver_may_name_the_rule() -> None:
    async def main() -> None:
        journal, log = FakeJournal(), list[str]()
        said = ls.Verdict("run", "always", "allow act")
        session = session_of([call("act"), "done"], acting(log), journal=journal, policy=asking, approve=lambda q: said)
        assert (await session.run("go")).status == "completed"
        (answered,) = journal.of(ev.ApprovalAnswered)
        assert (answered.decision, answered.rule, answered.note) == ("allow", "allow act", "always")

    go(main())


def test_the_rule_that_let_a_call_run_unasked_is_on_record() -> None:
    async def main() -> None:
        journal, log = FakeJournal(), list[str]()
        verdict = ls.Verdict("run", "", "allow act")
        session = session_of([call("act"), "done"], acting(log), journal=journal, policy=lambda call, traits: verdict)
        await session.run("go")
        assert [started.rule for started in journal.of(ev.ToolStarted)] == ["allow act"]

    go(main())
