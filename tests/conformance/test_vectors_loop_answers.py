"""Cases distilled from public bug reports: what a model answered, and must not run."""

from __future__ import annotations

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Completed
from latchstep.core.message import Text, ToolCall, Usage
from tests.session.fakes import (
    Chunks,
    call,
    calling,
    check_requests,
    done,
    results,
)

from .test_vectors_loop import Meter, run


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
