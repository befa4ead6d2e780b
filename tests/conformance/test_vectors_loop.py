"""Cases distilled from public bug reports about agent loops, each under its number: what the loop has to get right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Completed, Failed
from latchstep.core.message import Image, Message, Text, Thinking, ToolCall, ToolResult, Usage, user
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
            stored = [ev.encode_event(e) for e in journal.events]
            result = await session.run("continue")
            assert [ev.encode_event(e) for e in journal.events[: len(stored)]] == stored
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

    go(main())


def test_b12_the_step_limit_finishes_the_batch_and_the_session_goes_on() -> None:
    async def main() -> None:
        meter = Meter()
        model = Chunks([calling(call("count"), call("count"), call("count"))], [done()])
        session = session_of(model, meter.tools, limits=ls.Limits(max_steps=1))
        assert ((await session.run("go")).status, meter.counted, len(model.requests)) == ("max_steps", 3, 1)
        assert (await session.run("on")).status == "completed"
        check_requests(model.requests)

    go(main())


# -- what the model answered -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rounds",
    [
        [[call("count", "call_0")], [call("count", "call_0")]],
        [[call("count", "call_0")], [call("count", "call_0", n=1)]],
        [[call("count", "call_0"), call("count", "call_0", n=1)]],
        [[call("count", ""), call("count", "")]],
    ],
)
def test_b17_empty_and_repeated_ids(rounds: list[list[ToolCall]]) -> None:
    meter = Meter()
    model = Chunks(*([calling(*calls)] for calls in rounds), [done()])
    result, _ = run(model, meter=meter)
    assert (result.status, meter.counted) == ("completed", 2)
    check_requests(model.requests)


def test_b17_the_same_forever_is_a_loop() -> None:
    meter = Meter()
    result, _ = run(Chunks([calling(call("count", "call_0"))]), meter=meter)
    assert (result.status, meter.counted) == ("stalled", 5)


def test_b22_no_call_of_a_cut_answer_runs() -> None:
    meter = Meter()
    batch = [call("count", "toolu_ok"), ToolCall("toolu_cut", "echo", {}, flaw="the arguments were cut off")]
    whole = [call("count", "toolu_ok"), call("echo", "toolu_cut", text="closed by chance")]
    for calls in (batch, whole):
        reply = ls.Reply(calls, stop_reason="length", usage=Usage(10, 300))
        result, journal = run(ls.ScriptedModel([reply, "done"]), meter=meter)
        assert (result.status, meter.counted) == ("completed", 0)
        assert [e.outcome for e in journal.of(ev.ToolFinished)] == ["truncated", "truncated"]
        assert all("300 tokens" in str(e.content) for e in journal.of(ev.ToolFinished))
    result, _ = run(ls.ScriptedModel([reply] * 9), meter=meter)
    assert (result.error.kind if result.error else "", result.steps, meter.counted) == ("TRUNCATED", 4, 0)


def test_b24_calls_announced_and_none_there() -> None:
    empty = Completed(blocks=(), stop_reason="tool_calls", raw_stop_reason="tool_use", usage=Usage(2, 3))
    model = Chunks([empty])
    result, journal = run(model)
    assert (result.status, result.error.kind if result.error else "") == ("failed", "EMPTY_RESPONSE")
    assert len(model.requests) == 2
    assert not journal.of(ev.MessageCompleted)
    assert [m.text for m in result.messages] == ["go"]


def test_b25_an_empty_turn_is_no_answer() -> None:
    empty = Completed(blocks=(Text(""),), stop_reason="stop", usage=Usage(9, 2))
    result, _ = run(Chunks([empty]))
    assert (result.status, result.error.kind if result.error else "") == ("failed", "EMPTY_RESPONSE")
    assert result.usage == Usage(18, 4)
    refused = Completed(blocks=(), stop_reason="refused")
    result, _ = run(Chunks([refused]))
    assert result.error is not None
    assert result.error.kind == "REFUSED"


AS_TEXT = [
    '<tool_call>\n{"name": "count", "arguments": {}}\n</tool_call>',
    '<function_calls><invoke name="count"></invoke></function_calls>',
    '  <invoke name="count"></invoke>\n',
    "<function=count>{}</function>",
    '[TOOL_CALLS] [{"name": "count", "arguments": {}}]',
]
NOT_A_CALL = [
    'Write `<tool_call>` tags like this:\n```\n<tool_call>{"name":"count"}</tool_call>\n```',
    '<tool_call>{"name": "other_tool"}</tool_call>',
    '<tool_call>{"name": "count"}</tool_call> is how it looks.',
    '<tool_call>{"name":"count"}</tool_call> and <tool_call>{"name":"count"}</tool_call>',
    "<tool_call></tool_call>",
    '<tool_call>{"name": "count"}' + " " * 30_000 + "</tool_call>",
]


@pytest.mark.parametrize("said", AS_TEXT)
def test_b29_a_call_written_as_text_is_never_run_and_corrected_once(said: str) -> None:
    meter = Meter()
    model = Chunks([done(said)], [done(said)])
    result, journal = run(model, meter=meter)
    assert (result.status, result.final_text, meter.counted) == ("completed", said, 0)
    assert len(model.requests) == 2
    assert "count" in model.requests[1].messages[-1].text
    assert "tool interface" in model.requests[1].messages[-1].text
    assert journal.of(ev.ModelRequested)[1].because == "notice"
    model = Chunks([done(said)], [calling(call("count"))], [done()])
    assert (run(model, meter=meter)[0].status, meter.counted) == ("completed", 1)
    check_requests(model.requests)


@pytest.mark.parametrize("said", NOT_A_CALL)
def test_b29_an_answer_about_calls_is_an_answer(said: str) -> None:
    model = Chunks([done(said)])
    result, _ = run(model)
    assert (result.status, result.final_text, len(model.requests)) == ("completed", said, 1)


def test_b29_a_budget_that_is_used_up_is_not_spent_on_it() -> None:
    result, _ = run(Chunks([done(AS_TEXT[0])]), limits=ls.Limits(max_steps=1))
    assert (result.status, result.final_text) == ("completed", AS_TEXT[0])


@pytest.mark.parametrize(
    ("name", "runs"),
    [("search_counts", 0), ("count ", 1), ("count<|channel|>commentary", 0), ("c" * 70, 0), ("", 0), ("Count", 0)],
)
def test_b30_unknown_and_stray_names(name: str, runs: int) -> None:
    meter = Meter()
    model = Chunks([calling(call(name))], [done()])
    result, _ = run(model, meter=meter)
    assert (result.status, meter.counted) == ("completed", runs)
    (told,) = results(result)
    assert told.outcome == ("ok" if runs else "rejected")
    if not runs:
        assert "count" in told.text
    check_requests(model.requests)


# -- cancel from every state that there is ---------------------------------------------------------------


class Connecting:
    """A model that hangs before it yields anything."""

    name = "fake:connecting"

    async def stream(self, request: Any) -> Any:
        await forever()
        yield done()


B38: dict[str, tuple[Callable[[], Any], str]] = {
    "connect": (Connecting, "model.requested"),
    "first event": (lambda: Chunks([forever]), "model.requested"),
    "mid-text": (lambda: Chunks([text("a"), forever]), "model.requested"),
    "back-off": (lambda: Chunks([Failed(kind="rate_limited", message="429", retry_in=30.0), forever]), "model.failed"),
    "between calls": (lambda: Chunks([calling(call("count"), call("slow", s=30))]), "tool.finished"),
    "in tool": (lambda: Chunks([calling(call("slow", s=30))]), "tool.started"),
    "in approval": (lambda: Chunks([calling(call("slow", "ask", s=30))]), "approval.requested"),
}


@pytest.mark.parametrize("state", B38)
def test_b38_one_cancel_ends_the_run_from_any_state(state: str) -> None:
    async def main() -> None:
        model, moment = B38[state][0](), B38[state][1]
        journal = FakeJournal()
        session = session_of(
            model,
            Meter().tools,
            journal=journal,
            policy=lambda call, traits: ls.Verdict("ask" if call.id == "ask" else "run"),
        )
        run = session.stream("go").start()
        await until(lambda: moment in journal.types())
        await settled()
        before = len(journal.of(ev.ModelRequested))
        run.cancel()
        assert (await run).status == "cancelled"
        assert len(journal.of(ev.ModelRequested)) == before
        session.kit.model = again = Chunks([done()])
        assert (await session.run("still there?")).status == "completed"
        check_requests(again.requests)

    go(main())


# -- what goes out ---------------------------------------------------------------------------------------


def test_b40_blank_text_is_dropped_on_the_way_out() -> None:
    rows = [
        {"role": "user", "text": "a"},
        {
            "role": "assistant",
            "blocks": [
                {"type": "text", "text": "\n"},
                {"type": "call", "id": "c1", "name": "echo", "args": {"text": ""}},
            ],
        },
        {"role": "tool", "id": "c1", "text": ""},
        {"role": "assistant", "blocks": [{"type": "text", "text": ""}]},
        {"role": "user", "text": "   "},
    ]
    sent = project(history(rows))
    assert [m.role for m in sent] == ["user", "assistant", "tool"]
    assert [type(b) for b in sent[1].blocks] == [ToolCall]
    assert sent[2].blocks[0].text == "(no output)"  # type: ignore[union-attr]
    picture = Image("image/png", "QUJD")
    shown = Message("tool", (ToolResult("c2", "look", (Text(" "), picture, Text("\n"))),))
    asked = Message("assistant", (ToolCall("c2", "look"),))
    (result,) = Projection().feed([user("x"), asked, shown])[2].blocks
    assert isinstance(result, ToolResult)
    assert result.content == (picture,)


FOREIGN = ["call_abc|fc_0123456789012345678901234567890123456789012345678901234567", "functions.read:0", "écho", "ok_1"]


def test_b44_foreign_ids_are_mapped_the_same_way_each_time() -> None:
    messages: list[Message] = [user("go")]
    for number, call_id in enumerate([*FOREIGN, *FOREIGN]):
        thinking = Thinking("hm", {"signature": "s"})
        messages += [
            Message("assistant", (thinking, ToolCall(call_id, "read", {"n": number})), origin="p1:m"),
            Message("tool", (ToolResult(call_id, "read", str(number)),)),
        ]
    sent = project(messages)
    ids = [c.id for m in sent for c in m.calls]
    assert len(set(ids)) == 8
    assert all(len(i) <= 40 and i.isascii() and i.replace("_", "").replace("-", "").isalnum() for i in ids)
    assert [b.text for m in sent for b in m.blocks if isinstance(b, ToolResult)] == list("01234567")
    assert ids[3] == "ok_1"
    assert {m.origin for m in sent if m.role == "assistant"} == {"p1:m"}
    projection = Projection()
    piecewise = [list(projection.feed(messages[:9])), list(projection.feed(messages[9:]))]
    assert piecewise[1] == sent
    assert piecewise[0] == sent[:9]


# -- loops ------------------------------------------------------------------------------------------------


def looping(turn: Callable[[int], Any], most: int = 60) -> tuple[ls.RunResult, int]:
    """A model that goes on until it is stopped, or is done after `most` turns."""
    asked = 0

    def answer(request: Any) -> Any:
        nonlocal asked
        asked += 1
        return turn(asked - 1) if asked <= most else "done"

    seen = iter(range(10_000))

    @ls.tool
    async def write(content: str) -> str:
        return "written"

    @ls.tool
    async def bash(command: str) -> str:
        return "2 failed" if command == "pytest" else f"line {next(seen)}"

    @ls.tool(effect="read")
    async def read(path: str, offset: int = 0) -> str:
        return "the same page"

    model = ls.ScriptedModel([answer] * (most + 1))
    tools = [*Meter().tools, write, bash, read]
    return go(session_of(model, tools).run("go")), asked


@pytest.mark.parametrize(
    ("turn", "most_requests"),
    [
        (lambda n: call("echo", text="x"), 6),
        (lambda n: ToolCall("", "read", dict([("path", "f"), ("offset", 1)][:: (-1) ** n])), 6),
        (lambda n: call("echo", text="AB"[n % 2]), 12),
        (lambda n: call("fail"), 6),
        (lambda n: call("nope"), 6),
        (lambda n: [call("echo", text="x"), call("fail")], 6),
    ],
)
def test_b75_loops_are_told_once_and_ended(turn: Callable[[int], Any], most_requests: int) -> None:
    result, asked = looping(turn)
    assert (result.status, result.error.kind if result.error else "") == ("stalled", "STALLED")
    assert asked <= most_requests
    notices = [m for m in result.messages if m.role == "user" and "same calls" in m.text]
    assert len(notices) == 1


@pytest.mark.parametrize(
    "turn",
    [
        lambda n: call("bash", command="pytest") if n % 2 else call("write", content=f"attempt {n}"),
        lambda n: call("bash", command="sleep 1; cat s"),
        lambda n: call("read", path="f", offset=n * 100),
    ],
)
def test_b75_work_is_no_loop(turn: Callable[[int], Any]) -> None:
    result, asked = looping(turn, most=40)
    assert (result.status, asked) == ("completed", 41)
