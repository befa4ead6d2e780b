"""A recorded session runs again and is the same; whatever was changed in it is found where it shows first."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Failed, Switched
from latchstep.core.codec import decode_event, encode_event, stamp
from latchstep.errors import FatalToolError
from latchstep.session.build import build_kit
from latchstep.session.player import Difference, Replayed
from latchstep.session.replay import replay
from latchstep.tool.ask_user import ask_user_tool

from .fakes import Chunks, FakeJournal, call, calling, cut, done, forever, go, session_of, until
from .test_cassette import RECORDED, fail, look
from .test_interleaving import deeds, one, scripts


def again(journal: FakeJournal, events: list[ev.Event] | None = None, **more: Any) -> Replayed:
    read = [decode_event(encode_event(event)) for event in (journal.events if events is None else events)]
    for seq, event in enumerate(read):
        stamp(event, seq)
    return go(replay(read, blob=journal.blobs.get, **more))


def shown(difference: Difference | None) -> str:
    if difference is None:
        return "no difference"
    both = (difference.recorded, difference.replayed)
    return f"{difference.seq}: " + "\n".join(encode_event(e).decode() if e else "nothing" for e in both)


def is_same(journal: FakeJournal) -> Replayed:
    found = again(journal)
    assert found.difference is None, shown(found.difference)
    made = [event for event in journal.events if not isinstance(event, ev.SessionCreated | ev.SessionSnapshot)]
    assert sum(found.kinds.values()) == len(made), "not every event was made again"
    assert not found.taken
    assert not found.blind
    return found


@ls.tool
async def act(n: int = 0) -> str:
    return f"acted {n}"


@ls.tool
async def hang(context: ls.Context) -> str:
    context.captured = "half of it"
    await forever()
    return ""


@pytest.mark.parametrize("name", RECORDED)
def test_whatever_a_model_answers(name: str) -> None:
    journal = FakeJournal()

    async def main() -> None:
        session = session_of(Chunks(*RECORDED[name]), [look, fail], journal=journal)
        for prompt in ("go", "and?"):
            await session.run(prompt)

    go(main())
    is_same(journal)


@settings(max_examples=100, deadline=None)
@given(scripts, deeds, st.booleans(), st.booleans(), st.integers(0, 2**16))
def test_any_deeds_at_any_moments_and_a_crash_anywhere(
    script: list[Any], plan: list[tuple[int, str]], asks: bool, iterated: bool, seed: int
) -> None:
    for journal in go(one(script, plan, asks, iterated, seed)):
        is_same(journal)


def stopped(how: str, journal: FakeJournal) -> None:
    """A run that is stopped while one call runs and another has ended."""

    async def main() -> None:
        limits = ls.Limits(max_seconds=0.05 if how == "clock" else None, max_parallel=2)
        beside = ls.tool(effect="read", name="beside")(hang.function)
        model = Chunks([calling(call("look"), call("beside"))])
        session = session_of(model, [look, beside], journal=journal, limits=limits)
        run = session.stream("go").start()
        await until(lambda: journal.of(ev.ToolFinished))
        if how == "cancel":
            run.cancel("enough")
        assert (await run).status == ("cancelled" if how == "cancel" else "budget")

    go(main())


@pytest.mark.parametrize("how", ["cancel", "clock"])
def test_a_run_that_is_stopped_while_a_call_runs(how: str) -> None:
    journal = FakeJournal()
    stopped(how, journal)
    assert "half of it" in journal.of(ev.ToolFinished)[-1].content
    is_same(journal)


@pytest.mark.parametrize("decision", ["allow", "deny"])
@pytest.mark.parametrize("last", ["run.finished", "approval.requested", "approval.answered", "tool.started"])
def test_questions_of_the_model_with_a_crash_or_without(decision: ev.Decision, last: str) -> None:
    async def main(journal: FakeJournal) -> FakeJournal:
        calls = [call("ask_user", "q", question="Which?"), call("act", "a")]
        session = session_of([calls, "done"], [ask_user_tool(), act], journal=journal)
        run = session.stream(None if session.unfinished else "go").start()
        await until(lambda: session.questions or run.finished)
        if session.questions:
            await session.answer("q", decision, by="me", note="this one")
        assert (await run).status == "completed"
        return journal

    journal = go(main(FakeJournal()))
    if last != "run.finished":
        journal = go(main(cut(journal, journal.types().index(last) + 1)))
    is_same(journal)


def test_what_a_resume_changed_is_on_record_and_played() -> None:
    """Other tools, another prompt, another bound, another model and another policy for doubt."""
    journal = FakeJournal()

    async def main() -> FakeJournal:
        session = session_of(Chunks([calling(call("hang"))]), [hang, look], journal=journal, system="One.")
        run = session.stream("go").start()
        await until(lambda: journal.of(ev.ToolStarted))
        copy = cut(journal, len(journal.events))
        await run.stop()
        model = Chunks([done()])
        model.name = "fake:other"
        resumed = session_of(
            model,
            [act],
            journal=copy,
            system="Two.",
            limits=ls.Limits(max_steps=7),
            on_doubt="fail",
        )
        assert (await resumed.resume()).status == "failed"
        return copy

    copy = go(main())
    (changed,) = copy.of(ev.RunResumed)
    assert (changed.limits, changed.rules) == ({"max_steps": 7}, {"on_doubt": "fail"})
    is_same(copy)


def test_a_resume_that_changes_nothing_records_nothing() -> None:
    async def main() -> FakeJournal:
        journal = FakeJournal()
        run = session_of(Chunks([calling(call("act"))], [forever]), [act], journal=journal).stream("go").start()
        await until(lambda: len(journal.of(ev.ModelRequested)) == 2)
        copy = cut(journal, len(journal.events))
        await run.stop()
        await session_of(Chunks([done()]), [act], journal=copy).resume()
        assert copy.of(ev.RunResumed) == []
        return copy

    is_same(go(main()))


def test_typed_output_checks_fatal_tools_and_a_switch_of_models() -> None:
    journal = FakeJournal()

    @ls.tool
    async def broken() -> str:
        raise FatalToolError("the disk of the tool is gone")

    async def main() -> None:
        async def check(command: str) -> tuple[int, str]:
            return (1, "no") if len(journal.of(ev.CheckFinished)) < 1 else (0, "yes")

        switched = [
            Switched(old="a", new="b", why="it is down"),
            Failed(kind="server", message="x", retry_in=3.0),
            done("checked"),
        ]
        model = Chunks([calling(call("act"))], [done("done")], switched, [calling(call("broken"))])
        session = session_of(model, [act, broken], journal=journal, checks=["make"], check=check)
        assert (await session.run("go")).status == "completed"
        other = Chunks([calling(call("broken"))])
        other.name = "fake:other"
        session.switch(other)
        assert (await session.run("more")).status == "failed"

    go(main())
    assert is_same(journal).kinds["check.finished"] == 2


def test_typed_output() -> None:
    class Sum(msgspec.Struct):
        total: int

    async def main() -> None:
        model = ls.ScriptedModel(["no idea", call("final_answer", "f", total="x"), call("final_answer", "g", total=3)])
        result = await ls.Agent(model, [act], output=Sum, journal=journal).run("go")
        assert result.output == Sum(3)

    journal = FakeJournal()
    go(main())
    is_same(journal)


# -- what is changed is found ------------------------------------------------------------------------------


def told(journal: FakeJournal) -> None:
    async def main() -> None:
        model = Chunks([calling(call("act", "a", n=1))], [calling(call("act", "b", n=2))], [done("both")])
        await session_of(model, [act], journal=journal, system="Be brief.").run("go")

    go(main())


def changed(journal: FakeJournal, kind: type[ev.Event], nth: int, **fields: Any) -> list[ev.Event]:
    events = list(journal.events)
    at = [n for n, event in enumerate(events) if isinstance(event, kind)][nth]
    events[at] = replace(events[at], **fields)
    return events


def test_another_text_of_a_result_shows_in_the_next_request() -> None:
    journal = FakeJournal()
    told(journal)
    found = again(journal, changed(journal, ev.ToolFinished, 0, content="acted 7")).difference
    assert found is not None
    assert found.recorded == journal.of(ev.ModelRequested)[1]
    assert [message.text for message in found.said if message.role == "tool"] == [""]
    assert "acted 7" in str(found.said)


def test_another_argument_shows_when_its_call_starts() -> None:
    journal = FakeJournal()
    told(journal)
    answer = journal.of(ev.MessageCompleted)[1]
    other = replace(answer.message, blocks=(replace(answer.message.calls[0], arguments={"n": 3}),))
    found = again(journal, changed(journal, ev.MessageCompleted, 1, message=other)).difference
    assert found is not None
    assert found.recorded == journal.of(ev.ToolStarted)[1]


def test_another_system_prompt_shows_in_the_first_request() -> None:
    journal = FakeJournal()
    told(journal)
    digest = journal.put_blob(b"Be long.")
    found = again(journal, changed(journal, ev.RunStarted, 0, system=digest)).difference
    assert found is not None
    assert found.recorded == journal.of(ev.ModelRequested)[0]


def test_an_unknown_prompt_is_said_and_the_rest_compared() -> None:
    journal = FakeJournal()
    told(journal)
    journal.blobs.clear()
    found = again(journal)
    assert (found.difference, found.blind) == (None, [journal.of(ev.RunStarted)[0].run_id])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_an_event_that_is_missing_doubled_or_moved_is_found(data: st.DataObject) -> None:
    journal = FakeJournal()

    async def main() -> None:
        model = Chunks(
            [calling(call("act", "a", n=1))], [calling(call("look", "b"), call("nope", "c"))], [done("both")]
        )
        policy = lambda call, traits: ls.Verdict("ask" if call.name == "act" else "run")  # noqa: E731
        session = session_of(model, [act, look], journal=journal, policy=policy)
        async with session.stream("go") as run:
            async for event in run:
                if event.type == "approval.requested":
                    await run.steer("and then")
                    await run.answer("a", "allow")

    go(main())
    events = list(journal.events)
    at = data.draw(st.integers(4, len(events) - 1))
    match data.draw(st.sampled_from(["missing", "doubled", "moved"])):
        case "missing":
            del events[at]
        case "doubled":
            events.insert(at, events[at])
        case _:
            to = data.draw(st.integers(4, len(events) - 1).filter(lambda to: to != at))
            events.insert(to, events.pop(at))
    found = again(journal, events)
    if found.difference is None:  # what came from outside may come a little earlier, or the end is missing
        made, then = (
            [e for e in listed if not e.type.startswith(("message.accepted", "approval."))]
            for listed in (events, journal.events)
        )
        assert made == then[: len(made)]


# -- what is not known -------------------------------------------------------------------------------------


def test_events_of_kinds_it_cannot_bring_about_are_taken_over_and_named() -> None:
    journal = FakeJournal()
    told(journal)
    events = list(journal.events)
    for at in (7, 4):
        events.insert(at, ev.Unknown(name="weather.changed", raw=b'{"type":"weather.changed"}'))
    read = [event if isinstance(event, ev.Unknown) else decode_event(encode_event(event)) for event in events]
    found = go(replay(read, blob=journal.blobs.get))
    assert found.difference is None, shown(found.difference)
    assert found.taken == {"weather.changed": 2}
    assert sum(found.kinds.values()) == len(journal.events) - 1


def test_one_run_of_many() -> None:
    journal = FakeJournal()

    async def main() -> None:
        session = session_of(Chunks([calling(call("act", "a"))], [done()], [done("two")]), [act], journal=journal)
        await session.run("go")
        await session.send("by the way")
        await session.run("more")

    go(main())
    assert is_same(journal).kinds["run.started"] == 2
    for run in (1, 2):
        found = again(journal, run=run)
        assert found.difference is None, shown(found.difference)
        assert found.kinds["run.finished"] == 1
    with pytest.raises(ls.SessionError, match="2 runs"):
        again(journal, run=3)


def test_live_tools_run_again_and_what_they_say_now_is_compared() -> None:
    journal, ran = FakeJournal(), list[int]()
    told(journal)

    @ls.tool(name="act")
    async def now(n: int = 0) -> str:
        ran.append(n)
        return f"acted {n}" if n < 2 else "something else"

    found = again(journal, live=build_kit(Chunks(), [now]))
    assert ran == [1, 2]
    assert found.difference is not None
    assert isinstance(found.difference.replayed, ev.ToolFinished)
    assert found.difference.replayed.content == "something else"
    assert found.difference.recorded == replace(journal.of(ev.ToolFinished)[1])


def test_nothing_is_left_of_a_replay_and_its_journal_is_the_record() -> None:
    journal = FakeJournal()
    stopped("cancel", journal)
    kept = FakeJournal([replace(journal.events[0])])
    found = go(replay(list(journal.events), blob=journal.blobs.get, journal=kept))
    assert found.difference is None
    assert kept.types() == journal.types()
    assert [e.elapsed for e in kept.events] == [e.elapsed for e in journal.events]


def test_a_replay_can_be_cancelled() -> None:
    journal = FakeJournal()
    told(journal)

    async def slow(n: int = 0) -> str:
        await forever()
        return ""

    async def main() -> None:
        live = build_kit(Chunks(), [ls.tool(name="act")(slow)])
        task = asyncio.ensure_future(replay(list(journal.events), blob=journal.blobs.get, live=live))
        for _ in range(50):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    go(main())
