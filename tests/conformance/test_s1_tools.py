"""The nano coding agent, rule 6: its five tools and its terminal."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nano
import nano_tools
import pytest

import latchstep as ls
from latchstep.core.event import Question
from latchstep.core.message import user
from latchstep.errors import ModelError

from .conftest import EXAMPLES
from .s1 import Lines, allow, call, converse, results, roles

# 6. Tools and terminal


def tool(folder: Path, name: str) -> ls.Tool:
    return next(tool for tool in nano_tools.tools(folder) if tool.name == name)


def test_s1_06_the_five_tools_do_what_they_say(tmp_path: Path) -> None:
    assert tool(tmp_path, "write_file")(path="deep/a.txt", content="one two") == "wrote 7 characters to deep/a.txt"
    assert tool(tmp_path, "edit_file")(path="deep/a.txt", old="two", new="three") == "edited deep/a.txt"
    assert tool(tmp_path, "read_file")(path="deep/a.txt") == "one three"
    assert tool(tmp_path, "list_files")() == "deep/"
    assert tool(tmp_path, "bash")(command="pwd") == f"{tmp_path.resolve()}\n[exit status 0]"


def test_s1_06_an_edit_must_fit_exactly_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x x")
    for old in ("x", "y", ""):
        with pytest.raises(ls.ToolError, match="it must occur once"):
            tool(tmp_path, "edit_file")(path="a.txt", old=old, new="z")
    assert (tmp_path / "a.txt").read_text() == "x x"


def test_s1_06_paths_stay_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "out.txt").write_text("secret")
    (folder / "link").symlink_to(tmp_path)
    for path in ("../out.txt", str(tmp_path / "out.txt"), "link/out.txt"):
        with pytest.raises(ls.ToolError, match="outside"):
            tool(folder, "read_file")(path=path)
        with pytest.raises(ls.ToolError, match="outside"):
            tool(folder, "write_file")(path=path, content="")
    assert (tmp_path / "out.txt").read_text() == "secret"


def test_s1_06_the_preview_is_exactly_what_would_run(tmp_path: Path) -> None:
    shown: list[str] = []

    def approve(question: Question) -> bool:
        shown.append(question.found)
        return False

    hidden = "echo safe\r\x1b[2K; touch \u202esentinel"
    batch = [call(1, "bash", command=hidden), call(2, "edit_file", path="a", old="1\n2", new="3")]
    converse([user("go")], Lines(batch, "done"), tmp_path, approve)
    assert shown == ["command: echo safe\\r\\x1b[2K; touch \\u202esentinel", "path: a\nold: 1\n2\nnew: 3"]


TERMINAL = """
import nano
from tests.conformance.s1 import Lines, call
from latchstep.errors import ModelError
nano.main({model})
"""


def terminal(folder: Path, replies: str, typed: str) -> list[str]:
    """What a terminal shows, line by line, when these lines are typed."""
    return typed_into(TERMINAL.format(model=f"Lines({replies})"), folder, typed)


def typed_into(code: str, folder: Path, typed: str) -> list[str]:
    path = os.pathsep.join([str(EXAMPLES), str(EXAMPLES.parent)])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC_", "NANO_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**environment, "PYTHONPATH": path},
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")


def test_s1_06_a_missing_key_is_said_when_the_client_is_first_needed(tmp_path: Path) -> None:
    shown = typed_into("import nano; nano.main()", tmp_path, "hi\nhi\n")
    assert [line.partition(": set ")[0] for line in shown] == ["> ! auth: no key for anthropic"] * 2 + ["> "]


def test_s1_06_a_terminal_loop_drives_it(tmp_path: Path) -> None:
    replies = "call(1, 'bash', command='echo hi > made'), 'made it', 'bye'"
    shown = terminal(tmp_path, replies, "make it\ny\n\nthanks\n")
    assert shown[0] == "> → bash {'command': 'echo hi > made'}"
    assert shown[1:] == ["command: echo hi > made", "run bash? [y/N] made it", "> > bye", "> "]
    assert (tmp_path / "made").read_text() == "hi\n"


def test_s1_06_only_y_allows(tmp_path: Path) -> None:
    answers = ["n", "", "yes", "no", "Y"]
    replies = ", ".join(f"call(1, 'bash', command='touch after-{answer}'), 'so be it'" for answer in answers)
    terminal(tmp_path, replies, "".join(f"make it\n{answer}\n" for answer in answers))
    assert [path.name for path in tmp_path.iterdir()] == ["after-Y"]


def test_s1_06_the_terminal_survives_a_failed_call(tmp_path: Path) -> None:
    replies = "'one', ModelError('network', 'no route'), 'three'"
    shown = terminal(tmp_path, replies, "a\nb\nc\n")
    assert shown == ["> one", "> ! MODEL_NETWORK: no route", "> three", "> "]


def test_s1_06_a_failed_call_leaves_no_dangling_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["a", "b", "c"])
    monkeypatch.setattr("builtins.input", lambda prompt: next_line(typed))
    monkeypatch.chdir(tmp_path)
    model = Lines("one", ModelError("network", "no route"), "three")
    nano.main(model)
    assert [message.text for message in model.requests[2].messages] == ["a", "one", "c"]


def test_s1_06_a_line_that_fails_late_stays_with_what_was_done_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["a", "b"])
    monkeypatch.setattr("builtins.input", lambda prompt: next_line(typed))
    monkeypatch.chdir(tmp_path)
    model = Lines(call(1, "list_files"), ModelError("network", "no route"), "done")
    nano.main(model)
    assert roles(model.requests[2].messages) == ["user", "assistant", "tool", "user"]


def next_line(lines: Any) -> str:
    try:
        return str(next(lines))
    except StopIteration:
        raise EOFError from None


def test_s1_06_a_call_that_fails_late_keeps_what_was_done(tmp_path: Path) -> None:
    """The files were written, so the model must go on knowing it; and every call has its result."""
    model = Lines(call(1, "write_file", path="a", content="1"), ModelError("network", "no route"), "I wrote a.")
    messages = [user("write a")]
    with pytest.raises(ls.LatchstepError, match="no route"):
        converse(messages, model, tmp_path, allow)
    assert roles(messages) == ["user", "assistant", "user"]
    messages.append(user("what did you do?"))
    converse(messages, model, tmp_path)
    assert roles(model.requests[2].messages) == ["user", "assistant", "tool", "user"]
    assert messages[-1].text == "I wrote a."


def test_s1_06_a_call_cut_short_by_a_cancel_has_a_truthful_result(tmp_path: Path) -> None:
    messages = [user("wait")]
    asked = asyncio.Event()

    async def approve(question: Question) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    async def interrupt() -> None:
        model = Lines([call(1, "list_files"), call(2, "bash", command="touch sentinel")], "never")
        working = asyncio.create_task(nano.agent(messages, model, tmp_path, approve))
        async with asyncio.timeout(20):
            await asked.wait()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working

    asyncio.run(interrupt())
    assert roles(messages) == ["user", "assistant", "user"]
    assert [result.outcome for result in results(messages[2])] == ["ok", "not_started"]
    assert list(tmp_path.iterdir()) == []
