"""Hooks around a tool: a change is recorded, validated and judged again; a hook that fails lets nothing run."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.tool.hooks import after_tool, before_tool

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

RAN: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


@ls.tool
async def put(path: str, text: str = "x") -> str:
    RAN.append((path, text))
    return f"put {text} in {path}"


@ls.tool
def fail(path: str) -> str:
    raise ls.ToolError(f"no {path}, key 1234")


def run(tools: list[Any], *answers: Any, **more: Any) -> tuple[list[ls.ToolResult], FakeJournal]:
    async def main() -> tuple[list[ls.ToolResult], FakeJournal]:
        journal = FakeJournal()
        model = Chunks(*[[answer] for answer in answers], [done()])
        session = session_of(model, tools, journal=journal, **more)
        result = await session.run("go")
        assert result.status == "completed", result.error
        check_requests(model.requests)
        return results(result), journal

    return go(main())


def elsewhere(arguments: dict[str, Any], context: ls.Context) -> dict[str, Any]:
    return {**arguments, "path": "safe/" + arguments["path"]}


# -- before ------------------------------------------------------------------------------------------------


def in_place(arguments: dict[str, Any], context: ls.Context) -> None:
    arguments["path"] = "safe/" + arguments["path"]


async def in_time(arguments: dict[str, Any], context: ls.Context) -> dict[str, Any]:
    await asyncio.sleep(0)
    return elsewhere(arguments, context)


@pytest.mark.parametrize("hook", [elsewhere, in_place, in_time])
def test_a_change_is_recorded_once_and_is_what_runs(hook: Any) -> None:
    (done_,), journal = run([before_tool(put, hook)], calling(call("put", "a", path="f")))
    assert (RAN, done_.text) == ([("safe/f", "x")], "put x in safe/f")
    types = [t for t in journal.types() if t.startswith(("call.", "tool."))]
    assert types == ["call.changed", "tool.started", "tool.finished"]
    assert journal.of(ev.CallChanged)[0].arguments == {"path": "safe/f"}
    assert journal.of(ev.MessageCompleted)[0].message.calls[0].arguments == {"path": "f"}, "what was said stays"


def test_a_call_that_is_kept_is_said_and_hooks_see_what_the_one_before_them_made() -> None:
    seen: list[Any] = []

    def watch(arguments: dict[str, Any], context: ls.Context) -> None:
        seen.append((dict(arguments), context.call_id, threading.current_thread() is threading.main_thread()))

    _, journal = run([before_tool(put, watch)], calling(call("put", "a", path="f")))
    assert journal.of(ev.CallKept)[0].call_id == "a"
    assert "call.changed" not in journal.types()
    run([before_tool(before_tool(put, watch), elsewhere)], calling(call("put", "a", path="f")))
    assert [s[0] for s in seen] == [{"path": "f"}, {"path": "safe/f"}]


@pytest.mark.parametrize(
    ("hook", "outcome", "words"),
    [
        (lambda a, c: ls.Verdict("refuse", "not on Fridays"), "denied", "declined by a hook: not on Fridays"),
        (lambda a, c: 1 / 0, "error", "Not run: a hook that looks at this call before it runs failed (ZeroDivision"),
        (lambda a, c: "f", "error", "neither arguments nor a refusal"),
        (lambda a, c: ls.Verdict("ask"), "error", "neither arguments nor a refusal"),
        (lambda a, c: {"path": float("nan")}, "error", "NaN"),
        (lambda a, c: {"path": 5}, "error", "a hook changed the arguments of this call to what its tool does not take"),
        (lambda a, c: {}, "error", "path"),
    ],
)
def test_what_a_hook_may_not_do_lets_nothing_run(hook: Any, outcome: str, words: str) -> None:
    (first, second), journal = run(
        [before_tool(put, hook), ls.tool(effect="read")(fail.function)],
        calling(call("put", "a", path="f"), call("fail", "b", path="g")),
    )
    assert (first.outcome, RAN) == (outcome, [])
    assert words in first.text
    assert second.outcome == "error", "its neighbour is not touched"
    assert not [e for e in journal.of(ev.ToolStarted) if e.call_id == "a"]


def test_a_fatal_hook_fails_the_run_and_a_hanging_one_has_the_tools_deadline() -> None:
    def fatal(arguments: dict[str, Any], context: ls.Context) -> None:
        raise ls.FatalToolError("the vault is open")

    async def hang(arguments: dict[str, Any], context: ls.Context) -> None:
        await forever()

    async def main() -> None:
        session = session_of(Chunks([calling(call("put", path="f"))], [done()]), [before_tool(put, fatal)])
        result = await session.run("go")
        assert (result.status, result.error.kind if result.error else "") == ("failed", "TOOL")

    go(main())
    (late,), _ = run([before_tool(put, hang)], calling(call("put", path="f")), limits=ls.Limits(tool_timeout=0.05))
    assert (late.outcome, RAN) == ("error", [])
    assert "took longer than 0.05 s" in late.text


def test_the_change_is_judged_and_exactly_it_is_asked_about_and_runs() -> None:
    asked: list[ev.Question] = []

    def policy(call: ls.ToolCall, traits: Any) -> ls.Verdict:
        return ls.Verdict("ask" if call.arguments["path"].startswith("safe/") else "run")

    def approve(question: ev.Question) -> bool:
        asked.append(question)
        return True

    calls = calling(call("put", "a", path="f"), call("put", "b", path="g"))
    _, journal = run([before_tool(put, elsewhere)], calls, policy=policy, approve=approve)
    assert [q.arguments for q in asked] == [{"path": "safe/f"}, {"path": "safe/g"}]
    assert RAN == [("safe/f", "x"), ("safe/g", "x")]
    (together,) = journal.of(ev.ApprovalRequested)
    assert {q.sha256 for q in together.questions} == {s.sha256 for s in journal.of(ev.ToolStarted)}
    types = journal.types()
    assert types.index("approval.requested") > max(n for n, t in enumerate(types) if t == "call.changed")


def test_what_a_rule_forbids_or_no_tool_takes_reaches_no_hook() -> None:
    def policy(call: ls.ToolCall, traits: Any) -> ls.Verdict:
        return ls.Verdict("refuse", "no")

    refused, _ = run([before_tool(put, lambda a, c: RAN.append(a))], calling(call("put", path="f")), policy=policy)
    rejected, _ = run([before_tool(put, lambda a, c: RAN.append(a))], calling(call("put", where="f")))
    assert ([r.outcome for r in refused + rejected], RAN) == (["denied", "rejected"], [])


def test_a_recorded_change_is_not_made_twice_wherever_the_process_dies() -> None:
    async def main() -> None:
        def tools() -> list[Any]:
            return [before_tool(put, elsewhere)]

        batch = calling(call("put", "a", path="f"), call("put", "b", path="g"))
        journal = FakeJournal()
        await session_of(Chunks([batch], [done()]), tools(), journal=journal).run("go")
        first = journal.types().index("message.completed")
        for length in range(first + 1, len(journal.events)):
            copy = cut(journal, length)
            RAN.clear()
            result = await session_of(Chunks([done()]), tools(), journal=copy).resume()
            assert result.status == "completed"
            assert all(path in ("safe/f", "safe/g") for path, _ in RAN), "changed once, never twice, never not"
            assert len(copy.of(ev.CallChanged)) == 2

    go(main())


def test_cancelled_in_a_hook_nothing_runs() -> None:
    async def main() -> None:
        reached = asyncio.Event()

        async def hang(arguments: dict[str, Any], context: ls.Context) -> None:
            reached.set()
            await forever()

        run = session_of(Chunks([calling(call("put", path="f"))]), [before_tool(put, hang)]).stream("go").start()
        await until(reached.is_set)
        run.cancel()
        result = await run
        assert (result.status, RAN) == ("cancelled", [])

    go(main())


# -- after -------------------------------------------------------------------------------------------------


def test_a_result_may_be_replaced_that_of_a_failure_too() -> None:
    def redact(arguments: dict[str, Any], output: ls.Output, context: ls.Context) -> Any:
        return ls.Output(str(output.content).replace("1234", "…"), outcome=output.outcome, is_error=output.is_error)

    tools = [after_tool(put, redact), after_tool(fail, redact)]
    calls = calling(call("put", "a", path="1234"), call("fail", "b", path="f"))
    (first, second), _ = run(tools, calls)
    assert (first.outcome, first.text) == ("ok", "put x in …")
    assert (second.outcome, second.is_error, second.text) == ("error", True, "no f, key …")


@pytest.mark.parametrize("is_async", [False, True])
def test_none_keeps_the_result_and_the_hook_sees_arguments_and_context(is_async: bool) -> None:
    seen: list[Any] = []

    def look(arguments: dict[str, Any], output: ls.Output, context: ls.Context) -> None:
        seen.append((arguments, output.content, context.call_id))

    async def look_async(arguments: dict[str, Any], output: ls.Output, context: ls.Context) -> None:
        look(arguments, output, context)

    @ls.tool
    def told(path: str, context: ls.Context) -> str:
        return f"{path} for {context.call_id}"

    hook = look_async if is_async else look
    tools = [after_tool(told, hook), after_tool(fail, hook)]
    (first, second), _ = run(tools, calling(call("told", "a", path="f"), call("fail", "b", path="g")))
    assert (first.text, second.text) == ("f for a", "no g, key 1234")
    assert seen == [({"path": "f"}, "f for a", "a"), ({"path": "g"}, "no g, key 1234", "b")]
    assert go(after_tool(told, hook)(path="f")).content == "f for "


def test_a_hook_that_fails_after_a_call_says_that_the_call_was_made_and_withholds_its_result() -> None:
    (only,), _ = run([after_tool(put, lambda a, o, c: 1 / 0)], calling(call("put", path="secret")))
    assert (only.outcome, RAN) == ("error", [("secret", "x")])
    assert "was made and has ended" in only.text
    assert "secret" not in only.text


def test_a_hook_that_hangs_after_a_call_says_that_the_call_had_ended() -> None:
    async def hang(arguments: dict[str, Any], output: ls.Output, context: ls.Context) -> None:
        await forever()

    limits = ls.Limits(tool_timeout=0.05)
    (only,), _ = run([after_tool(put, hang)], calling(call("put", path="f")), limits=limits)
    assert (only.outcome, RAN) == ("timed_out", [("f", "x")])
    assert "the call itself had ended" in only.text


def test_hooks_keep_what_the_tool_is() -> None:
    @ls.tool(effect="read", timeout=5.0, prepare=lambda arguments, context: "found")
    def look(path: str) -> str:
        "Look."
        return path

    wrapped = after_tool(before_tool(look, elsewhere), lambda a, o, c: None)
    for name in ("name", "description", "schema", "effect", "replay", "timeout", "prepare"):
        assert getattr(wrapped, name) == getattr(look, name)
    (only,), _ = run([wrapped], calling(call("look", path="f")))
    assert only.text == "safe/f"
