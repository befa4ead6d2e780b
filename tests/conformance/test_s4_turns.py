"""The rules of the mature agents, one by one: turns, stops, continuations, limits (1 to 4, and 7)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.errors import ModelError
from tests.model.strict_chat import StrictChat, text_answer
from tests.session.fakes import check_requests, results, until

from .s4 import Ground, bash, call, cut, read, write


class Asked:
    """A scripted model that remembers its requests."""

    def __init__(self, *replies: Any) -> None:
        self._script = ls.ScriptedModel(replies)
        self.name, self.requests = self._script.name, list[Any]()

    def stream(self, request: Any) -> Any:
        self.requests.append(request)
        return self._script.stream(request)


# 1. Streaming, stop reasons, truncation


def test_s4_01_a_stop_reason_is_distrusted(ground: Ground) -> None:
    result = ground.run([ls.Reply([write("a.txt", "a")], "stop"), "done"])
    assert (result.status, (ground.root / "a.txt").read_text()) == ("completed", "a")


def test_s4_01_a_call_is_complete_only_at_the_end_of_the_answer(ground: Ground) -> None:
    """Its arguments have all come, and then the stream breaks."""
    pieces = ls.ScriptedModel([ls.Reply([write("a.txt", "a")])])

    class Broken:
        name = "scripted:broken"

        async def stream(self, request: Any) -> Any:
            async for chunk in pieces.stream(request):
                if hasattr(chunk, "blocks"):
                    raise ModelError("network", "the line is dead")
                yield chunk

    result = ground.run(Broken())
    assert (result.status, result.error and result.error.kind) == ("failed", "MODEL_NETWORK")
    assert not (ground.root / "a.txt").exists()
    assert [message.role for message in result.messages] == ["user"]


def test_s4_01_a_truncated_answer_runs_nothing_and_three_times_it_is_asked_again(ground: Ground) -> None:
    model = Asked(
        *[cut(read(id=f"r{n}"), write("a.txt", "half", f"w{n}")) for n in range(3)], write("a.txt", "whole"), "done"
    )
    result = ground.run(model)
    assert (result.status, (ground.root / "a.txt").read_text()) == ("completed", "whole")
    assert [r.outcome for r in results(result)] == ["truncated"] * 6 + ["ok"]
    assert [e.because for e in ground.of(ev.ModelRequested)] == ["prompt", *["truncated"] * 3, "results"]
    check_requests(model.requests)


def test_s4_01_the_fourth_truncation_ends_the_run(ground: Ground) -> None:
    model = Asked(*[cut(write("a.txt", "half", f"w{n}")) for n in range(9)])
    result = ground.run(model)
    assert (result.status, result.error and result.error.kind, len(model.requests)) == ("failed", "TRUNCATED", 4)
    assert not (ground.root / "a.txt").exists()


# 2. Cancellation


def moments(events: list[ev.Event]) -> list[int]:
    return [n for n, event in enumerate(events) if event.type != "run.finished"]


def test_s4_02_a_cancel_at_every_event_keeps_what_is_complete(tmp_path: Path) -> None:
    """Tools that ended keep their results, every other call gets one before the next request, nothing goes on."""

    async def once(ground: Ground, at: int) -> tuple[int, ls.RunResult]:
        script = [[read(), bash("echo x >> ran; echo $$ > pid; sleep 60", "b"), write("late.txt", "late")], "done"]
        session = ground.session([ls.Reply(script[0]), "after"])
        seen = 0
        async with session.stream("go") as run:
            async for event in run:
                if seen == at or (isinstance(event, ev.ToolOutput)):
                    run.cancel("enough")
                seen += not event.part
                if isinstance(event, ev.ToolStarted) and event.name == "bash" and at >= seen:
                    break
            if at >= seen:
                await until((ground.root / "pid").exists)
                run.cancel("enough")
            result = await run.result()
        model = Asked("", "after")
        session.switch(model)
        again = await session.run("and now?")
        check_requests(model.requests)
        await session.close()
        assert (again.status, again.final_text) == ("completed", "after")
        return seen, result

    at, reached = 0, 1
    while at <= reached:
        ground = Ground(made(tmp_path / str(at)))
        reached, result = asyncio.run(once(ground, at))
        assert result.status == "cancelled", at
        assert not (ground.root / "late.txt").exists()
        if (pid := ground.root / "pid").exists():
            with pytest.raises(ProcessLookupError):
                os.kill(int(pid.read_text()), 0)
        finished = {e.call_id: e.outcome for e in ground.of(ev.ToolFinished)}
        if ground.of(ev.MessageCompleted)[0].message.calls:
            assert finished["w"] == "not_started"
            started = {e.call_id for e in ground.of(ev.ToolStarted)}
            assert finished["b"] == (
                "interrupted" if "b" in started and (ground.root / "ran").exists() else "not_started"
            )
        at += 1
    assert at >= 8


def made(path: Path) -> Path:
    path.mkdir()
    return path


# 3. Continue without a new message


@pytest.mark.parametrize("last", ["user", "tool"])
def test_s4_03_a_failed_turn_is_asked_again_without_a_new_message(ground: Ground, last: str) -> None:
    down = ModelError("auth", "no such key")
    model = Asked(*([down] if last == "user" else [read(), down]), "here")

    async def main() -> None:
        session = ground.session(model)
        assert (await session.run("go")).status == "failed"
        again = await session.run()
        await session.close()
        assert (again.status, again.final_text) == ("completed", "here")

    asyncio.run(main())
    *_, failed, retried = model.requests
    assert list(failed.messages) == list(retried.messages)
    assert failed.messages[-1].role == last
    assert [e.source for e in ground.of(ev.MessageAccepted)] == ["prompt"]


def test_s4_03_where_the_model_spoke_last_there_is_nothing_to_continue(ground: Ground) -> None:
    async def main() -> None:
        session = ground.session(["done", "unasked"])
        await session.run("go")
        with pytest.raises(ls.SessionError, match="nothing to answer"):
            await session.run()
        assert not session.unfinished
        await session.close()

    asyncio.run(main())
    assert len(ground.of(ev.RunStarted)) == 1


# 4. What is typed during a turn, and why the loop went on


def test_s4_04_text_typed_during_a_turn_is_input_of_the_next_and_interrupts_nothing(ground: Ground) -> None:
    model = Asked(bash("echo through", "b"), "done")

    async def main() -> ls.RunResult:
        session = ground.session(model)
        async with session.stream("go") as run:
            async for event in run:
                if isinstance(event, ev.ToolStarted):
                    await run.steer("and be quick")
            result = await run.result()
        await session.close()
        return result

    result = asyncio.run(main())
    assert [r.outcome for r in results(result)] == ["ok"]
    assert [m.role for m in model.requests[1].messages] == ["user", "assistant", "tool", "user"]
    assert model.requests[1].messages[-1].text == "and be quick"


def test_s4_04_every_request_says_why_the_loop_went_on(ground: Ground) -> None:
    from latchstep.core.chunk import Failed

    again = Failed(kind="server", message="busy", retry_in=0.0)
    answer = ls.Reply([read()])

    class Model:
        name = "scripted:reasons"
        script = ls.ScriptedModel(
            [answer, "", write("wanted.txt", "no", "w1"), "one", "two", write("wanted.txt", "yes", "w2"), "done"]
        )

        async def stream(self, request: Any) -> Any:
            if request.place == 0:
                yield again
            async for chunk in self.script.stream(request):
                yield chunk

    async def main() -> None:
        session = ground.session(Model(), checks=["python3 check.py"])
        async with session.stream("go") as run:
            async for event in run:
                if isinstance(event, ev.ToolStarted) and event.call_id == "r":
                    await run.steer("faster")
                    await run.follow_up("and then")
            await run
        await session.close()

    asyncio.run(main())
    because = [e.because for e in ground.of(ev.ModelRequested)]
    assert because[:2] == ["prompt", "retry"]
    assert {"steer", "retry", "results", "follow_up", "check"} <= set(because)


# 7. Limits at each boundary and inside tools, repetition, counters


def test_s4_07_the_wall_time_ends_a_tool_at_once(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    import rivumi

    monkeypatch.setattr(rivumi, "LIMITS", ls.Limits(max_seconds=0.5))
    result = ground.run([bash("echo begun; sleep 60"), "done"])
    assert (result.status, result.error and result.error.kind) == ("budget", "MAX_SECONDS")
    (ended,) = ground.of(ev.ToolFinished)
    assert ended.outcome == "interrupted"
    assert "begun" in str(ended.content)
    assert [e.type for e in ground.events()][-3:] == ["clock.passed", "tool.finished", "run.finished"]


def test_s4_07_a_repeated_action_is_told_and_then_ends_the_run(ground: Ground) -> None:
    same = [read(id=f"r{n}") for n in range(20)]
    result = ground.run(same)
    assert result.status == "stalled"
    assert result.steps == 5
    assert [e.source for e in ground.of(ev.MessageAccepted)] == ["prompt", "notice"]


def test_s4_07_another_result_or_another_range_is_no_repetition(ground: Ground) -> None:
    counted = [bash("echo x >> count; wc -l < count", f"b{n}") for n in range(8)]
    ranges = [call("read", f"r{n}", path="check.py", offset=n % 2 + 1, limit=1) for n in range(4)]
    assert ground.run([*counted, *ranges, "done"]).status == "completed"


def test_s4_07_counters_survive_a_killed_process(ground: Ground) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}}
    asked = [{"choices": [{"index": 0, "delta": {"tool_calls": [
        {"index": 0, "id": "r", "type": "function", "function": {"name": "read", "arguments": '{"path": "notes.txt"}'}}
    ]}}]}, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}, usage, "[DONE]"]  # fmt: skip
    with StrictChat([asked, ["#STALL"], text_answer("Done.")]) as server:
        process = ground.start(server.url, "go")
        server.wait(lambda: len(server.bodies) == 2, 30)
        process.kill()
        process.communicate()
        again = ground.start(server.url)
        out, err = again.communicate(timeout=30)
    assert again.returncode == 0, out + err
    ended = ground.of(ev.RunFinished)[-1]
    assert (ended.status, ended.steps, ended.usage) == ("completed", 2, ls.Usage(13, 6))
    assert len({e.run_id for e in ground.events() if e.run_id}) == 1
