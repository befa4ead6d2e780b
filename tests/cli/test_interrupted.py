"""Signals, lost outputs and kills: the run ends or can be resumed, the session stays, nothing is left running."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from latchstep.journal.store import Store
from latchstep.tool import proctable
from tests.cli.cli_kit import (
    BARE,
    DEEP,
    PATIENCE,
    Home,
    Terminal,
    alive,
    bash,
    begun,
    pids_in,
    refused,
    stop,
    three_pids,
    wait_for,
)
from tests.model.strict_chat import StrictChat, call_answer, text_answer


def test_the_second_interrupt_leaves_at_once_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    """The command ignores what can be ignored, so that the first interrupt takes half a second; a few tries."""
    stubborn = "trap '' TERM INT; echo $$ > pids; while true; do sleep 1; done"
    for attempt in range(5):
        (tmp_path / str(attempt)).mkdir()
        home = Home(tmp_path / str(attempt))
        with StrictChat([bash(stubborn)]) as server:
            process = home.start("run", "go", "--base-url", server.url, "--mode", "unconfined")
            (pid,) = wait_for(lambda: pids_in(home.workspace / "pids"))  # noqa: B023
            process.send_signal(signal.SIGINT)
            wait_for(lambda: any(event["type"] == "cancel.requested" for event in home.events()))  # noqa: B023
            done = stop(process, signal.SIGINT)
            assert done.status == 130
            wait_for(lambda: not alive(pid), "the end of what ran")  # noqa: B023
        if home.events()[-1]["type"] != "run.finished":
            break
    else:
        pytest.fail("it never left before the run had ended")
    again = home.run("resume")
    assert again.status == 130, again  # the cancel is on record, and is carried out now
    assert home.ending()["status"] == "cancelled"
    assert Store(home.state).verify(home.session().name).sound


def test_killed_in_a_command_the_resume_says_so_and_nothing_is_left(home: Home) -> None:
    with StrictChat([bash(DEEP), text_answer("I will look first.")]) as server:
        process = home.start("run", "go", "--base-url", server.url, "--allow", DEEP, *BARE)
        pids = three_pids(home)
        process.kill()
        process.communicate(timeout=PATIENCE)
        listed = home.run("sessions")
        done = home.run("resume")
        told = [m["content"] for m in server.requests[1]["messages"] if m["role"] == "tool"]
        assert not server.refused
    assert "unfinished" in listed.out
    assert done.status == 0, done
    assert not any(alive(pid) for pid in pids)
    assert "unknown" in told[0]
    assert "it was not run again" in told[0]
    assert "was running when the process ended; whether it took effect is unknown" in done.out
    assert [event["type"] for event in home.events()].count("tool.started") == 1
    assert home.ending()["status"] == "completed"


def test_killed_before_the_answer_the_same_question_is_asked_again(home: Home) -> None:
    with StrictChat([begun("Never fin", "#STALL"), text_answer("Finished.")]) as server:
        process = home.start("run", "go", "--base-url", server.url)
        server.wait(lambda: len(server.bodies) == 1, PATIENCE)
        process.kill()
        process.communicate(timeout=PATIENCE)
        done = home.run("resume", "and be brief")
        said = [m["content"] for m in server.requests[1]["messages"] if m["role"] == "user"]
    assert done.status == 0, done
    assert said == ["go", "and be brief"]


def test_a_resume_with_another_model_goes_on_and_says_so(home: Home) -> None:
    with StrictChat([text_answer("Hi."), text_answer("Yes.")]) as server:
        assert home.run("run", "hi", "--base-url", server.url, "--model", "m").status == 0
        done = home.run("resume", "more", "--model", "n")
        assert [request["model"] for request in server.requests] == ["m", "n"]
    assert done.status == 0, done
    line = "model: openai-chat:m → openai-chat:n (chosen for this run)"
    assert line in done.out
    assert line in home.run("show", home.session().name).out
    (switched,) = [event for event in home.events() if event["type"] == "model.switched"]
    assert (switched["old"], switched["new"]) == ("openai-chat:m", "openai-chat:n")


def test_a_second_resume_is_refused_and_names_the_holder(home: Home) -> None:
    with StrictChat([text_answer("Hi."), begun("Wait", "#STALL")]) as server:
        assert home.run("run", "hi", "--base-url", server.url).status == 0
        first = home.start("resume", "more")
        server.wait(lambda: len(server.bodies) == 2, PATIENCE)
        refused(home.run("resume", "again"), 5, f"pid {first.pid}", "latchstep resume")
        shown = home.run("show", home.session().name)
        assert stop(first, signal.SIGTERM).status == 130
    assert shown.status == 0
    assert "no ending is on record yet" in shown.out


def test_a_moved_head_is_refused_until_it_is_wanted(home: Home) -> None:
    def git(*args: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *args], cwd=home.workspace, env=home.env(), check=True, capture_output=True)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    with StrictChat([begun("Wait", "#STALL"), text_answer("Done.")]) as server:
        process = home.start("run", "go", "--base-url", server.url)
        server.wait(lambda: len(server.bodies) == 1, PATIENCE)
        process.kill()
        process.communicate(timeout=PATIENCE)
        git("commit", "-q", "--allow-empty", "-m", "two")
        refused(home.run("resume"), 2, "HEAD", "--anyway")
        assert home.run("resume", "--anyway").status == 0


def test_a_finished_session_wants_a_task(home: Home) -> None:
    with StrictChat([text_answer("Hi.")]) as server:
        assert home.run("run", "hi", "--base-url", server.url).status == 0
        before = home.events()
        refused(home.run("resume"), 2, "no unfinished run", "TASK")
        refused(home.run("resume", " "), 2, "blank")
    assert home.events() == before


def test_a_failed_turn_is_asked_again_without_a_task(home: Home) -> None:
    with StrictChat([["#STATUS 400"], text_answer("Hi."), text_answer("never")]) as server:
        failed = home.run("run", "hi", "--base-url", server.url)
        assert (failed.status, home.ending()["error"]["kind"]) == (1, "MODEL_BAD_REQUEST")
        assert f"To go on: latchstep resume --session {home.session().name}  # asks the last turn again\n" in failed.out
        again = home.run("resume")
        assert (again.status, home.ending()["status"]) == (0, "completed")
        assert "asking the last turn again" in again.out
        assert [m["content"] for m in server.requests[1]["messages"] if m["role"] == "user"] == ["hi"]
        refused(home.run("resume"), 2, "nothing that waits for an answer", "TASK")
        assert len(server.bodies) == 2
    requested = [event for event in home.events() if event["type"] == "model.requested"]
    assert [event.get("because", "prompt") for event in requested] == ["prompt", "retry"]


def test_a_workspace_that_has_gone_is_named_and_another_can_be_given(home: Home) -> None:
    other = home.folder / "other"
    other.mkdir()
    with StrictChat([text_answer("Hi."), text_answer("There.")]) as server:
        assert home.run("run", "hi", "--base-url", server.url).status == 0
        name = home.session().name
        home.workspace.rmdir()
        refused(home.run("resume", "more", "--session", name, cwd=other), 2, str(home.workspace), "--cwd")
        assert home.run("resume", "more", "--session", name, "--cwd", str(other), cwd=other).status == 0


def test_something_of_the_dead_run_that_lives_on_is_named(home: Home) -> None:
    """A process that shed session and environment, and whose owner, guard and worker died in one blow."""
    number = f"65{os.getpid():07d}"
    command = f"env -i setsid -f sleep {number}"
    with StrictChat([bash(command), begun("Wait", "#STALL"), text_answer("Done.")]) as server:
        process = home.start("run", "go", "--base-url", server.url, "--allow", command, *BARE)
        server.wait(lambda: len(server.bodies) == 2, PATIENCE)
        (stray,) = (pid for pid in proctable.walk() if _runs(pid, number))
        table = proctable.walk()
        all_three = [process.pid, *(pid for pid in proctable.descendants(table, process.pid) if pid != stray)]
        for each in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none of them acts
            for pid in all_three:
                os.kill(pid, each)
        process.communicate(timeout=PATIENCE)
        wait_for(lambda: not any(alive(pid) for pid in all_three))
        done = home.run("resume")
        assert done.status == 5, done
        assert f"still running: sleep {number} (pid {stray})" in done.err
        assert f"kill {stray}" in done.err
        assert home.run("resume", "--anyway").status == 0
        os.kill(stray, signal.SIGKILL)
        wait_for(lambda: not alive(stray))
        server.scripts = [text_answer("More.")]
        assert home.run("resume", "more").status == 0


def _runs(pid: int, number: str) -> bool:
    return proctable.read_file(f"/proc/{pid}/cmdline") == f"sleep\0{number}\0".encode()


# -- outputs that take no more -------------------------------------------------------------------------------


def test_a_reader_that_goes_away_cancels_the_run(home: Home) -> None:
    with StrictChat([bash("sleep 0.2"), *[bash("true", f"call-{at}") for at in range(2, 9)]]) as server:
        process = home.start("run", "go", "--base-url", server.url, "--mode", "unconfined")
        assert process.stdout is not None
        assert process.stderr is not None
        shown = b""
        while b"go\n" not in shown:
            shown += process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read().decode()
        assert process.wait(PATIENCE) == 130
        process.stderr.close()
    assert "Broken pipe" in said
    assert "latchstep resume --session" in said
    assert "Traceback" not in said
    assert home.ending()["status"] == "cancelled"


def test_json_to_a_reader_that_goes_away(home: Home) -> None:
    with StrictChat([begun("x" * 10, "#STALL")]) as server:
        process = home.start("run", "go", "--base-url", server.url, "--json")
        assert process.stdout is not None
        assert process.stderr is not None
        while b'"run.started"' not in process.stdout.readline():  # before that the status is 1: no run was cancelled
            pass
        process.stdout.close()
        server.wait(lambda: len(server.bodies) == 1 or process.poll() is not None, PATIENCE)
        assert process.wait(PATIENCE) == 130
        assert b"Traceback" not in process.stderr.read()
        process.stderr.close()


@pytest.mark.parametrize("args", [["run", "go"], ["run", "go", "--json"], ["doctor"], ["sessions"], ["--help"]])
def test_a_full_output_is_said_and_is_no_success(home: Home, args: list[str]) -> None:
    with StrictChat([text_answer("Hi.")]) as server, Path("/dev/full").open("wb") as full:
        more = ["--base-url", server.url] if "run" in args else []
        done = home.run(*args, *more, stdout=full)
    assert done.status in (1, 130), done
    assert "No space left on device" in done.err
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) == 1


def test_closed_streams_are_replaced_before_a_file_can_take_their_numbers(home: Home) -> None:
    with StrictChat([bash("echo hello"), text_answer("Hi.")] * 2) as server:
        for closed in ("<&- >&- 2>&-", ">&-"):
            command = f"exec {sys.executable} -m latchstep run go --allow 'echo hello' --base-url {server.url} {closed}"
            done = subprocess.run(
                ["sh", "-c", command], cwd=home.workspace, env=home.env(), check=False, timeout=PATIENCE
            )
            assert done.returncode == 0
    for session in home.sessions():
        assert Store(home.state).verify(session.name).sound
        assert home.ending(session)["status"] == "completed"


def test_show_to_a_reader_that_goes_away_is_quiet(home: Home) -> None:
    many: Any = call_answer(*((f"call-{at}", "list", '{"path": "."}') for at in range(300)))
    with StrictChat([many, text_answer("Hi.")]) as server:
        assert home.run("run", "hi", "--base-url", server.url).status == 0
    process = home.start("show", home.session().name)
    assert process.stdout is not None
    assert process.stderr is not None
    fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)  # so that the story does not fit before we go away
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE) == 1
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()


def test_a_terminal_that_hangs_up_ends_the_run(home: Home) -> None:
    with (
        StrictChat([bash(DEEP)]) as server,
        Terminal(home, "run", "go", "--base-url", server.url, "--allow", DEEP, *BARE) as it,
    ):
        pids = three_pids(home)
        it.hang_up()
        it.process.wait(PATIENCE)
    assert home.ending()["status"] == "cancelled"
    assert not any(alive(pid) for pid in pids)


def test_what_a_resume_was_given_holds_for_the_next_one_too(home: Home) -> None:
    with StrictChat([["#STALL"], ["#STALL"], bash("echo allowed"), text_answer("Done.")]) as server:
        for command in (
            ["run", "go", "--base-url", server.url],
            ["resume", "--allow", "echo allowed", "--max-steps", "9"],
        ):
            asked = len(server.bodies)
            process = home.start(*command)
            server.wait(lambda before=asked: len(server.bodies) > before, PATIENCE)
            process.kill()
            process.communicate(timeout=PATIENCE)
        done = home.run("resume")
    assert done.status == 0, done
    assert "not as before: limits, setup" in home.run("show", home.session().name).out
    (changed,) = [e for e in home.events() if e["type"] == "run.resumed"]
    assert changed["setup"]["allow"] == ["echo allowed"]
    assert changed["limits"] == {"max_steps": 9}
    (ran,) = [e for e in home.events() if e["type"] == "tool.finished"]
    assert (ran["outcome"], ran["content"].split()[0]) == ("ok", "allowed")
    assert home.run("replay").status == 0
