"""Folders beside the workspace, as typed: what is recorded, what a resume does with it, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_kit import Home, bash, call_answer_of, edit, refused
from tests.cli.test_resumed import Killed, kill
from tests.model.strict_chat import StrictChat, text_answer


@pytest.fixture
def folders(home: Home) -> tuple[Path, Path]:
    """One to read and one to write."""
    lib, data = home.folder / "lib", home.folder / "data"
    for folder in (lib, data):
        folder.mkdir()
        (folder / "x").write_text(f"in {folder.name}\n")
    return lib, data


def results(home: Home) -> list[str]:
    return [str(event["content"]) for event in home.events() if event["type"] == "tool.finished"]


def setups(home: Home) -> list[dict[str, Any]]:
    return [event["setup"] for event in home.events() if event["type"] == "run.started"]


def test_they_are_recorded_by_their_real_paths_and_a_resume_has_them_again(
    home: Home, folders: tuple[Path, Path]
) -> None:
    lib, data = folders
    (home.folder / "link").symlink_to("lib")
    reads = call_answer_of(("read", {"path": f"{lib}/x"}), ("read", {"path": f"{data}/x"}))
    writes = call_answer_of(
        ("write", {"path": f"{data}/.envrc", "content": "hello\n"}), ("write", {"path": f"{lib}/n", "content": "no"})
    )
    command = f"cat {lib}/x; echo more >>{data}/x; echo no >>{lib}/x"
    scripts = [reads, writes, bash(command, "call-9"), text_answer("Done.")]
    with StrictChat(scripts) as server:
        options = ["--base-url", server.url, "--mode", "edits", "--allow", command]
        done = home.run("run", "go", *options, "--also", "../link", "--also-write", "../data/")
        assert done.status == 0, done
        system = server.requests[0]["messages"][0]["content"]
        assert f"- {lib} (only read)\n- {data} (read and write)\n" in system
        said = results(home)
        assert sorted(said[:2]) == ["in data\n", "in lib\n"]  # reads run together
        assert f"Created {data}/.envrc" in said[2]
        assert f"{lib} may be read, not written" in said[3]
        assert "in lib" in said[4]
        assert (data / "x").read_text() == "in data\nmore\n"
        assert f"{data}/.envrc: the shell may run it" in done.out
        server.scripts = [edit(f"{data}/again", "2"), text_answer("Done.")]
        assert home.run("resume", "again").status == 0
        assert (data / "again").read_text() == "2"
        server.scripts = [edit(f"{lib}/n", "3"), text_answer("Done.")]
        assert home.run("resume", "more", "--also-write", str(lib)).status == 0
        assert (lib / "n").read_text() == "3"
    assert [(it.get("also", []), it["also_write"]) for it in setups(home)] == [
        ([str(lib)], [str(data)]), ([str(lib)], [str(data)]), ([], [str(data), str(lib)]),
    ]  # fmt: skip


def test_a_command_changes_nothing_in_one_that_may_only_be_read(home: Home, folders: tuple[Path, Path]) -> None:
    lib, data = folders
    command = f"echo no >>{lib}/x; rm {lib}/x; echo yes >{data}/n; cat {data}/x"
    with StrictChat([bash(command), text_answer("Done.")]) as server:
        options = ["--base-url", server.url, "--mode", "auto", "--also", str(lib), "--also-write", str(data)]
        done = home.run("run", "go", *options)
    if done.status == 2 and "none works here" in done.err:
        pytest.skip(done.err)
    assert done.status == 0, done
    assert "in data" in results(home)[0]
    assert (lib / "x").read_text() == "in lib\n"
    assert (data / "n").read_text() == "yes\n"


def test_a_write_there_that_was_under_way_is_settled_by_a_resume(home: Home, folders: tuple[Path, Path]) -> None:
    _, data = folders
    options = ["--mode", "edits", "--also-write", str(data)]
    with StrictChat([edit(f"{data}/notes", "hello\n")]) as server:
        kill(home, server, Killed([], "before:tool.finished:1", options, []))
        server.scripts = [text_answer("Done.")]
        done = home.run("resume")
    assert done.status == 0, done
    assert "took effect is looked up" in done.out
    assert (data / "notes").read_text() == "hello\n"
    assert results(home)[0].startswith("Done: ")


def test_what_may_not_be_one_is_said_in_one_line_and_leaves_no_session(
    home: Home, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    lib, data = folders
    (home.workspace / "sub").mkdir()
    (home.folder / "home/in").mkdir()
    (home.state / "in").mkdir(parents=True)
    (data / ".git").mkdir()
    home_folder, state = home.folder / "home", home.state
    cases: list[tuple[list[object], tuple[str, ...]]] = [
        (["--also", home.folder / "none"], ("does not exist", "--also")),
        (["--also-write", lib / "x"], ("not a folder", "--also-write")),
        (["--also", home_folder], ("home folder",)),
        (["--also", "/"], ("home folder",)),
        (["--also", home.folder], ("home folder",)),
        (["--also", state], ("store of sessions", "overlap")),
        (["--also-write", state / "in"], ("store of sessions", "overlap")),
        (["--also", home.workspace], ("workspace", "overlap")),
        (["--also", home.workspace / "sub"], ("workspace", "overlap")),
        (["--also", "/proc"], ("system's", "overlap")),
        (["--also", lib, "--also-write", lib], ("overlap",)),
        (["--also", lib, "--cache", lib], ("cache", "overlap")),
        (["--also-write", data / ".git"], ("never write",)),
    ]
    for options, words in cases:
        done = home.run("run", "go", "--base-url", "http://127.0.0.1:9/v1", *map(str, options))
        refused(done, 2, *words)
    assert home.sessions() == []
    with StrictChat([text_answer("Done."), text_answer("Done.")]) as server:
        options = ["--also", str(lib), "--also", str(home_folder / "in"), "--also", str(lib)]
        assert home.run("run", "go", "--base-url", server.url, *options).status == 0
        shutil.rmtree(lib)
        refused(home.run("resume", "again"), 2, str(lib), "does not exist any more")
        lib.symlink_to("data")
        refused(home.run("resume", "again"), 2, str(lib), "a link leads to it")
