"""A workspace that is moved, replaced or checked out anew while a run works in it, or before it goes on."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_kit import PATIENCE, Done, Home, bash, call_answer_of, edit, ended, refused, wait_for
from tests.cli.test_hands import renamed
from tests.model.strict_chat import StrictChat, text_answer

READ = call_answer_of(("read", {"path": "notes.txt"}))
EDIT = renamed(call_answer_of(("edit", {"path": "notes.txt", "old": "one", "new": "two"})), "edit")


def git(home: Home, *args: str, cwd: Path | None = None) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false"]
    folder = cwd or home.workspace
    subprocess.run(["git", *identity, *args], cwd=folder, env=home.env(), check=True, capture_output=True)


def repository(home: Home) -> None:
    """A workspace with a commit on `main`, another on `other`, and `same` at the first one."""
    (home.workspace / "notes.txt").write_text("one\n")
    git(home, "init", "-q", "-b", "main")
    git(home, "add", ".")
    git(home, "commit", "-q", "-m", "one")
    git(home, "branch", "same")
    git(home, "checkout", "-q", "-b", "other")
    (home.workspace / "notes.txt").write_text("one, of the other branch\n")
    git(home, "commit", "-q", "-a", "-m", "two")
    git(home, "checkout", "-q", "main")


def gate_of(home: Home) -> tuple[Path, list[str]]:
    """A file outside the workspace that a command can see, and the options that show it."""
    (cache := home.folder / "cache").mkdir()
    return cache / "gate", ["--cache", str(cache)]


def changed_meanwhile(home: Home, change: Callable[[], Any], *options: str) -> list[dict[str, Any]]:
    """Results and checks of a run in whose workspace something happens between two of its calls."""
    gate, shown = gate_of(home)
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    after = [renamed(READ, "read"), EDIT, edit("new.txt", "x\n", "call-new"), bash("pwd", "call-pwd")]
    answers = [READ, bash(wait, "call-wait"), *after, *[text_answer("Done.")] * 4]
    with StrictChat(answers) as server:
        allow = ("--allow", wait, "--allow", "pwd", "--mode", "edits", "--check", "test -e notes.txt")
        process = home.start("run", "go", "--base-url", server.url, *allow, *shown, *options)
        # the command is running, and not only on record, once a shell stands in the workspace
        wait_for(lambda: at_work(home.workspace), "the command")
        change()
        gate.touch()
        done = ended(process)
    ending = home.ending()
    assert done.status == {"completed": 0, "unverified": 4}[ending["status"]], done
    assert "Traceback" not in done.err
    return [e for e in home.events() if e["type"] in ("tool.finished", "check.finished")][2:]


def at_work(folder: Path) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                said = (entry / "cmdline").read_bytes()
                if b"/gate" in said and b"latchstep" not in said and (entry / "cwd").samefile(folder):
                    return True
            except OSError:
                continue
    return False


def moved(home: Home) -> None:
    home.workspace.rename(home.folder / "elsewhere")


def replaced(home: Home) -> None:
    moved(home)
    home.workspace.mkdir()
    (home.workspace / "notes.txt").write_text("one\n")


@pytest.mark.parametrize("how", [moved, replaced, lambda home: shutil.rmtree(home.workspace)])
def test_a_workspace_that_goes_away_during_a_run_stops_every_tool_and_check(
    home: Home, how: Callable[[Home], None]
) -> None:
    """Not even a command or a check runs in the folder that took its place: it could pass there."""
    (home.workspace / "notes.txt").write_text("one\n")
    results = changed_meanwhile(home, lambda: how(home))
    for result in results:
        said = result.get("content", result.get("output"))
        assert f"the workspace {home.workspace} no longer exists, or another folder took its place" in said, result
    assert [r.get("name") for r in results[:4]] == ["read", "edit", "write", "bash"]
    assert home.ending()["status"] == "unverified"
    for folder in (home.workspace, home.folder / "elsewhere"):
        assert not (folder / "new.txt").exists()


def test_a_branch_that_is_switched_during_a_run_changes_what_was_read(home: Home) -> None:
    repository(home)
    results = changed_meanwhile(home, lambda: git(home, "checkout", "-q", "other"))
    read, edited, *_ = results
    assert "of the other branch" in read["content"]
    assert edited["outcome"] == "ok", "it read again before it edited"
    assert home.ending()["status"] == "completed"


def test_an_edit_of_what_another_branch_changed_is_refused_unread(home: Home) -> None:
    repository(home)
    gate, shown = gate_of(home)
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    with StrictChat([READ, bash(wait, "call-wait"), EDIT, text_answer("Done.")]) as server:
        process = home.start("run", "go", "--base-url", server.url, "--allow", wait, "--mode", "edits", *shown)
        wait_for(lambda: at_work(home.workspace), "the command")
        git(home, "checkout", "-q", "other")
        gate.touch()
        assert ended(process).status == 0
    edited = [e for e in home.events() if e["type"] == "tool.finished"][-1]
    assert edited["outcome"] == "error"
    assert "changed since" in edited["content"]


def killed(home: Home, server: StrictChat, *command: str) -> None:
    """A process that dies while it waits for the model's answer."""
    asked = len(server.bodies)
    process = home.start(*(command or ("run", "go", "--base-url", server.url, "--mode", "edits")))
    server.wait(lambda: len(server.bodies) > asked, PATIENCE)
    process.kill()
    ended(process)


def journal(home: Home) -> bytes:
    path = home.session() / "journal.jsonl"
    return path.read_bytes() if path.exists() else b""


def resumed(home: Home, *more: str, **options: Any) -> Done:
    return home.run("resume", "--session", home.session().name, *more, **options)


def test_head_must_be_what_it_was_and_a_branch_of_the_same_commit_is(home: Home) -> None:
    repository(home)
    with StrictChat([["#STALL"], text_answer("Done.")]) as server:
        killed(home, server)
        git(home, "checkout", "-q", "other")
        refused(resumed(home), 2, f"HEAD of {home.workspace} was ", " and is ", "--anyway")
        shutil.move(home.workspace / ".git", home.folder / "git")
        refused(resumed(home), 2, "is none now", "--anyway")
        shutil.move(home.folder / "git", home.workspace / ".git")
        git(home, "checkout", "-q", "same")
        assert resumed(home).status == 0


def test_a_head_that_was_accepted_anyway_is_the_pinned_one_from_then_on(home: Home) -> None:
    repository(home)
    with StrictChat([["#STALL"], ["#STALL"], text_answer("Done.")]) as server:
        killed(home, server)
        git(home, "checkout", "-q", "other")
        killed(home, server, "resume", "--anyway")
        assert resumed(home).status == 0
    assert [e["type"] for e in home.events()].count("run.resumed") == 1


@pytest.mark.parametrize("how", ["moved", "deleted"])
def test_a_workspace_that_is_gone_before_a_resume_is_said_and_another_may_be_given(home: Home, how: str) -> None:
    repository(home)
    with StrictChat([["#STALL"], text_answer("Done.")]) as server:
        killed(home, server)
        home.workspace.rename(home.folder / "elsewhere")
        if how == "deleted":
            shutil.rmtree(home.folder / "elsewhere")
        before = journal(home)
        refused(resumed(home, cwd=home.folder), 2, "does not exist", "--cwd DIR")
        refused(home.run("resume", cwd=home.folder), 2, "no session of", "latchstep sessions --all")
        assert journal(home) == before
        if how == "moved":
            assert resumed(home, "--cwd", "elsewhere", cwd=home.folder).status == 0
            return
        home.workspace.mkdir()
        refused(resumed(home), 2, "is none now", "--anyway")


def test_the_model_on_record_goes_on_and_another_only_where_it_is_named(home: Home) -> None:
    with StrictChat([["#STALL"], ["#STALL"], text_answer("Done.")]) as server:
        killed(home, server, "run", "go", "--base-url", server.url, "--model", "openai-chat:first")
        asked = len(server.bodies)
        process = home.start("resume", env={"LATCHSTEP_MODEL": "openai-chat:another"})
        server.wait(lambda: len(server.bodies) > asked, PATIENCE)
        process.kill()
        ended(process)
        done = resumed(home, "--model", "openai-chat:second")
        assert done.status == 0, done
        assert [request["model"] for request in server.requests] == ["first", "first", "second"]
    assert "model: openai-chat:first → openai-chat:second" in done.out
    (switched,) = [e for e in home.events() if e["type"] == "model.switched"]
    assert (switched["old"], switched["new"]) == ("openai-chat:first", "openai-chat:second")
    assert home.run("replay").status == 0
