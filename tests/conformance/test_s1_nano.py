"""The nano coding agent of `examples/nano.py`, rule by rule; rule 6 is in `test_s1_tools`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nano
import nano_tools
import pytest
from messages_api import joined, split

import latchstep as ls
from latchstep.core.event import Question
from latchstep.core.message import Provider, Thinking, user
from latchstep.model.anthropic import build
from tests.model.strict_anthropic import sign, streamed, strict_anthropic

from .conftest import EXAMPLES
from .s1 import Lines, allow, call, converse, deny, messages_api, never, results, roles, scripted

# 1. What leaves the machine


def test_s1_01_importing_needs_no_key_and_builds_no_client() -> None:
    seen = "import sys, nano; print(nano.client.cache_info().currsize, 'httpx2' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    done = subprocess.run(
        [sys.executable, "-c", seen],
        cwd=EXAMPLES,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "0 False\n", done.stderr


def test_s1_01_the_client_is_built_on_first_use_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANO_MODEL", "ollama:tiny")
    nano.client.cache_clear()
    try:
        assert nano.client().name == "ollama:tiny"
        assert nano.client() is nano.client()
    finally:
        nano.client.cache_clear()


def test_s1_01_a_request_has_the_token_cap_the_prompt_the_tools_and_the_history(tmp_path: Path) -> None:
    model = Lines("hello")
    converse([user("hi")], model, tmp_path)
    (request,) = model.requests
    assert (request.max_output, request.system) == (nano.MAX_TOKENS, nano.SYSTEM)
    assert [tool.name for tool in request.tools] == ["read_file", "list_files", "write_file", "edit_file", "bash"]
    assert [message.text for message in request.messages] == ["hi"]


# 2. The caller's list


def test_s1_02_the_list_is_extended_in_place_over_many_calls(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    model = Lines(call(1, "read_file", path="a.txt"), "it says alpha", "still alpha")
    messages = [user("what is in a.txt?")]
    same, first = messages, messages[0]
    converse(messages, model, tmp_path)
    messages.append(user("and now?"))
    converse(messages, model, tmp_path)
    assert messages is same
    assert messages[0] is first
    assert roles(messages) == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert roles(model.requests[2].messages) == ["user", "assistant", "tool", "assistant", "user"]
    assert messages[-1].text == "still alpha"


# 3. One trip


def test_s1_03_the_reply_is_appended_verbatim_in_one_message(tmp_path: Path) -> None:
    blocks = (
        Thinking("hm", {"signature": "abc"}),
        ls.Text("I look."),
        call(1, "list_files"),
        Provider("server_tool_use", {"id": "srv_1"}),
        call(2, "list_files", path="."),
    )
    messages = [user("look")]
    converse(messages, Lines(list(blocks), "done"), tmp_path)
    assert messages[1].role == "assistant"
    assert messages[1].blocks == blocks


def test_s1_03_text_is_printed_and_each_call_logged_in_one_short_line_before_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before: list[str] = []

    def approve(question: Question) -> bool:
        before.append(capsys.readouterr().out)
        return False

    long = "x" * 5_000
    model = Lines([ls.Text("I write."), call(1, "write_file", path="a\nb", content=long)], "done")
    converse([user("go")], model, tmp_path, approve)
    assert len(before) == 1
    said, logged, rest = before[0].split("\n")
    assert (said, rest) == ("I write.", "")
    assert "write_file" in logged
    assert "a\\nb" in logged
    assert len(logged) <= 100
    assert capsys.readouterr().out == "done\n"


def test_s1_03_a_gated_call_is_asked_immediately_before_it_would_run(tmp_path: Path) -> None:
    order: list[str] = []

    def approve(question: Question) -> bool:
        order.append(f"asked {question.call_id}, files: {sorted(path.name for path in tmp_path.iterdir())}")
        return question.call_id != "toolu_02"

    batch = [
        call(1, "write_file", path="one", content="1"),
        call(2, "bash", command="touch never"),
        call(3, "list_files"),
        call(4, "bash", command="cat one && touch two"),
    ]
    messages = [user("go")]
    converse(messages, Lines(batch, "done"), tmp_path, approve)
    assert order == [
        "asked toolu_01, files: []",
        "asked toolu_02, files: ['one']",
        "asked toolu_04, files: ['one']",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    assert [result.outcome for result in results(messages[2])] == ["ok", "denied", "ok", "ok"]
    assert results(messages[2])[2].text == "one"


def test_s1_03_each_call_gives_exactly_one_result(tmp_path: Path) -> None:
    batch = [call(1, "read_file", path="no"), call(2, "nothing"), call(3, "list_files", path=3), call(4, "list_files")]
    messages = [user("go")]
    converse(messages, Lines(batch, "done"), tmp_path)
    assert [result.call_id for result in results(messages[2])] == ["toolu_01", "toolu_02", "toolu_03", "toolu_04"]


# 4. The gate


@pytest.mark.parametrize(
    "gated",
    [
        call(1, "write_file", path="a.txt", content="new"),
        call(1, "edit_file", path="a.txt", old="old", new="new"),
        call(1, "bash", command="echo new > a.txt"),
    ],
)
def test_s1_04_denied_is_never_run_and_no_error(gated: ls.ToolCall, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    messages = [user("go")]
    converse(messages, Lines(gated, "a pity"), tmp_path, deny)
    (result,) = results(messages[2])
    assert "declined" in result.text
    assert result.is_error is False
    assert (tmp_path / "a.txt").read_text() == "old"
    assert messages[-1].text == "a pity"


def test_s1_04_allowed_and_raised_is_the_errors_message(tmp_path: Path) -> None:
    messages = [user("go")]
    converse(messages, Lines(call(1, "edit_file", path="a.txt", old="x", new="y"), "a pity"), tmp_path, allow)
    (result,) = results(messages[2])
    assert "No such file or directory" in result.text
    assert "a.txt" in result.text
    assert result.is_error is True


def test_s1_04_allowed_and_fine_is_the_value(tmp_path: Path) -> None:
    messages = [user("go")]
    converse(messages, Lines(call(1, "bash", command="echo out; echo err >&2; exit 3"), "done"), tmp_path, allow)
    (result,) = results(messages[2])
    assert (result.text, result.is_error) == ("out\nerr\n[exit status 3]", False)


def test_s1_04_ungated_tools_never_reach_the_question(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    messages = [user("go")]
    batch = [call(1, "read_file", path="a.txt"), call(2, "list_files"), call(3, "read_file", path="none")]
    converse(messages, Lines(batch, "done"), tmp_path, never)
    assert [result.outcome for result in results(messages[2])] == ["ok", "ok", "error"]


def test_s1_04_an_approver_that_fails_declines(tmp_path: Path) -> None:
    messages = [user("go")]
    converse(messages, Lines(call(1, "bash", command="touch sentinel"), "a pity"), tmp_path, never)
    assert "declined" in results(messages[2])[0].text
    assert list(tmp_path.iterdir()) == []


def test_s1_04_no_tool_is_special_cased(tmp_path: Path) -> None:
    """The gate knows what a tool declares, and no name."""
    for tool in nano_tools.tools(tmp_path):
        asked = nano.gate(ls.ToolCall("c", "any"), ls_traits(tool)).kind == "ask"
        assert asked == (tool.effect == "write") == (tool.prepare is not None)


def ls_traits(tool: ls.Tool) -> Any:
    from latchstep.core.rules import Traits

    return Traits(tool.effect, tool.replay)


# 5. Results


def test_s1_05_all_results_of_a_turn_are_one_user_message_in_order(tmp_path: Path) -> None:
    batch = [call(1, "bash", command="sleep 0.2; echo slow"), call(2, "list_files"), call(3, "bash", command="true")]
    messages = [user("go")]
    converse(messages, Lines(batch, "done"), tmp_path, allow)
    assert roles(messages) == ["user", "assistant", "user", "assistant"]
    assert [result.call_id for result in results(messages[2])] == ["toolu_01", "toolu_02", "toolu_03"]
    assert len(messages[2].blocks) == 3


def test_s1_05_no_call_in_the_reply_is_the_end_whatever_it_says(tmp_path: Path) -> None:
    model = Lines("I will now use a tool. <tool_use>", "more")
    converse([user("go")], model, tmp_path)
    assert len(model.requests) == 1


def test_s1_05_calls_are_run_whatever_the_stop_reason_says(tmp_path: Path) -> None:
    messages = [user("go")]
    converse(messages, Lines(ls.Reply([call(1, "list_files")], "stop"), "done"), tmp_path)
    assert roles(messages) == ["user", "assistant", "user", "assistant"]


def test_s1_05_splitting_undoes_joining() -> None:
    apart = [
        user("go"),
        ls.Message("assistant", (call(1, "a"), call(2, "b"))),
        *(ls.Message("tool", (ls.ToolResult(f"toolu_0{n}", "a", "x"),), f"tool-result-toolu_0{n}") for n in (1, 2)),
        user("go on"),
    ]
    assert split(joined(apart)) == apart
    assert roles(joined(apart)) == ["user", "assistant", "user", "user"]
    mixed = ls.Message("user", (ls.ToolResult("toolu_01", "a", "x"), ls.Text("and go on")))
    assert [message.role for message in split([mixed])] == ["tool", "user"]


# 7. The five published cases, with a scripted model and through the Messages API

Way = Any  # replies in, a context manager with a model out

ways = pytest.mark.parametrize("way", [scripted, messages_api])


@ways
def test_s1_07_text_only_is_one_call_and_two_messages(tmp_path: Path, way: Way) -> None:
    messages = [user("hi")]
    with way("hello") as model:
        converse(messages, model, tmp_path)
    assert len(model.requests) == 1
    assert roles(messages) == ["user", "assistant"]


@ways
def test_s1_07_a_tool_and_then_its_feedback(tmp_path: Path, way: Way) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    messages = [user("read a.txt")]
    with way(call(1, "read_file", path="a.txt"), "it says alpha") as model:
        converse(messages, model, tmp_path)
    assert len(model.requests) == 2
    (result,) = results(messages[2])
    assert (result.call_id, result.text, result.is_error) == ("toolu_01", "alpha", False)
    assert model.requests[1].messages[-1].blocks == (result,)
    assert messages[3].text == "it says alpha"


@ways
def test_s1_07_a_missing_file_reaches_the_model_and_it_goes_on(tmp_path: Path, way: Way) -> None:
    messages = [user("read none.txt")]
    with way(call(1, "read_file", path="none.txt"), "there is no such file") as model:
        converse(messages, model, tmp_path)
    (result,) = results(messages[2])
    assert result.is_error is True
    assert "none.txt" in result.text
    assert model.requests[1].messages[-1].blocks == (result,)
    assert messages[-1].text == "there is no such file"


@ways
def test_s1_07_a_denied_bash_leaves_no_sentinel_file(tmp_path: Path, way: Way) -> None:
    messages = [user("go")]
    with way(call(1, "bash", command="touch sentinel"), "a pity") as model:
        converse(messages, model, tmp_path, deny)
    assert not (tmp_path / "sentinel").exists()
    (result,) = results(messages[2])
    assert ("declined" in result.text, result.is_error) == (True, False)


@ways
def test_s1_07_two_rounds_alternate(tmp_path: Path, way: Way) -> None:
    messages = [user("go")]
    with way(call(1, "list_files"), call(2, "list_files"), "done") as model:
        converse(messages, model, tmp_path)
    assert roles(messages) == ["user", "assistant", "user", "assistant", "user", "assistant"]


# The same rules, as bytes of the Messages API


def test_s1_01_the_default_is_a_model_of_the_messages_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NANO_MODEL", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-x")
    nano.client.cache_clear()
    try:
        assert nano.client().name.startswith("anthropic:")
    finally:
        nano.client.cache_clear()


def test_s1_03_05_what_the_api_is_sent(tmp_path: Path) -> None:
    """The prompt apart from the history, each reply verbatim, all results of a turn in one user message."""
    (tmp_path / "a.txt").write_text("alpha")
    thought = {"type": "thinking", "thinking": "hm", "signature": sign("hm")}
    search = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "a"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
    uses = [
        {"type": "tool_use", "id": "toolu_01", "name": "read_file", "input": {"path": "a.txt"}},
        {"type": "tool_use", "id": "toolu_02", "name": "bash", "input": {"command": "touch sentinel"}},
        {"type": "tool_use", "id": "toolu_03", "name": "read_file", "input": {"path": "none.txt"}},
    ]
    reply = [thought, search, found, {"type": "text", "text": "I look."}, *uses]
    last = streamed({"type": "text", "text": "done"})
    messages = [user("go")]
    with strict_anthropic([streamed(*reply, stop="tool_use"), last, last]) as server:
        model = build("m", server.url, "sk-x")
        converse(messages, model, tmp_path, deny)
        messages.append(user("and?"))
        converse(messages, model, tmp_path, deny)
        assert server.refused == []
    assert list(tmp_path.iterdir()) == [tmp_path / "a.txt"]
    first, second, third = server.requests
    assert (first["max_tokens"], first["system"][0]["text"]) == (nano.MAX_TOKENS, nano.SYSTEM)
    assert len(first["tools"]) == 5
    assert second["messages"][1] == {"role": "assistant", "content": reply}
    answered = second["messages"][2]["content"]
    assert [part["tool_use_id"] for part in answered] == ["toolu_01", "toolu_02", "toolu_03"]
    assert [part.get("is_error", False) for part in answered] == [False, False, True]
    assert answered[0]["content"] == "alpha"
    assert "declined" in answered[1]["content"]
    assert [message["role"] for message in third["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert third["messages"][1] == second["messages"][1], "verbatim still, after the list went through the caller"
