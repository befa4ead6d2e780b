"""The person's own configuration: whose file it must be, what it may say, and hooks in a run at the terminal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from latchstep.cli.configured import FILE, TOOLS, configured
from latchstep.errors import DefinitionError
from latchstep.tool.command_hooks import DEFAULT_TIMEOUT, MAX_TIMEOUT
from tests.cli.cli_kit import Home, bash, edit, refused
from tests.cli.test_doctor import finding
from tests.cli.test_terminal import QUESTION, plain, running
from tests.model.strict_chat import StrictChat, text_answer

HOOK = '[[hooks]]\nwhen = "before"\ntool = "bash"\ncommand = ["/bin/true"]\n'


def put(state: Path, text: str = HOOK) -> Path:
    state.mkdir(exist_ok=True)
    path = state / FILE
    path.write_text(text)
    path.chmod(0o600)
    return path


def script(folder: Path, body: str) -> str:
    path = folder / "hook"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return str(path)


def hook_of(command: str, when: str = "before", more: str = "") -> str:
    return f'[[hooks]]\nwhen = "{when}"\ntool = "bash"\ncommand = [{command!r}]\n{more}'


def test_hooks_are_read_and_nothing_is_where_there_is_no_file(tmp_path: Path) -> None:
    assert configured(tmp_path).hooks == ()
    assert configured(tmp_path / "none" / "at all").hooks == ()
    put(tmp_path, HOOK + '[[hooks]]\nwhen = "after"\ntool = "*"\ncommand = ["/x/y", "--strict"]\ntimeout = 60\n')
    first, second = configured(tmp_path).hooks
    assert (first.when, first.tool, first.command, first.timeout) == ("before", "bash", ("/bin/true",), DEFAULT_TIMEOUT)
    assert (second.when, second.tool, second.command, second.timeout) == ("after", "*", ("/x/y", "--strict"), 60)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = 'x'\n", "unknown field `model`"),
        (HOOK + "sandbox = true\n", "unknown field `sandbox`"),
        (HOOK.replace("before", "during"), "during"),
        (HOOK.replace('"bash"', '"bsah"'), "no tool 'bsah'"),
        (HOOK.replace('["/bin/true"]', "[]"), "command"),
        (HOOK.replace('["/bin/true"]', '"/bin/true"'), "command"),
        (HOOK.replace("/bin/true", "check"), "absolute path"),
        (HOOK.replace("/bin/true", "./check"), "absolute path"),
        (HOOK + "timeout = 0\n", "timeout"),
        (HOOK + f"timeout = {MAX_TIMEOUT + 1}\n", "timeout"),
        (HOOK.replace("when", "#"), "when"),
        ("[[hooks]\n", "line 1"),
        ("x" * 300_000, "bytes"),
    ],
)
def test_what_it_may_not_say_is_named_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    put(tmp_path, text)
    with pytest.raises(DefinitionError, match=words) as caught:
        configured(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / FILE))
    assert "\n" not in str(caught.value)


def test_it_must_be_a_file_of_ones_own_that_nobody_else_may_write(tmp_path: Path, monkeypatch: Any) -> None:
    path = put(tmp_path)
    for mode in (0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(DefinitionError, match="by others"):
            configured(tmp_path)
    path.chmod(0o644)
    assert configured(tmp_path).hooks
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(DefinitionError, match="a file of yours"):
        configured(tmp_path)
    monkeypatch.undo()
    path.symlink_to(path.rename(tmp_path / "real"))
    with pytest.raises(DefinitionError, match="is a link"):
        configured(tmp_path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(DefinitionError, match="a file of yours"):
        configured(tmp_path)


def test_neither_the_file_nor_what_it_runs_may_lie_where_the_model_writes(tmp_path: Path) -> None:
    root, state = tmp_path / "ws", tmp_path / "state"
    root.mkdir()
    (root / "check.sh").touch()
    (tmp_path / "link").symlink_to(root / "not yet")
    for command in (
        f'"{root}/not yet"',
        f'"{tmp_path}/link"',
        '"/bin/sh", "check.sh"',
        f'"/bin/sh", "{root}/check.sh"',
    ):
        put(state, HOOK.replace('"/bin/true"', command))
        with pytest.raises(DefinitionError, match="which the model may write"):
            configured(state, [root])
    put(state, HOOK.replace('"/bin/true"', f'"/bin/sh", "--in", "{root}"'))
    assert configured(state, [root]).hooks, "the folder itself may be named"
    put(root)
    with pytest.raises(DefinitionError, match="which the model may write"):
        configured(root, [root])


def test_a_run_with_a_bad_file_does_not_begin(home: Home) -> None:
    put(home.state).chmod(0o666)
    with StrictChat([]) as server:
        refused(home.run("run", "go", "--base-url", server.url), 2, str(home.state / FILE), "chmod 600")
    assert home.sessions() == []


@pytest.mark.parametrize("option", ["--also-write", "--cache", "--cwd"])
def test_a_run_whose_hook_lies_where_it_writes_does_not_begin(home: Home, option: str) -> None:
    (home.folder / "other").mkdir()
    put(home.state, hook_of(script(home.folder / "other", "exit 0")))
    with StrictChat([]) as server:
        refused(home.run("run", "go", "--base-url", server.url, option, str(home.folder / "other")), 2, "may write")
    assert home.sessions() == []


def test_no_file_of_a_project_is_taken_for_it(home: Home) -> None:
    (home.workspace / ".latchstep").mkdir()
    for folder in (home.workspace, home.workspace / ".latchstep"):
        put(folder, hook_of("/bin/false"))
    (home.workspace / ".latchstep" / "settings.toml").write_text(hook_of("/bin/false"))
    with StrictChat([bash("touch made"), text_answer("Done.")]) as server:
        done = home.run("run", "go", "--base-url", server.url, "--mode", "unconfined")
    assert done.status == 0, done
    assert (home.workspace / "made").exists()


def test_the_changed_command_is_asked_about_and_is_what_runs(home: Home) -> None:
    change = """printf '{"arguments": {"command": "touch changed"}}'"""
    put(home.state, hook_of(script(home.folder, change)))
    with running(home, bash("touch first"), text_answer("So be it.")) as (_, it):
        asked = plain(it.expect(QUESTION))
        assert "  command\n  │ touch changed\n" in asked
        assert "│ touch first" not in asked
        it.type("y\n")
        it.expect("So be it.")
        assert it.end() == 0
    assert [path.name for path in home.workspace.iterdir()] == ["changed"]
    done = home.run("replay")
    assert (done.status, "same" in done.out) == (0, True), done


def test_a_changed_command_is_judged_as_any_other(home: Home) -> None:
    change = """printf '{"arguments": {"command": "touch changed"}}'"""
    put(home.state, hook_of(script(home.folder, change)))
    with StrictChat([bash("touch first"), text_answer("Done.")]) as server:
        home.run("run", "go", "--base-url", server.url, "--allow", "touch first")
    assert list(home.workspace.iterdir()) == []


def test_it_runs_outside_the_sandbox_and_a_failing_one_lets_nothing_run(home: Home) -> None:
    outside = home.folder / "outside"
    put(home.state, hook_of(script(home.folder, f"touch '{outside}'; echo cannot say >&2; exit 7")))
    with StrictChat([bash("touch made"), text_answer("Done.")]) as server:
        done = home.run("run", "go", "--base-url", server.url, "--allow", "touch made")
        (said,) = [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "tool"]
    assert done.status == 0, done
    assert outside.exists()
    assert list(home.workspace.iterdir()) == []
    assert "exit status 7: cannot say" in said


def test_a_resume_takes_the_configuration_of_now(home: Home) -> None:
    path = put(home.state, hook_of("/bin/false"))
    go = ("--mode", "unconfined")
    with StrictChat([bash("touch one"), text_answer("Done."), bash("touch two"), text_answer("Done.")]) as server:
        home.run("run", "go", "--base-url", server.url, *go)
        path.unlink()
        home.run("resume", "again")
    assert [it.name for it in home.workspace.iterdir()] == ["two"]


def test_file_tools_do_not_write_it(home: Home) -> None:
    state = home.workspace / "state"
    with StrictChat([edit(f"state/{FILE}", HOOK), text_answer("Done.")]) as server:
        home.run("run", "go", "--base-url", server.url, "--mode", "unconfined", env={"LATCHSTEP_HOME": str(state)})
        (said,) = [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "tool"]
    assert not (state / FILE).exists()
    assert "never written by file tools" in said


def test_doctor_names_them_and_what_cannot_be_run(home: Home) -> None:
    assert finding(home.run("doctor").out, "hooks") == ("✓", f"none are set in {home.state / FILE}")
    put(home.state, HOOK + hook_of("/no/such", "after"))
    mark, words = finding(home.run("doctor").out, "hooks")
    assert mark == "!"
    assert words == "before bash: /bin/true; after bash: /no/such (cannot be run, so no such call will)"
    put(home.state, "x = 1\n")
    done = home.run("doctor")
    assert (done.status, finding(done.out, "hooks")[0]) == (1, "✗")
    assert "unknown field `x`" in finding(done.out, "hooks")[1]


def test_the_tools_that_may_be_named_are_those_there_are(home: Home) -> None:
    with StrictChat([text_answer("Hello.")]) as server:
        home.run("run", "hi", "--base-url", server.url, "--fetch", "example.com")
        offered = [tool["function"]["name"] for tool in server.requests[0]["tools"]]
    assert sorted(offered) == sorted(TOOLS)
