"""At a real terminal: questions of the model, its plan, and commands in the background."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest

from tests.cli.cli_kit import BARE, Home, Terminal, alive, begun, call_answer_of, pids_in, wait_for
from tests.cli.test_terminal import plain, running
from tests.model.strict_chat import StrictChat, text_answer

PROMPT = "(Ctrl-D: no answer) > "
PLAN = [{"text": "look", "status": "done"}, {"text": "mend", "status": "doing"}, {"text": "test"}]


def asking(**arguments: Any) -> Any:
    return call_answer_of(("ask_user", {"question": "Which colour?", **arguments}))


def told(server: StrictChat) -> list[str]:
    """The results that the last request carried."""
    return [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "tool"]


@pytest.mark.parametrize(
    ("typed", "result"),
    [
        ("2\n", "The person answered: sea\x1b[31m blue"),
        ("3\n", "The person answered: 3"),  # a choice that says 3, and not the third
        ("\n  green, please \n", "The person answered: green, please"),
        ("99\n", "The person answered: 99"),
        ("\x04", "Declined by approver. There is no answer"),
    ],
)
def test_a_question_is_shown_escaped_and_answered_in_words_or_by_number(home: Home, typed: str, result: str) -> None:
    choices = ["red", "sea\x1b[31m blue", "4", "3"]
    script = [asking(question="Which\x1b[2J\u202e colour?\nSay.", choices=choices), text_answer("So be it.")]
    with running(home, *script, options=("--mode", "unconfined")) as (server, it):
        asked = plain(it.expect(PROMPT))
        assert "The model asks:\n  │ Which\\x1b[2J\\u202e colour?\n  │ Say.\n  1. │ red\n" in asked
        assert "  2. │ sea\\x1b[31m blue\n" in asked
        it.type(typed)
        it.expect("So be it.")
        assert it.end() == 0
        assert told(server)[0].startswith(result.replace("\x1b[31m", ""))


def test_what_was_typed_before_it_was_asked_is_no_answer(home: Home) -> None:
    with running(home, asking(), text_answer("So be it.")) as (server, it):
        it.type("in advance\n")
        it.expect(PROMPT)
        it.type("green\n")
        assert it.end() == 0
        assert told(server) == ["The person answered: green"]


def test_where_nobody_can_be_asked_the_model_is_told_to_decide(home: Home) -> None:
    with StrictChat([asking(), text_answer("I took red.")]) as server:
        done = home.run("run", "go", "--base-url", server.url, "--mode", "unconfined")
        assert done.status == 0, done
        assert "Decide it yourself" in told(server)[0]


def test_a_question_open_at_a_kill_is_asked_again_on_resume(home: Home) -> None:
    with StrictChat([asking(), text_answer("So be it.")]) as server:
        with Terminal(home, "run", "go", "--base-url", server.url) as it:
            it.expect(PROMPT)
            it.process.send_signal(signal.SIGKILL)
            it.process.wait()
        with Terminal(home, "resume") as it:
            it.expect(PROMPT)
            it.type("green\n")
            it.expect("So be it.")
            assert it.end() == 0
        assert told(server) == ["The person answered: green"]
    shown = home.run("show", home.session().name).out
    assert shown.count("asked: ask_user Which colour?") == 2
    assert "  answered\n" in shown
    assert "The person answered: green" in shown


def test_the_plan_is_a_checklist_live_on_record_and_on_resume(home: Home) -> None:
    rows = "The plan: 1 of 3 done.\n    ✓ look\n    ▸ mend\n    · test\n"
    script = [call_answer_of(("todo", {"items": PLAN})), text_answer("Half done."), text_answer("Done.")]
    with StrictChat(script) as server:
        with Terminal(home, "run", "go", "--base-url", server.url) as it:
            it.expect("Half done.")
            assert it.end() == 0
            assert rows in plain(it.shown)
            assert "▸ todo items: 3\n" in plain(it.shown)
        assert rows in home.run("show", home.session().name).out
        with Terminal(home, "resume", "go on") as it:
            it.expect("Done.")
            assert it.end() == 0
            assert "the plan so far:\n    ✓ look\n" in plain(it.shown)
    (details,) = [event["details"] for event in home.events() if event["type"] == "tool.finished"]
    assert details == {"latchstep.plan": [{"status": "open", **item} for item in PLAN]}


def test_a_job_is_asked_about_as_its_command_is_and_ends_with_the_session(home: Home) -> None:
    script = [
        call_answer_of(("bash", {"command": "echo $$ > pids; echo up; sleep 300", "background": True})),
        call_answer_of(("job_read", {"job": "job-1", "wait": 0.1, "until": "up"}), ("job_read", {"job": "job-9"})),
        text_answer("It runs."),
    ]
    with running(home, *script, options=BARE) as (server, it):
        asked = plain(it.expect("[y] yes  [n] no > "))
        assert "May bash run?\n" in asked
        assert "  command\n  │ echo $$ > pids; echo up; sleep 300\n  background\n  │ true\n" in asked
        it.type("y\n")
        (pid,) = wait_for(lambda: pids_in(home.workspace / "pids"), "the job")
        assert alive(pid)
        shown = plain(it.expect("It runs."))
        assert re.search(r"  ✓ .*  \[job-1: running for \d+ s\]\n", shown), shown
        assert it.end() == 0
        assert "running for" in told(server)[1]
        assert "There is no job 'job-9'" in told(server)[2]
    assert not alive(pid)


def test_an_allowed_command_may_be_a_job_and_be_stopped_where_nobody_can_be_asked(home: Home) -> None:
    script = [
        call_answer_of(("bash", {"command": "make go", "background": True}), ("job_stop", {"job": "job-1"})),
        call_answer_of(("bash", {"command": "make stay", "background": True})),
        text_answer("Done."),
    ]
    (home.workspace / "Makefile").write_text("go:\n\tsleep 300\n")
    with StrictChat(script) as server:
        done = home.run("run", "go", "--base-url", server.url, "--allow", "make go")
        assert done.status == 0, done
        _, stopped, refused = told(server)
    assert "stopped after" in stopped
    assert "--allow 'make stay' would have allowed it" in refused


def test_a_job_of_a_killed_process_is_gone_and_whoever_asks_is_told(home: Home) -> None:
    script = [
        call_answer_of(("bash", {"command": "echo $$ > pids; echo up; sleep 300", "background": True})),
        begun("I", "#STALL"),
        call_answer_of(("job_read", {"job": "job-1"})),
        call_answer_of(("bash", {"command": "echo anew", "background": True})),
        text_answer("So be it."),
    ]
    options = ("--mode", "unconfined")
    with StrictChat(script) as server:
        with Terminal(home, "run", "go", "--base-url", server.url, *options) as it:
            it.expect("I")
            (pid,) = wait_for(lambda: pids_in(home.workspace / "pids"), "the job")
            wait_for(lambda: len(server.requests) == 2, "the second request")
            it.process.send_signal(signal.SIGKILL)
            it.process.wait()
        wait_for(lambda: not alive(pid), "the end of the job")
        done = home.run("resume")
        assert done.status == 0, done
        results = told(server)
    assert "There is no job 'job-1' in this process (there are: none)" in results[1]
    assert f"What it wrote is in {home.session()}/outputs/job-1.txt" in results[1]
    assert "[job-2 (echo anew): " in results[2]


SERVER = """python3 -u -c '
import http.server
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"hello")
it = http.server.HTTPServer(("127.0.0.1", 0), Hello)
open("port", "w").write(str(it.server_port)); print("listening"); it.serve_forever()'"""
CLIENT = "python3 -c \"import urllib.request as u; print(u.urlopen(f'http://127.0.0.1:$(cat port)').read())\""


def test_a_server_that_runs_as_a_job_is_reached_by_the_commands_beside_it(home: Home) -> None:
    """Also in a sandbox, which has a network of its own: one for the session, not one for each command."""
    client = "until [ -s port ]; do sleep 0.05; done; " + CLIENT
    script = [
        call_answer_of(("bash", {"command": SERVER, "background": True})),
        call_answer_of(("bash", {"command": client})),
        text_answer("It runs."),
    ]
    with StrictChat(script) as server:
        done = home.run("run", "go", "--base-url", server.url, "--allow", SERVER, "--allow", client)
        assert done.status == 0, done
        assert "b'hello'" in told(server)[1], told(server)


def test_all_that_is_kept_is_the_persons_alone_whatever_the_umask(home: Home) -> None:
    answers = [
        call_answer_of(("write", {"path": "a.txt", "content": "x"})),
        call_answer_of(("bash", {"command": "seq 100000"})),
        text_answer("Done."),
    ]
    with StrictChat(answers) as server:
        done = home.run("run", "go", "--base-url", server.url, "--mode", "unconfined", umask=0)
    assert done.status == 0, done.err
    kept = [home.state, *home.state.rglob("*")]
    assert any(path.parent.name == "outputs" for path in kept)
    assert any(path.name == "HEAD" for path in kept), "a snapshot"
    assert [path for path in kept if path.stat().st_mode & 0o077] == []
