"""The graded while-loop of `examples/while_loop.py`, rule by rule."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from while_loop import run_loop

import latchstep as ls
from latchstep.core.message import StopReason, user
from latchstep.errors import ModelError
from latchstep.model.base import Request

from .conftest import EXAMPLES


def call(number: int, text: str = "hello", name: str = "echo") -> ls.ToolCall:
    return ls.ToolCall(f"toolu_{number:02d}", name, {"text": text})


def use(*blocks: Any) -> ls.Reply:
    return ls.Reply(list(blocks), "tool_calls", raw_stop_reason="tool_use")


def stop(*blocks: Any, reason: StopReason = "stop", raw: str = "end_turn") -> ls.Reply:
    return ls.Reply(list(blocks), reason, raw_stop_reason=raw)


def echo(tool: str, input: dict[str, Any]) -> Any:
    return input["text"]


def results(message: ls.Message) -> list[tuple[str, str, bool]]:
    assert message.role == "user"
    found = [block for block in message.blocks if isinstance(block, ls.ToolResult)]
    assert len(found) == len(message.blocks)
    return [(block.call_id, block.text, block.is_error) for block in found]


# 1. The loop


def test_s3_01_returns_final_text_trajectory_stop_reason_and_turns() -> None:
    model = ls.ScriptedModel([use(call(1)), stop(ls.Text("do"), ls.Text("ne"))])
    outcome = run_loop([user("go")], model, echo)
    assert outcome.trajectory == [{"tool": "echo", "input": {"text": "hello"}}]
    assert (outcome.final_text, outcome.stop_reason, outcome.turns) == ("done", "end_turn", 2)


def test_s3_01_execute_gets_each_tool_and_input_in_order() -> None:
    seen: list[Any] = []
    model = ls.ScriptedModel([use(call(1, "a"), call(2, "b", "shout")), use(call(3, "c")), stop("done")])
    outcome = run_loop([user("go")], model, lambda tool, input: seen.append((tool, input)))
    assert seen == [("echo", {"text": "a"}), ("shout", {"text": "b"}), ("echo", {"text": "c"})]
    assert [(step["tool"], step["input"]) for step in outcome.trajectory] == seen
    assert outcome.turns == 3


def test_s3_01_both_messages_are_appended_every_turn_with_all_results_in_one() -> None:
    messages = [user("go")]
    reply = [ls.Text("both"), call(1, "a"), call(2, "b")]
    run_loop(messages, ls.ScriptedModel([use(*reply), use(call(3, "c")), stop("done")]), echo)
    assert [message.role for message in messages] == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert messages[1].blocks == tuple(reply)
    assert results(messages[2]) == [("toolu_01", "a", False), ("toolu_02", "b", False)]
    assert results(messages[4]) == [("toolu_03", "c", False)]
    assert messages[5].text == "done"


def test_s3_01_the_model_sees_its_own_calls_and_their_results() -> None:
    requests: list[Request] = []

    def last(request: Request) -> ls.Reply:
        requests.append(request)
        return stop("done")

    run_loop([user("go")], ls.ScriptedModel([use(call(1, "a")), last]), echo)
    said = [block for message in requests[0].messages for block in message.blocks]
    assert said == [ls.Text("go"), call(1, "a"), ls.ToolResult("toolu_01", "echo", "a")]


def test_s3_01_a_list_can_be_continued() -> None:
    messages = [user("go")]
    run_loop(messages, ls.ScriptedModel([use(call(1, "a"), call(2, "b")), stop("done")]), echo)
    messages.append(user("again"))
    seen: list[Request] = []

    def reply(request: Request) -> ls.Reply:
        seen.append(request)
        return stop("again done")

    assert run_loop(messages, ls.ScriptedModel([reply]), echo).final_text == "again done"
    assert [message.role for message in seen[0].messages] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert len(messages) == 6


def test_s3_01_what_execute_raises_is_an_error_result() -> None:
    def broken(tool: str, input: dict[str, Any]) -> Any:
        raise ValueError("no such file")

    messages = [user("go")]
    outcome = run_loop(messages, ls.ScriptedModel([use(call(1)), stop("done")]), broken)
    ((call_id, text, is_error),) = results(messages[2])
    assert (call_id, is_error) == ("toolu_01", True)
    assert "no such file" in text
    assert (outcome.stop_reason, len(outcome.trajectory)) == ("end_turn", 1)


def test_s3_01_the_cap_is_25_turns_unless_said() -> None:
    model = ls.ScriptedModel([use(call(number, str(number))) for number in range(40)])
    messages = [user("go")]
    outcome = run_loop(messages, model, echo)
    assert (outcome.turns, outcome.stop_reason, len(outcome.trajectory)) == (25, "tool_use", 25)
    assert len(messages) == 51
    assert results(messages[-1]) == [("toolu_24", "24", False)]
    assert run_loop([user("go")], model, echo, cap=3).turns == 3


def test_s3_01_the_same_call_again_and_again_is_only_stopped_by_the_cap() -> None:
    outcome = run_loop([user("go")], ls.ScriptedModel([use(call(number)) for number in range(40)]), echo)
    assert (outcome.turns, outcome.stop_reason) == (25, "tool_use")


@pytest.mark.parametrize(
    ("reason", "raw"),
    [
        ("length", "max_tokens"),
        ("paused", "pause_turn"),
        ("refused", "refusal"),
        ("filtered", "content_filter"),
        ("stop", "stop_sequence"),
        ("stop", "end_turn"),
    ],
)
@pytest.mark.parametrize("blocks", [["half an ans"], ["text", call(1)], [call(1)], []])
def test_s3_01_any_other_stop_reason_returns_at_once(reason: StopReason, raw: str, blocks: list[Any]) -> None:
    ran: list[str] = []
    messages = [user("go")]
    model = ls.ScriptedModel([stop(*blocks, reason=reason, raw=raw), stop("recovered")])
    outcome = run_loop(messages, model, lambda tool, input: ran.append(tool))
    text = blocks[0] if blocks and isinstance(blocks[0], str) else ""
    assert (outcome.final_text, outcome.stop_reason, outcome.turns) == (text, raw, 1)
    assert (outcome.trajectory, ran) == ([], [])
    assert [message.role for message in messages] == ["user", "assistant"][: 1 + bool(blocks)]


def test_s3_01_tool_use_without_a_call_does_not_stall() -> None:
    model = ls.ScriptedModel([stop("I will echo.", reason="tool_calls", raw="tool_use"), stop("recovered")])
    outcome = run_loop([user("go")], model, echo)
    assert (outcome.final_text, outcome.stop_reason, outcome.turns) == ("I will echo.", "tool_use", 1)


def test_s3_01_a_model_that_fails_is_not_asked_again() -> None:
    model = ls.ScriptedModel([use(call(1)), ModelError("overloaded", "try later"), stop("recovered")])
    messages = [user("go")]
    with pytest.raises(ls.LatchstepError, match="try later"):
        run_loop(messages, model, echo)
    assert [message.role for message in messages] == ["user", "assistant", "user"]


# 2. Process mode


def replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "while_loop.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_s3_02_an_echo_call_and_an_end_print_exactly_this() -> None:
    done = replay("loop", "echo")
    assert done.stdout == (
        '{"trajectory":[{"tool":"echo","input":{"text":"hello"}}],"finalText":"done","stopReason":"end_turn"}\n'
    )
    assert (done.returncode, done.stderr) == (0, "")


EXPECTED: dict[str, tuple[list[tuple[str, Any]], str, str]] = {
    "two_tools": ([("echo", {"text": "a"}), ("add", {"left": 20, "right": 22})], "a and 42", "end_turn"),
    "cap": ([("echo", {"text": str(number)}) for number in range(1, 26)], "", "tool_use"),
    "max_tokens": ([("echo", {"text": "a"})], "I was about to", "max_tokens"),
    "unknown_tool": ([("teleport", {"to": "Mars"})], "there is no such tool", "end_turn"),
}


@pytest.mark.parametrize("case", EXPECTED)
def test_s3_02_each_cassette_replays(case: str) -> None:
    trajectory, text, reason = EXPECTED[case]
    done = replay("loop", case)
    assert done.returncode == 0, done.stderr
    steps = [{"tool": tool, "input": input} for tool, input in trajectory]
    expected = {"trajectory": steps, "finalText": text, "stopReason": reason}
    assert done.stdout == json.dumps(expected, separators=(",", ":")) + "\n"


def test_s3_02_no_cassette_is_left_untested() -> None:
    assert {path.stem for path in (EXAMPLES / "cassettes").glob("*.json")} == {"echo", *EXPECTED}


def test_s3_02_a_case_may_be_a_path(tmp_path: Path) -> None:
    case = {
        "messages": [{"role": "user", "content": "hi"}],
        "replies": [{"stop_reason": "end_turn", "content": [{"type": "text", "text": "hello"}]}],
    }
    (tmp_path / "mine.json").write_text(json.dumps(case))
    done = replay("loop", str(tmp_path / "mine.json"))
    assert done.stdout == '{"trajectory":[],"finalText":"hello","stopReason":"end_turn"}\n'


def test_s3_02_a_loop_that_asks_for_more_than_is_recorded_is_a_mismatch(tmp_path: Path) -> None:
    block = {"type": "tool_use", "id": "toolu_01", "name": "echo", "input": {"text": "a"}}
    case = {
        "messages": [{"role": "user", "content": "hi"}],
        "replies": [{"stop_reason": "tool_use", "content": [block]}],
    }
    (tmp_path / "short.json").write_text(json.dumps(case))
    done = replay("loop", str(tmp_path / "short.json"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "number 2 was asked for" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["loop"], ["graph", "echo"], ["loop", "echo", "more"], ["loop", "nowhere"]])
def test_s3_02_wrong_arguments_are_said(arguments: list[str]) -> None:
    done = replay(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    assert "usage" in done.stderr or "nowhere" in done.stderr
