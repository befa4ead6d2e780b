"""The next process over the same record: the same run goes on, nothing runs twice by accident, nothing is made up."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core import wording

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

EFFECTS: Counter[str] = Counter()


@ls.tool
async def write() -> str:
    EFFECTS["write"] += 1
    return "wrote"


@ls.tool(replay="safe")
async def put() -> str:
    EFFECTS["put"] += 1
    return "put"


@ls.tool(effect="read")
async def look() -> str:
    EFFECTS["look"] += 1
    return "saw"


def _settle(arguments: dict[str, Any], found: Any, context: ls.Context) -> Any:
    return "done" if EFFECTS["edit"] else "not_done"


@ls.tool(settle=_settle)
async def edit() -> str:
    EFFECTS["edit"] += 1
    return "edited"


TOOLS = [write, put, look, edit]
SCRIPT: list[Any] = [
    [call("look", "l1"), call("look", "l2"), call("write", "w")],
    [call("put", "p"), call("edit", "e")],
    [call("write", "x", oops=1)],
    "done",
]


def whole() -> FakeJournal:
    async def main() -> FakeJournal:
        journal = FakeJournal()
        assert (await session_of(SCRIPT, TOOLS, journal=journal).run("go")).status == "completed"
        return journal

    EFFECTS.clear()
    return go(main())


@pytest.mark.parametrize("prompt", [None, "and be quick"])
def test_cut_at_every_record_and_resumed(prompt: str | None) -> None:
    recorded = whole()
    assert EFFECTS == {"look": 2, "write": 1, "put": 1, "edit": 1}
    run_id = recorded.of(ev.RunStarted)[0].run_id
    assert {event.run_id for event in recorded.events[4:]} == {run_id}
    for length in range(1, len(recorded.events)):

        async def main(length: int = length) -> None:
            journal = cut(recorded, length)
            # effects of calls whose result is on record happened; the others' intents were only written
            EFFECTS.clear()
            EFFECTS.update(e.name for e in journal.of(ev.ToolFinished) if e.outcome == "ok")
            before = Counter(EFFECTS)
            model = ls.ScriptedModel([*SCRIPT, "done again"])
            session = session_of(model, TOOLS, journal=journal)
            assert session.unfinished == ("run.started" in recorded.types()[:length])
            result = await session.run(prompt if prompt or session.unfinished else "go")
            assert result.status == "completed"
            if session.state.run is not None and "run.started" in recorded.types()[:length]:
                assert result.run_id == run_id
                if prompt:
                    assert journal.of(ev.MessageAccepted)[-1].source == "steer"
            assert journal.types().count("run.finished") == 1
            outcomes = {e.call_id: e for e in journal.of(ev.ToolFinished)}
            assert len(outcomes) == len(journal.of(ev.ToolFinished)) == 6
            started = Counter(e.call_id for e in journal.of(ev.ToolStarted))
            in_flight = {e.call_id for e in cut(recorded, length).of(ev.ToolStarted)} - {
                e.call_id for e in cut(recorded, length).of(ev.ToolFinished)
            }
            for call_id, times in started.items():
                assert times == 1 or (call_id in in_flight and call_id in ("l1", "l2", "p"))
            if "w" in in_flight:
                assert outcomes["w"].outcome == "interrupted"
                assert "unknown" in str(outcomes["w"].content)
                assert EFFECTS["write"] == before["write"]
            if "e" in in_flight:  # the effect did not happen, and that could be looked up
                assert outcomes["e"].outcome == "interrupted"
                assert "Nothing was changed" in str(outcomes["e"].content)
                assert EFFECTS["edit"] == 0
            again = [e for e in journal.of(ev.ToolStarted) if e.call_id in ("l1", "l2", "p")]
            assert len({(e.call_id, e.idempotency_key) for e in again}) == len({e.call_id for e in again})

        go(main())


async def in_flight(name: str) -> FakeJournal:
    """What a process that died in this tool left."""
    journal = FakeJournal()
    journal.fail_append = lambda events: events[0].type == "tool.finished"
    await session_of([[call(name, "c1"), call("look", "c2")], "done"], TOOLS, journal=journal).run("go")
    return cut(journal, len(journal.events))


@pytest.mark.parametrize(("happened", "outcome"), [(True, "ok"), (False, "interrupted")])
def test_an_effect_that_can_be_looked_up(happened: bool, outcome: str) -> None:
    journal = go(in_flight("edit"))
    EFFECTS.clear()
    EFFECTS["edit"] = happened
    result = go(session_of(["", "done"], TOOLS, journal=journal).resume())
    assert result.status == "completed"
    assert results(result)[0].outcome == outcome
    assert EFFECTS["edit"] == happened


@pytest.mark.parametrize("answer", ["unknown", None, "DONE", RuntimeError("cannot look"), forever])
def test_where_it_cannot_be_told_the_policy_for_doubt_says(answer: Any) -> None:
    async def settle(arguments: dict[str, Any], found: Any, context: ls.Context) -> Any:
        if isinstance(answer, Exception):
            raise answer
        if answer is forever:
            await forever()
        return answer

    async def body() -> str:
        raise AssertionError("ran again")

    tool = ls.tool(name="edit", settle=settle, timeout=0.05)(body)
    result = go(session_of(["", "done"], [tool, look], journal=go(in_flight("edit"))).resume())
    (first, _) = results(result)
    assert (result.status, first.outcome) == ("completed", "interrupted")
    assert first.text == wording.lost(wording.LOOKED)


@pytest.mark.parametrize("decision", ["allow", "deny"])
def test_on_doubt_ask(decision: Any) -> None:
    async def main() -> None:
        EFFECTS.clear()
        journal = await in_flight("write")
        session = session_of(["", "done"], TOOLS, journal=journal, on_doubt="ask")
        before = EFFECTS["write"]
        run = session.stream().start()
        await until(lambda: session.questions)
        (question,) = journal.of(ev.ApprovalRequested)[0].questions
        assert question.about == "doubt"
        await run.answer("c1", decision)
        result = await run
        assert result.status == "completed"
        assert EFFECTS["write"] - before == (decision == "allow")
        assert results(result)[0].outcome == ("ok" if decision == "allow" else "interrupted")

    go(main())


def test_on_doubt_fail() -> None:
    result = go(session_of(["", "done"], TOOLS, journal=go(in_flight("write")), on_doubt="fail").resume())
    assert (result.status, result.error.kind if result.error else "") == ("failed", "IN_DOUBT")
    assert "outcome was not recorded" in (result.error.message if result.error else "")


@pytest.mark.parametrize("name", ["write", "put", "edit", "look"])
@pytest.mark.parametrize("on_doubt", ["report", "ask"])
def test_a_tool_that_is_gone_or_changed_is_told_truthfully(name: str, on_doubt: str) -> None:
    """It had started: it must not be reported as never run, whatever the new program thinks of it."""

    async def changed(must: int) -> str:
        raise AssertionError("ran")

    async def main() -> None:
        others = [t for t in TOOLS if t.name != name]
        original = next(t for t in TOOLS if t.name == name)
        new = ls.tool(name=name, effect=original.effect, replay=original.replay, settle=original.settle)(changed)
        for tools in (others, [*others, new]):
            journal = await in_flight(name)
            session = session_of(["", "done"], tools, journal=journal, on_doubt=on_doubt, approve=lambda question: True)
            result = await session.resume()
            assert result.status == "completed"
            first = results(result)[0]
            assert first.outcome == "interrupted"
            assert first.text == wording.lost()

    go(main())


@pytest.mark.parametrize("kind", ["refuse", "ask"])
def test_a_lost_call_that_may_not_run_again_is_in_doubt_and_not_denied(kind: Any) -> None:
    """A safe call in flight at the crash, and a policy that no longer lets it run."""

    async def main() -> None:
        EFFECTS.clear()
        journal = await in_flight("put")
        session = session_of(
            ["", "done"],
            TOOLS,
            journal=journal,
            policy=lambda call, traits: ls.Verdict(kind, "no more") if call.name == "put" else ls.Verdict("run"),
            approve=lambda question: False,
        )
        before = EFFECTS["put"]
        result = await session.resume()
        first = results(result)[0]
        assert (first.outcome, EFFECTS["put"]) == ("interrupted", before)
        assert first.text == wording.lost(wording.DECLINED if kind == "ask" else "")

    go(main())


def test_a_request_lost_with_its_process_is_asked_again() -> None:
    async def main() -> None:
        journal = FakeJournal()
        running = session_of(Chunks([forever]), journal=journal).stream("go").start()
        await until(lambda: "model.requested" in journal.types())
        copy = cut(journal, len(journal.events))
        running.cancel()
        await running
        session = session_of(Chunks([done("here")]), journal=copy)
        assert (await session.resume("quick")).final_text == "here"
        first, second = copy.of(ev.ModelRequested)
        assert (second.request_id, second.attempt, second.because) == (first.request_id, 2, "retry")
        assert len(second.carries) == 1

    go(main())


def test_resume_needs_something_to_resume() -> None:
    async def main() -> None:
        session = session_of(["done", "more"])
        assert not session.unfinished
        with pytest.raises(ls.SessionError, match="no unfinished run"):
            await session.resume()
        await session.run("go")
        with pytest.raises(ls.SessionError):
            await session.resume()

    go(main())


def test_a_resumed_session_sends_the_same_prefix() -> None:
    """A prompt cache can rely on it, also over a change of process."""

    async def main() -> None:
        journal = FakeJournal()
        model = Chunks([calling(call("look", "a"), call("look", "a"))], [done("one")], [done("two")])
        await session_of(model, TOOLS, journal=journal).run("go")
        again = Chunks([done("two")])
        await session_of(again, TOOLS, journal=cut(journal, len(journal.events))).run("next")
        check_requests([*model.requests[:2], *again.requests])

    go(main())


def test_each_opening_is_recorded_and_counted() -> None:
    journal = FakeJournal()
    for epoch in range(1, 4):
        session_of(["done"], journal=journal)
        assert journal.of(ev.SessionOpened)[-1].epoch == epoch


def test_first_request_numbers_go_on_from_there() -> None:
    async def main() -> None:
        @ls.tool
        async def act() -> str:
            return "ok"

        journal = FakeJournal()
        run = ls.run_loop(
            messages=[ls.Message("user", (ls.Text("go"),))],
            model=ls.ScriptedModel([call("act"), call("act"), "done"]),
            tools=[act],
            journal=journal,
            first_request=7,
        )
        assert (await run).status == "completed"
        assert [e.request_id for e in journal.of(ev.ModelRequested)] == ["request-007", "request-008", "request-009"]
        await session_of(["", "", "", "more"], [act], journal=journal).run("on")
        assert journal.of(ev.ModelRequested)[-1].request_id == "request-010"

    go(main())
