"""`latchstep fork`, `rewind`, `sessions verify` and `salvage`, with real processes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from latchstep.journal.store import Store
from latchstep.tool.snapshot import Shadow
from tests.cli.cli_kit import Done, Home, Terminal, bash, edit, ended, refused, wait_for
from tests.model.strict_chat import StrictChat, text_answer
from tests.tool.snapshot_kit import picture

UNCONFINED = ("--mode", "unconfined")
SAYS_UNDO = re.compile(r"To undo:  latchstep (rewind --session \S+ --to \d+)")
SAYS_FORK = re.compile(r"session (\S+): a copy of (\S+) up to line (\d+)")

CHANGES = "echo new > made; rm gone; echo two > kept; chmod +x kept; ln -s made link; mkdir deep; echo x > deep/f"


def filled(home: Home) -> None:
    for name in ("gone", "kept", "still"):
        (home.workspace / name).write_text("one\n")
    (home.workspace / ".gitignore").write_text("*.log\n")
    (home.workspace / "own.log").write_text("ignored\n")


def ran(home: Home, *scripts: Any, task: str = "go", more: tuple[str, ...] = ()) -> Done:
    with StrictChat([*scripts, text_answer("Done.")]) as server:
        done = home.run("run", task, "--base-url", server.url, *UNCONFINED, *more)
    assert done.status == 0, done
    return done


def again(home: Home, session: str, *scripts: Any, task: str) -> None:
    with StrictChat([*scripts, text_answer("Done.")]) as server:
        done = home.run("resume", task, "--session", session, "--base-url", server.url, *UNCONFINED)
    assert done.status == 0, done


def made_by(done: Done) -> str:
    found = SAYS_FORK.search(done.out)
    assert found is not None, done
    return found[1]


def test_what_a_run_changed_comes_back_and_the_undo_that_is_printed_works(home: Home) -> None:
    filled(home)
    before = picture(home.workspace)
    ran(home, bash(CHANGES), task="change everything")
    after = picture(home.workspace)
    assert before != after
    (old,) = home.sessions()
    done = home.run("rewind", "--turns", "1", "--yes")
    assert done.status == 0, done
    assert picture(home.workspace) == before
    for line in ("› change everything", "+ gone  comes back", "- made  is removed", "~ kept  is changed back"):
        assert line in done.out
    assert "- deep/f  is removed" in done.out
    assert "still" not in done.out
    undo = SAYS_UNDO.search(done.out)
    assert undo is not None, done
    undone = home.run(*undo[1].split(), "--yes")
    assert undone.status == 0, undone
    assert picture(home.workspace) == after
    redo = SAYS_UNDO.search(undone.out)
    assert redo is not None
    assert home.run(*redo[1].split(), "--yes").status == 0
    assert picture(home.workspace) == before
    assert len(home.sessions()) == 2, "going back and forth makes no more sessions"
    for path in home.sessions():
        assert Store(home.state).verify(path.name).sound
    assert old in home.sessions()


def test_the_new_session_goes_on_from_there(home: Home) -> None:
    filled(home)
    ran(home, bash("echo 1 > first"), task="first")
    (old,) = home.sessions()
    again(home, old.name, bash("echo 2 > second"), task="second")
    done = home.run("rewind", "--turns", "1", "--yes")
    new = made_by(done)
    assert (home.workspace / "first").exists()
    assert not (home.workspace / "second").exists()
    with StrictChat([bash("echo 3 > third"), text_answer("Done.")]) as server:
        resumed = home.run("resume", "third", "--base-url", server.url)
        said = [m["content"] for m in server.requests[0]["messages"] if m["role"] == "user"]
    assert resumed.status == 0, resumed
    assert said == ["first", "third"]
    assert home.ending(home.state / "sessions" / new)["status"] == "completed"
    back = home.run("rewind", "--session", new, "--turns", "2", "--yes")
    assert back.status == 0, back
    assert sorted(path.name for path in home.workspace.iterdir()) == [".gitignore", "gone", "kept", "own.log", "still"]


def test_what_a_person_changed_between_two_runs_is_not_taken_back_with_the_second(home: Home) -> None:
    filled(home)
    ran(home, bash("echo 1 > first"), task="first")
    (old,) = home.sessions()
    (home.workspace / "kept").write_text("a person's\n")
    again(home, old.name, bash("echo 2 > second; echo 2 > kept"), task="second")
    assert home.run("rewind", "--turns", "1", "--yes").status == 0
    assert (home.workspace / "kept").read_text() == "a person's\n"
    assert not (home.workspace / "second").exists()


def test_without_yes_it_shows_what_it_would_do_and_does_nothing(home: Home) -> None:
    filled(home)
    ran(home, bash(CHANGES))
    after = picture(home.workspace)
    before = home.session().joinpath("journal.jsonl").read_bytes()
    done = home.run("rewind", "--turns", "1")
    assert done.status == 2
    assert "- made  is removed" in done.out
    assert "nothing was changed" in done.err
    assert picture(home.workspace) == after
    assert home.session().joinpath("journal.jsonl").read_bytes() == before


def test_at_a_terminal_one_chooses_and_is_asked(home: Home) -> None:
    filled(home)
    before = picture(home.workspace)
    ran(home, bash(CHANGES), task="the first thing")
    (old,) = home.sessions()
    again(home, old.name, bash("touch more"), task="the second thing")
    after = picture(home.workspace)
    with Terminal(home, "rewind", "--session", old.name, NO_COLOR="1") as it:
        listed = it.expect("or Enter to leave] > ")
        assert re.search(r" 1  \S+ \S+  the first thing  1 call\n", listed)
        assert re.search(r" 2  \S+ \S+  the second thing  1 call\n", listed)
        it.type("7\n")
        it.expect("or Enter to leave] > ")
        it.type("1\n")
        shown = it.expect("[y] yes  [n] no > ")
        assert "› the first thing" in shown
        assert "(and 1 more)" in shown
        assert "+ gone  comes back" in shown
        it.type("n\n")
        assert it.end() == 130
        assert "Nothing was changed." in it.shown
    assert picture(home.workspace) == after
    with Terminal(home, "rewind", "--session", old.name, NO_COLOR="1") as it:
        it.expect("or Enter to leave] > ")
        it.type("1\n")
        it.expect("[y] yes  [n] no > ")
        it.type("y\n")
        assert it.end() == 0
    assert picture(home.workspace) == before
    with Terminal(home, "rewind", "--session", old.name) as it:
        it.expect("or Enter to leave] > ")
        it.type("\n")
        assert it.end() == 130


def test_files_that_change_while_one_is_asked_stop_it(home: Home) -> None:
    filled(home)
    ran(home, bash(CHANGES))
    with Terminal(home, "rewind", "--turns", "1") as it:
        it.expect("[y] yes  [n] no > ")
        (home.workspace / "made").write_text("a person's\n")
        it.type("y\n")
        assert it.end() == 2
        assert "the files changed while you were asked" in it.shown
    assert (home.workspace / "made").read_text() == "a person's\n"
    assert len(home.sessions()) == 1


def test_fork_copies_up_to_a_line_and_leaves_the_files(home: Home) -> None:
    filled(home)
    ran(home, bash(CHANGES))
    (old,) = home.sessions()
    after = picture(home.workspace)
    whole = made_by(home.run("fork"))
    assert len(home.events(home.state / "sessions" / whole)) == len(home.events(old))
    part = home.run("fork", "--session", old.name[:-2], "--at", "3")
    assert part.status == 0, part
    assert [event["type"] for event in home.events(home.state / "sessions" / made_by(part))][-1] == "run.started"
    assert f"latchstep resume --session {made_by(part)}\n" in part.out, "its run is not finished"
    assert picture(home.workspace) == after
    refused(home.run("fork", "--session", old.name, "--at", "999"), 2, "there is no line 999")


def test_fork_with_files_puts_them_back_too(home: Home) -> None:
    filled(home)
    before = picture(home.workspace)
    ran(home, bash(CHANGES))
    after = picture(home.workspace)
    (old,) = home.sessions()
    done = home.run("fork", "--at", "3", "--files", "--yes")
    assert done.status == 0, done
    assert picture(home.workspace) == before
    assert made_by(done)
    assert home.run("fork", "--session", old.name, "--files", "--yes").status == 0
    assert picture(home.workspace) == after


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_nothing_of_the_repository_is_touched_and_moved_heads_are_said(home: Home) -> None:
    filled(home)
    git = ["git", "-C", str(home.workspace), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    hook = home.workspace / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch ran\n")
    hook.chmod(0o755)
    commit = "git -c user.name=a -c user.email=a@b commit -qam two"
    ran(home, bash(f"{CHANGES}; git add -A; {commit}; git branch more"))
    inside = picture(home.workspace / ".git", but=())
    done = home.run("rewind", "--turns", "1", "--yes")
    assert done.status == 0, done
    assert re.search(r"HEAD was \w{12} then and is \w{12} now: commits are not taken back", done.out)
    assert picture(home.workspace / ".git", but=()) == inside
    assert not (home.workspace / "made").exists()
    assert not (home.workspace / "ran").exists()


def test_nobody_goes_back_under_a_session_that_is_at_work(home: Home) -> None:
    filled(home)
    ran(home, bash(CHANGES))
    (old,) = home.sessions()
    with StrictChat([bash("touch started; while [ ! -e go ]; do sleep 0.05; done"), text_answer("Done.")]) as server:
        process = home.start("run", "wait", "--base-url", server.url, *UNCONFINED)
        wait_for((home.workspace / "started").exists)
        running = next(path for path in home.sessions() if path != old)
        other = home.run("rewind", "--session", old.name, "--turns", "1", "--yes")
        assert other.status == 2, other
        assert "at work in" in other.err
        same = home.run("rewind", "--session", running.name, "--turns", "1", "--yes")
        assert same.status == 5, same
        assert home.run("fork", "--session", running.name).status == 0, "a copy disturbs nobody"
        (home.workspace / "go").write_text("")
        assert ended(process).status == 0
    assert (home.workspace / "made").exists()


def test_no_run_begins_while_files_are_restored(home: Home) -> None:
    filled(home)
    restorer = Shadow(home.workspace, home.state)
    assert restorer.alone()
    with StrictChat([text_answer("Done.")]) as server:
        refused(home.run("run", "go", "--base-url", server.url), 2, "are being restored just now")
        assert home.sessions() == []
        restorer.leave()
        assert home.run("run", "go", "--base-url", server.url).status == 0


def test_a_session_without_effects_and_one_whose_snapshots_are_gone(home: Home) -> None:
    filled(home)
    ran(home, task="only talk")
    done = home.run("rewind", "--turns", "1", "--yes")
    assert done.status == 0, done
    assert "The files stay as they are: nothing of this session could change a file." in done.out
    ran(home, bash(CHANGES), task="work")
    after = picture(home.workspace)
    shutil.rmtree(home.state / "snapshots")
    count = len(home.sessions())
    refused_ = home.run("rewind", "--turns", "1", "--yes")
    assert refused_.status == 2, refused_
    assert "is missing from the snapshots" in refused_.err
    assert picture(home.workspace) == after
    assert len(home.sessions()) == count


def test_what_a_snapshot_does_not_hold_is_named(home: Home) -> None:
    filled(home)
    (home.workspace / "large").write_bytes(bytes(17 * 1024 * 1024))
    ran(home, bash("head -c 5 /dev/zero > large; echo n > noted; rm own.log"))
    done = home.run("rewind", "--turns", "1", "--yes")
    assert done.status == 0, done
    assert re.search(r"= large  stays as it is: .*MAX_FILE", done.out)
    assert (home.workspace / "large").stat().st_size == 5
    assert not (home.workspace / "noted").exists()
    assert not (home.workspace / "own.log").exists(), "ignored files are nobody's business"


def test_a_folder_beside_the_workspace_is_said_to_stay_as_it_is(home: Home, tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    ran(home, bash(f"echo x > made; echo y > {beside}/made"), more=("--also-write", str(beside)))
    done = home.run("rewind", "--turns", "1", "--yes")
    assert done.status == 0, done
    assert f"{beside}/  stays as it is" in done.out
    assert (beside / "made").exists()
    assert not (home.workspace / "made").exists()


def test_a_folder_keeps_the_ignored_files_in_it(home: Home) -> None:
    filled(home)
    (home.workspace / "d").mkdir()
    (home.workspace / "d" / "f").write_text("1\n")
    ran(home, bash("rm -r d; mkdir d; echo keep > d/own.log; rmdir d/x 2>/dev/null; rm still; echo 2 > d/g"))
    done = home.run("rewind", "--turns", "1", "--yes")
    assert done.status == 0, done
    assert (home.workspace / "d" / "f").read_text() == "1\n"
    assert (home.workspace / "d" / "own.log").read_text() == "keep\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("rewind", "--turns", "1", "--to", "2"), "give one of them"),
        (("rewind",), "--turns N or --to LINE"),
        (("rewind", "--turns", "9"), "has 1 prompt;"),
        (("rewind", "--to", "999"), "there is no line 999"),
        (("rewind", "--session", "nope"), "no session begins with 'nope'"),
        (("fork", "--session", "nope"), "no session begins with 'nope'"),
    ],
)
def test_mistakes(home: Home, args: tuple[str, ...], words: str) -> None:
    ran(home)
    refused(home.run(*args), 2, words)
    assert len(home.sessions()) == 1


def test_no_session_of_this_folder(home: Home) -> None:
    refused(home.run("rewind", "--turns", "1"), 2, "there is no session of")
    refused(home.run("fork"), 2, "there is no session of")


# -- verify and salvage --------------------------------------------------------------------------------------


def damage(session: Path, at: float) -> None:
    journal = session / "journal.jsonl"
    data = bytearray(journal.read_bytes())
    place = int(len(data) * at)
    data[place] ^= 1
    journal.write_bytes(data)


def test_verify_says_what_is_sound_and_what_is_not(home: Home) -> None:
    ran(home, bash("true"))
    (session,) = home.sessions()
    done = home.run("sessions", "verify")
    assert (done.status, done.raw_err) == (0, b"")
    lines = len(home.events())
    assert done.out.startswith(f"{session.name}  sound  {lines} lines, ")
    with (session / "journal.jsonl").open("ab") as file:
        file.write(b'{"n":99')
    torn = home.run("sessions", "verify", session.name[:12])
    assert torn.status == 0, torn
    assert "never acknowledged" in torn.out
    blob = next((session / "blobs").iterdir())
    blob.write_bytes(b"other")
    bad = home.run("sessions", "verify", session.name)
    assert bad.status == 5, bad
    assert blob.name in bad.out


def test_verify_says_when_files_cannot_go_back(home: Home) -> None:
    filled(home)
    ran(home, bash(CHANGES))
    assert "snapshots" not in home.run("sessions", "verify").out
    for pack in home.state.rglob("*.pack"):
        pack.write_bytes(pack.read_bytes()[:20])
    done = home.run("sessions", "verify")
    assert done.status == 0, "the record itself is sound"
    assert "2 of 2 snapshots of its files are not whole" in done.out


def test_a_damaged_session_is_salvaged_into_one_that_goes_on(home: Home) -> None:
    ran(home, bash("echo 1 > first"))
    (session,) = home.sessions()
    damage(session, 0.6)
    whole = session.joinpath("journal.jsonl").read_bytes()
    bad = home.run("sessions", "verify", session.name)
    assert bad.status == 5, bad
    assert f"latchstep sessions salvage {session.name}" in bad.out
    done = home.run("sessions", "salvage", session.name)
    assert done.status == 0, done
    (made,) = [path for path in home.sessions() if path != session]
    assert made.name in done.out
    assert home.run("sessions", "verify", made.name).status == 0
    assert home.run("sessions", "verify").status == 5, "the damaged one is still there"
    assert session.joinpath("journal.jsonl").read_bytes() == whole
    with StrictChat([text_answer("So be it.")]) as server:
        assert home.run("resume", "go on", "--session", made.name, "--base-url", server.url).status == 0
    refused(home.run("sessions", "salvage", "nope"), 2, "no session begins with")


def test_verify_looks_at_this_folder_s_sessions_or_at_all(home: Home) -> None:
    ran(home)
    other = home.folder / "other"
    other.mkdir()
    assert home.run("sessions", "verify", cwd=other).out == "there is no session to verify\n"
    assert "sound" in home.run("sessions", "--all", "verify", cwd=other).out
    assert json.loads(home.run("show", home.session().name, "--json").out.splitlines()[0])["type"] == "session.created"


def test_edits_of_the_file_tools_come_back_too(home: Home) -> None:
    filled(home)
    before = picture(home.workspace)
    ran(home, edit("a/b/new.txt", "made\n"))
    assert (home.workspace / "a" / "b" / "new.txt").exists()
    assert home.run("rewind", "--turns", "1", "--yes").status == 0
    assert picture(home.workspace) == before
