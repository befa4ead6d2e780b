"""Another model goes on: within a request by a fallback, between runs by choice; each change is on record."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Chunk, Completed, Switched
from latchstep.core.codec import decode_event, encode_event
from latchstep.core.message import Usage
from latchstep.core.state import fold
from latchstep.errors import ModelError
from latchstep.model.base import Request
from latchstep.model.fallback import fallback
from latchstep.model.prices import priced

from .fakes import Chunks, FakeJournal, call, calling, check_requests, cut, done, go, session_of, text, until
from .test_cassette import plain


@ls.tool(effect="read")
async def look(n: int = 0) -> str:
    return f"saw {n}"


@ls.tool
async def write() -> str:
    return "wrote"


class Named(Chunks):
    def __init__(self, name: str, *answers: Any) -> None:
        super().__init__(*answers)
        self.name = name


def busy() -> ModelError:
    return ModelError("overloaded", "busy")


def facts(journal: FakeJournal) -> list[tuple[str, str, str, str]]:
    return [(e.old, e.new, e.why, e.request_id) for e in journal.of(ev.ModelSwitched)]


def origins(journal: FakeJournal) -> list[str]:
    return [event.message.origin for event in journal.of(ev.MessageCompleted)]


def two_runs(model: Any, journal: FakeJournal | None = None, **more: Any) -> FakeJournal:
    async def main() -> FakeJournal:
        kept = journal or FakeJournal()
        session = session_of(model, [look, write], journal=kept, **more)
        await session.run("go")
        await session.run("and?")
        return kept

    return go(main())


def falling(now: list[float]) -> ls.Agent | Any:
    """Up, down, back after the time to stay: three requests of the first run, one of the second."""
    first = Named("p:a", [calling(call("look", "a", n=1))], [text("half"), busy()], [done(usage=Usage(3, 2))])
    second = Named("p:b", [calling(call("look", "a", n=2), usage=Usage(5, 1))], [done("by b")])
    return fallback(first, second, stay=60, monotonic=lambda: now.pop(0) if len(now) > 1 else now[0])


def recorded() -> FakeJournal:
    return two_runs(falling([0.0, 1.0, 1.0, 2.0, 999.0]))


def test_a_switch_within_a_run_is_recorded_in_order_with_its_origins() -> None:
    journal = recorded()
    at = journal.types().index("model.failed")
    assert journal.types()[at - 1 : at + 4] == [
        "model.requested",
        "model.failed",
        "model.requested",
        "model.switched",
        "message.completed",
    ]
    assert facts(journal) == [
        ("p:a", "p:b", "overloaded", "request-002"),
        ("p:b", "p:a", "preferred", "request-004"),
    ]
    assert origins(journal) == ["p:a", "p:b", "p:b", "p:a"]
    assert [event.model for event in journal.of(ev.RunStarted)] == ["p:a", "p:a"]
    (failed,) = journal.of(ev.ModelFailed)
    assert (failed.attempt, failed.next, failed.retry_in) == (1, "retry", 0.0)


def test_a_run_with_a_fallback_replays_strictly_event_for_event() -> None:
    journal = recorded()
    events = [decode_event(encode_event(event)) for event in journal.events]
    replayed = two_runs(ls.Cassette(events))
    as_said = [[plain(msgspec.json.decode(encode_event(e))) for e in j.events] for j in (journal, replayed)]
    assert as_said[1] == as_said[0]
    assert replayed.of(ev.RunFinished)[-1].status == "completed"
    # who answered is part of what the next request says: a lie about it is noticed
    lying = [
        msgspec.structs.replace(e, message=msgspec.structs.replace(e.message, origin="p:c"))
        if isinstance(e, ev.MessageCompleted)
        else e
        for e in events
    ]
    assert "is not the request that was recorded" in two_runs(ls.Cassette(lying)).of(ev.ModelFailed)[0].message


def test_all_down_ends_the_run_and_names_each() -> None:
    journal = two_runs(fallback(Named("p:a", [busy()]), Named("p:b", [ModelError("auth", "no key")])))
    ended = journal.of(ev.RunFinished)[0]
    assert ended.error == ev.ErrorInfo("MODEL_AUTH", "p:a: overloaded: busy; then p:b: auth: no key")
    assert [event.next for event in journal.of(ev.ModelFailed)[:2]] == ["retry", "give_up"]


@pytest.mark.parametrize("length", range(2, 14))
def test_killed_anywhere_a_run_with_a_fallback_goes_on(length: int) -> None:
    whole = two_runs(fallback(Named("p:a", [busy()]), Named("p:b", [calling(call("write"))], [done()])))
    assert len(whole.events) > 13

    async def main() -> None:
        journal = cut(whole, length)
        session = session_of(
            fallback(Named("p:a", [busy()]), Named("p:b", [calling(call("write"))], [done()])),
            [look, write],
            journal=journal,
        )
        result = await (session.resume() if session.unfinished else session.run("go"))
        assert result.status == "completed"

    go(main())


def test_a_wrapper_that_switches_for_ever_can_be_cancelled() -> None:
    class Restless:
        name = "p:a"

        async def stream(self, request: Request) -> AsyncIterator[Chunk]:
            while True:
                yield Switched(old="p:a", new="p:b", why="\ud800")

    async def main() -> None:
        journal = FakeJournal()
        session = session_of(Restless(), journal=journal)
        async with session.stream("go") as run:
            await until(lambda: journal.of(ev.ModelSwitched))
            run.cancel()
            assert (await run.result()).status == "cancelled"

    go(main())


def test_another_model_from_the_next_run_on() -> None:
    first = Named("p:a", [calling(call("look", "a"))], [done()], [done("again")])
    second = Named("p:b", [calling(call("look", "a"))], [done()])

    async def main() -> FakeJournal:
        journal = FakeJournal()
        kit_of_both = session_of(first, [look])
        session = session_of(first, [look], journal=journal)
        shared = session.kit
        await session.run("go")
        session.switch(second)
        assert (shared.model, session.kit.model) == (first, second)
        await session.run("and?")
        await session.run("once more")
        session.switch(first)
        await session.run("back")
        assert kit_of_both.kit.model is first
        return journal

    journal = go(main())
    assert facts(journal) == [("p:a", "p:b", "chosen for this run", ""), ("p:b", "p:a", "chosen for this run", "")]
    assert origins(journal) == ["p:a", "p:a", "p:b", "p:b", "p:b", "p:a"]
    switched = journal.of(ev.ModelSwitched)
    started = journal.of(ev.RunStarted)
    assert [event.run_id for event in switched] == [started[1].run_id, started[3].run_id]
    assert [event.seq for event in switched] == [started[1].seq + 1, started[3].seq + 1]
    check_requests([*first.requests[:2], *second.requests, first.requests[2]])
    ids = [block.id for event in journal.of(ev.MessageCompleted) for block in event.message.calls]
    assert len(set(ids)) == len(ids)


def test_what_holds_the_output_to_its_type_follows_the_model() -> None:
    class Native(Named):
        native_output = True

    plain_one, native = Named("p:a", [done("[1]")]), Native("p:b", [done("{}")])

    async def main() -> None:
        session = ls.Agent(plain_one, [look], output=list[int], journal=FakeJournal()).session()
        for model, held in ((native, True), (plain_one, False), (native, True)):
            session.switch(model)
            assert (session.kit.held is not None, len(session.kit.specs)) == (held, 2 - held)

    go(main())


def test_no_switch_during_a_run_and_none_to_what_is_no_model() -> None:
    async def main() -> None:
        session = session_of(Named("p:a", [done()]))
        async with session.stream("go") as run:
            with pytest.raises(ls.SessionError, match="under way"):
                session.switch(Named("p:b", [done()]))
            await run.result()
        wrong: list[Any] = [3, "nosuch:model"]
        for given in wrong:
            with pytest.raises(ls.DefinitionError):
                session.switch(given)
        assert session.kit.model.name == "p:a"

    go(main())


def test_an_unfinished_run_goes_on_with_another_model() -> None:
    whole = two_runs(Named("p:a", [calling(call("look"))], [done()]))

    async def main() -> FakeJournal:
        journal = cut(whole, whole.types().index("message.completed") + 1)
        session = session_of(Named("p:a", [done()]), [look], journal=journal)
        session.switch(Named("p:b", [done()]))
        assert (await session.resume()).status == "completed"
        await session.run("and?")
        return journal

    journal = go(main())
    assert facts(journal) == [("p:a", "p:b", "chosen for this run", "")]
    assert journal.of(ev.ModelSwitched)[0].run_id == journal.of(ev.RunStarted)[0].run_id
    assert origins(journal) == ["p:a", "p:b", "p:b"]
    assert [event.model for event in journal.of(ev.RunStarted)] == ["p:a", "p:b"]
    assert len(journal.of(ev.RunStarted)) == 2
    again = fold(journal.events)
    state = fold([])
    state._restore(ev.SessionSnapshot(needed=0, state=msgspec.Raw(again.snapshot())))
    assert again.run is not None
    assert state.run is not None
    assert state.run.model == again.run.model == ""


def test_the_choice_outlives_the_process() -> None:
    """A run that was taken over, killed and resumed with the same other model says so once."""
    whole = two_runs(Named("p:a", [calling(call("look"))], [done()]))

    async def main() -> None:
        journal = cut(whole, whole.types().index("message.completed") + 1)
        for model, count in (("p:b", 1), ("p:b", 1), ("p:a", 2)):
            journal = cut(journal, len(journal.events))
            session = session_of(Named(model, [done()]), [look], journal=journal)
            async with session.stream() as run:
                async for event in run:
                    if event.type == "model.requested":
                        break
            assert len(facts(journal)) == count
            if count == 1:
                at = journal.types().index("model.switched")
                journal = cut(journal, at + 1)

    go(main())


def test_max_cost_counts_prices() -> None:
    def answer() -> Completed:
        return calling(call("look"), usage=Usage(1_000_000, 0))

    model = priced(Named("openai:gpt-4o", [answer()]), "gpt-4o", "https://api.openai.com/v1")
    journal = two_runs(model, limits=ls.Limits(max_cost=4.0))
    ended = journal.of(ev.RunFinished)[0]
    assert (ended.status, ended.steps) == ("budget", 2)
    assert ended.error is not None
    assert ended.error.kind == "MAX_COST"
    assert ended.cost == pytest.approx(5.0)
