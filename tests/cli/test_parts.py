"""The pure parts of the terminal: what fits a row, what is whole, what a workspace's HEAD is."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.cli.asking import lay_out
from latchstep.cli.driving import put_json
from latchstep.cli.human import Human, summary
from latchstep.cli.running import Setup, asked, folder, resolve
from latchstep.cli.screen import PLAIN, OutputLost, Screen, columns_of, cut_to, fold, gutter
from latchstep.core.codec import decode_event
from latchstep.core.event import (
    CallChanged,
    CancelRequested,
    MessageAccepted,
    MessageCompleted,
    MessageEdited,
    MessageWithdrawn,
    ModelFailed,
    ModelSwitched,
    Question,
    ToolFinished,
    ToolStarted,
)
from latchstep.core.message import Message, ToolCall, user
from latchstep.core.printable import printable
from latchstep.errors import DefinitionError
from latchstep.tool.head import head_of

NO_OPTIONS: dict[str, Any] = dict.fromkeys(("model", "base_url", "mode", "max_steps", "max_context")) | {
    "allow": (),
    "check": (),
}
SEEN = st.text(max_size=200).map(printable)


@given(SEEN.map(lambda text: text.replace("\n", "")), st.integers(2, 50))
def test_folding_loses_nothing_and_fits(text: str, columns: int) -> None:
    pieces = fold(text, columns)
    assert "".join(pieces) == text
    assert all(sum(map(columns_of, piece)) <= columns for piece in pieces)
    cut = cut_to(text, columns)
    assert sum(map(columns_of, cut)) <= columns
    assert cut == text or cut.endswith("…")


@given(st.text(max_size=300), st.integers(20, 80))
def test_a_gutter_marks_every_row_and_loses_nothing(text: str, columns: int) -> None:
    rows = gutter(text, columns)
    assert all(row.startswith(("  │ ", "  : ")) for row in rows)
    assert all(sum(map(columns_of, row)) <= columns for row in rows)
    lines: list[str] = []
    for row in rows:
        if row.startswith("  │ "):
            lines.append(row[4:])
        else:
            lines[-1] += row[4:]
    assert "\n".join(lines) == printable(text)


@given(st.lists(st.text(max_size=30) | st.text(" \n\tx", max_size=60), max_size=10))
@settings(max_examples=200)
def test_a_text_in_pieces_looks_like_the_whole(pieces: list[str]) -> None:
    whole = printable("".join(pieces))
    out = io.StringIO()
    screen = Screen(out)
    for piece in pieces:
        screen.piece(piece)
    screen.end()
    plain = whole.translate(PLAIN).encode("ascii", "replace").decode()
    assert out.getvalue().rstrip() == plain.rstrip()


def test_blanks_that_come_one_by_one_are_still_seen_as_a_run() -> None:
    out = io.StringIO()
    screen = Screen(out)
    for piece in ("safe", *" " * 500, "; evil"):
        screen.piece(piece)
    screen.end()
    assert out.getvalue() == "safe [500 blanks] ; evil\n"


def test_an_output_that_takes_no_more_is_one_kind_of_error() -> None:
    closed = io.StringIO()
    screen = Screen(closed)
    closed.close()
    with pytest.raises(OutputLost):
        screen.line("x")


# -- the question ------------------------------------------------------------------------------------------


def question(arguments: dict[str, Any], diff: str | None = None) -> Question:
    return Question(call_id="c", name="edit", sha256="0", found={"diff": diff} if diff else None, arguments=arguments)


def test_arguments_are_left_out_only_where_a_whole_diff_says_them() -> None:
    arguments = {"path": "a", "old": "OLD-TEXT", "new": "NEW-TEXT"}
    shown = lambda diff: "\n".join(lay_out(question(arguments, diff), 80))  # noqa: E731
    whole = "--- a\n+++ a\n@@ -1,1 +1,1 @@\n-x\n+y"
    assert "OLD-TEXT" not in shown(whole)
    assert "│ +y" in shown(whole)
    for cut in (
        whole + "\n… 5 more lines of the diff are not shown",
        whole + "\n+… 7 more lines",
        whole + "\n+" + "z" * 400,
        "\n".join([whole, *["+x"] * 400]),
        "(binary: 1 B before, 2 B after)",
        None,
    ):
        assert "OLD-TEXT" in shown(cut)
        assert "NEW-TEXT" in shown(cut)


@given(
    st.dictionaries(
        st.text(max_size=20), st.text(max_size=200) | st.integers() | st.lists(st.text(max_size=20)), max_size=4
    )
)
def test_every_argument_is_in_the_question(arguments: dict[str, Any]) -> None:
    rows = lay_out(question(arguments), 40)
    unbroken = "".join(row[4:] if row.startswith("  : ") else "\n" + row for row in rows)
    for value in arguments.values():
        if isinstance(value, str):
            for line in printable(value).split("\n"):
                assert f"  │ {line}" in unbroken


# -- what is shown -----------------------------------------------------------------------------------------


def told(*events: Any) -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    human = Human(Screen(out))
    for event in events:
        human.show(event)
    out.seek(0)
    return out.read()


def test_a_command_that_failed_does_not_look_like_one_that_passed() -> None:
    started = ToolStarted(call_id="c", name="bash", sha256="0")
    for status, mark in ((0, "✓"), (1, "✗"), (None, "✗")):
        ended = ToolFinished(call_id="c", name="bash", outcome="ok", content="x\n[exit]", details={"exit": status})
        assert f"  {mark} x" in told(started, ended)


def test_a_switch_of_models_is_one_line() -> None:
    failed = ModelFailed(request_id="r", attempt=1, kind="overloaded", message="busy", next="retry")
    switched = ModelSwitched(old="p:a", new="p:b\n", why="overloaded", request_id="r")
    lines = told(failed, switched).splitlines()
    assert lines == ["! model: overloaded: busy; asking again", "  model: p:a → p:b⏎ (overloaded)"]
    assert "asking again in 2 s" in told(msgspec.structs.replace(failed, retry_in=2.0))


def test_a_long_message_is_shown_in_part() -> None:
    text = "\n".join(f"line {at}" for at in range(100))
    shown = told(MessageAccepted(message_id="m", source="prompt", message=user(text)))
    assert "› line 0\n" in shown
    assert "line 20\n" in shown
    assert "line 21" not in shown
    assert "(+79 lines)" in shown
    assert told(MessageAccepted(message_id="m", source="notice", message=user(""))).strip() == ""


def test_a_summary_names_what_matters_first() -> None:
    assert summary({"timeout": 5, "command": "make"}) == "make  timeout=5"
    assert summary({"path": "a", "new": "x" * 99}).startswith("a  new=x")
    assert len(summary({"path": "a", "new": "x" * 99})) < 60


# -- what was typed ----------------------------------------------------------------------------------------


def test_what_is_typed_comes_on_top_of_what_is_on_record() -> None:
    base = Setup(model="m:1", mode="edits", allow=("a",), checks=("t",), max_steps=3, base_url="http://x/v1", cut=True)
    assert asked(base, **NO_OPTIONS) == base
    local = Setup(model="openai-chat:m", base_url="http://x/v1", cut=True)
    for model, url in (
        ("openai-chat:n", "http://x/v1"),
        ("n", "http://x/v1"),
        ("q:4b", "http://x/v1"),
        ("gemini:n", ""),
    ):
        other = asked(local, **NO_OPTIONS | {"model": model})
        assert (other.model, other.base_url, other.cut) == (model, url, bool(url))
    assert asked(local, **NO_OPTIONS | {"model": "gemini:n", "base_url": "http://y"}).base_url == "http://y"
    more = asked(base, **NO_OPTIONS | {"allow": ("a", "b"), "mode": "plan", "base_url": "http://y/v1"})
    assert (more.allow, more.mode, more.checks, more.cut) == (("a", "b"), "plan", ("t",), False)


@pytest.mark.parametrize(
    ("model", "url", "name", "kept", "cut"),
    [
        ("", "http://h:1/v1", "openai-chat:default", "http://h:1/v1", False),
        ("qwen3:8b", "http://h:1/v1", "openai-chat:qwen3:8b", "http://h:1/v1", False),
        ("ollama:qwen3:8b", "", "ollama:qwen3:8b", "", False),
        ("x", "http://u:p@h:1/v1?k=s", "openai-chat:x", "http://h:1/v1", True),
    ],
)
def test_a_model_is_recorded_by_the_name_that_finds_it_again(
    model: str, url: str, name: str, kept: str, cut: bool
) -> None:
    built, setup = resolve(Setup(model=model, base_url=url))
    assert built.name == setup.model == name
    assert (setup.base_url, setup.cut) == (kept, cut)


def test_a_workspace_whose_path_is_no_text_is_refused(tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/od\xffd"))
    odd.mkdir()
    with pytest.raises(DefinitionError, match="UTF-8"):
        folder(odd)


# -- HEAD --------------------------------------------------------------------------------------------------


def git(folder: Path, *args: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *identity, *args], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_head_is_what_git_says_loose_packed_detached_and_in_a_worktree(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    (repo / "deep" / "er").mkdir(parents=True)
    git(repo, "init", "-q")
    assert head_of(repo) == ""
    git(repo, "commit", "-q", "--allow-empty", "-m", "one")
    git(repo, "checkout", "-q", "-b", "fix/#12+ü@x")
    commit = git(repo, "rev-parse", "HEAD")
    assert head_of(repo) == head_of(repo / "deep" / "er") == commit
    git(repo, "pack-refs", "--all")
    assert head_of(repo) == commit
    git(repo, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "other")
    git(tmp_path / "tree", "commit", "-q", "--allow-empty", "-m", "two")
    assert head_of(tmp_path / "tree") == git(tmp_path / "tree", "rev-parse", "HEAD") != commit
    git(repo, "checkout", "-q", "--detach")
    assert head_of(repo) == commit
    assert head_of(tmp_path) == ""


@pytest.mark.parametrize("head", ["ref: refs/../../secret", "ref: /etc/passwd", "ref: refs/heads/.x", "x" * 10_000, ""])
def test_a_hostile_head_names_nothing(tmp_path: Path, head: str) -> None:
    (tmp_path / "secret").write_text("0" * 40)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head)
    assert head_of(tmp_path) == ""


def test_a_fifo_where_git_has_a_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main")
    os.mkfifo(tmp_path / ".git" / "packed-refs")
    assert head_of(tmp_path) == ""
    (tmp_path / ".git" / "HEAD").unlink()
    os.mkfifo(tmp_path / ".git" / "HEAD")
    assert head_of(tmp_path) == ""


def test_what_waits_and_is_changed_or_taken_back_is_told() -> None:
    said = MessageAccepted(message_id="a", source="steer", message=user("use B\x1b[2J"))
    edited = MessageEdited(message_id="a", message=user("use D\nplease"))
    assert told(said, edited).splitlines() == ["› use B\\x1b[2J", "  in place of: use B\\x1b[2J", "› use D", "  please"]
    assert told(said, MessageWithdrawn(message_id="a")).splitlines()[1] == "  taken back: use B\\x1b[2J"
    assert told(MessageWithdrawn(message_id="b")).splitlines() == ["  taken back: a waiting message"]


def test_what_a_hook_made_of_a_call_is_told_and_shown_from_then_on() -> None:
    message = Message("assistant", (ToolCall("c", "put", {"path": "f"}),))
    answer = MessageCompleted(request_id="r", message=message, stop_reason="tool_calls")
    changed = CallChanged(call_id="c", arguments={"path": "safe/f"})
    lines = told(answer, changed, ToolStarted(call_id="c", name="put", sha256="0")).splitlines()
    assert lines == ["  changed by a hook: put f → safe/f", "▸ put safe/f"]
    assert "when the turn is complete (enough)" in told(CancelRequested(reason="enough", after_turn=True))


def test_an_event_as_json_holds_no_control_of_a_terminal(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    event = MessageAccepted(message_id="m", source="prompt", message=user("\x1b[2J \x9b2J \x7f \u00c2\u00a0\u00e9"))
    put_json(event)
    out = capfdbinary.readouterr().out
    assert out.isascii() is False
    assert not set(out.decode()) & set(map(chr, (*range(10), *range(11, 32), *range(0x7F, 0xA0))))
    assert decode_event(out) == event
