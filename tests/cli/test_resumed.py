"""Killed at any named moment, the next `latchstep resume` says in plain words what was lost, and goes on.

The moments that last are real waits; the instants between them are reached by `dying.py`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.cli_kit import PATIENCE, Done, Home, Terminal, bash, begun, edit, refused, wait_for
from tests.model.strict_chat import StrictChat, text_answer

DYING = str(Path(__file__).with_name("dying.py"))
ONCE = "echo one >> log"
LONG = "echo one >> log; sleep 300"
WRITE = edit("notes", "hello\n")
EDITS = ["--mode", "edits"]
CHECKED = [*EDITS, "--check", "echo one >> log; [ -e ok ] || sleep 300"]
UNKNOWN = "whether it took effect is unknown: it is not run again, and the model is told so"


class Killed(NamedTuple):
    """point: of `dying.py`, or what is waited for before the kill. says: in `resume`, in this order. told: what the
    model is told of the call. log: how often the command ran in both lives."""

    answers: list[Any]
    point: str | Callable[[Home, StrictChat], Any]
    options: list[str]
    says: list[str]
    told: str = ""
    log: int = 0


def asked(home: Home, server: StrictChat) -> Any:
    return server.bodies


def logged(home: Home, server: StrictChat) -> Any:
    return (home.workspace / "log").exists()


AGAIN = "the model had not answered when the process ended: it is asked again"
MOMENTS: dict[str, Killed] = {
    "prompt accepted": Killed([], "after:run.started:1", [], ["(0 steps so far): go", "Done."]),
    "request sent": Killed([["#STALL"]], asked, [], ["(0 steps so far): go", AGAIN, "Done."]),
    "mid-stream": Killed([begun("Half", "#STALL")], asked, [], [AGAIN, "Done."]),
    "answer recorded": Killed([text_answer("All done.")], "after:message.completed:1", [], ["(1 step", "All done."]),
    "call recorded": Killed([bash(ONCE)], "after:message.completed:1", ["--allow", ONCE], ["▸ bash", "✓"], "exit", 1),
    "intent recorded": Killed(
        [bash(ONCE)], "after:tool.started:1", ["--allow", ONCE], [UNKNOWN, "✗", "Done."], "unknown;"
    ),
    "in the tool": Killed([bash(LONG)], logged, ["--allow", LONG], [UNKNOWN, "✗", "Done."], "unknown;", 1),
    "after the effect": Killed(
        [bash(ONCE)], "before:tool.finished:1", ["--allow", ONCE], [UNKNOWN, "✗", "Done."], "unknown;", 1
    ),
    "result recorded": Killed(
        [bash(ONCE)], "after:tool.finished:1", ["--allow", ONCE], ["(1 step", "Done."], "exit", 1
    ),
    "write intended": Killed(
        [WRITE], "after:tool.started:1", EDITS, ["took effect is looked up", "✗ Not done", "Done."], "Not done: "
    ),
    "write done": Killed(
        [WRITE], "before:tool.finished:1", EDITS, ["took effect is looked up", "✓ Done", "Done."], "Done: "
    ),
    "in a check": Killed(
        [WRITE, text_answer("Said.")], logged, CHECKED, ["Said.", "▸ check", "✓ passed"], "Created", 2
    ),
    "before the ending": Killed([text_answer("All done.")], "before:run.finished:1", [], ["(1 step", "All done."]),
}


def kill(home: Home, server: StrictChat, moment: Killed, *more: str) -> None:
    """A first life, up to the moment."""
    args = ["run", "go", "--base-url", server.url, *moment.options, *more]
    if isinstance(moment.point, str):
        command = [sys.executable, DYING, moment.point, *args]
        given: dict[str, Any] = {"cwd": home.workspace, "env": home.env(), "timeout": PATIENCE}
        done = subprocess.run(command, capture_output=True, check=False, **given)
        assert done.returncode == -signal.SIGKILL, done
    else:
        process = home.start(*args)
        wait_for(lambda: moment.point(home, server))  # type: ignore[operator]
        process.kill()
        process.communicate(timeout=PATIENCE)


def told(server: StrictChat) -> str:
    return "".join(m["content"] for m in server.requests[-1]["messages"] if m["role"] == "tool")


@pytest.mark.parametrize("name", MOMENTS, ids=lambda name: name.replace(" ", "-"))
def test_killed_and_resumed(home: Home, name: str) -> None:
    moment = MOMENTS[name]
    with StrictChat(moment.answers) as server:
        kill(home, server, moment)
        (home.workspace / "ok").touch()
        server.scripts = [text_answer("Done.")]
        done = home.run("resume")
        assert not server.refused
        assert moment.told in told(server)
    assert done.status == 0, done
    at = 0
    for words in ["going on with the unfinished run", *moment.says, "completed ·"]:
        at = done.out.find(words, at)
        assert at >= 0, f"{words!r} is not said there:\n{done.out}"
    log = home.workspace / "log"
    assert (len(log.read_text().split()) if log.exists() else 0) == moment.log
    kinds = [event["type"] for event in home.events()]
    assert (kinds.count("run.finished"), kinds[-1]) == (1, "run.finished")


def test_killed_after_the_ending_there_is_nothing_to_resume(home: Home) -> None:
    with StrictChat([text_answer("All done.")]) as server:
        kill(home, server, Killed([], "after:run.finished:1", [], []))
    refused(home.run("resume"), 2, "its last run ended (completed)", "latchstep show", "TASK")


def test_a_file_that_is_neither_as_before_nor_as_after_is_told_as_unknown(home: Home) -> None:
    with StrictChat([WRITE]) as server:
        kill(home, server, Killed([], "before:tool.finished:1", EDITS, []))
        (home.workspace / "notes").write_text("somebody else's\n")
        server.scripts = [text_answer("Done.")]
        assert home.run("resume").status == 0
        assert "they were looked for, and that could not tell" in told(server)
    assert (home.workspace / "notes").read_text() == "somebody else's\n"


# -- in doubt ----------------------------------------------------------------------------------------------------


IN_DOUBT = Killed([], "before:tool.finished:1", ["--allow", ONCE], [])


@pytest.mark.parametrize("answer", ["y", "n"])
def test_in_doubt_a_person_may_decide(home: Home, answer: str) -> None:
    with StrictChat([bash(ONCE)]) as server:
        kill(home, server, IN_DOUBT)
        server.scripts = [text_answer("Done.")]
        with Terminal(home, "resume", "--on-doubt", "ask", NO_COLOR="1") as terminal:
            terminal.expect("you are asked whether it shall run again")
            terminal.expect("May bash run again?")
            terminal.expect("which may do the same thing twice")
            terminal.expect("[n] no >")
            terminal.type(answer + "\n")
            assert terminal.end() == 0, terminal.shown
        words = told(server)
    assert ("exit status 0" in words) == (answer == "y")
    assert ("whether to run it again was asked, and declined" in words) == (answer == "n")
    assert len((home.workspace / "log").read_text().split()) == 1 + (answer == "y")


def test_in_doubt_the_run_may_fail_and_the_session_goes_on(home: Home) -> None:
    with StrictChat([bash(ONCE)]) as server:
        kill(home, server, IN_DOUBT, "--on-doubt", "fail")
        done = home.run("resume")
        assert done.status == 1, done
        assert "it is not run again, and the run fails" in done.out
        assert home.ending()["error"]["kind"] == "IN_DOUBT"
        server.scripts = [text_answer("Done.")]
        assert home.run("resume", "go on").status == 0
        assert "unknown;" in told(server)


def test_a_question_in_doubt_needs_somebody_who_answers(home: Home) -> None:
    with StrictChat([bash(ONCE)]) as server:
        kill(home, server, IN_DOUBT)
        for more in ([], ["--json"]):
            refused(home.run("resume", "--on-doubt", "ask", *more), 2, "a person at a terminal", "--on-doubt report")
        server.scripts = [text_answer("Done.")]
        done: Done = home.run("resume", "--on-doubt", "report")
    assert done.status == 0, done
