"""How calls run: together where they only read, alone where they write, each with a truthful result of its own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.message import Image, Text

from .fakes import Chunks, FakeJournal, call, calling, check_requests, done, forever, go, results, session_of


def run(batch: Any, tools: Any, **more: Any) -> tuple[ls.RunResult, FakeJournal]:
    async def main() -> tuple[ls.RunResult, FakeJournal]:
        journal = FakeJournal()
        return await session_of([batch, "done"], tools, journal=journal, **more).run("go"), journal

    return go(main())


def test_reads_overlap_and_results_come_in_call_order() -> None:
    async def main() -> None:
        met, order = asyncio.Event(), []

        @ls.tool(effect="read")
        async def first() -> str:
            await met.wait()
            order.append("first")
            return "1"

        @ls.tool(effect="read")
        async def second() -> str:
            met.set()
            order.append("second")
            return "2"

        result = await session_of([[call("first"), call("second")], "done"], [first, second]).run("go")
        assert order == ["second", "first"]
        assert [r.text for r in results(result)] == ["1", "2"]

    go(main())


def test_writes_never_overlap_and_alone_is_respected_and_max_parallel_too() -> None:
    async def main() -> None:
        running: set[str] = set()
        seen: list[frozenset[str]] = []

        def body(name: str) -> Any:
            async def act() -> str:
                running.add(name)
                seen.append(frozenset(running))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                running.discard(name)
                return name

            act.__name__ = name
            return act

        tools = [
            ls.tool(body("write")),
            ls.tool(effect="read")(body("a")),
            ls.tool(effect="read")(body("b")),
            ls.tool(effect="read")(body("c")),
            ls.tool(effect="read", alone=True)(body("solo")),
        ]
        batch = [call(n) for n in ("a", "b", "write", "c", "solo", "a", "b", "c", "write", "write")]
        result = await session_of([batch, "done"], tools, limits=ls.Limits(max_parallel=2)).run("go")
        assert [r.text for r in results(result)] == [c.name for c in batch]
        assert max(map(len, seen)) == 2
        assert frozenset({"a", "b"}) in seen
        for together in seen:
            assert len(together) == 1 or not together & {"write", "solo"}

    go(main())


class Base(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


RAISED = [
    RuntimeError(),
    RuntimeError("a\ud83d\0b"),
    ls.ToolError("use the other one"),
    ls.ToolError("  "),
    asyncio.CancelledError(),
    SystemExit(2),
    KeyboardInterrupt(),
    StopIteration(7),
    StopAsyncIteration(),
    GeneratorExit(),
    TimeoutError("mine"),
    Base("base"),
    Mute(),
    ExceptionGroup("many", [ValueError("x")]),
    RecursionError("deep"),
]


@pytest.mark.parametrize("style", ["async", "thread", "loop"])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_whatever_a_tool_raises_is_its_own_result(error: BaseException, style: str) -> None:
    def raising() -> str:
        raise error

    async def raising_later() -> str:
        raise error

    bad = ls.tool(name="bad", effect="read", thread=style == "thread")(raising_later if style == "async" else raising)
    good = ls.tool(name="good", effect="read")(lambda: "fine")
    result, journal = run([call("good"), call("bad"), call("good")], [good, bad])
    assert result.status == "completed"
    one, two, three = results(result)
    assert (one.text, three.text) == ("fine", "fine")
    assert (two.outcome, two.is_error) == ("error", True)
    assert two.text.strip()
    assert journal.types().count("tool.finished") == 3


def test_a_fatal_error_fails_the_run_and_the_rest_of_the_batch_is_not_started() -> None:
    @ls.tool
    async def break_it() -> str:
        raise ls.FatalToolError("the lock file is gone")

    result, journal = run([call("break_it"), call("break_it")], [break_it])
    assert (result.status, result.error.kind if result.error else "") == ("failed", "TOOL")
    assert "lock file" in (result.error.message if result.error else "")
    assert [e.outcome for e in journal.of(ev.ToolFinished)] == ["error", "not_started"]


def test_a_deadline_gives_what_was_captured_and_leaves_siblings() -> None:
    @ls.tool(effect="read", timeout=0.05)
    async def slow(context: ls.Context) -> str:
        context.captured = "line 1\n"
        await forever()
        return ""

    @ls.tool(effect="read")
    async def quick() -> str:
        return "quick"

    result, _ = run([call("slow"), call("quick")], [slow, quick])
    late, early = results(result)
    assert (late.outcome, late.is_error, early.text) == ("timed_out", True, "quick")
    assert "line 1" in late.text
    assert "0.05 s" in late.text
    assert result.status == "completed"


def test_the_runs_own_deadline_for_tools_and_a_thread_that_is_deaf_to_it() -> None:
    free = threading.Event()

    @ls.tool
    def slow() -> str:
        free.wait(30)
        return "late"

    try:
        result, _ = run([call("slow")], [slow], limits=ls.Limits(tool_timeout=0.05, grace=0.05))
    finally:
        free.set()
    (late,) = results(result)
    assert late.outcome == "timed_out"
    assert "may still be running" in late.text


def test_captured_that_is_no_text_and_is_too_long() -> None:
    @ls.tool(timeout=0.05)
    async def slow(context: ls.Context) -> str:
        context.captured = b"\xff" * 500  # type: ignore[assignment]
        await forever()
        return ""

    result, _ = run([call("slow")], [slow], limits=ls.Limits(max_result=100))
    assert "max_result is 100" in results(result)[0].text


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_a_result_is_bounded_head_and_tail(most: int) -> None:
    @ls.tool
    async def big() -> str:
        return "a" * 5000 + "z"

    result, _ = run([call("big")], [big], limits=ls.Limits(max_result=most))
    said = results(result)[0].text
    assert f"max_result is {most}" in said
    assert len(said) < most + 100
    assert str(5001 - most * 2 // 3 - most // 3) in said
    if most > 2:
        assert said.startswith("a")
        assert said.endswith("z")


def test_text_among_pictures_is_bounded_too() -> None:
    @ls.tool
    async def shots() -> ls.Output:
        return ls.Output((Text("a" * 80), Image("image/png", "QUJD"), Text("b" * 80), Text("c" * 80)))

    result, _ = run([call("shots")], [shots], limits=ls.Limits(max_result=100))
    parts = results(result)[0].content
    assert isinstance(parts, tuple)
    texts = [part.text for part in parts if isinstance(part, Text)]
    assert texts[0] == "a" * 80
    assert texts[1].startswith("b" * 13 + "\n[… 61 characters left out (max_result is 100)")
    assert texts[1].endswith("…]\n" + "b" * 6)
    assert sum(map(len, texts)) < 100 + 160
    assert any(isinstance(part, Image) for part in parts)


def test_what_cannot_be_shown_is_an_error_of_that_call() -> None:
    @ls.tool
    async def odd() -> object:
        return object()

    result, _ = run([call("odd")], [odd])
    assert results(result)[0].outcome == "error"


def test_a_synchronous_tool_that_gives_a_coroutine_is_awaited() -> None:
    async def later() -> str:
        return "later"

    for thread in (True, False):
        tool = ls.tool(name="late", thread=thread)(lambda: later())  # noqa: PLW0108
        assert results(run([call("late")], [tool])[0])[0].text == "later"


def test_a_tool_cannot_change_what_is_on_record() -> None:
    @ls.tool
    async def greedy(items: list[int], more: dict[str, Any]) -> str:
        items.append(9)
        more["x"] = 9
        return "ok"

    model = Chunks([calling(call("greedy", items=[1], more={}))], [done()])
    result = go(session_of(model, [greedy]).run("go"))
    assert result.messages[1].calls[0].arguments == {"items": [1], "more": {}}
    check_requests(model.requests)


def test_sessions_that_share_an_agent_and_call_ids_keep_their_own_arguments() -> None:
    """Providers number calls anew in each answer; two sessions of one agent easily have the same id open."""

    async def main() -> None:
        meet = asyncio.Barrier(2)
        got: list[str] = []

        @ls.tool
        async def note(text: str) -> str:
            got.append(text)
            return text

        def answer(request: Any) -> Any:
            return call("note", "call_0", text=request.messages[0].text)

        async def approve(question: ev.Question) -> bool:
            await meet.wait()
            return True

        agent = ls.Agent(
            ls.ScriptedModel([answer, "done"]),
            [note],
            policy=lambda call, traits: ls.Verdict("ask", "?"),
            approve=approve,
        )
        both = await asyncio.gather(agent.run("one"), agent.run("two"))
        assert sorted(got) == ["one", "two"]
        assert [results(r)[0].text for r in both] == ["one", "two"]

    go(main())


def test_threads_get_the_context_variables_and_progress() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")

    @ls.tool
    def tell(context: ls.Context) -> str:
        context.progress("working")
        return f"{who.get()} {threading.current_thread().daemon} {context.call_id} {context.idempotency_key}"

    async def main() -> None:
        who.set("me")
        journal = FakeJournal()
        async with session_of([call("tell", "c1"), "done"], [tell], journal=journal).stream("go") as run:
            events = [event async for event in run]
            result = await run.result()
        assert results(result)[0].text == "me True c1 20260101-000000-abcdef:1:c1"
        assert [e.text for e in events if isinstance(e, ev.ToolOutput)] == ["working"]

    go(main())


# -- prepare ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        ({"diff": "+x"}, "ok"),
        ({1: "x"}, "ok"),
        ("a\ud83d", "ok"),
        (object(), "error"),
        (float("nan"), "error"),
        (2**70, "error"),
        (RuntimeError("cannot look"), "error"),
        (ls.ToolError("no such file"), "error"),
    ],
)
@pytest.mark.parametrize("asked", [False, True])
def test_what_prepare_finds_is_recorded_or_the_call_ends_unstarted(found: Any, outcome: str, asked: bool) -> None:
    ran: list[Any] = []

    def prepare(arguments: dict[str, Any], context: ls.Context) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    @ls.tool(prepare=prepare)
    async def act(context: ls.Context) -> str:
        ran.append(context.found)
        return "ok"

    @ls.tool
    async def other() -> str:
        return "fine"

    more: dict[str, Any] = {}
    if asked:
        more = {"policy": lambda call, traits: ls.Verdict("ask", "?"), "approve": lambda question: True}
    result, journal = run([call("act"), call("other")], [act, other], **more)
    assert result.status == "completed"
    first, second = results(result)
    assert (first.outcome, second.outcome) == (outcome, "ok")
    assert len(ran) == (outcome == "ok")
    started = [e for e in journal.of(ev.ToolStarted) if e.name == "act"]
    assert len(started) == (outcome == "ok")
    if started:
        assert ran == [started[0].found]


def test_prepare_has_a_deadline() -> None:
    async def prepare(arguments: dict[str, Any], context: ls.Context) -> Any:
        await forever()

    @ls.tool(prepare=prepare, timeout=0.05)
    async def act() -> str:
        return "no"

    result, journal = run([call("act")], [act])
    assert (results(result)[0].outcome, journal.of(ev.ToolStarted)) == ("error", [])


def test_a_thousand_runs_at_once() -> None:
    async def main() -> None:
        @ls.tool(effect="read")
        async def step(n: int) -> str:
            await asyncio.sleep(0)
            return str(n)

        agent = ls.Agent(ls.ScriptedModel([*(call("step", n=n) for n in range(3)), "done"]), [step])
        finished = await asyncio.gather(*(agent.run(f"run {n}") for n in range(1000)))
        assert {r.status for r in finished} == {"completed"}
        assert [r.messages[0].text for r in finished] == [f"run {n}" for n in range(1000)]
        assert {tuple(x.text for x in results(r)) for r in finished} == {("0", "1", "2")}
        assert len({r.run_id for r in finished}) == 1000

    go(main())
