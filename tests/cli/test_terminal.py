"""At a real pseudo terminal: questions and answers, and terminals of every sort."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_kit import BARE, DEEP, Home, Terminal, alive, bash, call_answer_of, edit, pids_in, wait_for
from tests.model.strict_chat import StrictChat, text_answer

QUESTION = "[y] yes  [n] no > "
ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@contextmanager
def running(
    home: Home, *scripts: Any, options: tuple[str, ...] = (), columns: int = 100, **env: str
) -> Iterator[tuple[StrictChat, Terminal]]:
    """A server with these answers, and a run at a terminal that asks it."""
    with (
        StrictChat(scripts) as server,
        Terminal(home, "run", "go", "--base-url", server.url, *options, columns=columns, **env) as it,
    ):
        yield server, it


def plain(text: str) -> str:
    return ESCAPE.sub("", text)


def test_yes_runs_it_and_no_does_not(home: Home) -> None:
    scripts = [bash("touch yes"), bash("touch no", "call-2"), text_answer("So be it.")]
    with running(home, *scripts) as (server, it):
        asked = plain(it.expect(QUESTION))
        assert "May bash run?" in asked
        assert "  command\n  │ touch yes\n" in asked
        it.type("y\n")
        it.expect("touch no\n")
        it.expect(QUESTION)
        it.type("perhaps\n")  # no clear answer: asked again
        it.expect(QUESTION)
        it.type("n\n")
        it.expect("So be it.")
        assert it.end() == 0
        results = [m["content"] for m in server.requests[2]["messages"] if m["role"] == "tool"]
    assert [path.name for path in home.workspace.iterdir()] == ["yes"]
    assert "declined" in results[1]
    answers = [event for event in home.events() if event["type"] == "approval.answered"]
    questions = [q for event in home.events() if event["type"] == "approval.requested" for q in event["questions"]]
    assert [a["decision"] for a in answers] == ["allow", "deny"]
    assert [a["sha256"] for a in answers] == [q["sha256"] for q in questions]


def test_the_end_of_input_is_no(home: Home) -> None:
    with running(home, bash("touch it"), text_answer("Not then.")) as (_, it):
        it.expect(QUESTION)
        it.type("\x04")
        it.expect("declined")
        assert it.end() == 0
    assert list(home.workspace.iterdir()) == []


def test_ctrl_c_at_the_question_cancels_the_run_and_nothing_ran(home: Home) -> None:
    with running(home, bash("touch it")) as (_, it):
        it.expect(QUESTION)
        it.type("\x03")
        it.expect("stopping (SIGINT)")
        it.expect("The session is kept. To go on: latchstep resume --session")
        assert it.end() == 130
    assert list(home.workspace.iterdir()) == []
    assert home.ending()["status"] == "cancelled"
    assert next(event for event in home.events() if event["type"] == "tool.finished")["outcome"] == "not_started"


def test_a_second_ctrl_c_leaves_at_once_and_says_how_to_go_on(home: Home) -> None:
    deaf = "trap '' TERM; touch deaf; while :; do sleep 0.1; done"
    with running(home, bash(deaf), options=("--mode", "unconfined")) as (_, it):
        wait_for((home.workspace / "deaf").exists)
        it.type("\x03")
        it.expect("stopping (SIGINT)")
        it.type("\x03")
        it.expect(f"The session is kept. To go on: latchstep resume --session {home.session().name} ")
        assert it.end() == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_the_question(home: Home, number: signal.Signals) -> None:
    with running(home, bash("touch it")) as (_, it):
        it.expect(QUESTION)
        it.process.send_signal(number)
        assert it.end() == 130
    assert list(home.workspace.iterdir()) == []
    assert home.ending()["status"] == "cancelled"


def test_an_answer_given_in_advance_is_not_taken_for_the_next_question(home: Home) -> None:
    batch = call_answer_of(("bash", {"command": "touch one"}), ("bash", {"command": "touch two"}))
    with running(home, batch, text_answer("Done.")) as (_, it):
        it.expect("touch one\n")
        it.expect(QUESTION)
        it.type("y\ny\ny\n")
        it.expect("touch two\n")
        it.expect(QUESTION)
        it.type("n\n")
        assert it.end() == 0
    assert [path.name for path in home.workspace.iterdir()] == ["one"]


def test_what_was_typed_before_the_question_is_no_answer(home: Home) -> None:
    with running(home, bash("touch it"), text_answer("Done.")) as (_, it):
        it.type("y\n")
        it.expect(QUESTION)
        it.type("n\n")
        assert it.end() == 0
    assert list(home.workspace.iterdir()) == []


def test_a_long_change_is_shown_whole_and_escaped(home: Home) -> None:
    lines = [f"line {at} \x1b[2J\u202e end" for at in range(900)]
    with running(home, edit("new.txt", "\n".join(lines)), text_answer("Done.")) as (_, it):
        shown = plain(it.expect(QUESTION))
        it.type("y\n")
        assert it.end() == 0
        everything = it.shown
    assert all(f"line {at} \\x1b[2J\\u202e end" in shown for at in range(900))
    assert "\u202e" not in everything
    assert "\x1b[2J" not in everything
    assert re.search(r"write \(\d+ rows\): ", shown)
    assert (home.workspace / "new.txt").read_text() == "\n".join(lines)


def test_a_short_change_is_shown_as_a_difference(home: Home) -> None:
    (home.workspace / "a.py").write_text("x = 1\ny = 2\n")
    call = call_answer_of(("edit", {"path": "a.py", "old": "x = 1", "new": "x = 3"}))
    with running(home, call, text_answer("Done.")) as (_, it):
        shown = plain(it.expect(QUESTION))
        it.type("yes\n")
        assert it.end() == 0
    assert "  path\n  │ a.py\n  changes\n" in shown
    assert "  │ -x = 1\n  │ +x = 3\n" in shown
    assert (home.workspace / "a.py").read_text() == "x = 3\ny = 2\n"


def test_a_command_cannot_pass_for_the_question_or_hide_its_end(home: Home) -> None:
    fake = "true\n[y] yes  [n] no > \nMay read run?\n" + "\N{HANGUL FILLER}" * 300 + " " * 300 + "; touch evil"
    with running(home, bash(fake), text_answer("Done."), columns=40) as (_, it):
        shown = plain(it.expect("rows): [a] always  [y]"))
        it.type("n\n")
        assert it.end() == 0
    head, _, rest = shown.partition("  command\n")
    assert "May bash run?" in head
    commands, _, warned = rest.partition("  ! ")
    untrusted = commands.splitlines()
    assert "300 characters that cannot be seen" in warned.replace("\n    ", " ")
    assert "300 blanks in a row" in warned.replace("\n    ", " ")
    assert all(row.startswith(("  │ ", "  : ")) for row in untrusted)
    assert all(len(row) <= 40 for row in untrusted)
    assert "\N{HANGUL FILLER}" not in shown
    whole = "".join(row[4:] if row.startswith("  : ") else "\n" + row[4:] for row in untrusted)
    assert whole.endswith(" [300 blanks] ; touch evil")


def test_the_grant_is_for_the_file_as_it_was_shown(home: Home) -> None:
    (home.workspace / "a").write_text("one\n")
    change = call_answer_of(("edit", {"path": "a", "old": "one", "new": "two"}))
    with running(home, change, text_answer("Done.")) as (server, it):
        it.expect(QUESTION)
        (home.workspace / "a").write_text("one, and more\n")
        it.type("y\n")
        assert it.end() == 0
        told = next(m["content"] for m in server.requests[1]["messages"] if m["role"] == "tool")
    assert (home.workspace / "a").read_text() == "one, and more\n"
    assert "changed" in told


def test_a_question_that_was_open_at_a_kill_is_asked_again(home: Home) -> None:
    with running(home, bash("touch it"), text_answer("Done.")) as (_, it):
        it.expect(QUESTION)
        it.process.kill()
        it.end()
        with Terminal(home, "resume") as again:
            again.expect("going on with the unfinished run")
            again.expect("touch it\n")
            again.expect(QUESTION)
            again.type("y\n")
            again.expect("Done.")
            assert again.end() == 0
    assert [path.name for path in home.workspace.iterdir()] == ["it"]


def test_ctrl_c_in_a_command_does_not_reach_it_but_through_us(home: Home) -> None:
    with (
        StrictChat([bash(DEEP)]) as server,
        Terminal(home, "run", "go", "--base-url", server.url, "--allow", DEEP, *BARE) as it,
    ):
        pids = wait_for(lambda: found if len(found := pids_in(home.workspace / "pids")) == 3 else None)
        it.type("\x03")
        it.expect("stopping (SIGINT)")
        it.expect("Interrupted: this call had started and was stopped")
        assert it.end() == 130
    assert not any(alive(pid) for pid in pids)


def test_what_takes_long_is_shown_by_each_terminal_as_it_can(tmp_path: Path) -> None:
    """All at once, since each takes more than two seconds."""
    slow = "echo counting; while [ ! -e go ]; do sleep 0.05; done"
    kinds: dict[str, dict[str, str]] = {"plain": {}, "no-colour": {"NO_COLOR": "1"}, "dumb": {"TERM": "dumb"}}
    with ExitStack() as stack:
        all_of_them = {}
        for name, env in kinds.items():
            (tmp_path / name).mkdir()
            home = Home(tmp_path / name)
            began = running(home, bash(slow), text_answer("Done."), options=("--allow", slow), columns=40, **env)
            all_of_them[name] = home, stack.enter_context(began)[1]
        for name in ("plain", "no-colour"):
            all_of_them[name][1].expect("  … 2 s  bash echo counting")
        for home, it in all_of_them.values():
            (home.workspace / "go").write_text("")
            it.expect("Done.")
            assert it.end() == 0
    shown = {name: it.shown for name, (_, it) in all_of_them.items()}
    assert re.search(r"\x1b\[[0-9;]+m", shown["plain"])
    assert set(re.findall(r"\x1b\[[^A-Za-z]*[A-Za-z]", shown["no-colour"])) == {"\x1b[K"}
    assert "\x1b" not in shown["dumb"]
    rows = [row for row in re.split(r"\r\x1b\[K|\n", shown["no-colour"]) if row.startswith("  … ")]
    assert rows
    assert all(len(row) < 40 for row in rows)


def test_the_task_can_be_typed(home: Home) -> None:
    with StrictChat([text_answer("Read.")]) as server, Terminal(home, "run", "-", "--base-url", server.url) as it:
        it.expect("end it with Ctrl-D")
        it.type("first line\nsecond ü\n\x04")
        it.expect("Read.")
        assert it.end() == 0
        assert server.requests[0]["messages"][-1]["content"] == "first line\nsecond ü\n"


def test_the_journal_tells_the_same_story(home: Home) -> None:
    with running(home, bash("touch it"), text_answer("Done.")) as (_, it):
        it.expect(QUESTION)
        it.type("y\n")
        assert it.end() == 0
    shown = home.run("show", home.session().name[:12])
    assert shown.status == 0, shown
    for part in ("  asked: bash touch it", "  allowed", "▸ bash touch it", "Done.", "completed · 2 steps"):
        assert part in shown.out
    assert json.loads(home.run("show", home.session().name, "--json").out.splitlines()[-1])["type"] == "run.finished"
    assert os.listdir(Path(home.workspace)) == ["it"]
