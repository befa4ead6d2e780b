"""Compactions, snapshots of the workspace, questions that expire and forks replay; what was changed is found."""

from __future__ import annotations

import asyncio
import random
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Completed, Failed
from latchstep.core.message import Text, Usage
from latchstep.errors import LatchstepError, ModelError
from latchstep.journal.blob import read_blob
from latchstep.journal.reader import read_journal
from latchstep.journal.store import Store
from latchstep.session.build import build_kit, build_rules
from latchstep.session.player import Replayed
from latchstep.session.replay import blobs_of, replay
from latchstep.session.session import Session
from latchstep.tool.snapshot import Shadow

from .fakes import Chunks, FakeJournal, call, calling, cut, done, forever, go, session_of, until
from .test_compaction import LIMITS, Provider, look, touch
from .test_replay import again, changed, is_same, shown

SMALL = replace(LIMITS, max_steps=60)


def run(provider: Provider, *prompts: str, **more: Any) -> FakeJournal:
    journal = FakeJournal()

    async def main() -> None:
        session = session_of(provider, [look, touch], journal=journal, **more)
        for prompt in prompts:
            await session.run(prompt)

    go(main())
    return journal


def numbered(**more: Any) -> Any:
    numbers = iter(range(99))
    return lambda: done(f"SUMMARY {next(numbers)}", usage=Usage(9, 9), **more)


# -- compactions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [True, False])
def test_compactions_at_the_threshold(counts: bool) -> None:
    journal = run(Provider(40, counts=counts, summary=numbered()), "go", limits=LIMITS, system="Be brief. " * 50)
    assert len(journal.of(ev.ContextCompacted)) > 2
    assert is_same(journal).kinds["context.compacted"] == len(journal.of(ev.ContextCompacted))


@pytest.mark.parametrize(
    "summary",
    [
        "SUMMARY",
        done(""),
        Completed(blocks=(Text("no"),), stop_reason="refused", raw_stop_reason="refusal", usage=Usage(5, 1)),
        Completed(blocks=(Text("one"), Text("two"), call("look", "x")), stop_reason="length", usage=Usage(7, 2)),
        "a summary that is far too long " * 2_000,
    ],
    ids=["given", "empty", "refused", "cut", "long"],
)
@pytest.mark.parametrize("overflow", [True, False])
def test_whatever_becomes_of_a_summary(summary: Any, overflow: bool) -> None:
    provider = Provider(20, window=4_000 if overflow else 8_000, summary=summary)
    journal = run(provider, "go", "and?", limits=ls.Limits(max_steps=60) if overflow else LIMITS)
    assert provider.summaries
    is_same(journal)


@pytest.mark.parametrize("kind", ["auth", "context_overflow", "protocol"])
@pytest.mark.parametrize("overflow", [True, False])
def test_a_summary_that_fails(kind: Any, overflow: bool) -> None:
    def fail() -> str:
        raise ModelError(kind, "no", usage=Usage(3, 0), cost=0.5)

    provider = Provider(20, window=4_000 if overflow else 8_000, summary=fail)
    is_same(run(provider, "go", "and?", limits=ls.Limits(max_steps=60) if overflow else LIMITS))


def test_a_summary_that_is_retried_and_one_by_another_model() -> None:
    journal = FakeJournal()
    other = Chunks([Failed(kind="server", message="m", retry_in=3.0), done("S1")], [done("S2", origin="who knows")])
    other.name = "fake:other"

    async def main() -> None:
        agent = ls.Agent(Provider(30), [look], limits=LIMITS, summarizer=other, journal=journal)
        await agent.run("go")

    go(main())
    assert [event.model for event in journal.of(ev.ContextCompacted)][:2] == ["fake:other", "who knows"]
    is_same(journal)


def test_a_window_that_the_model_told() -> None:
    class Telling(Provider):
        async def stream(self, request: Any) -> Any:
            async for chunk in super().stream(request):
                yield replace(chunk, window=4_000) if isinstance(chunk, Completed) else chunk

    journal = run(Telling(30), "go", limits=replace(LIMITS, max_context=None))
    assert journal.of(ev.MessageCompleted)[0].window == 4_000
    assert journal.of(ev.ContextCompacted)
    is_same(journal)
    assert again(journal, changed(journal, ev.MessageCompleted, 0, window=50_000)).difference is not None


async def spoken(session: Session, *deeds: str) -> None:
    """Compactions between two runs: one that is done, or ended in some way."""
    for deed in deeds:
        provider = session.kit.model
        assert isinstance(provider, Provider)
        provider.summary = {"done": "SUMMARY", "empty": ""}.get(deed, forever)
        asked = len(provider.summaries)
        task = asyncio.ensure_future(session.compact(deed))
        await until(lambda asked=asked, provider=provider: len(provider.summaries) > asked)
        if deed == "said":
            await session.send("by the way")
        match deed:
            case "task":
                task.cancel()
            case "cancel" | "said":
                session.cancel("enough", by="me")
            case "close":
                await session.close()
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
        kinds = {"task": asyncio.CancelledError, "done": ev.ContextCompacted, "empty": LatchstepError}
        assert isinstance(ended, kinds.get(deed, type(None))), ended


@pytest.mark.parametrize("deed", ["done", "empty", "task", "cancel", "said", "close"])
def test_between_two_runs(deed: str) -> None:
    journal = FakeJournal()

    async def main() -> FakeJournal:
        session = session_of(Provider(4), [look], journal=journal, system="Be brief.")
        await session.run("look")
        await spoken(session, deed)
        assert session.state.fill.focus is None
        copy = cut(journal, len(journal.events))
        await session_of(Provider(0), [look], journal=copy, system="Be brief.").run("and now?")
        return copy

    copy = go(main())
    assert copy.types().count("context.compacted") == (deed == "done")
    is_same(copy)


def test_wishes_in_a_run_and_one_that_its_process_did_not_survive() -> None:
    journal = FakeJournal()

    async def main() -> list[FakeJournal]:
        provider = Provider(12)
        session = session_of(provider, [look, touch], journal=journal)
        async with session.stream("go") as under_way:
            async for event in under_way:
                if event.seq % 5 == 0:
                    with suppress(ls.SessionError):  # there is nothing to compact yet
                        await session.compact(f"wish {event.seq}")
        copies = [cut(journal, length) for length in range(5, len(journal.events), 3)]
        for copy in copies:
            again = session_of(Provider(2), [look, touch], journal=copy)
            await again.run("and now?")
        return copies

    for copy in [journal, *go(main())]:
        is_same(copy)
    assert len(journal.of(ev.ContextCompacted)) > 1


def test_a_cancel_during_a_compaction() -> None:
    journal = FakeJournal()

    async def main() -> None:
        provider = Provider(30, summary=forever)
        session = session_of(provider, [look], journal=journal, limits=LIMITS)
        async with session.stream("go") as under_way:
            await until(lambda: provider.summaries)
            await under_way.steer("by the way")
            under_way.cancel("enough")
        provider.summary = "SUMMARY"
        await session.run("and now?")

    go(main())
    is_same(journal)


@pytest.mark.parametrize("summary", ["SUMMARY", ""])
@pytest.mark.parametrize("idle", [True, False])
def test_a_cancel_in_the_very_moment_of_the_summary(summary: str, idle: bool) -> None:
    journal = FakeJournal()
    provider = Provider(5 if idle else 30)
    session = session_of(provider, [look], journal=journal, limits=LIMITS)

    def cancels() -> str:
        session.cancel("enough")
        return summary

    async def main() -> None:
        provider.summary = cancels
        await session.run("go")
        if idle:
            with suppress(LatchstepError):
                await session.compact()
        provider.summary = "SUMMARY"
        await session.run("and now?")

    go(main())
    assert provider.summaries
    is_same(journal)


# -- what is changed is found ------------------------------------------------------------------------------


def test_another_summary_shows_in_the_next_request() -> None:
    journal = run(Provider(20), "go", limits=LIMITS)
    compacted = journal.of(ev.ContextCompacted)[0]
    message = replace(compacted.message, blocks=(*compacted.message.blocks[:-1], Text("another")))
    found = again(journal, changed(journal, ev.ContextCompacted, 0, message=message)).difference
    assert found is not None
    assert isinstance(found.recorded, ev.ModelRequested)
    assert found.recorded.seq > compacted.seq
    assert "another" in str(found.said)


@pytest.mark.parametrize("field", ["persons", "replaced", "before", "after", "because"])
def test_what_the_loop_makes_of_a_summary_is_compared(field: str) -> None:
    journal = run(Provider(20), "go", limits=LIMITS)
    compacted = journal.of(ev.ContextCompacted)[0]
    blocks = compacted.message.blocks
    value: Any = "asked" if field == "because" else getattr(compacted, field, 0)
    more = {field: value + 1 if isinstance(value, int) else value}
    if field == "persons":
        more = {"message": replace(compacted.message, blocks=(blocks[0], Text("someone else"), *blocks[2:]))}
    found = again(journal, changed(journal, ev.ContextCompacted, 0, **more)).difference
    assert found is not None
    assert isinstance(found.recorded, ev.ContextCompacted)


# -- questions that expire, rules, keys, forks ---------------------------------------------------------------


def test_a_question_that_nobody_answered_in_time() -> None:
    journal = FakeJournal()

    async def main() -> None:
        model = Chunks([calling(call("touch", "a", n=1), call("touch", "b", n=2))], [done()])
        ask = lambda call, traits: ls.Verdict("ask")  # noqa: E731
        limits = ls.Limits(approval_timeout=0.01)
        result = await session_of(model, [touch], journal=journal, policy=ask, limits=limits).run("go")
        assert result.status == "completed"

    go(main())
    assert {event.note for event in journal.of(ev.ApprovalAnswered)} == {"nobody answered within 0.01 s"}
    is_same(journal)
    other = changed(journal, ev.ApprovalAnswered, 0, note="who knows")
    found = again(journal, other).difference
    assert found is not None
    assert isinstance(found.recorded, ev.ToolFinished)


def test_the_rule_that_let_a_call_run_is_played() -> None:
    policy = lambda call, traits: ls.Verdict("run", rule=f"allow {call.name}")  # noqa: E731
    journal = run(Provider(3), "go", policy=policy)
    assert {event.rule for event in journal.of(ev.ToolStarted)} == {"allow look"}
    is_same(journal)


def test_how_a_key_reads_does_not_matter_but_which_effects_share_one_does() -> None:
    provider = Provider(3)
    provider.make = lambda n: call("touch", f"c{n}", n=n)
    journal = run(provider, "go")
    assert len(journal.of(ev.ToolStarted)) == 3
    older = changed(journal, ev.ToolStarted, 0, idempotency_key="another:form")
    assert again(journal, older).difference is None
    shared = changed(journal, ev.ToolStarted, 1, idempotency_key=journal.of(ev.ToolStarted)[0].idempotency_key)
    found = again(journal, shared).difference
    assert found is not None
    assert found.recorded == shared[journal.of(ev.ToolStarted)[1].seq]


# -- on disk, with a workspace, and a process that may die anywhere ------------------------------------------


def read(store: Store, name: str) -> tuple[list[ev.Event], Replayed]:
    folder = store.directory(name)
    events = list(read_journal(folder))
    return events, go(replay(events, blob=blobs_of(lambda digest: read_blob(folder, digest))))


def is_same_on_disk(store: Store, name: str) -> list[ev.Event]:
    events, found = read(store, name)
    assert found.difference is None, shown(found.difference)
    assert not found.taken
    assert not found.blind
    made = [event for event in events if not isinstance(event, ev.SessionSnapshot)]
    assert sum(found.kinds.values()) == len(made) - 1
    return events


class Desk:
    """A session on disk in a workspace of its own, whose files are kept, and a person who does something."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = Store(folder / "home")
        self.workspace = folder / "ws"
        self.workspace.mkdir()

    def open(self, name: str, provider: Provider) -> Session:
        @ls.tool
        async def put(n: int) -> str:
            (self.workspace / f"file{n % 3}").write_text(f"{n}")
            return f"put {n}"

        shadow = Shadow(self.workspace, self.store.directory(name).parent.parent)

        async def on_close() -> None:
            shadow.leave()

        def approve(question: ev.Question) -> bool:
            return self.chance.random() < 0.7

        provider.make = lambda n: call("put" if n % 2 else "look", f"c{n % 5}", n=n)
        asks = lambda call, traits: ls.Verdict("ask" if call.arguments.get("n") == 3 else "run")  # noqa: E731
        kit = build_kit(provider, [put, look], "Be brief.", snapshot=shadow.take, on_close=on_close, approve=approve)
        return Session(self.store.open(name), kit, build_rules(kit, limits=SMALL, policy=asks))

    async def work(self, session: Session, plan: list[tuple[int, str]]) -> None:
        """One run, with deeds at the events with these numbers."""
        deeds = dict(plan)
        said: list[str] = []
        run = session.stream("go")
        number = 0
        async with run:
            async for event in run:
                number += not event.part
                try:
                    match deeds.pop(number, ""):
                        case "compact":
                            await session.compact(f"focus {number}")
                        case "steer" | "follow_up" as deed:
                            said.append(await getattr(run, deed)(f"message {number}"))
                        case "edit" if said:
                            await session.edit(said[-1], "something else")
                        case "cancel":
                            run.cancel("enough")
                        case "stop":
                            await run.stop_after_turn("enough")
                except ls.SessionError:
                    pass


plans = st.lists(
    st.tuples(
        st.integers(1, 60), st.sampled_from(["compact", "compact", "steer", "follow_up", "edit", "cancel", "stop"])
    ),
    max_size=6,
    unique_by=lambda deed: deed[0],
)


@settings(max_examples=20, deadline=None)
@given(plans, st.integers(2, 14), st.booleans(), st.sampled_from(["", "fit", "empty"]), st.integers(0, 2**16))
def test_any_session_on_disk_with_compactions_and_snapshots_and_a_crash_anywhere(
    plan: list[tuple[int, str]], steps: int, between: bool, summary: str, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(Path(folder), seed)
        store = desk.store
        store.create("one", time=1.0, workspace=str(desk.workspace)).close()
        numbers = iter(range(99))

        def sums_up() -> Any:
            if summary == "empty" and next(numbers) % 2:
                return done("")
            if summary == "fit" and next(numbers) % 2:
                raise ModelError("context_overflow", "too long")
            return done(f"SUMMARY {next(numbers)}", usage=Usage(9, 9))

        async def main() -> None:
            session = desk.open("one", Provider(steps, summary=sums_up))
            await desk.work(session, plan)
            if between:
                with suppress(LatchstepError):
                    await session.compact("between")
            await session.run("and?")
            await session.close()

        go(main())
        events = is_same_on_disk(store, "one")
        store.fork("one", desk.chance.randrange(1, len(events)), "two", time=2.0)
        is_same_on_disk(store, "two")

        async def on() -> None:
            session = desk.open("two", Provider(3))
            await session.run("go on")
            await session.close()

        go(on())
        is_same_on_disk(store, "two")
