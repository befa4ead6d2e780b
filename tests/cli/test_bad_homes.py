"""A folder for sessions that goes away, is no folder, may not be used, takes no bytes; a clock that was set back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from latchstep.journal.store import Store
from tests.cli.cli_kit import PATIENCE, Done, Home, bash, ended, refused, wait_for
from tests.model.strict_chat import StrictChat, text_answer

SHIFTED = "import os, time\nreal = time.time\ntime.time = lambda: real() + float(os.environ.get('SHIFT', '0'))\n"
"""A `sitecustomize` for a clock that is wrong by so many seconds."""


def deleted(folder: Path) -> bool:
    """Gone, whatever is still put into it meanwhile."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_a_session_deleted_while_in_use_is_no_success(home: Home) -> None:
    with StrictChat([bash("sleep 0.1"), text_answer("Done.")]) as server:
        process = home.start("run", "go", "--base-url", server.url, "--mode", "unconfined")
        wait_for(lambda: server.bodies)
        wait_for(lambda: deleted(home.state), "the deletion")
        done = ended(process)
    assert done.status == 1, done
    assert "the file was deleted while it was in use" in done.out
    assert "failed · " in done.out
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", [["run", "go"], ["resume"], ["sessions"], ["show", "x"]])
def test_a_home_that_is_no_folder_is_named(home: Home, command: list[str]) -> None:
    home.state.write_text("a file")
    with StrictChat([]) as server:
        more = ["--base-url", server.url] if command[0] == "run" else []
        refused(home.run(*command, *more), 5, str(home.state), "Not a directory")


def as_nobody(home: Home, *arguments: str) -> Done:
    """The same as somebody who may do nothing; root may do everything."""
    command = [sys.executable, "-m", "latchstep", *arguments]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root is refused nothing, and there is no setpriv to become another")
        command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *command]
    done = subprocess.run(
        command, cwd=home.workspace, env=home.env(), capture_output=True, timeout=PATIENCE, check=False
    )
    if b"No module named latchstep" in done.stderr or b"can't open file" in done.stderr:
        pytest.skip("the package cannot be read by another user here")
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_a_folder_that_may_not_be_used_is_named(home: Home, mode: int) -> None:
    (home.state / "sessions").mkdir(parents=True)
    for path in (home.folder, *home.folder.parents):  # the tests' own folders, so that another user gets there at all
        path.chmod(path.stat().st_mode | 0o011)
        if path.name.startswith("pytest-of-") or path == Path(tempfile.gettempdir()):
            break
    (home.state / "sessions").chmod(mode)
    try:
        with StrictChat([]) as server:
            refused(as_nobody(home, "run", "go", "--base-url", server.url), 5, str(home.state), "Permission denied")
        if not mode:
            refused(as_nobody(home, "resume"), 5, str(home.state), "Permission denied")
    finally:
        (home.state / "sessions").chmod(0o700)


@pytest.fixture
def small(home: Home) -> Iterator[Home]:
    """Its state lies on a file system of its own, of 68 KiB."""
    home.state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=68k", "tmpfs", str(home.state)]
    try:
        subprocess.run(mount, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {getattr(error, 'stderr', error)}")
    yield home
    home.close()
    subprocess.run(["umount", str(home.state)], check=True)


def test_a_full_disk_ends_the_run_and_is_said(small: Home) -> None:
    with StrictChat([bash("seq 3000"), bash("seq 3000"), text_answer("Done.")]) as server:
        done = small.run("run", "go", "--base-url", server.url, "--mode", "unconfined")
    assert done.status == 1, done
    assert "writing failed (No space left on device); withdrawn: " in done.out
    assert "tool.finished" in done.out
    assert f"To go on, when it can be written: latchstep resume --session {small.session().name}\n" in done.out
    assert Store(small.state).verify(small.session().name).sound
    assert "unfinished" in small.run("sessions").out


def test_a_workspace_that_cannot_be_written_is_read(home: Home) -> None:
    (home.workspace / "said").write_text("what it says\n")
    home.workspace.chmod(0o555)
    at = str(home.workspace)
    if (
        os.geteuid() == 0
        and subprocess.run(
            f"mount --bind {at} {at} && mount -o remount,bind,ro {at}", shell=True, capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("root may write everywhere, and nothing can be mounted here")
    try:
        with StrictChat([bash("cat said"), text_answer("Read.")]) as server:
            done = home.run("run", "go", "--base-url", server.url)
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", at], check=True)
        home.workspace.chmod(0o755)
    assert "you cannot write this folder" in done.out
    assert "✓ what it says" in done.out


def test_a_disk_too_small_for_the_files_fails_no_run(small: Home) -> None:
    (small.workspace / "data").write_bytes(os.urandom(100_000))
    with StrictChat([bash("echo one", "c1"), bash("echo two", "c2"), text_answer("Done.")]) as server:
        done = small.run("run", "go", "--base-url", server.url, "--mode", "unconfined")
    assert done.status == 0, done
    assert done.out.count("the files are not kept; no rewind can bring them back: No space left on device\n") == 1
    assert not list(small.state.rglob("tmp_*")), "what was written of a snapshot is gone"


def test_a_read_only_disk_is_said_and_still_shows_what_there_is(small: Home) -> None:
    with StrictChat([text_answer("Done.")]) as server:
        assert small.run("run", "go", "--base-url", server.url).status == 0
        subprocess.run(["mount", "-o", "remount,ro", str(small.state)], check=True)
        refused(small.run("resume", "more"), 5, str(small.state), "Read-only file system")
        refused(small.run("run", "go", "--base-url", server.url), 5, str(small.state), "Read-only file system")
    assert "completed" in small.run("sessions").out
    assert "Done." in small.run("show", small.session().name).out


def test_a_file_size_limit_ends_the_run_and_is_said(home: Home) -> None:
    with StrictChat([bash("seq 30000"), text_answer("Done.")]) as server:
        line = f"ulimit -f 32; exec {sys.executable} -m latchstep run go --mode unconfined --base-url {server.url}"
        done = subprocess.run(
            ["bash", "-c", line], cwd=home.workspace, env=home.env(), capture_output=True, timeout=PATIENCE, check=False
        )
    assert done.returncode == 1
    assert b"writing failed (File too large)" in done.stdout
    assert Store(home.state).verify(home.session().name).sound


def test_a_clock_that_was_set_back_changes_labels_only(home: Home) -> None:
    path = home.customized(SHIFTED)
    with StrictChat([text_answer("One."), text_answer("Two.")]) as server:
        begun = home.run("run", "go", "--base-url", server.url, env={"PYTHONPATH": path, "SHIFT": "90000000"})
        assert begun.status == 0, begun
        again = home.run("resume", "more", env={"PYTHONPATH": path})
        assert again.status == 0, again
    events = home.events()
    times = [event["time"] for event in events]
    assert max(times) - times[-1] > 80_000_000, "the clock was set back"
    assert [event["n"] for event in events] == list(range(len(events)))
    assert all(event.get("elapsed", 0.0) >= 0 for event in events)
    assert Store(home.state).verify(home.session().name).sound


def test_a_session_of_a_later_version_is_not_passed_over(home: Home) -> None:
    with StrictChat([text_answer("One."), text_answer("Two.")]) as server:
        assert home.run("run", "first", "--base-url", server.url).status == 0
        first = home.session()
        assert home.run("run", "second", "--base-url", server.url).status == 0
        (newest,) = {*home.sessions()} - {first}  # within a second their names have no order
        path = newest / "journal.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"session_id"', b'"format":99,"session_id"', 1))
        refused(home.run("resume", "more"), 5, newest.name, "format 99", "upgrade it")
    listed = home.run("sessions")
    assert listed.status == 5
    assert f"{newest.name}  " in listed.out
    assert "newer" in listed.out
    assert "damaged" not in listed.out


def test_where_nothing_else_is_found_what_cannot_be_read_is_pointed_to(home: Home) -> None:
    with StrictChat([text_answer("One.")]) as server:
        assert home.run("run", "first", "--base-url", server.url).status == 0
    (home.session() / "journal.jsonl").write_bytes(b"")
    refused(home.run("resume", "more"), 2, "some cannot be read: latchstep sessions")


def test_a_record_that_another_program_changed_is_no_success(home: Home) -> None:
    with StrictChat([bash("sleep 1"), bash("echo two", "c2"), text_answer("Done.")]) as server:
        process = home.start("run", "go", "--base-url", server.url, "--mode", "unconfined")
        wait_for(lambda: server.bodies)
        wait_for(lambda: any(event["type"] == "tool.started" for event in home.events()))
        os.truncate(home.session() / "journal.jsonl", 300)
        done = ended(process)
    assert done.status == 1, done
    assert "another program changed the file" in done.out
