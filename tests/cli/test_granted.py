"""What is kept for always: whose it is, who may write it, and how it is taken back."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from latchstep.cli import granted
from latchstep.errors import DefinitionError
from latchstep.policy.rule import parse_rule
from tests.cli.cli_kit import Home, bash, call_answer_of, refused
from tests.cli.test_terminal import QUESTION, plain, running
from tests.model.strict_chat import StrictChat, text_answer

RULE = parse_rule("allow bash: touch it")


def test_a_grant_is_kept_with_who_and_when_and_is_nobody_elses(tmp_path: Path) -> None:
    state, root = tmp_path / "state", tmp_path / "ws"
    assert granted.load(state, root) == ()
    granted.keep(state, root, RULE)
    granted.keep(state, root, RULE)
    (grant,) = granted.load(state, root)
    assert grant.rule == "allow bash: touch it"
    assert grant.by
    assert grant.time > 1_600_000_000
    path = granted.path_of(state, root)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert granted.load(state, tmp_path / "other") == ()


def test_a_grant_can_be_taken_back(tmp_path: Path) -> None:
    granted.keep(tmp_path, tmp_path, RULE)
    granted.revoke(tmp_path, tmp_path, str(RULE))
    assert granted.load(tmp_path, tmp_path) == ()
    with pytest.raises(DefinitionError, match="not granted"):
        granted.revoke(tmp_path, tmp_path, str(RULE))


def test_a_file_that_others_could_write_grants_nothing(tmp_path: Path) -> None:
    granted.keep(tmp_path, tmp_path, RULE)
    path = granted.path_of(tmp_path, tmp_path)
    path.chmod(0o620)
    with pytest.raises(DefinitionError, match="by others"):
        granted.load(tmp_path, tmp_path)
    path.chmod(0o600)
    real = path.rename(path.with_name("real"))
    path.symlink_to(real)
    with pytest.raises(OSError, match="symbolic links"):
        granted.load(tmp_path, tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{", '{"workspace": "x", "grants": [{"rule": "allow *", "by": "", "time": 0}]}', "[]"]
)
def test_a_damaged_file_is_said(tmp_path: Path, content: str) -> None:
    granted.keep(tmp_path, tmp_path, RULE)
    granted.path_of(tmp_path, tmp_path).write_text(content)
    with pytest.raises(DefinitionError, match="damaged"):
        granted.load(tmp_path, tmp_path)


def test_a_file_of_another_workspace_grants_nothing(tmp_path: Path) -> None:
    granted.keep(tmp_path, tmp_path / "a", RULE)
    granted.path_of(tmp_path, tmp_path / "a").rename(granted.path_of(tmp_path, tmp_path / "b"))
    with pytest.raises(DefinitionError, match="not this folder"):
        granted.load(tmp_path, tmp_path / "b")


def test_a_folder_put_in_its_place_has_none_of_its_grants(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    root.mkdir()
    granted.keep(tmp_path / "state", root, RULE)
    (root / ".git").mkdir()
    assert len(granted.load(tmp_path / "state", root)) == 1, "a repository was made in it"
    root.rename(tmp_path / "old")
    root.mkdir()
    assert granted.load(tmp_path / "state", root) == ()
    granted.keep(tmp_path / "state", root, parse_rule("allow bash: other"))
    assert [grant.rule for grant in granted.load(tmp_path / "state", root)] == ["allow bash: other"]


def test_always_shows_the_rule_keeps_it_and_asks_no_more(home: Home) -> None:
    scripts = [bash("touch it"), bash("touch  it", "call-2"), text_answer("Done.")]
    with running(home, *scripts) as (_, it):
        it.expect(f"[a] always  {QUESTION}")
        it.type("a\n")
        assert "  │ allow bash: touch it\n" in it.expect("n goes back > ")
        it.type("\n")
        assert "allowed (always: allow bash: touch it)" in plain(it.expect("Done."))
        assert it.end() == 0
    assert [path.name for path in home.workspace.iterdir()] == ["it"]
    (answer,) = [event for event in home.events() if event["type"] == "approval.answered"]
    assert (answer["decision"], answer["rule"]) == ("allow", "allow bash: touch it")
    asked, unasked = [event for event in home.events() if event["type"] == "tool.started"]
    assert "rule" not in asked
    assert unasked["rule"] == "allow bash: touch it"
    listed = home.run("grants")
    assert listed.out.rstrip().endswith("allow bash: touch it")
    assert home.run("grants", "--revoke", "allow bash: touch it").status == 0
    assert home.run("grants").out == f"nothing was allowed for always in {home.workspace}\n"
    refused(home.run("grants", "--revoke", "allow bash: x"), 2, "not granted")


def test_a_kept_rule_holds_in_the_next_session_and_not_in_another_folder(home: Home) -> None:
    granted.keep(home.state, home.workspace, RULE)
    with StrictChat([bash("touch it"), text_answer("Done.")]) as server:
        done = home.run("run", "go", "--base-url", server.url)
    assert done.status == 0, done
    assert (home.workspace / "it").exists()
    other = home.folder / "other"
    other.mkdir()
    with StrictChat([bash("touch it"), text_answer("Done.")]) as server:
        done = home.run("run", "go", "--base-url", server.url, cwd=other)
    assert "declined" in done.out
    assert not (other / "it").exists()


def test_a_wider_rule_is_refused_and_one_can_go_back(home: Home) -> None:
    with running(home, bash("python -m pytest -x"), text_answer("Done.")) as (_, it):
        it.expect(QUESTION)
        it.type("a\n\n")  # the second line was typed before the rule was shown, and does not keep it
        it.expect("allow bash: python -m pytest -x\n")
        it.expect("n goes back > ")
        for typed, why in (
            ("allow bash: python *", "anything that python can run"),
            ("allow bash: make", "would not have allowed"),
            ("everything", "is no rule"),
        ):
            it.type(typed + "\n")
            assert why in plain(it.expect("n goes back > ")).replace("\n  : ", "")
        it.type("n\n")
        it.expect(QUESTION)
        it.type("n\n")
        assert it.end() == 0
    assert granted.load(home.state, home.workspace) == ()


def test_an_edited_rule_is_kept(home: Home) -> None:
    scripts = [bash("touch it"), bash("touch that", "call-2"), bash("mkdir made", "call-3"), text_answer("Done.")]
    with running(home, *scripts) as (_, it):
        it.expect(QUESTION)
        it.type("a\n")
        it.expect("n goes back > ")
        it.type("allow bash: touch *\n")
        it.expect(QUESTION)
        it.type("a\n")
        it.expect("n goes back > ")
        it.type("y\n")  # to the rule as it is shown
        it.expect("Done.")
        assert it.end() == 0
    assert sorted(path.name for path in home.workspace.iterdir()) == ["it", "made", "that"]
    kept = [grant.rule for grant in granted.load(home.state, home.workspace)]
    assert kept == ["allow bash: touch *", "allow bash: mkdir made"]


def test_the_end_of_input_keeps_nothing(home: Home) -> None:
    with running(home, bash("touch it"), text_answer("Done.")) as (_, it):
        it.expect(QUESTION)
        it.type("a\n")
        it.expect("n goes back > ")
        it.type("\x04")
        it.expect(QUESTION)
        it.type("\x04")
        assert it.end() == 0
    assert granted.load(home.state, home.workspace) == ()
    assert list(home.workspace.iterdir()) == []


def test_rules_are_given_at_the_command_line_and_kept_on_record(home: Home) -> None:
    options = ("--allow", "bash: touch *", "--deny", "touch no", "--ask", "write: **/.env")
    scripts = [bash("touch yes"), bash("touch no", "call-2"), text_answer("Done.")]
    with StrictChat(scripts) as server:
        done = home.run("run", "go", "--base-url", server.url, *options)
    assert done.status == 0, done
    assert "a rule forbids it: deny bash: touch no" in done.out
    assert [path.name for path in home.workspace.iterdir()] == ["yes"]
    setup = next(event for event in home.events() if event["type"] == "run.started")["setup"]
    given = {name: setup[name] for name in ("allow", "ask", "deny")}
    assert given == {"allow": ["bash: touch *"], "ask": ["write: **/.env"], "deny": ["touch no"]}
    with StrictChat([text_answer("Nothing.")]) as server:
        options = ("--base-url", server.url, "--deny")
        refused(home.run("run", "go", *options, "bash: 'x"), 2, "quote a word")


def test_file_tools_do_not_write_what_is_granted(home: Home) -> None:
    path = granted.path_of(home.state, home.workspace).relative_to(home.folder)
    call = {"path": str(path), "content": json.dumps({"workspace": str(home.workspace), "grants": []})}
    with StrictChat([call_answer_of(("write", call)), text_answer("Done.")]) as server:
        done = home.run("run", "go", "--base-url", server.url, "--mode", "edits", "--cwd", str(home.folder))
    assert done.status == 0, done
    assert not granted.path_of(home.state, home.workspace).exists()


def test_a_batch_is_shown_together_first(home: Home) -> None:
    batch = call_answer_of(("bash", {"command": "touch one"}), ("bash", {"command": "touch two"}))
    with running(home, batch, text_answer("Done.")) as (_, it):
        shown = plain(it.expect("May bash run?"))
        assert "2 calls need an answer:\n  1. bash touch one\n  2. bash touch two\n" in shown
        it.expect(QUESTION)
        it.type("y\n")
        it.expect("touch two\n")
        it.expect(QUESTION)
        it.type("n\n")
        assert it.end() == 0
    assert [path.name for path in home.workspace.iterdir()] == ["one"]


def test_a_homoglyph_is_warned_of(home: Home) -> None:
    with running(home, bash("cur\u04cf x"), text_answer("Done.")) as (_, it):
        assert "! characters that look like others: cur\u04cf mixes Cyrillic and Latin" in plain(it.expect(QUESTION))
        it.type("n\n")
        assert it.end() == 0


def test_the_rules_of_a_folder_only_narrow_until_it_is_trusted(home: Home) -> None:
    settings = home.workspace / ".latchstep" / "settings.toml"
    settings.parent.mkdir()
    settings.write_text('allow = ["bash: touch *"]\ndeny = ["touch no"]\n')
    scripts = [bash("touch yes"), bash("touch no", "call-2"), text_answer("Done.")]
    for trusted in (False, True):
        if trusted:
            assert home.run("trust", "--yes").status == 0
        with StrictChat(scripts) as server:
            done = home.run("run", "go", "--base-url", server.url, "--allow", "touch no")
        assert done.status == 0, done
        assert "a rule forbids it: deny bash: touch no" in done.out
        assert (home.workspace / "yes").exists() is trusted
        assert not (home.workspace / "no").exists()
    settings.write_text('deny = ["touch \'no"]\n')
    with StrictChat([text_answer("Nothing.")]) as server:
        done = home.run("run", "go", "--base-url", server.url)
    assert done.status == 2
    assert 'settings.toml: "deny bash: touch \'no": quote a word' in done.err
