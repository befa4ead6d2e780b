"""Several hands: a second writer is refused, readers follow, two sessions see each other's changes."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.cli.cli_kit import Done, Home, Terminal, bash, call_answer_of, ended, refused, wait_for
from tests.model.strict_chat import StrictChat, text_answer

GATE = "while [ ! -e gate ]; do sleep 0.05; done; echo through"
"""A command that ends when the test makes the file `gate`."""


def at_the_gate(home: Home, url: str, *more: str) -> subprocess.Popen[bytes]:
    """A process whose run waits in its first command, which is on record."""
    process = home.start("run", "pass the gate", "--base-url", url, "--allow", GATE, *more)
    wait_for(lambda: home.sessions() and b'"tool.started"' in journal(home), "the command")
    return process


def journal(home: Home) -> bytes:
    (path,) = (home.sessions()[-1] / "journal.jsonl",)
    return path.read_bytes() if path.exists() else b""


def lines_of(process: subprocess.Popen[bytes], until: str) -> list[dict[str, Any]]:
    """The events it prints up to and with the first of a type."""
    assert process.stdout is not None
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != until:
        line = process.stdout.readline()
        assert line, f"no {until} after {[e['type'] for e in events]}"
        events.append(json.loads(line))
    return events


def test_b53_a_second_writer_is_refused_with_the_holders_pid_and_command(home: Home) -> None:
    with StrictChat([bash(GATE), text_answer("Done.")]) as server:
        first = at_the_gate(home, server.url)
        for command in (["resume", "hurry"], ["resume"], ["run", "hurry", "--session", home.session().name]):
            refused(home.run(*command), 5, f"pid {first.pid}", "latchstep run", "is being written by")
        (home.workspace / "gate").touch()
        assert ended(first).status == 0
    assert [e["type"] for e in home.events()].count("session.opened") == 1


def test_readers_follow_live_from_any_number_and_end_with_the_run(home: Home) -> None:
    with StrictChat([bash(GATE), text_answer("Done.")]) as server:
        run = at_the_gate(home, server.url)
        name = home.session().name
        started = next(e["n"] for e in home.events() if e["type"] == "tool.started")
        every = home.start("show", name, "--follow", "--json")
        late = home.start("show", name, "-f", "--json", "--after", str(started - 1))
        told = home.start("show", name, "--follow", "--after", str(started - 1))
        early = lines_of(every, "tool.started")
        assert [e.get("seq", 0) for e in early] == list(range(started + 1))
        assert [e["seq"] for e in lines_of(late, "tool.started")] == [started]
        assert all(process.poll() is None for process in (every, late, told)), "they wait for what comes"
        (home.workspace / "gate").touch()
        rest = lines_of(every, "run.finished")
        kinds = [e["type"] for e in rest if e["type"] != "workspace.snapshot"]  # which comes when it is ready
        assert kinds == ["tool.finished", "model.requested", "message.completed", "run.finished"]
        assert lines_of(late, "run.finished") == rest
        assert ended(run).status == 0
    for process in (every, late):
        assert ended(process).status == 0
    story = ended(told)
    assert story.status == 0, story
    assert story.out.splitlines()[0].startswith("▸ bash while [ ! -e gate ]"), "it knows what the call is about"
    assert "› pass the gate" not in story.out
    assert "completed · 2 steps" in story.out
    assert home.run("show", name, "--follow").out == home.run("show", name).out
    after = home.run("show", name, "--json", "--after", str(rest[-2]["seq"])).out
    assert [json.loads(line) for line in after.splitlines()] == [rest[-1]]


def test_a_reader_of_a_killed_run_ends_and_says_how_to_go_on(home: Home) -> None:
    with StrictChat([bash(GATE)]) as server:
        run = at_the_gate(home, server.url)
        reader = home.start("show", home.session().name, "--follow")
        run.kill()
        run.wait()
        done = ended(reader)
    assert done.status == 0, done
    assert "no ending is on record yet. To go on: latchstep resume" in done.out


def test_ctrl_c_ends_the_reader_and_not_the_run(home: Home) -> None:
    with StrictChat([bash(GATE), text_answer("Done.")]) as server:
        run = at_the_gate(home, server.url)
        with Terminal(home, "show", home.session().name, "--follow") as reader:
            reader.expect("while [ ! -e gate ]")
            reader.type("\x03")
            assert reader.end() == 130
            assert "Traceback" not in reader.shown
        assert run.poll() is None
        (home.workspace / "gate").touch()
        assert ended(run).status == 0


def test_two_sessions_of_one_workspace_see_each_others_changes(home: Home) -> None:
    """One has read a file that the other then edits: its own edit is refused until it has read again."""
    (home.workspace / "shared.txt").write_text("one\ntwo\n")
    read = {"path": "shared.txt"}
    mine = {"path": "shared.txt", "old": "one", "new": "ONE"}
    theirs = {"path": "shared.txt", "old": "two", "new": "TWO"}
    first = [
        call_answer_of(("read", read)),
        bash(GATE, "call-gate"),
        renamed(call_answer_of(("edit", mine)), "a"),
        renamed(call_answer_of(("read", read)), "b"),
        renamed(call_answer_of(("edit", mine)), "c"),
        text_answer("Done."),
    ]
    second = [call_answer_of(("read", read)), renamed(call_answer_of(("edit", theirs)), "a"), text_answer("Done.")]
    with StrictChat(first) as one, StrictChat(second) as other:
        process = home.start("run", "upper", "--base-url", one.url, "--allow", GATE, "--mode", "edits")
        wait_for(lambda: home.sessions() and b'"name":"bash"' in journal(home), "the gate")
        done: Done = home.run("run", "lower", "--base-url", other.url, "--mode", "edits")
        assert done.status == 0, done
        (home.workspace / "gate").touch()
        assert ended(process).status == 0
    events = home.events(home.sessions()[0])
    results = [(e["name"], e["outcome"], e["content"]) for e in events if e["type"] == "tool.finished"]
    assert [(name, outcome) for name, outcome, _ in results] == [
        ("read", "ok"), ("bash", "ok"), ("edit", "error"), ("read", "ok"), ("edit", "ok"),
    ]  # fmt: skip
    assert "changed since" in results[2][2]
    assert (home.workspace / "shared.txt").read_text() == "ONE\nTWO\n"


def renamed(answer: list[Any], id: str) -> list[Any]:
    return json.loads(json.dumps(answer).replace("call-1", f"call-{id}"))
