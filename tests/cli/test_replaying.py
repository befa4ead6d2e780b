"""`latchstep replay`: the same, or where it first is not; and nothing runs that was not asked for."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from latchstep.journal.frame import ORIGIN, body, checksum, frame
from tests.cli.cli_kit import Home, bash, edit, refused
from tests.model.strict_chat import StrictChat, text_answer


@pytest.fixture
def told(home: Home) -> Home:
    """A machine with one finished session, of a run in which a file was written and a command ran."""
    count = "echo x >> count; wc -l < count"
    answers = [bash(count), edit("new.txt", "hello\n", "call-2"), text_answer("Done.")]
    with StrictChat(answers) as server:
        done = home.run("run", "count", "--base-url", server.url, "--allow", count, "--mode", "edits")
    assert done.status == 0, done
    return home


def rewritten(home: Home, old: bytes, new: bytes) -> list[dict[str, Any]]:
    """A session `changed`: a copy with other bytes in its events, framed anew. The events of the original."""
    source, target = home.session(), home.state / "sessions" / "changed"
    shutil.copytree(source, target)
    lines, p = list[bytes](), ORIGIN
    for n, line in enumerate((source / "journal.jsonl").read_bytes().splitlines()):
        lines.append(frame(n, n, p, body(line).replace(old, new)))
        p = checksum(lines[-1])
    (target / "journal.jsonl").write_bytes(b"".join(lines))
    return home.events(source)


def test_a_replay_of_a_run_is_the_same_and_runs_nothing(told: Home) -> None:
    before = {path: path.read_bytes() for path in told.state.rglob("*") if path.is_file()}
    done = told.run("replay")
    assert done.status == 0, done
    lines = len(told.events())
    assert done.out.splitlines()[0] == f"same · {lines - 1} events · 1 run · 3 answers · 2 tool results"
    assert (told.workspace / "count").read_text() == "x\n"
    assert {path: path.read_bytes() for path in told.state.rglob("*") if path.is_file()} == before
    assert told.run("replay", "--session", told.session().name[:10], "--run", "1").status == 0


def test_a_changed_result_shows_in_the_next_request(told: Home) -> None:
    events = rewritten(told, b'"1\\n', b'"2\\n')
    done = told.run("replay", "--session", "changed")
    assert done.status == 1, done
    second = [e["n"] for e in events if e["type"] == "model.requested"][1]
    assert f"different at event {second}" in done.out
    assert "-sha256: " in done.out
    assert "one of these is not what was sent then" in done.out
    assert '"2\\n' in done.out


def test_a_changed_argument_shows_when_its_call_starts(told: Home) -> None:
    events = rewritten(told, b'"command":"echo x', b'"command":"echo y')
    done = told.run("replay", "--session", "changed")
    assert done.status == 1, done
    first = next(e["n"] for e in events if e["type"] == "tool.started")
    assert f"different at event {first}" in done.out
    assert "tool.started" in done.out


def test_compactions_are_played_and_a_change_deep_in_one_is_shown(home: Home) -> None:
    with StrictChat([text_answer("hello"), text_answer("SUMMARY"), text_answer("and on")]) as server:
        assert home.run("run", "Count the apples", "--base-url", server.url).status == 0
        assert home.run("compact", "the apples").status == 0
        assert home.run("resume", "Go on").status == 0
    same = home.run("replay")
    assert same.out.splitlines()[0].endswith("2 runs · 2 answers · 0 tool results · 1 compaction"), same
    rewritten(home, b"<person>\\nCount the apples", b"<person>\\nCount the pears")
    changed = home.run("replay", "--session", "changed")
    assert changed.status == 1, changed
    assert "recorded context.compacted" in changed.out
    assert "<person>\\nCount the pears" in changed.out
    assert "NOT REPLAYED" not in changed.out


def test_what_the_terminal_does_not_know_is_named_loudly(told: Home) -> None:
    rewritten(told, b'"type":"tool.started","call_id":"call-2"', b'"type":"tool.hummed","call_id":"call-2"')
    done = told.run("replay", "--session", "changed")
    assert "NOT REPLAYED: 1 × tool.hummed" in done.out
    for blob in (told.session_named("2") / "blobs").iterdir():
        blob.unlink()
    blind = told.run("replay", "--session", told.session_named("2").name)
    assert blind.status == 0, blind
    assert "NOT COMPARED: the requests of run-" in blind.out


def test_a_replay_is_kept_where_that_is_asked_for(told: Home) -> None:
    (first,) = told.sessions()
    done = told.run("replay", "--keep")
    assert done.status == 0, done
    (kept,) = set(told.sessions()) - {first}
    assert f"kept as session {kept.name}" in done.out
    assert [e["type"] for e in told.events(kept)] == [e["type"] for e in told.events(first)]
    assert told.run("show", kept.name).status == 0
    assert told.run("replay", "--session", kept.name).status == 0


def test_live_tools_run_in_the_folder_that_was_named(told: Home) -> None:
    refused(told.run("replay", "--live-tools"), 2, "--cwd")
    scratch = told.folder / "scratch"
    scratch.mkdir()
    done = told.run("replay", "--live-tools", "--cwd", str(scratch))
    assert done.status == 0, done
    assert "unasked" in done.err
    assert (scratch / "count").read_text() == "x\n"
    assert (scratch / "new.txt").read_text() == "hello\n"
    assert (told.workspace / "count").read_text() == "x\n"
    again = told.run("replay", "--live-tools", "--cwd", str(scratch))
    assert again.status == 1, again
    assert "-content: 1" in again.out
    assert "+content: 2" in again.out


def test_mistakes_and_damage_are_one_line(told: Home) -> None:
    refused(told.run("replay", "--run", "9"), 2, "there is no run 9")
    refused(told.run("replay", "--session", "nobody"), 2, "nobody")
    data = (told.session() / "journal.jsonl").read_bytes()
    (told.session() / "journal.jsonl").write_bytes(data.replace(b"echo x", b"echo y", 1))
    refused(told.run("replay"), 5, "damaged at line")
    shutil.rmtree(told.session())
    refused(told.run("replay"), 2, "there is no session of")
