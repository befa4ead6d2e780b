"""The context is compacted before it is full, where it did not fit, and when asked for: once, whole, and no loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.core.codec import encode_event
from latchstep.core.message import Message, Text, ToolCall, Usage, estimate
from latchstep.core.state import fold
from latchstep.errors import LatchstepError, ModelError, SessionError
from latchstep.journal.base import restored
from latchstep.model.base import Request
from latchstep.session.session import Session
from tests.crash.simulate import check_request

from .fakes import Chunks, FakeJournal, call, cut, done, forever, go, session_of, settled, until

WORDS = "some words of a result " * 40
LIMITS = ls.Limits(max_context=4_000, keep_recent=500, max_steps=1_000)


@ls.tool(effect="read")
async def look(n: int) -> str:
    return f"{n}: {WORDS}"


@ls.tool
async def touch(context: ls.Context, n: int) -> str:
    return f"{n} {context.idempotency_key}"


class Provider:
    """A model with a window, and counts of its own: calls `look` as often as it is told, then answers.

    summary: what it says when it is asked for one; a function may raise, or wait. counts: whether it tells its usage.
    base: tokens of its own that every request costs. A request beyond `window` is refused as a provider does it.
    """

    name = "fake:provider"

    def __init__(
        self, steps: int, *, window: int = 4_000, summary: Any = "SUMMARY", counts: bool = True, base: int = 0
    ) -> None:
        self.steps, self.window, self.summary, self.counts, self.base = steps, window, summary, counts, base
        self.requests: list[Request] = []
        self.said = 0
        self.make: Callable[[int], ToolCall] = lambda n: call("look", f"c{n}", n=n)

    @property
    def summaries(self) -> list[Request]:
        return [request for request in self.requests if is_summary(request)]

    @property
    def plain(self) -> list[Request]:
        return [request for request in self.requests if not is_summary(request)]

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        size = self.base + sum(map(estimate, request.messages)) + len(request.system) // 4
        if size > self.window:
            raise ModelError("context_overflow", f"prompt is too long: {size} tokens > {self.window} maximum")
        usage = Usage(size, 10) if self.counts else Usage()
        if is_summary(request):
            said = self.summary() if callable(self.summary) else self.summary
            said = await said if asyncio.iscoroutine(said) else said
            yield Delta("text", str(said))
            yield said if isinstance(said, Completed) else done(said, usage=usage)
            return
        self.said += 1
        if self.said > self.steps:
            yield done("finished", usage=usage)
            return
        yield Completed(blocks=(self.make(self.said),), stop_reason="tool_calls", usage=usage)


def is_summary(request: Request) -> bool:
    return request.request_id.startswith("compact-")


def stable(requests: Iterable[Request]) -> int:
    """How often a request does not begin as the one before it. Each is one that every provider takes."""
    for request in (given := list(requests)):
        check_request(list(request.messages))
        assert request.messages[0].role == "user"
    return sum(list(b.messages)[: len(a.messages)] != list(a.messages) for a, b in pairwise(given))


def raises(error: BaseException) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


@pytest.mark.parametrize("counts", [True, False])
def test_a_long_run_stays_within_its_window(counts: bool) -> None:
    provider, journal = Provider(60, counts=counts), FakeJournal()

    async def main() -> ls.RunResult:
        return await session_of(provider, [look], journal=journal, limits=LIMITS).run("look at everything")

    result = go(main())
    assert (result.status, result.final_text, result.steps) == ("completed", "finished", 61)
    compacted = journal.of(ev.ContextCompacted)
    assert len(compacted) > 3
    assert not journal.of(ev.ModelFailed), "nothing overflowed"
    assert {event.because for event in compacted} == {"threshold"}
    for event in compacted:
        assert event.before >= 3_200
        assert event.after < 2_000
    assert stable(provider.plain) == len(compacted), "from one compaction to the next the prefix is the same"
    assert "look at everything" in str(provider.plain[-1].messages[0]), "what the person said stays, word for word"
    assert all(not request.tools for request in provider.summaries)
    spent = sum((event.usage for event in journal.of(ev.MessageCompleted)), Usage())
    assert result.usage == sum((event.usage for event in compacted), spent)
    assert len(journal.of(ev.ToolFinished)) == 60, "the record is whole"
    assert len(result.messages) < 20, "the messages of a result are those that the model still sees"


def test_no_delta_of_a_summary_is_shown() -> None:
    async def main() -> list[ev.Event]:
        session = session_of(Provider(20), [look], limits=LIMITS)
        async with session.stream("go") as run:
            return [event async for event in run]

    events = go(main())
    assert any(isinstance(event, ev.ContextCompacted) for event in events)
    asked = [event for event in events if isinstance(event, ev.ModelRequested) and event.because == "compact"]
    assert asked[0].request_id == "compact-001"
    assert not [e for e in events if isinstance(e, ev.ModelDelta) and e.request_id.startswith("compact")]


def test_an_overflow_is_recovered_from_once_and_the_same_request_asked_again() -> None:
    provider, journal = Provider(30), FakeJournal()

    async def main() -> ls.RunResult:
        return await session_of(provider, [look], journal=journal, limits=ls.Limits()).run("go")

    result = go(main())
    assert result.status == "completed"
    failed = journal.of(ev.ModelFailed)
    assert failed
    assert {(event.kind, event.next) for event in failed} == {("CONTEXT_FULL", "compact")}
    assert len(journal.of(ev.ContextCompacted)) == len(failed)
    again = [e for e in journal.of(ev.ModelRequested) if e.request_id == failed[0].request_id]
    assert [(event.attempt, event.because) for event in again] == [(1, "results"), (2, "compacted")]
    check_request(list(provider.plain[-1].messages))


def test_an_answer_that_ran_out_of_the_window_is_asked_for_again() -> None:
    cut_off = Completed(
        blocks=(Text("half"),),
        stop_reason="length",
        raw_stop_reason="model_context_window_exceeded",
        usage=Usage(3_990, 10),
    )
    model, journal = Chunks([done("one")], [cut_off], [done("SUMMARY")], [done("whole")]), FakeJournal()

    async def main() -> ls.RunResult:
        session = session_of(model, journal=journal)
        await session.run("first")
        return await session.run("second")

    result = go(main())
    assert (result.status, result.final_text) == ("completed", "whole")
    assert [(e.kind, e.next, e.usage) for e in journal.of(ev.ModelFailed)] == [
        ("CONTEXT_FULL", "compact", Usage(3_990, 10))
    ]
    assert "half" not in str(result.messages)


def test_a_second_overflow_without_an_answer_between_ends_the_run() -> None:
    provider, journal = Provider(30, base=3_200), FakeJournal()
    provider.summary = "S" * 4_000  # of no help

    async def main() -> ls.RunResult:
        return await session_of(provider, [look], journal=journal).run("go")

    result = go(main())
    assert result.status == "failed"
    assert result.error is not None
    assert result.error.kind == "CONTEXT_FULL"
    assert "4000 maximum" in result.error.message
    assert len(provider.summaries) <= 2


def test_b47_what_no_compaction_can_help_is_not_compacted_again_and_again() -> None:
    """The fixed part alone is over the threshold: nothing to gain until there is something to cut."""
    provider, journal = Provider(40, base=3_300), FakeJournal()

    async def main() -> ls.RunResult:
        return await session_of(provider, [look], journal=journal, limits=LIMITS).run("go")

    result = go(main())
    assert result.status == "failed"
    assert result.error is not None
    assert result.error.kind == "CONTEXT_FULL"
    assert "about 32" in result.error.message, "it says what fills the context"
    assert len(provider.summaries) <= 2


def test_nothing_to_cut_is_a_plain_failure() -> None:
    provider, journal = Provider(1), FakeJournal()

    async def main() -> ls.RunResult:
        return await session_of(provider, [look], journal=journal).run("x" * 30_000)

    result = go(main())
    assert result.error is not None
    assert result.error.kind == "CONTEXT_FULL"
    assert provider.summaries == []


def test_one_result_larger_than_the_window_is_summarised_in_part() -> None:
    @ls.tool(effect="read")
    async def huge() -> str:
        return "begin " + "y" * 40_000 + " end"

    provider, journal = Provider(1), FakeJournal()
    provider.make = lambda n: call("huge")

    async def main() -> ls.RunResult:
        return await session_of(provider, [huge], journal=journal, limits=LIMITS).run("go")

    result = go(main())
    assert result.status == "completed"
    (shown,) = provider.summaries
    assert "begin" in shown.messages[0].text
    assert " end" in shown.messages[0].text
    assert len(shown.messages[0].text) < 6_000


@pytest.mark.parametrize(
    ("summary", "kind"),
    [
        (raises(ModelError("server", "500")), "MODEL_SERVER"),
        (raises(RuntimeError("boom")), "MODEL_ERROR"),
        (Completed(blocks=(), stop_reason="stop", usage=Usage(7, 0)), "EMPTY_RESPONSE"),
        (Completed(blocks=(ToolCall("x", "look"),), stop_reason="tool_calls", usage=Usage(7, 0)), "EMPTY_RESPONSE"),
        (Completed(blocks=(Text("no"),), stop_reason="refused", usage=Usage(7, 0)), "EMPTY_RESPONSE"),
        (Completed(blocks=(Text("x"),), stop_reason="nonsense", usage=Usage(7, 0)), "MODEL_PROTOCOL_ERROR"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("overflow", [False, True])
def test_a_summary_that_does_not_come(summary: Any, kind: str, overflow: bool) -> None:
    """Before the window is full the run goes on without it; where the request did not fit, it cannot."""
    provider, journal = Provider(20, window=8_000, summary=summary), FakeJournal()
    provider.window = 4_000 if overflow else 8_000
    limits = ls.Limits() if overflow else LIMITS

    async def main() -> ls.RunResult:
        return await session_of(provider, [look], journal=journal, limits=limits).run("go")

    result = go(main())
    failed = [event for event in journal.of(ev.ModelFailed) if event.request_id.startswith("compact")]
    assert {event.kind for event in failed} == {kind}
    assert failed[-1].next == ("give_up" if overflow else "go_on")
    assert len(failed) <= 5
    if overflow:
        assert result.error is not None
        assert result.error.kind == kind
    else:
        assert result.status == "completed"
    counted = sum((e.usage for e in [*journal.of(ev.MessageCompleted), *journal.of(ev.ModelFailed)]), Usage())
    assert result.usage == counted


def test_a_summary_cut_by_the_output_limit_counts_as_far_as_it_came() -> None:
    said = Completed(blocks=(Text("the beginning"), ToolCall("x", "look")), stop_reason="length", usage=Usage(7, 2))
    provider, journal = Provider(20, summary=said), FakeJournal()

    async def main() -> ls.RunResult:
        return await session_of(provider, [look], journal=journal, limits=LIMITS).run("go")

    assert go(main()).status == "completed"
    assert journal.of(ev.ContextCompacted)[0].message.blocks[-1] == Text("the beginning")


def test_a_summary_that_does_not_fit_is_asked_for_with_less_once() -> None:
    """The model that writes it takes less than the one that works."""

    async def main(window: int) -> tuple[ls.RunResult, Provider]:
        other = Provider(0, window=window)
        agent = ls.Agent(Provider(40), [look], limits=LIMITS, summarizer=other, journal=FakeJournal())
        return await agent.run("go"), other

    result, other = go(main(1_000))
    assert result.status == "completed"
    assert [request.attempt for request in other.requests[:3]] == [1, 2, 1]
    sizes = [sum(map(estimate, request.messages)) for request in other.requests]
    assert sizes[1] < sizes[0] / 2
    result, other = go(main(100))
    assert result.error is not None
    assert result.error.kind == "CONTEXT_FULL"
    assert len(other.requests) <= 8, "two a try"


def test_a_budget_counts_summaries() -> None:
    provider = Provider(60)
    limits = msgspec.structs.replace(LIMITS, max_tokens=60_000)

    async def main() -> ls.RunResult:
        return await session_of(provider, [look], limits=limits).run("go")

    result = go(main())
    assert result.status == "budget"
    assert result.usage.total == sum(request_size(request) + 10 for request in provider.requests)


def request_size(request: Request) -> int:
    return sum(map(estimate, request.messages)) + len(request.system) // 4


def test_another_model_may_write_the_summaries() -> None:
    provider, other, journal = Provider(20), Provider(0, summary="BY THE OTHER"), FakeJournal()
    other.name = "fake:other"

    async def main() -> ls.RunResult:
        agent = ls.Agent(provider, [look], limits=LIMITS, summarizer=other, journal=journal)
        return await agent.run("go")

    assert go(main()).status == "completed"
    assert not provider.summaries
    compacted = journal.of(ev.ContextCompacted)
    assert {event.model for event in compacted} == {"fake:other"}
    assert "BY THE OTHER" in str(provider.plain[-1].messages[0])


# -- asked for ------------------------------------------------------------------------------------------------


def test_asked_for_between_two_runs() -> None:
    provider, journal = Provider(3), FakeJournal()

    async def main() -> tuple[Any, ls.RunResult]:
        session = session_of(provider, [look], journal=journal)
        with pytest.raises(SessionError, match="nothing to compact"):
            await session.compact()
        await session.run("look twice")
        compacted = await session.compact("the second look")
        return compacted, await session.run("and now?")

    compacted, result = go(main())
    assert isinstance(compacted, ev.ContextCompacted)
    assert (compacted.because, result.status) == ("asked", "completed")
    assert "the second look" in provider.summaries[0].messages[0].text
    requested = journal.of(ev.CompactRequested)
    assert [event.focus for event in requested] == ["the second look"]
    last = list(provider.plain[-1].messages)
    check_request(last)
    assert "SUMMARY" in str(last[0])
    assert last[-1].text == "and now?"
    assert "look twice" in str(last[0])


def test_asked_for_during_a_run_it_is_taken_at_the_next_boundary() -> None:
    provider, journal = Provider(4), FakeJournal()
    session = session_of(provider, [look], journal=journal)

    async def main() -> ls.RunResult:
        async with session.stream("go") as run:
            async for event in run:
                if isinstance(event, ev.ToolStarted) and event.call_id == "c3":
                    assert await session.compact("x") is None
                    assert journal.synced == journal.head, "on disk before it is acknowledged"
            return await run.result()

    assert go(main()).status == "completed"
    types = journal.types()
    asked = types.index("compact.requested")
    after = [kind for kind in types[asked:] if not kind.startswith("tool.")]
    assert after[1:4] == ["model.requested", "context.compacted", "session.snapshot"]
    assert stable(provider.plain) == 1


def test_asked_for_while_the_last_answer_comes_it_is_done_before_the_ending() -> None:
    provider, journal = Provider(2), FakeJournal()
    session = session_of(provider, [look], journal=journal)

    async def main() -> None:
        async with session.stream("go") as run:
            async for event in run:
                if isinstance(event, ev.ModelRequested) and event.request_id == "request-003":
                    await session.compact()

    go(main())
    types = journal.types()
    assert types.index("context.compacted") < types.index("run.finished")
    assert types[-1] == "run.finished"


def test_a_wish_that_no_run_took_is_taken_by_the_next() -> None:
    provider, journal = Provider(3), FakeJournal()

    async def main() -> str:
        session = session_of(provider, [look], journal=journal)
        await session.run("go")
        session.record(ev.CompactRequested(focus="x"))  # and the process dies
        again = session_of(provider, [look], journal=cut(journal, len(journal.events)))
        await again.run("and?")
        return " ".join(again.journal.types())  # type: ignore[attr-defined]

    assert go(main()).count("context.compacted") == 1


def test_an_idle_compaction_that_fails_says_why_and_leaves_the_session_as_it_was() -> None:
    provider = Provider(3, summary=raises(ModelError("auth", "no key")))

    async def main() -> ls.RunResult:
        session = session_of(provider, [look])
        before = len((await session.run("go")).messages)
        with pytest.raises(LatchstepError, match="no key"):
            await session.compact()
        assert len(session.state.transcript) == before
        return await session.run("and?")

    assert go(main()).status == "completed"
    assert len(provider.summaries) == 1, "it is not tried again by itself"


def test_closing_waits_for_an_idle_compaction_and_cancels_it() -> None:
    provider, journal = Provider(3, summary=forever), FakeJournal()

    async def main() -> None:
        session = session_of(provider, [look], journal=journal)
        await session.run("go")
        task = asyncio.create_task(session.compact("x"))
        await until(lambda: provider.summaries)
        await session.close()
        assert await task is None, "cancelled, not broken"
        assert journal.closed
        assert session.state.fill.focus is None, "and not taken by the next run"

    go(main())
    assert journal.of(ev.CancelRequested)[-1].reason == "the session was closed"


@pytest.mark.parametrize("summary", ["SUMMARY", ""])
def test_a_wish_that_comes_while_a_summary_is_under_way_is_taken_at_the_next_boundary(summary: str) -> None:
    provider, journal = Provider(20), FakeJournal()
    session = session_of(provider, [look], journal=journal, limits=LIMITS)

    async def slow() -> str:
        if len(provider.summaries) == 1:
            await session.compact("the fourth look")
            await session.compact("the fifth look")
        return summary if len(provider.summaries) == 1 else "SUMMARY"

    provider.summary = slow

    async def main() -> None:
        assert (await session.run("go")).status == "completed"

    go(main())
    first, second, *others = [request.messages[0].text for request in provider.summaries]
    assert "the person: the fifth look" in second
    assert "the person: " not in first + "".join(others)
    assert session.state.fill.focus is None
    assert fold(journal.events) == session.state


def test_a_wish_that_comes_before_a_summary_is_asked_for_with_less_is_taken_with_it() -> None:
    provider = Provider(20)
    session = session_of(provider, [look], limits=LIMITS)

    async def slow() -> str:
        if len(provider.summaries) == 1:
            await session.compact("the fourth look")
            raise ModelError("context_overflow", "too long")
        return "SUMMARY"

    provider.summary = slow

    async def main() -> None:
        assert (await session.run("go")).status == "completed"

    go(main())
    assert ["the person: the fourth look" in r.messages[0].text for r in provider.summaries] == [False, True]


def test_two_at_once_are_refused() -> None:
    provider = Provider(3, summary=forever)

    async def main() -> None:
        session = session_of(provider, [look])
        await session.run("go")
        task = asyncio.create_task(session.compact())
        await until(lambda: provider.summaries)
        for other in (session.compact, lambda: session.run("x")):
            with pytest.raises(SessionError, match="under way"):
                await other()  # type: ignore[operator]
        session.cancel()
        assert await task is None
        provider.summary = "SUMMARY"
        assert (await session.run("x")).status == "completed"
        assert await session.compact() is not None

    go(main())


# -- cancelled, killed, played back ---------------------------------------------------------------------------


def test_a_cancel_during_a_compaction_ends_the_run_at_once_and_changes_nothing() -> None:
    provider, journal = Provider(30, summary=forever), FakeJournal()

    async def main() -> tuple[ls.RunResult, ls.RunResult]:
        session = session_of(provider, [look], journal=journal, limits=LIMITS)
        async with session.stream("go") as run:
            await until(lambda: provider.summaries)
            said = await run.steer("by the way")
            run.cancel("enough")
            first = await run.result()
        assert not journal.of(ev.ContextCompacted)
        assert [queued.message_id for queued in session.state.queue] == [said]
        provider.summary = "SUMMARY"
        return first, await session.run("and now?")

    first, second = go(main())
    assert (first.status, second.status) == ("cancelled", "completed")
    assert [request.request_id for request in provider.summaries[:2]] == ["compact-001", "compact-002"]
    assert "by the way" in str([m.text for m in provider.plain[-1].messages])


def test_cancelling_the_caller_of_an_idle_compaction_cancels_it() -> None:
    provider, journal = Provider(3, summary=forever), FakeJournal()

    async def main() -> None:
        session = session_of(provider, [look], journal=journal)
        await session.run("go")
        task = asyncio.create_task(session.compact())
        await until(lambda: provider.summaries)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert session.state.fill.focus is None
        assert (await session.run("x")).status == "completed"

    go(main())
    assert len(provider.summaries) == 1


def test_what_is_said_during_a_compaction_is_delivered_after_it() -> None:
    provider, journal = Provider(20), FakeJournal()
    let_go = asyncio.Event()

    async def slow() -> str:
        await let_go.wait()
        return "SUMMARY"

    provider.summary = slow

    async def main() -> ls.RunResult:
        session = session_of(provider, [look], journal=journal, limits=LIMITS)
        async with session.stream("go") as run:
            await until(lambda: provider.summaries)
            await run.steer("and this")
            let_go.set()
            return await run.result()

    assert go(main()).status == "completed"
    next_request = provider.requests[provider.requests.index(provider.summaries[0]) + 1]
    assert next_request.messages[-1].text == "and this"


def test_killed_at_any_record_and_resumed() -> None:
    recorded = FakeJournal()

    async def whole() -> None:
        await session_of(Provider(25), [look], journal=recorded, limits=LIMITS).run("go")

    go(whole())
    assert len(recorded.of(ev.ContextCompacted)) > 1
    for length in range(4, len(recorded.events)):
        journal = cut(recorded, length)
        provider = Provider(25)
        provider.said = len(journal.of(ev.MessageCompleted))

        async def resumed(journal: FakeJournal = journal, provider: Provider = provider) -> None:
            session = session_of(provider, [look], journal=journal, limits=LIMITS)
            if session.unfinished:
                assert (await session.resume()).status == "completed"

        go(resumed())
        assert stable(provider.plain) <= len(provider.summaries)
        assert len(journal.of(ev.ContextCompacted)) == len(recorded.of(ev.ContextCompacted))
        assert journal.types().count("run.finished") == 1


def test_a_resume_needs_only_what_follows_the_last_compaction() -> None:
    provider, journal = Provider(30), FakeJournal()

    async def main() -> Session:
        session = session_of(provider, [look], journal=journal, limits=LIMITS)
        await session.run("go")
        return session

    session = go(main())
    snapshot = journal.of(ev.SessionSnapshot)[-1]
    assert snapshot.whole
    assert snapshot.needed == snapshot.seq > 50
    tail = FakeJournal(journal.events[:1])
    tail.live = lambda: iter(journal.events[snapshot.needed :])  # type: ignore[method-assign]
    assert restored(tail) == session.state


IGNORED = ("time", "elapsed", "run_id", "duration", "pid", "host", "state")


def test_a_recording_with_compactions_plays_back() -> None:
    def record(model: Any) -> list[Any]:
        journal = FakeJournal()

        async def main() -> None:
            session = session_of(model, [look], journal=journal, limits=LIMITS, new_id=lambda: "id")
            await session.run("go")
            await session.compact("x")
            await session.run("more")

        go(main())
        kept.append(journal)
        return [
            {key: value for key, value in msgspec.json.decode(encode_event(event)).items() if key not in IGNORED}
            for event in journal.events
        ]

    kept: list[FakeJournal] = []
    provider = Provider(40)
    provider.summary = iter([done(""), *(done(f"SUMMARY {n}", usage=Usage(9, 9)) for n in range(99))]).__next__
    before = record(provider)
    assert len(kept[0].of(ev.ContextCompacted)) > 2
    assert record(ls.Cassette(kept[0].events)) == before


def test_keys_and_ids_of_calls_stay_distinct_when_the_provider_uses_them_again() -> None:
    """What was summarised no longer says which ids are taken; an effect must not be taken for an earlier one."""
    provider, journal = Provider(40), FakeJournal()
    provider.make = lambda n: call("touch", f"c{n % 7}", n=n) if n % 2 else call("look", f"c{n % 7}", n=n)

    async def main() -> ls.RunResult:
        return await session_of(provider, [look, touch], journal=journal, limits=LIMITS).run("go")

    assert go(main()).status == "completed"
    assert len(journal.of(ev.ContextCompacted)) > 1
    started = journal.of(ev.ToolStarted)
    assert len({event.call_id for event in started}) < len(started) == 40
    assert len({event.idempotency_key for event in started}) == 40
    assert stable(provider.plain) == len(journal.of(ev.ContextCompacted))


def test_a_summary_is_summarised_with_the_rest_and_the_persons_words_stay() -> None:
    provider, journal = Provider(0), FakeJournal()
    number = iter(range(99))
    provider.summary = lambda: f"SUMMARY {next(number)}"

    async def main() -> None:
        session = session_of(provider, [look], journal=journal)
        for prompt in ("first wish", "second wish", "third wish"):
            await session.run(prompt)
            await session.compact()
        await settled()

    go(main())
    assert "SUMMARY 0" in provider.summaries[1].messages[0].text
    last: Message = journal.of(ev.ContextCompacted)[-1].message
    texts = [block.text for block in last.blocks if isinstance(block, Text)]
    assert texts[1:] == [
        "<person>\nfirst wish\n</person>",
        "<person>\nsecond wish\n</person>",
        "SUMMARY 2",
    ], "and the third is still there itself"


def test_nothing_that_is_kept_grows_with_the_history() -> None:
    provider, journal = Provider(600), FakeJournal()
    session = session_of(provider, [look], journal=journal, limits=LIMITS)
    kept: list[dict[str, int]] = []

    async def main() -> None:
        async with session.stream("go") as run:
            async for event in run:
                if isinstance(event, ev.ContextCompacted):
                    state = session.state
                    kept.append(
                        {
                            "transcript": len(state.transcript),
                            "ids": len(state.ids),
                            "state": len(state.snapshot()),
                            "projected": len(session.projection.messages),
                            "calls": len(session.kit._valid),
                            "shown": max(len(request.messages) for request in provider.requests[-40:]),
                            "asked": max(map(request_size, provider.summaries)),
                        }
                    )
                    del provider.requests[:-50]

    go(main())
    assert len(kept) > 40
    for name, first in kept[3].items():
        assert kept[-1][name] <= first * 1.1, name


class Slow(FakeJournal):
    """A disk that takes a while."""

    async def sync(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        await super().sync()


def test_a_snapshot_undoes_nothing_that_was_said_while_it_waited_for_the_disk() -> None:
    provider, journal = Provider(20), Slow()
    session = session_of(provider, [look], journal=journal, limits=LIMITS)

    async def main() -> None:
        async with session.stream("go") as run:

            async def talk() -> None:
                for n in range(5):  # each is recorded at once when the sync of the one before it has ended
                    await run.steer(f"word {n}")

            talking = None
            async for event in run:
                if isinstance(event, ev.ContextCompacted) and talking is None:
                    talking = asyncio.create_task(talk())
                    await until(lambda: session.barrier.under_way)
            assert talking is not None
            await talking

    go(main())
    snapshot = journal.of(ev.SessionSnapshot)[0]
    assert snapshot.needed == snapshot.seq
    heard = str([message.text for request in provider.requests for message in request.messages])
    assert all(f"word {n}" in heard for n in range(5))
    tail = FakeJournal(journal.events[:1])
    tail.live = lambda: iter(journal.events[snapshot.seq :])  # type: ignore[method-assign]
    assert restored(tail) == session.state


def test_a_failure_that_comes_together_with_a_cancel_is_no_broken_promise() -> None:
    provider = Provider(30)
    session = session_of(provider, [look], limits=LIMITS)

    def fail() -> str:
        asyncio.get_running_loop().call_soon(session.cancel, "just now")
        raise ModelError("server", "500")

    provider.summary = fail

    async def main() -> ls.RunResult:
        return await session.run("go")

    assert go(main()).status == "cancelled"
