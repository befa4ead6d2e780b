"""Cases distilled from public bug reports about agent loops, each under its number: what the loop has to get right."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.codec import encode_event
from latchstep.core.message import Message, Text, ToolCall, ToolResult, tool_message, user
from latchstep.core.project import Projection
from tests.crash.simulate import check_request
from tests.session.fakes import (
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
    settled,
    text,
    until,
)


class Meter:
    """The fake tools of the cases; `count` is the side effect that is measured."""

    def __init__(self) -> None:
        self.counted = 0

        @ls.tool
        async def count(n: int = 0) -> str:
            self.counted += 1
            return "counted"

        @ls.tool(effect="read")
        async def echo(text: str) -> str:
            return text

        @ls.tool
        async def slow(s: float = 0) -> str:
            await (asyncio.sleep(s) if s < 1 else forever())
            return "slept"

        @ls.tool(effect="read")
        async def fail() -> str:
            raise RuntimeError

        self.tools = [count, echo, slow, fail]


def run(model: Any, *, meter: Meter | None = None, **more: Any) -> tuple[ls.RunResult, FakeJournal]:
    async def main() -> tuple[ls.RunResult, FakeJournal]:
        journal = FakeJournal()
        return await session_of(model, (meter or Meter()).tools, journal=journal, **more).run("go"), journal

    return go(main())


def history(rows: list[dict[str, Any]]) -> list[Message]:
    """The neutral form of the cases."""
    messages = []
    for row in rows:
        if row["role"] == "tool":
            messages.append(Message("tool", (ToolResult(row["id"], "tool", row["text"]),)))
        elif "text" in row:
            messages.append(Message(row["role"], (Text(row["text"]),)))
        else:
            blocks = [
                ToolCall(b["id"], b["name"], b["args"]) if b["type"] == "call" else Text(b["text"])
                for b in row["blocks"]
            ]
            messages.append(Message(row["role"], tuple(blocks)))
    return messages


def project(messages: list[Message]) -> list[Message]:
    sent = list(Projection().feed(messages))
    check_request(sent)
    again = list(Projection().feed(sent))
    assert again == sent, "a repaired history needs no repair"
    return sent


# -- results and their calls ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_b01_an_interrupt_leaves_no_call_without_a_result(how: str) -> None:
    async def main() -> None:
        meter, journal = Meter(), FakeJournal()
        answer = calling(call("slow", "toolu_01", s=30), call("count", "toolu_02"))
        session = session_of(Chunks([answer]), meter.tools, journal=journal)
        run = session.stream("go").start()
        await until(lambda: "tool.started" in journal.types())
        await settled()
        killed = cut(journal, len(journal.events))
        run.cancel()
        await run
        again = Chunks([done("on it")])
        if how == "cancel":
            session.kit.model = again
            stored = [encode_event(e) for e in journal.events]
            result = await session.run("continue")
            assert [encode_event(e) for e in journal.events[: len(stored)]] == stored
        else:
            result = await session_of(again, meter.tools, journal=killed).run("continue")
        assert (result.status, meter.counted) == ("completed", 0 if how == "cancel" else 1)
        check_requests(again.requests)
        first, second = results(result)
        assert first.outcome == "interrupted"
        assert second.outcome == ("not_started" if how == "cancel" else "ok")

    go(main())


def test_b02_interrupted_is_not_reported_as_never_ran(tmp_path: Path) -> None:
    async def main() -> None:
        out = tmp_path / "out"

        @ls.tool
        async def halfway(context: ls.Context) -> str:
            out.write_text("half")
            context.captured = "wrote half"
            try:
                await forever()
            except asyncio.CancelledError:
                return "nothing happened"
            return ""

        journal = FakeJournal()
        model = Chunks([calling(call("halfway"))])
        session = session_of(model, [halfway], journal=journal)
        run = session.stream("go").start()
        await until(out.exists)
        run.cancel()
        await run
        (finished,) = journal.of(ev.ToolFinished)
        assert (finished.outcome, out.read_text()) == ("interrupted", "half")
        said = str(finished.content)
        assert "wrote half" in said
        assert "nothing happened" not in said
        assert "no effect" not in said

    go(main())


def test_b02_each_outcome_has_words_of_its_own() -> None:
    from latchstep.core import wording

    words = [
        wording.denied("no"),
        wording.not_started("x"),
        wording.interrupted("x"),
        wording.timed_out(3),
        wording.truncated(300),
        wording.lost(),
    ]
    assert len({said.split(" ", 2)[1] + said[:4] for said in words[:5]}) == 5
    assert all("no effect" not in said for said in (words[2], words[3], words[5]))


def test_b04_text_after_a_call() -> None:
    rows = [
        {"role": "user", "text": "go"},
        {
            "role": "assistant",
            "blocks": [
                {"type": "text", "text": "a"},
                {"type": "call", "id": "c1", "name": "echo", "args": {"text": "x"}},
                {"type": "text", "text": "b"},
            ],
        },
        {"role": "tool", "id": "c1", "text": "x"},
    ]
    sent = project(history(rows))
    assert [m.role for m in sent] == ["user", "assistant", "tool"]
    assert sent[1] == history(rows)[1]  # as received; a wire that minds reorders on its way out


def test_b05_steering_lands_after_the_batch() -> None:
    for moment in ("model.delta", "tool.started", "tool.finished"):

        async def main(moment: str = moment) -> None:
            meter = Meter()
            model = Chunks([text("hm"), calling(call("count"), call("count"))], [done()])
            async with session_of(model, meter.tools).stream("go") as run:
                steered = False
                async for event in run:
                    if event.type == moment and not steered:
                        steered = True
                        await run.steer("use B instead")
                await run.result()
            check_requests(model.requests)
            assert [m.role for m in model.requests[1].messages] == ["user", "assistant", "tool", "tool", "user"]
            assert [m.text for m in model.requests[1].messages].count("use B instead") == 1
            assert meter.counted == 2

        go(main())


SLOW_FAIL_ECHO = [call("slow", "c1", s=0.01), call("fail", "c2"), call("echo", "c3", text="z")]


def test_b06_results_keep_ids_order_and_words() -> None:
    model = Chunks([calling(*SLOW_FAIL_ECHO)], [done()])
    result, _ = run(model)
    check_requests(model.requests)
    assert [(r.call_id, r.text) for r in results(result)] == [("c1", "slept"), ("c2", "RuntimeError"), ("c3", "z")]


def test_b07_one_failing_call_leaves_the_others() -> None:
    meter = Meter()
    result, _ = run(Chunks([calling(*SLOW_FAIL_ECHO, *[call("count") for _ in range(24)])], [done()]), meter=meter)
    assert meter.counted == 24
    assert [r.is_error for r in results(result)].count(True) == 1
    assert len(results(result)) == 27


def test_b08_nothing_goes_on_after_a_cancel() -> None:
    async def main() -> None:
        shown: list[str] = []
        kept: list[ls.Context] = []

        @ls.tool
        async def chatty(context: ls.Context) -> str:
            kept.append(context)
            while True:
                context.progress("still here")
                await asyncio.sleep(0)

        async with session_of(Chunks([calling(call("chatty"))]), [chatty]).stream("go") as run:
            async for event in run:
                shown.append(event.type)
                if shown.count("tool.output") == 3:
                    run.cancel()
        ended = shown.index("tool.finished")
        kept[0].progress("too late")
        await settled()
        assert "tool.output" not in shown[ended:]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    go(main())


def test_b09_a_swallowed_cancel_and_one_of_the_tools_own() -> None:
    async def swallowed() -> None:
        @ls.tool
        async def tidy() -> str:
            try:
                await forever()
            except asyncio.CancelledError:
                pass
            return "cancelled"

        journal = FakeJournal()
        model = Chunks([calling(call("tidy"))], [done()])
        run = session_of(model, [tidy], journal=journal).stream("go").start()
        await until(lambda: "tool.started" in journal.types())
        await settled()
        run.cancel()
        assert ((await run).status, len(model.requests)) == ("cancelled", 1)

    async def its_own() -> None:
        @ls.tool
        async def client() -> str:
            raise asyncio.CancelledError

        model = Chunks([calling(call("client"))], [done()])
        result = await session_of(model, [client]).run("go")
        assert (result.status, len(model.requests)) == ("completed", 2)
        assert results(result)[0].outcome == "error"

    go(swallowed())
    go(its_own())


B10 = history(
    [
        {"role": "user", "text": "go"},
        {
            "role": "assistant",
            "blocks": [
                {"type": "call", "id": "c1", "name": "slow", "args": {"s": 1}},
                {"type": "call", "id": "c2", "name": "echo", "args": {"text": "x"}},
            ],
        },
        {"role": "tool", "id": "c1", "text": "pending"},
        {"role": "tool", "id": "c2", "text": "x"},
        {"role": "assistant", "blocks": [{"type": "text", "text": "waiting"}]},
        {"role": "tool", "id": "c1", "text": "final"},
        {"role": "tool", "id": "ghost", "text": "?"},
    ]
)


def test_b10_late_doubled_and_orphan_results() -> None:
    sent = project(B10)
    assert [b.text for m in sent for b in m.blocks if isinstance(b, ToolResult)] == ["final", "x"]

    async def main() -> None:
        model = Chunks([done()])
        journal = FakeJournal()
        assert (await ls.run_loop(messages=B10, model=model, journal=journal)).status == "completed"
        check_requests(model.requests)
        assert [e.message for e in journal.of(ev.MessageAccepted)] == B10, "the record stays as it was"
        said = {"superseded": 1, "orphan": 1}
        assert journal.of(ev.ModelRequested)[0].repaired == said, "and the repair is on record"
        await session_of(Chunks([done()]), journal=journal).run("on")
        assert journal.of(ev.ModelRequested)[1].repaired == said, "another process counts the same"

    go(main())
    assert project(project(B10)) == project(B10), "what was repaired needs no repair"


def test_a_history_that_needs_no_repair_says_nothing_of_it() -> None:
    async def main() -> None:
        @ls.tool
        async def act() -> str:
            return "   "

        journal = FakeJournal()
        model = Chunks([calling(call("act", "a"), call("nope", "b"))], [done()])
        await session_of(model, [act], journal=journal).run("go")
        assert [e.repaired for e in journal.of(ev.ModelRequested)] == [{}, {}]
        assert b"repaired" not in b"".join(map(encode_event, journal.events))

    go(main())


def test_each_repair_is_counted_by_its_kind() -> None:
    blank = Message("assistant", (Text(" "), ToolCall("not legal!", "echo", {}), ToolCall("lost", "echo", {})))
    projection = Projection()
    projection.feed([user("go"), blank, tool_message(ToolResult("not legal!", "echo", "x"))])
    assert +projection.repaired == {"blank": 1, "renamed": 1, "missing": 1}
    projection.feed([user("on"), tool_message(ToolResult("ghost", "echo", "x"))])
    assert +projection.repaired == {"blank": 1, "renamed": 1, "missing": 1, "orphan": 1}


def test_b12_the_step_limit_finishes_the_batch_and_the_session_goes_on() -> None:
    async def main() -> None:
        meter = Meter()
        model = Chunks([calling(call("count"), call("count"), call("count"))], [done()])
        session = session_of(model, meter.tools, limits=ls.Limits(max_steps=1))
        assert ((await session.run("go")).status, meter.counted, len(model.requests)) == ("max_steps", 3, 1)
        assert (await session.run("on")).status == "completed"
        check_requests(model.requests)

    go(main())
