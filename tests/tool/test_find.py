"""`find` by glob, and `grep` by ripgrep against the one in Python: the same trees, the same rows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from latchstep.errors import ToolError
from latchstep.tool.base import Output, Tool
from latchstep.tool.find import find_tool
from latchstep.tool.grep import grep_tool
from latchstep.tool.ripgrep import ripgrep, ripgrep_tool
from latchstep.tool.spawner import Spawner
from latchstep.tool.workspace import Workspace

TREE = ["src/a.py", "src/b/test_c.py", "src/b/d.ts", "docs/x.md", "docs/deep/y.md", ".hidden/z.py", "build/out.py"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"needle in {name}\nand more\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "needle.py").write_text("needle\n")
    (tmp_path / ".gitignore").write_text("build/\n*.log\n")
    (tmp_path / "src" / "skip.log").write_text("needle\n")
    return tmp_path


@pytest.fixture
def workspace(root: Path) -> Iterator[Workspace]:
    with Workspace(root) as workspace:
        yield workspace


def found(workspace: Workspace, **arguments: Any) -> str:
    made = find_tool(workspace)
    output = made.function(**made.validate(arguments))
    return str(output.content)


def test_a_glob_without_a_slash_is_for_names_anywhere(workspace: Workspace) -> None:
    assert found(workspace, glob="*.py").split("\n") == [".hidden/z.py", "src/a.py", "src/b/test_c.py"]
    assert found(workspace, glob="test_*.{py,ts}") == "src/b/test_c.py"


def test_one_with_a_slash_is_for_paths_beneath_the_folder(workspace: Workspace) -> None:
    assert found(workspace, glob="src/*.py") == "src/a.py"
    assert found(workspace, glob="b/*", path="src").split("\n") == ["src/b/d.ts", "src/b/test_c.py"]
    assert found(workspace, glob="**/y.md") == "docs/deep/y.md"


def test_folders_are_found_by_a_slash_at_the_end(workspace: Workspace) -> None:
    assert found(workspace, glob="d*/").split("\n") == ["docs/", "docs/deep/"]


def test_what_is_not_found_and_not_shown_is_said(workspace: Workspace) -> None:
    assert "no file is called so; 2 files or folders left out by .gitignore" in found(workspace, glob="*.rs")
    assert found(workspace, glob="*", limit=2).split("\n")[2].startswith("[5 more are not shown")
    with pytest.raises(ToolError, match="does not exist"):
        found(workspace, glob="*", path="nowhere")


@pytest.mark.parametrize(
    ("glob", "words"),
    [
        ("src", "a glob for folders ends in /"),
        ("nope/", "no folder is called so"),
        ("[id]/*", r"for the sign itself write \["),
        ("*.rs,*.go", "several globs are written {a,b}"),
        ("../*", "beneath `path`"),
    ],
)
def test_a_glob_that_finds_nothing_is_answered_with_what_may_be_meant(
    workspace: Workspace, glob: str, words: str
) -> None:
    assert words in found(workspace, glob=glob)


def test_globs_as_models_write_them(workspace: Workspace) -> None:
    (workspace.root / "[id]").mkdir()
    (workspace.root / "[id]" / "p.tsx").write_text("needle\n")
    for glob, path in [
        ("./src/*.py", "src/a.py"),
        (f"{workspace.root}/src/*.py", "src/a.py"),
        ("{./src,docs}/*.py", "src/a.py"),
        (r"\[id]/*", "[id]/p.tsx"),
    ]:
        assert found(workspace, glob=glob) == path
    assert found(workspace, glob="*.tsx", path="[id]") == "[id]/p.tsx"
    with pytest.raises(ToolError, match=r"src/a\.py is a file; path is the folder"):
        found(workspace, glob="*", path="src/a.py")


def test_links_are_named_and_not_followed(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "far.py").write_text("x")
    (workspace.root / "link").symlink_to(outside)
    assert "far.py" not in found(workspace, glob="*.py")
    assert found(workspace, glob="link") == "link"


# -- grep by ripgrep ------------------------------------------------------------------------------------------


def grep(workspace: Workspace, **arguments: Any) -> Output:
    program = ripgrep(workspace.root)
    if not program:
        pytest.skip("ripgrep (rg) is not installed")

    async def main() -> Output:
        spawner = Spawner()
        try:
            made = ripgrep_tool(workspace, spawner, program)
            output = await made.function(**made.validate(arguments))
        finally:
            await spawner.close()
        assert isinstance(output, Output)
        return output

    return asyncio.run(main())


def by_python(workspace: Workspace, **arguments: Any) -> Output:
    made: Tool = grep_tool(workspace)
    output = made.function(**made.validate(arguments))
    assert isinstance(output, Output)
    return output


@pytest.mark.parametrize(
    "arguments",
    [
        {"pattern": "needle"},
        {"pattern": "NEEDLE", "ignore_case": True},
        {"pattern": "needle", "glob": "*.py"},
        {"pattern": "needle", "glob": "src/**/*.{ts,py}"},
        {"pattern": "needle", "glob": "b/*", "path": "src"},
        {"pattern": "needle", "path": "docs/x.md"},
        {"pattern": "needle", "path": "build"},
        {"pattern": "e", "context": 1},
        {"pattern": r"\bmore$"},
        {"pattern": "-e", "path": "."},
        {"pattern": "needle", "glob": "!x"},
        {"pattern": "needle", "glob": "./src/*.py"},
        {"pattern": "needle", "path": "src", "glob": "./*.py"},
        {"pattern": "needle", "path": "src/b"},
        {"pattern": "needle", "path": ".git"},
    ],
    ids=str,
)
def test_it_finds_what_the_one_in_python_finds(workspace: Workspace, arguments: dict[str, Any]) -> None:
    ours, theirs = by_python(workspace, **arguments), grep(workspace, **arguments)
    assert theirs.details == ours.details
    if theirs.details["matches"]:
        assert theirs.content == ours.content
    else:
        assert str(theirs.content) == "[no line matches]"


names = st.sampled_from(
    ["a.py", "b.txt", "c d.py", "é.py", "-x.py", "$(touch owned).py", "'q'.py", "d/a.py", "d/e/f.txt"]
)
lines = st.lists(st.text("ab $'`\t-é", max_size=12), max_size=6)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(names, lines, max_size=5),
    st.sampled_from(["a", "b+", "^", "a b", "'", "é", r"\$"]),
    st.integers(0, 2),
)
def test_on_any_tree(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, list[str]], pattern: str, context: int
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for name, rows in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("\n".join(rows))
    with Workspace(root) as workspace:
        ours = by_python(workspace, pattern=pattern, context=context)
        theirs = grep(workspace, pattern=pattern, context=context)
    assert not (root / "owned").exists()
    assert theirs.details == ours.details
    if ours.details["matches"]:
        assert theirs.content == ours.content


def test_a_pattern_across_lines(workspace: Workspace) -> None:
    output = grep(workspace, pattern=r"x\.md.*more", multiline=True)
    assert str(output.content).split("\n") == ["docs/x.md:1: needle in docs/x.md", "docs/x.md:2: and more"]


def test_what_is_wrong_with_a_pattern_is_said(workspace: Workspace) -> None:
    for pattern in ("(", "(?<=a)b"):
        with pytest.raises(ToolError, match="regex parse error"):
            grep(workspace, pattern=pattern)


def test_too_many_matches_give_the_first_by_path_every_time(workspace: Workspace) -> None:
    for number in range(200):
        (workspace.root / f"m{number:03d}").write_text("hit\n" * 50)
    first = grep(workspace, pattern="hit", limit=60)
    assert str(first.content).split("\n")[:51] == [*(f"m000:{n}: hit" for n in range(1, 51)), "m001:1: hit"]
    assert "there are more than 60 matching lines" in str(first.content)
    assert all(grep(workspace, pattern="hit", limit=60) == first for _ in range(3))


def test_odd_files_are_passed_over(workspace: Workspace) -> None:
    (workspace.root / "binary").write_bytes(b"needle\0" * 100)
    os.mkfifo(workspace.root / "fifo")
    (workspace.root / "long").write_text("a" * 100_000 + "needle" + "b" * 100_000)
    output = grep(workspace, pattern="needle")
    rows = str(output.content).split("\n")
    assert not any(row.startswith(("binary", "fifo")) for row in rows)
    (long,) = (row for row in rows if row.startswith("long"))
    assert "needle" in long
    assert len(long) < 400


def test_a_program_in_the_workspace_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rg").write_text("#!/bin/sh\ntouch owned\n")
    (tmp_path / "rg").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ripgrep(tmp_path) == ""


def odd(root: Path, top: Path) -> None:
    """What two programs that search can see differently."""
    (top / ".gitignore").write_text("*\n")
    files = {
        ".gitignore": b"*.log\n!keep.log\n/app/out\n",
        "keep.log": b"needle\n",
        "app/.gitignore": b"/local\n!b.log\n",
        "app/out/x.py": b"needle\n",
        "app/local": b"needle\n",
        "app/b.log": b"needle\n",
        "app/keep.log": b"needle\n",
        "app/[id]/sub/p.py": b"needle\n",
        "app/i/sub/p.py": b"needle\n",
        "app/a b!/sub/p.py": b"needle\n",
        "crlf": b"a needle\r\nneedle b\r\n",
        "old": b"caf\xe9 needle \xe9\xe9\n",
        "wide": ("\u00e9" * 400 + "needle" + "\u4e2d" * 400 + "\n").encode(),
        "some.nul": b"needle one\n" + b"x" * 500 + b"\0\nneedle two\n",
    }
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"path": "app"},
        {"path": "app", "glob": "*.py"},
        {"path": "app", "glob": "*.txt"},
        {"path": "app/[id]", "glob": "sub/*"},
        {"path": "app/a b!", "glob": "sub/*.py"},
        {"path": "app/out"},
        {"path": "app/out", "glob": "*.py"},
        {"pattern": "needle$"},
        {"path": "some.nul"},
        {"pattern": ".", "context": 2, "limit": 3},
        {"pattern": "needle", "context": 1, "limit": 1, "path": "crlf"},
    ],
    ids=str,
)
def test_it_finds_the_same_in_odd_places(tmp_path: Path, arguments: dict[str, Any]) -> None:
    root = tmp_path / "ws"
    odd(root, tmp_path)
    with Workspace(root) as workspace:
        ours, theirs = (how(workspace, **{"pattern": "needle", **arguments}) for how in (by_python, grep))
    assert theirs.details == ours.details
    if theirs.details["matches"]:
        ends = "; narrow the search", "; narrow the pattern, path or glob"
        assert str(theirs.content).replace(*ends) == ours.content


def test_no_advice_is_given_that_cannot_be_followed(workspace: Workspace) -> None:
    for pattern, words in (("x(?=y)", "look-around"), (r"(x)\1", "backreferences"), (r"x\ny", "Set multiline to true")):
        with pytest.raises(ToolError, match=words) as caught:
            grep(workspace, pattern=pattern)
        assert "--" not in str(caught.value)
    assert "within one line" in str(by_python(workspace, pattern=r"docs/x\.md\nand").content)
