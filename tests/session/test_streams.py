"""Law 5: a tool runs only after a whole, valid answer. Whatever else a model does ends in one typed failure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Completed, Delta, Failed
from latchstep.core.codec import encode_event
from latchstep.core.message import Provider, Text, Thinking, ToolCall, ToolResult, Usage
from latchstep.errors import ModelError

from .fakes import Chunks, FakeJournal, call, calling, check_requests, done, forever, go, results, session_of, text


def counting(ran: list[Any]) -> ls.Tool:
    @ls.tool
    def count(n: int = 0) -> str:
        ran.append(n)
        return f"counted {n}"

    return count


def run(model: Any, *, tools: Any = (), **more: Any) -> tuple[ls.RunResult, FakeJournal]:
    async def main() -> tuple[ls.RunResult, FakeJournal]:
        journal = FakeJournal()
        return await session_of(model, tools, journal=journal, **more).run("go"), journal

    return go(main())


class Strange(Exception):
    def __str__(self) -> str:
        raise RuntimeError("and that, too")


ONE = call("count", n=1)
FAILING: list[tuple[list[Any], str]] = [
    ([], "MODEL_PROTOCOL_ERROR"),
    ([text("half an ans")], "MODEL_PROTOCOL_ERROR"),
    ([calling(ONE), calling(ONE)], "MODEL_PROTOCOL_ERROR"),
    ([calling(ONE), text("more")], "MODEL_PROTOCOL_ERROR"),
    ([calling(ONE), Failed(kind="server", message="x", retry_in=0.0)], "MODEL_PROTOCOL_ERROR"),
    ([calling(ONE), ModelError("network", "reset")], "MODEL_NETWORK"),
    ([calling(ONE), RuntimeError("boom")], "MODEL_ERROR"),
    ([None], "MODEL_PROTOCOL_ERROR"),
    (["text"], "MODEL_PROTOCOL_ERROR"),
    ([{"type": "completed"}], "MODEL_PROTOCOL_ERROR"),
    ([text("a"), 7, calling(ONE)], "MODEL_PROTOCOL_ERROR"),
    ([text(None)], "MODEL_ERROR"),  # type: ignore[arg-type]
    ([Completed(blocks=(ONE,), stop_reason="banana")], "MODEL_PROTOCOL_ERROR"),  # type: ignore[arg-type]
    ([Completed(blocks=(ONE,), stop_reason=["tool_calls"])], "MODEL_PROTOCOL_ERROR"),  # type: ignore[arg-type]
    ([Completed(blocks=None, stop_reason="stop")], "MODEL_PROTOCOL_ERROR"),  # type: ignore[arg-type]
    ([Completed(blocks=("x",), stop_reason="stop")], "MODEL_PROTOCOL_ERROR"),  # type: ignore[arg-type]
    ([Completed(blocks=(Text(None),), stop_reason="stop")], "MODEL_PROTOCOL_ERROR"),  # type: ignore[arg-type]
    ([Completed(blocks=(ONE,), stop_reason="stop", usage=None)], "MODEL_PROTOCOL_ERROR"),  # type: ignore[arg-type]
    ([Completed(blocks=(ONE, ToolResult("x", "y", "z")), stop_reason="tool_calls")], "MODEL_PROTOCOL_ERROR"),
    ([Completed(blocks=(ONE, Provider("k", {"x": float("nan")})), stop_reason="stop")], "MODEL_PROTOCOL_ERROR"),
    ([ModelError("context_overflow", "too long")], "CONTEXT_FULL"),
    ([ModelError("auth", "no key")], "MODEL_AUTH"),
    ([ModelError("filtered", "no")], "FILTERED"),
    ([ValueError()], "MODEL_ERROR"),
    ([Strange()], "MODEL_ERROR"),
    ([asyncio.CancelledError()], "MODEL_ERROR"),
    ([SystemExit(3)], "MODEL_ERROR"),
    ([KeyboardInterrupt()], "MODEL_ERROR"),
    ([StopIteration()], "MODEL_ERROR"),
    ([TimeoutError()], "MODEL_ERROR"),
    ([ls.JournalError("not ours")], "JOURNAL"),
]


@pytest.mark.parametrize(("answer", "kind"), FAILING, ids=[f"{n}-{kind}" for n, (_, kind) in enumerate(FAILING)])
def test_a_stream_that_is_no_answer_runs_nothing_and_fails_the_run(answer: list[Any], kind: str) -> None:
    ran: list[Any] = []
    model = Chunks(answer)
    result, journal = run(model, tools=[counting(ran)])
    assert result.status == "failed"
    assert result.error is not None
    assert result.error.kind == kind
    assert result.error.message.strip()
    assert ran == []
    assert not journal.of(ev.MessageCompleted)
    assert not journal.of(ev.ToolStarted)
    assert [m.role for m in result.messages] == ["user"]
    assert model.closed == 1
    assert journal.types()[-1] == "run.finished"


@pytest.mark.parametrize(("answer", "kind"), FAILING[::5])
def test_the_next_prompt_after_a_failure_is_answered(answer: list[Any], kind: str) -> None:
    async def main() -> None:
        model = Chunks(answer, [done("here")])
        session = session_of(model)
        await session.run("go")
        result = await session.run("still there?")
        assert (result.status, result.final_text) == ("completed", "here")
        check_requests(model.requests)

    go(main())


def test_deltas_of_a_failed_attempt_are_shown_and_not_stored_and_a_retry_is_whole() -> None:
    async def main() -> None:
        journal = FakeJournal()
        failed = Failed(kind="overloaded", message="busy", retry_in=0.25, usage=Usage(5, 2))
        model = Chunks([text("wro"), text("ng"), failed, text("right"), done("right", usage=Usage(7, 3))])
        async with session_of(model, journal=journal).stream("go") as run:
            events = [event async for event in run]
            result = await run.result()
        assert result.final_text == "right"
        assert result.usage == Usage(12, 5)
        assert result.cost is None
        types = [event.type for event in events]
        assert types.index("model.failed") == types.index("model.delta") + 2
        (attempt,) = journal.of(ev.ModelFailed)
        assert (attempt.attempt, attempt.next, attempt.retry_in) == (1, "retry", 0.25)
        assert [(r.attempt, r.because) for r in journal.of(ev.ModelRequested)] == [(1, "prompt"), (2, "retry")]
        assert "wro" not in str(result.messages)

    go(main())


def test_calls_that_are_no_calls_never_run() -> None:
    ran: list[Any] = []
    bad = [
        ToolCall("c1", "count", {}, flaw="the arguments were cut off"),
        ToolCall("c2", "count", {"n": "one"}),
        ToolCall("c3", "count", {"m": 1}),
        ToolCall("c4", "coumt", {"n": 1}),
        ToolCall("c5", "count", {"n": float("nan")}),
        ToolCall("c6", "count", {"n": 2**70}),
        ToolCall("c7", "count", ["n"]),  # type: ignore[arg-type]
        ToolCall("c8", "count", {"n": object()}),
        ToolCall("c9", "", {}),
    ]
    model = Chunks([calling(*bad)], [done()])
    result, journal = run(model, tools=[counting(ran)])
    assert result.status == "completed"
    assert ran == []
    assert [(r.outcome, r.is_error) for r in results(result)] == [("rejected", True)] * len(bad)
    told = {r.call_id: r.text for r in results(result)}
    assert "count" in told["c4"]
    assert all(len(said) > 20 for said in told.values())
    assert len(set(told.values())) >= 7
    assert not journal.of(ev.ToolStarted)
    check_requests(model.requests)


@pytest.mark.parametrize(
    ("stop", "status", "kind", "outcome"),
    [
        ("length", "completed", None, "truncated"),
        ("filtered", "failed", "FILTERED", "not_started"),
        ("refused", "failed", "REFUSED", "not_started"),
        ("stop", "completed", None, "ok"),
        ("paused", "completed", None, "ok"),
    ],
)
def test_what_the_stop_reason_means_for_calls(stop: Any, status: str, kind: str | None, outcome: str) -> None:
    ran: list[Any] = []
    model = Chunks([Completed(blocks=(ONE,), stop_reason=stop, usage=Usage(1, 300))], [done()])
    result, journal = run(model, tools=[counting(ran)])
    assert (result.status, result.error.kind if result.error else None) == (status, kind)
    (finished,) = journal.of(ev.ToolFinished)
    assert finished.outcome == outcome
    assert ran == ([1] if outcome == "ok" else [])
    if outcome == "truncated":
        assert "300" in str(finished.content)


@pytest.mark.parametrize(("blocks", "stop"), [((ONE,), "stop"), ((Text("calling"),), "tool_calls"), ((ONE,), "paused")])
def test_a_strict_run_fails_on_a_contradiction(blocks: Any, stop: Any) -> None:
    ran: list[Any] = []
    model = Chunks([Completed(blocks=blocks, stop_reason=stop)])
    result, _ = run(model, tools=[counting(ran)], strict_protocol=True)
    assert result.error is not None
    assert (result.error.kind, ran) == ("MODEL_PROTOCOL_ERROR", [])


@pytest.mark.parametrize("stop", ["refused", "filtered"])
def test_a_refusal_in_words_is_the_result(stop: Any) -> None:
    result, _ = run(Chunks([Completed(blocks=(Text("I will not."),), stop_reason=stop)]))
    assert (result.status, result.error.kind if result.error else "") == ("failed", stop.upper())
    assert result.final_text == "I will not."
    result, _ = run(Chunks([Completed(blocks=(), stop_reason=stop)]))
    assert (result.status, result.error.kind if result.error else "") == ("failed", stop.upper())


def test_a_text_cut_by_the_limit_fails_with_its_text_unless_it_may_go_on() -> None:
    cut = Completed(blocks=(Text("once upon"),), stop_reason="length")
    result, _ = run(Chunks([cut]))
    assert (result.status, result.final_text, result.error.kind if result.error else "") == (
        "failed",
        "once upon",
        "TRUNCATED",
    )
    model = Chunks([cut], [cut], [done(" a time")])
    result, _ = run(model, limits=ls.Limits(max_continuations=2))
    assert result.status == "completed"
    assert len(model.requests) == 3
    check_requests(model.requests)
    result, _ = run(Chunks([cut], [cut], [cut]), limits=ls.Limits(max_continuations=2))
    assert result.error is not None
    assert result.error.kind == "TRUNCATED"


def test_cut_calls_may_be_repaired_three_times() -> None:
    cut = Completed(blocks=(ONE,), stop_reason="length")
    model = Chunks([cut], [cut], [cut], [cut], [done()])
    result, _ = run(model, tools=[counting([])])
    assert (result.status, result.error.kind if result.error else "") == ("failed", "TRUNCATED")
    assert len(model.requests) == 4
    model = Chunks([cut], [cut], [cut], [done()])
    assert run(model, tools=[counting([])], limits=ls.Limits(max_repeats=9))[0].status == "completed"


def test_a_paused_answer_goes_on() -> None:
    model = Chunks([Completed(blocks=(Text("wait"),), stop_reason="paused")], [done()])
    result, journal = run(model)
    assert result.status == "completed"
    assert journal.of(ev.ModelRequested)[1].because == "paused"


@pytest.mark.parametrize("stop", ["stop", "tool_calls"])
@pytest.mark.parametrize("blocks", [(), (Text("  \n"),), (Thinking("hm"),), (Text(""), Thinking(""))])
def test_an_answer_with_nothing_in_it_is_asked_for_once_more(blocks: Any, stop: Any) -> None:
    empty = Completed(blocks=blocks, stop_reason=stop, usage=Usage(9, 2))
    model = Chunks([empty], [empty])
    result, journal = run(model)
    assert (result.status, result.error.kind if result.error else "") == ("failed", "EMPTY_RESPONSE")
    assert len(model.requests) == 2
    assert result.usage == Usage(18, 4)
    assert result.messages == (result.messages[0],)
    model = Chunks([empty], [done("better")])
    assert run(model)[0].final_text == "better"
    assert [len(request.messages) for request in model.requests] == [1, 1]
    assert [r.attempt for r in journal.of(ev.ModelRequested)] == [1, 2]


def test_surrogates_and_nul_in_an_answer_do_not_brick_the_session() -> None:
    async def main() -> None:
        nasty = "a\ud83d\0b"
        answer = Completed(
            blocks=(
                Thinking(nasty, opaque={"sig": nasty}),
                Text(nasty),
                Provider(nasty, {nasty: [nasty]}),
                ToolCall(nasty, " echo ", {"said": nasty}),
            ),
            stop_reason="tool_calls",
            raw_stop_reason=nasty,
            response_id=nasty,
        )

        @ls.tool
        def echo(said: str) -> str:
            return said

        journal = FakeJournal()
        model = Chunks([Delta("text", nasty), answer], [done()])
        async with session_of(model, [echo], journal=journal).stream("go") as run:
            async for event in run:
                encode_event(event)
            result = await run.result()
        assert result.status == "completed"
        assert results(result)[0].text == "a�␀b"

    go(main())


def test_a_silent_model_is_given_up_and_one_that_shows_life_is_not() -> None:
    async def main() -> None:
        model = Chunks([text("hm"), forever])
        result = await session_of(model, limits=ls.Limits(stream_timeout=0.05)).run("go")
        assert result.error is not None
        assert (result.error.kind, model.closed) == ("MODEL_TIMEOUT", 1)
        assert "stream_timeout" in result.error.message

        async def pause() -> None:
            await asyncio.sleep(0.03)

        lively = Chunks([*([text("."), pause] * 8), done()])
        assert (await session_of(lively, limits=ls.Limits(stream_timeout=0.2)).run("go")).status == "completed"

    go(main())


def test_a_model_that_is_no_stream_fails_the_run() -> None:
    class Broken:
        name = "fake:broken"

        def stream(self, request: Any) -> Any:
            return [done()]

    result, _ = run(Broken())
    assert result.error is not None
    assert result.error.kind == "MODEL_ERROR"


def test_provider_ids_that_repeat_or_are_illegal_become_unique_and_keep_their_origin() -> None:
    ran: list[Any] = []
    model = Chunks(
        [calling(call("count", "call_0", n=1), call("count", "call_0", n=2), call("count", "", n=3))],
        [calling(call("count", "call_0", n=4), call("count", "x" * 41, n=5), call("count", "a|b", n=6))],
        [done()],
    )
    result, journal = run(model, tools=[counting(ran)])
    assert ran == [1, 2, 3, 4, 5, 6]
    ids = [c.id for message in result.messages for c in message.calls]
    assert len(set(ids)) == 6
    assert ids[0] == "call_0"
    assert [r.call_id for r in results(result)] == ids
    renamed = journal.of(ev.MessageCompleted)[1].message.calls
    assert [c.opaque["provider_id"] for c in renamed if c.opaque] == ["call_0", "x" * 41, "a|b"]
    check_requests(model.requests)
