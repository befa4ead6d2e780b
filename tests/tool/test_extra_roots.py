"""Folders beside the workspace: the same rules as in it, for file tools and for commands, and nothing more."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from latchstep.core.message import ToolCall
from latchstep.errors import DefinitionError, ToolError
from latchstep.policy.gate import decide
from latchstep.policy.rule import parse_rule
from latchstep.tool import beneath
from latchstep.tool.apply_patch import apply_patch_tool
from latchstep.tool.base import Context, Tool
from latchstep.tool.edit import edit_tool
from latchstep.tool.find import find_tool
from latchstep.tool.grep import grep_tool
from latchstep.tool.list import list_tool
from latchstep.tool.probe import trial
from latchstep.tool.read import read_tool
from latchstep.tool.ripgrep import ripgrep, ripgrep_tool
from latchstep.tool.roots import Extra, refuse_unfit
from latchstep.tool.sandbox import Level, Sandbox, plan, profile
from latchstep.tool.seen import Seen
from latchstep.tool.spawner import Spawner
from latchstep.tool.workspace import Workspace
from latchstep.tool.write import write_tool
from tests.tool.test_workspace import IDS, WAYS, put, swapping, tree


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A workspace `ws`, folders `lib` (to read) and `data` (to write), and `out`, which is nobody's."""
    for name in ("ws", "lib/sub", "data/sub", "out", "data-evil"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ws/x").write_text("work")
    (tmp_path / "out/x").write_text("outside")
    (tmp_path / "data-evil/x").write_text("evil")
    for name in ("lib", "data"):
        root = tmp_path / name
        (root / "x").write_text(f"needle in {name}\n")
        (root / "sub/y.py").write_text("needle below\n")
        (root / "l").symlink_to("../out")
        (root / "root").symlink_to("/")
        (root / "absolute").symlink_to(root / "x")
        (root / "dangling").symlink_to("../out/new")
        (root / "alias").symlink_to("sub")
        (root / ".gitignore").write_text("*.log\n")
        (root / "sub/left.log").write_text("needle\n")
    return Path(os.path.realpath(tmp_path))


def extras(base: Path) -> tuple[Extra, ...]:
    return Extra(str(base / "lib")), Extra(str(base / "data"), True)


@pytest.fixture(params=WAYS, ids=IDS)
def workspace(base: Path, request: pytest.FixtureRequest) -> Iterator[Workspace]:
    with Workspace(base / "ws", ways=request.param, also=extras(base)) as opened:
        yield opened


def call(made: Tool, **arguments: Any) -> str:
    if made.context:
        arguments["context"] = Context("call", "run")
    return str(made.function(**arguments).content)


# -- file tools ---------------------------------------------------------------------------------------------


def test_an_extra_root_is_reached_by_absolute_paths_alone_and_its_files_are_named_so(
    workspace: Workspace, base: Path
) -> None:
    assert workspace.read("x").path == "x"
    assert workspace.read("x").data == b"work"
    for name in ("lib", "data"):
        assert workspace.read(f"{base}/{name}/alias/../alias/y.py").path == f"{base}/{name}/sub/y.py"
    assert workspace.scan(f"{base}/data")[0] == f"{base}/data"
    assert workspace.kind(f"{base}/lib/") == "folder"
    made, before = workspace.update(f"{base}//data/./new/deep/z", lambda real, present: real.encode())
    assert (made.path, made.data.decode(), before) == (f"{base}/data/new/deep/z", f"{base}/data/new/deep/z", None)
    assert (base / "data/new/deep/z").read_text() == made.path
    with pytest.raises(ToolError, match="leads out"):
        workspace.read("../data/x")


@pytest.mark.parametrize(
    "path",
    [
        "l/x",
        "dangling",
        "root/etc/passwd",
        "absolute",
        "..",
        "../out/x",
        "sub/../../out/x",
        "../ws/x",
        "../data-evil/x",
    ],
)
@pytest.mark.parametrize("name", ["lib", "data"])
def test_what_leads_out_of_an_extra_root_is_refused(workspace: Workspace, base: Path, name: str, path: str) -> None:
    before = tree(base)
    for act in (workspace.read, workspace.current, workspace.scan, lambda it: put(workspace, it)):
        with pytest.raises(ToolError):
            act(f"{base}/{name}/{path}")
    assert tree(base) == before
    assert (base / "out/x").read_text() == "outside"
    with pytest.raises(ToolError, match="outside of the workspace"):
        workspace.read(f"{base}/data-evil/x")


def test_nothing_is_written_in_one_that_may_only_be_read(workspace: Workspace, base: Path) -> None:
    seen, there = Seen(), f"{base}/lib/x"
    call(read_tool(workspace, seen), path=there)
    before = tree(base / "lib")
    patch = f"*** Begin Patch\n*** Delete File: {there}\n*** End Patch"
    moved = (
        f"*** Begin Patch\n*** Update File: {base}/data/x\n*** Move to: {base}/lib/z\n"
        "@@\n-needle in data\n+n\n*** End Patch"
    )
    attempts: list[tuple[Tool, dict[str, Any]]] = [
        (write_tool(workspace, seen), {"path": there, "content": "new"}),
        (write_tool(workspace, seen), {"path": f"{base}/lib/n/n", "content": "new"}),
        (write_tool(workspace, seen), {"path": f"{base}/lib/alias/n", "content": "new"}),
        (edit_tool(workspace, seen), {"path": there, "old": "needle", "new": "pin"}),
        (apply_patch_tool(workspace, seen), {"patch": patch}),
        (apply_patch_tool(workspace, seen), {"patch": moved}),
    ]
    for made, arguments in attempts:
        with pytest.raises(ToolError, match="may be read, not written"):
            call(made, **arguments)
    assert tree(base / "lib") == before
    assert (base / "lib/x").read_text() == "needle in lib\n"
    assert (base / "data/x").read_text() == "needle in data\n"


@pytest.mark.parametrize(
    "path", [".git/config", "sub/.git/hooks/x", ".GIT/x", "alias/.git/x", "git~1/x", ".latchstep/settings.toml", "hard"]
)
def test_names_and_hard_links_are_guarded_there_as_in_the_workspace(
    workspace: Workspace, base: Path, path: str
) -> None:
    (base / "data/.git").mkdir()
    os.link(base / "out/x", base / "data/hard")
    before = tree(base)
    with pytest.raises(ToolError, match=r"never written|hard-linked"):
        put(workspace, f"{base}/data/{path}")
    assert tree(base) == before
    assert (base / "out/x").read_text() == "outside"


@pytest.mark.parametrize("what", ["link", "folder", "file"])
@pytest.mark.parametrize("ways", WAYS, ids=IDS)
def test_writes_stay_in_an_extra_root_while_something_is_swapped(base: Path, ways: beneath.Ways, what: str) -> None:
    written = refused = 0
    with Workspace(base / "ws", ways=ways, also=extras(base)) as workspace, swapping(base / "data", what):
        until = time.monotonic() + 20
        while min(written, refused) < 5 and time.monotonic() < until:
            try:
                put(workspace, f"{base}/data/swap/x", str(written).encode())
                written += 1
            except ToolError:
                refused += 1
    assert min(written, refused) >= 5, (written, refused)
    assert tree(base / "out") == {"x"}
    assert (base / "out/x").read_text() == "outside"


def test_a_change_that_was_not_seen_is_refused_there_too(workspace: Workspace, base: Path) -> None:
    seen, there = Seen(), f"{base}/data/x"
    edit, write = edit_tool(workspace, seen), write_tool(workspace, seen)
    with pytest.raises(ToolError, match="not read yet"):
        call(write, path=there, content="new\n")
    assert call(read_tool(workspace, seen), path=there) == "needle in data\n"
    assert seen.get(there) is not None
    assert f"in {there} " in call(edit, path=there, old="needle", new="pin")
    (base / "data/x").write_text("somebody else's\n")
    with pytest.raises(ToolError, match="changed since it was read"):
        call(edit, path=there, old="somebody", new="nobody")
    assert (base / "data/x").read_text() == "somebody else's\n"


def test_a_patch_changes_files_of_both_and_moves_none_from_one_to_the_other(workspace: Workspace, base: Path) -> None:
    tool, there = apply_patch_tool(workspace, Seen()), f"{base}/data/x"
    text = (
        f"*** Begin Patch\n*** Update File: x\n@@\n-work\n+done\n*** Update File: {there}\n{{}}"
        "@@\n-needle in data\n+pin\n*** End Patch"
    )
    with pytest.raises(ToolError, match="lies in another folder"):
        call(tool, patch=text.format("*** Move to: y\n"))
    assert ((base / "ws/x").read_text(), (base / "data/x").read_text()) == ("work", "needle in data\n")
    said = call(tool, patch=text.format(f"*** Move to: {base}/data/sub/z\n"))
    assert f"Moved {there} to {base}/data/sub/z." in said
    assert ((base / "ws/x").read_text(), (base / "data/sub/z").read_text()) == ("done", "pin\n")


def test_list_find_and_grep_work_there_and_heed_its_own_ignore_rules(workspace: Workspace, base: Path) -> None:
    top = f"{base}/lib"
    (base / ".gitignore").write_text("*.py\n")  # of no root
    rows = call(list_tool(workspace), path=top).split("\n")
    assert rows[:3] == [f"{top}/.gitignore  (6 B)", f"{top}/absolute -> {top}/x", f"{top}/alias -> sub"]
    assert f"{top}/sub/y.py  (13 B)" in rows
    assert "left.log" not in "".join(rows)
    assert call(find_tool(workspace), glob="*.py", path=top) == f"{top}/sub/y.py"
    assert call(find_tool(workspace), glob="sub/*", path=top) == f"{top}/sub/y.py"
    assert call(find_tool(workspace), glob="*", path=f"{top}/sub") == f"{top}/sub/y.py"
    assert call(find_tool(workspace), glob="*.py").startswith("[no file")
    assert call(grep_tool(workspace), pattern="needle", path=top).split("\n") == [
        f"{top}/sub/y.py:1: needle below", f"{top}/x:1: needle in lib",
    ]  # fmt: skip
    with pytest.raises(ToolError, match=f"Did you mean {top}/sub"):
        call(list_tool(workspace), path=f"{top}/subb")


def test_ripgrep_gives_the_same_rows(base: Path) -> None:
    asyncio.run(_same_rows(base))


async def _same_rows(base: Path) -> None:
    program = ripgrep(base / "ws")
    if not program:
        pytest.skip("ripgrep is not installed")
    spawner = Spawner()
    try:
        with Workspace(base / "ws", also=extras(base)) as workspace:
            ours, theirs = grep_tool(workspace), ripgrep_tool(workspace, spawner, program)
            for path in (
                f"{base}/lib",
                f"{base}//lib/sub",
                f"{base}/data/x",
                f"{base}/data/alias/y.py",
                f"{base}/ws/x",
            ):
                for glob in (None, "*.py", "sub/*.py", "/x"):
                    wanted = call(ours, pattern="needle|work", path=path, glob=glob)
                    found = await theirs.function(pattern="needle|work", path=path, glob=glob)
                    assert str(found.content).split("[")[0] == wanted.split("[")[0], (path, glob)
    finally:
        await spawner.close()


def test_one_that_goes_away_is_noticed_and_the_workspace_goes_on(workspace: Workspace, base: Path) -> None:
    (base / "data").rename(base / "moved")
    (base / "data").mkdir()
    for act in (lambda: workspace.read(f"{base}/data/x"), lambda: put(workspace, f"{base}/data/n/z")):
        with pytest.raises(
            ToolError, match=f"the folder {base}/data no longer exists, or another folder took its place"
        ):
            act()
    assert workspace.read("x").data == b"work"
    with pytest.raises(ToolError, match="no longer exists"):
        workspace.refuse_gone()  # what commands ask: they see all of the folders
    assert tree(base / "data") == set()


def test_which_folders_may_not_be_one(base: Path) -> None:
    (base / "ws/.git").mkdir()
    (base / "lib/.git/modules").mkdir(parents=True)
    (base / "link").symlink_to("lib")
    lib = Extra(str(base / "lib"))
    cases = [
        ((Extra(str(base / "none")),), "does not exist"),
        ((Extra(str(base / "ws/x")),), "does not exist"),
        ((Extra(str(base / "link")),), "a link leads to it"),
        ((Extra(str(base / "ws")),), "overlap"),
        ((Extra(str(base / "ws/.git")),), "overlap"),
        ((Extra(str(base)),), "overlap"),
        ((Extra("/"),), "overlap"),
        ((Extra("/proc"),), "overlap"),
        ((Extra("/proc/self/../self"),), "a link leads to it"),
        ((lib, Extra(str(base / "lib/sub"), True)), "overlap"),
        ((lib, lib), "overlap"),
        ((Extra(str(base / "lib/.git/modules"), True),), "may only be read"),
    ]
    for given, words in cases:
        with pytest.raises(DefinitionError, match=words) as caught:
            Workspace(base / "ws", also=given)
        assert "\n" not in str(caught.value)
    refuse_unfit([lib], str(base / "ws"), home=str(base / "out"), apart=[(str(base / "data"), "the cache")])
    for home, apart in ((base / "lib/sub", ()), (base / "lib", ()), (base, [(str(base / "lib/sub"), "the store")])):
        with pytest.raises(DefinitionError, match=r"home folder|the store"):
            refuse_unfit([lib], str(base / "ws"), home=str(home), apart=apart)


def test_no_descriptor_is_left_open(base: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    Workspace(base / "ws", also=extras(base)).close()
    assert len(os.listdir("/dev/fd")) == before


# -- the gate -----------------------------------------------------------------------------------------------


def test_rules_name_paths_of_an_extra_root_by_absolute_globs() -> None:
    rules = [parse_rule(text) for text in ("allow write: /srv/data/**", "allow write: **", "deny write: **/.env")]

    def says(path: str) -> str:
        return decide(rules, ToolCall("1", "write", {"path": path, "content": ""}), "/ws").says

    assert [says(path) for path in ("/srv/data/x", "/srv/data/a/../b", "x")] == ["allow"] * 3
    assert [says(path) for path in ("/srv/data2/x", "/srv/data/../x", "../srv/data/x")] == ["open"] * 3
    assert [says(path) for path in ("/srv/data/.env", "/srv/data/a/.env", ".env")] == ["deny"] * 3
    reading = decide([], ToolCall("1", "bash", {"command": "cat /srv/data/x"}), "/ws")
    assert reading.says == "open", "a command that reads there is asked about"


# -- commands -----------------------------------------------------------------------------------------------


def confined(base: Path, level: Level) -> Sandbox:
    (base / "home").mkdir(exist_ok=True)
    return Sandbox(
        level, str(base / "ws"), environ={"PATH": os.environ["PATH"], "HOME": f"{base}/home"}, also=extras(base)
    )


@pytest.mark.parametrize("level", ["bubblewrap", "landlock"])
def test_commands_see_what_the_file_tools_see(base: Path, level: Level) -> None:
    asyncio.run(_commands(base, level))


async def _commands(base: Path, level: Level) -> None:
    sandbox = confined(base, level)
    if problem := await trial(sandbox):
        pytest.skip(f"level {level}: {problem}")
    spawner = Spawner(sandbox=sandbox)
    try:
        script = (
            "cat lib/x data/x out/x lib/l/x; echo no >lib/n; echo no >>lib/x; rm lib/x; echo no >out/n; "
            "echo yes >data/n; mv data/x data/sub/; exit 0"
        )
        ended = await spawner.run(f"cd {base} && {script}", cwd=base / "ws", timeout=20)
    finally:
        await spawner.close(0.0)
    said = (ended.head + ended.tail).decode()
    assert "needle in lib\nneedle in data\n" in said
    assert "outside" not in said
    assert (base / "lib/x").read_text() == "needle in lib\n"
    assert (tree(base / "out"), (base / "lib/n").exists()) == ({"x"}, False)
    assert ((base / "data/n").read_text(), (base / "data/sub/x").exists()) == ("yes\n", True)


@pytest.mark.parametrize("level", ["bubblewrap", "landlock"])
def test_one_that_only_looks_sees_all_of_them_and_writes_nowhere(base: Path, level: Level) -> None:
    (base / "ws/store").mkdir()
    (base / "ws/store/key").write_text("hidden\n")
    (base / "ws/x").write_text("needle in ws\n")
    before = {path: path.stat().st_mtime_ns for path in base.rglob("*") if path.is_file()}
    asyncio.run(_looks(base, level))
    assert {path: path.stat().st_mtime_ns for path in base.rglob("*") if path.is_file()} == before


async def _looks(base: Path, level: Level) -> None:
    hidden = (str(base / "ws/store"),) if level == "bubblewrap" else ()
    sandbox = replace(confined(base, level), looks=True, hidden=hidden)
    if problem := await trial(sandbox):
        pytest.skip(f"level {level}: {problem}")
    spawner = Spawner(sandbox=sandbox)
    try:
        script = (
            "cat ws/x lib/x data/x; cat ws/store/key; for d in ws lib data; do echo no >$d/n; rm $d/x; done; ls $TMPDIR"
        )
        ended = await spawner.run(f"cd {base} && {script}", cwd=base / "ws", timeout=20)
    finally:
        await spawner.close(0.0)
    said = (ended.head + ended.tail).decode()
    assert "needle in ws\nneedle in lib\nneedle in data\n" in said
    assert ("hidden\n" in said) == (level != "bubblewrap")


def test_git_is_guarded_in_one_that_may_be_written(base: Path) -> None:
    for name in ("ws", "data"):
        subprocess.run(["git", "init", "-q", base / name], check=True)
    asyncio.run(_guarded(base))


async def _guarded(base: Path) -> None:
    sandbox = confined(base, "bubblewrap")
    if problem := await trial(sandbox):
        pytest.skip(f"level bubblewrap: {problem}")
    config = (base / "data/.git/config").read_bytes()
    spawner = Spawner(sandbox=sandbox)
    try:
        script = (
            f"cd {base}/data; git config core.pager evil; echo evil >.git/hooks/post-commit; mv .git .was; "
            "mkdir .latchstep; echo x >.latchstep/settings.toml; "
            "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one && git log --oneline"
        )
        ended = await spawner.run(script, cwd=base / "ws", timeout=20)
    finally:
        await spawner.close(0.0)
    assert b" one\n" in ended.head + ended.tail
    assert (base / "data/.git/config").read_bytes() == config
    assert not (base / "data/.git/hooks/post-commit").exists()
    assert not (base / "data/.latchstep").exists(), "what was put there is gone"
    assert (base / "data/.git/HEAD").exists()


def test_a_sandbox_shows_a_folder_as_it_is_given_and_keeps_the_program_itself_from_commands(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.prefix", f"{base}/data/sub")
    (base / "data/bin").mkdir()
    monkeypatch.setenv("PATH", f"{base}/data/bin:/usr/bin")
    shown = profile(sandbox := confined(base, "bubblewrap"))
    assert f"{base}/data/bin" not in shown.readable, "it is written like all of its folder"
    assert f"{base}/lib" in shown.readable
    assert f"{base}/lib" not in shown.writable
    assert shown.writable[:2] == (f"{base}/ws", f"{base}/data")
    assert f"{base}/data/.latchstep" in shown.guards.readonly
    assert f"{base}/lib/.latchstep" not in shown.guards.readonly
    arguments = " ".join(map(str, plan(sandbox)["arguments"])) if Path("/usr/bin/bwrap").exists() else ""
    if arguments:
        behind = arguments.index(f"--bind {base}/data {base}/data")
        assert arguments.index(f"--ro-bind {base}/data/sub {base}/data/sub", behind) > behind
    with pytest.raises(DefinitionError, match="home folder"):
        Sandbox("none", str(base / "ws"), environ={"HOME": f"{base}/lib/sub"}, also=extras(base))
