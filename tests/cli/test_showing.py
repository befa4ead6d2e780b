"""`sessions` and `show` verify what they read, tell the story up to damage, and end with 5 on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_kit import Home, bash, refused
from tests.model.strict_chat import StrictChat, text_answer


@pytest.fixture
def told(home: Home) -> Home:
    """A machine with one finished session."""
    twice = [bash("echo hello"), bash("echo hello", "call-2"), text_answer("It said hello.")]
    with StrictChat(twice) as server:
        assert home.run("run", "say hello", "--base-url", server.url, "--allow", "echo hello").status == 0
    return home


def journal_of(home: Home) -> Path:
    return home.session() / "journal.jsonl"


def test_a_list_has_a_line_a_session_and_those_of_other_folders_on_demand(told: Home) -> None:
    other = told.folder / "other"
    other.mkdir()
    here = told.run("sessions")
    assert here.status == 0
    assert here.out.split()[0] == told.session().name
    assert "completed" in here.out
    assert here.out.rstrip().endswith("say hello")
    assert told.run("show").out == told.run("show", told.session().name).out
    assert "no sessions of" in told.run("sessions", cwd=other).out
    assert "1 elsewhere" in told.run("sessions", cwd=other).out
    everywhere = told.run("sessions", "--all", cwd=other)
    assert str(told.workspace) in everywhere.out


def test_damage_ends_the_story_where_it_lies(told: Home) -> None:
    lines = journal_of(told).read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if b'"type":"tool.finished"' in line)
    lines[at] = lines[at].replace(b"hello", b"hullo")
    journal_of(told).write_bytes(b"".join(lines))
    shown = told.run("show", told.session().name)
    assert shown.status == 5, shown
    assert "▸ bash echo hello" in shown.out
    assert "here the story ends" in shown.out
    assert "hullo" not in shown.out
    assert "It said" not in shown.out
    assert f"damaged at line {at}" in shown.err
    assert len(shown.err.splitlines()) == 1
    as_json = told.run("show", told.session().name, "--json")
    assert as_json.status == 5
    assert len([json.loads(line) for line in as_json.raw.splitlines()]) == at
    refused(told.run("resume", "more", "--base-url", "http://127.0.0.1:9/v1"), 5, f"damaged at line {at}")
    assert journal_of(told).read_bytes() == b"".join(lines)


def test_a_damaged_header_is_listed_though_it_no_longer_says_whose_it_is(told: Home) -> None:
    data = bytearray(journal_of(told).read_bytes())
    data[40] ^= 1
    journal_of(told).write_bytes(bytes(data))
    listed = told.run("sessions")
    assert listed.status == 5, listed
    assert "damaged" in listed.out
    assert told.run("show", told.session().name).status == 5


def test_a_torn_end_is_said_and_is_no_damage(told: Home) -> None:
    data = journal_of(told).read_bytes()
    journal_of(told).write_bytes(data + data.splitlines()[-1][:50])
    shown = told.run("show", told.session().name)
    assert shown.status == 0, shown
    assert "completed · 3 steps" in shown.out
    assert "nothing proves that it was ever acknowledged" in shown.out
    assert told.run("sessions").status == 0
    with StrictChat([text_answer("On.")]) as server:
        again = told.run("resume", "go on", "--base-url", server.url)
    assert again.status == 0, again
    assert "never acknowledged" in again.out


def test_a_newer_format_is_refused_with_what_to_do(told: Home) -> None:
    data = journal_of(told).read_bytes()
    journal_of(told).write_bytes(data.replace(b'"session.created",', b'"session.created","format":9,', 1))
    for done in (
        told.run("show", told.session().name),
        told.run("resume", "go on", "--session", told.session().name, "--base-url", "http://127.0.0.1:9/v1"),
    ):
        assert done.status == 5, done
        assert "format 9" in done.err
        assert "upgrade" in done.err


def test_a_blob_that_does_not_verify_is_damage(told: Home) -> None:
    blob = next(path for path in (told.session() / "blobs").iterdir())
    blob.write_bytes(blob.read_bytes() + b"x")
    shown = told.run("show", told.session().name)
    assert shown.status == 5, shown
    assert "completed · 3 steps" in shown.out
    assert blob.name in shown.err


def test_a_folder_without_a_journal_and_an_empty_journal(told: Home) -> None:
    (told.state / "sessions" / "20260101-000000-aaaaaa").mkdir()
    listed = told.run("sessions", "--all")
    assert listed.status == 5
    assert "journal.jsonl is missing" in listed.out
    assert "say hello" in listed.out  # the sound one is listed beside it
    refused(told.run("show", "20260101"), 5, "journal.jsonl is missing")
    (told.state / "sessions" / "20260101-000000-aaaaaa" / "journal.jsonl").write_bytes(b"")
    refused(told.run("show", "20260101"), 5, "first line")
    refused(told.run("show", "20"), 2, "2 sessions begin with")
