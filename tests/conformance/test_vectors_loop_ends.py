"""Cases distilled from public bug reports: cancelling, what goes out, and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Failed
from latchstep.core.message import Image, Message, Text, Thinking, ToolCall, ToolResult, user
from latchstep.core.project import Projection
from tests.session.fakes import (
    Chunks,
    FakeJournal,
    call,
    calling,
    check_requests,
    done,
    forever,
    go,
    session_of,
    settled,
    text,
    until,
)

from .test_vectors_loop import Meter, history, project


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
        (lambda n: [call("echo", text="x"), call("echo", text="x")], 6),
        (lambda n: call("echo", text="ABC"[n % 3]), 18),
        (lambda n: call("echo", text="ABCD"[n % 4]), 24),
        (lambda n: call("echo", text="A" if n < 3 or n % 2 else "B"), 16),
    ],
)
def test_b75_loops_are_told_once_and_ended(turn: Callable[[int], Any], most_requests: int) -> None:
    result, asked = looping(turn)
    assert (result.status, result.error.kind if result.error else "") == ("stalled", "STALLED")
    assert asked <= most_requests
    notices = [m for m in result.messages if m.role == "user" and "same calls" in m.text]
    assert 1 <= len(notices) <= (2 if most_requests == 16 else 1), "told again only where the pattern became another"


@pytest.mark.parametrize(
    "turn",
    [
        lambda n: call("bash", command="pytest") if n % 2 else call("write", content=f"attempt {n}"),
        lambda n: call("bash", command="sleep 1; cat s"),
        lambda n: call("read", path="f", offset=n * 100),
        lambda n: [call("read", path="f", offset=n * 100), call("echo", text="x")],
        lambda n: call("bash", command="pytest") if n % 3 == 2 else call("read", path=f"f{n}"),
        lambda n: call("echo", text="x") if n % 3 else call("write", content=f"attempt {n}"),
        lambda n: [call("echo", text="x")] * (1 + n % 7),
    ],
)
def test_b75_work_is_no_loop(turn: Callable[[int], Any]) -> None:
    result, asked = looping(turn, most=40)
    assert (result.status, asked) == ("completed", 41)
