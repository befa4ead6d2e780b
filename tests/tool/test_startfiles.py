"""What runs by itself later is found by name and time, and nothing is followed or opened for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from latchstep.tool import startfiles
from latchstep.tool.guard import OURS
from latchstep.tool.startfiles import changed_start_files

MATTER = [
    ".git/hooks/pre-commit",
    ".git/config",
    ".git/modules/sub/hooks/post-checkout",
    "vendor/lib/.git/hooks/post-merge",
    "vendor/lib/.gitattributes",
    ".envrc",
    "sub/.envrc",
    ".vscode/tasks.json",
    ".devcontainer/devcontainer.json",
    ".github/workflows/ci.yml",
    ".gitlab-ci.yml",
    ".husky/pre-push",
    ".pre-commit-config.yaml",
    "src/sitecustomize.py",
    ".venv/lib/python3.11/site-packages/x.pth",
    ".npmrc",
    ".cargo/config.toml",
    "AGENTS.md",
    "pkg/CLAUDE.md",
    ".latchstep/settings.toml",
    ".mcp.json",
    ".devcontainer.json",
    "rust-toolchain.toml",
    ".bash_profile",
    "data/.Rprofile",
    ".helix/languages.toml",
    ".yarn/releases/yarn.cjs",
    ".aider.conf.yml",
    "opencode.json",
    ".git/remotes/origin",
    ".lfsconfig",
    ".hg/hgrc",
    ".jj/repo/config.toml",
]
INNOCENT = [
    "src/main.py",
    "Makefile",
    "docs/config",
    "README.md",
    ".git/index",
    ".git/objects/hooks/x",
    "bin/readme.txt",
]


def put(root: Path, *names: str, mode: int = 0o644) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
        (root / name).chmod(mode)


def paths(root: Path, since: float) -> list[str]:
    return [found.path for found in changed_start_files(root, since)[0]]


@pytest.mark.parametrize("name", MATTER)
def test_each_kind_is_found(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    assert name in paths(tmp_path, 0.0)


@pytest.mark.parametrize("name", INNOCENT)
def test_ordinary_files_are_not(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    assert paths(tmp_path, 0.0) == []


def test_only_what_changed_since_then(tmp_path: Path) -> None:
    """By the inode's change time, which `touch -d` does not set back."""
    put(tmp_path, ".envrc")
    later = os.stat(tmp_path / ".envrc").st_ctime + 0.001
    assert paths(tmp_path, later) == []
    while os.stat(tmp_path / ".envrc").st_ctime < later:  # the file system's clock ticks coarsely
        os.utime(tmp_path / ".envrc")
    os.utime(tmp_path / ".envrc", (0, 0))
    assert paths(tmp_path, later) == [".envrc"]


def test_programs_on_a_search_path(tmp_path: Path) -> None:
    put(tmp_path, "node_modules/.bin/tsc", ".venv/bin/python", mode=0o755)
    put(tmp_path, ".venv/bin/activate")
    assert paths(tmp_path, 0.0) == [".venv/bin/python", "node_modules/.bin/tsc"]


def test_a_repository_made_within_is_one_finding_more(tmp_path: Path) -> None:
    (tmp_path / "inner" / ".git").mkdir(parents=True)
    found, whole = changed_start_files(tmp_path, 0.0)
    assert [(it.path, it.why) for it in found] == [("inner/.git", "a repository within")]
    assert whole


def test_no_link_is_followed_and_a_hook_that_is_one_is_found(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    put(outside, ".envrc")
    root = tmp_path / "root"
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / "link").symlink_to(outside)
    (root / ".git" / "hooks" / "pre-commit").symlink_to(outside / ".envrc")
    assert paths(root, 0.0) == [".git/hooks/pre-commit"]


def test_a_tree_too_large_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startfiles, "MAX_FOLDERS", 3)
    for number in range(5):
        (tmp_path / f"d{number}").mkdir()
    assert changed_start_files(tmp_path, 0.0)[1] is False


def aged(root: Path) -> float:
    """A time after which nothing beneath has changed yet."""
    later = max(path.lstat().st_ctime for path in root.rglob("*")) + 0.001
    probe = root.parent / "probe"
    probe.touch()
    while probe.stat().st_ctime < later:
        os.utime(probe)
    return later


@pytest.mark.parametrize("name", [".envrc", ".git/commondir", ".vscode/tasks.json", "sub/.git"])
def test_a_time_that_says_a_sandbox_put_it_there_hides_nothing(tmp_path: Path, name: str) -> None:
    """The mark is a time that anybody can set, so the content must be a sandbox's too."""
    put(tmp_path, name)
    for path in (tmp_path / name, (tmp_path / name).parent):
        os.utime(path, (OURS, OURS))
    assert name in paths(tmp_path, 0.0)
    (tmp_path / name).write_text("")
    os.utime(tmp_path / name, (OURS, OURS))
    assert name not in paths(tmp_path, 0.0), "as a sandbox's would be"


@pytest.mark.parametrize("name", [".vscode", ".husky", "pkg/.idea", ".github/workflows", ".claude"])
def test_a_folder_that_is_a_link_or_was_moved_there_is_found(tmp_path: Path, name: str) -> None:
    put(tmp_path, "innocent/tasks.json", f"{name}-other/x")
    later = aged(tmp_path)
    assert paths(tmp_path, later) == []
    (tmp_path / name).symlink_to(tmp_path / "innocent")
    assert paths(tmp_path, later) == [name]
    (tmp_path / name).unlink()
    (tmp_path / "innocent").rename(tmp_path / name)
    assert paths(tmp_path, later) == [name]
    put(tmp_path, f"{name}/new")
    assert paths(tmp_path, later) == [f"{name}/new"], "where something in it is new, that alone is said"


def test_a_repository_in_parts_is_found(tmp_path: Path) -> None:
    """`.git` may be a file; what it names needs no config, and what that names in turn no HEAD."""
    put(tmp_path, "gitdir/HEAD", "gitdir/commondir", "common/config", ".git")
    for name in ("objects", "refs"):
        (tmp_path / "common" / name).symlink_to(tmp_path / "gitdir")
    assert paths(tmp_path, 0.0) == [".git", "common/config"]


def test_what_goes_away_while_it_is_looked_at_ends_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/config", "a/objects", "a/refs", "b/.envrc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    walk = os.fwalk

    def racing(root: Path, **how: bool) -> Iterator[tuple[str, list[str], list[str], int]]:
        for step in walk(root, **how):  # which has listed the folder
            if "config" in step[2]:
                (tmp_path / "a" / "config").unlink()
            yield step

    monkeypatch.setattr(os, "fwalk", racing)
    assert [it.path for it in changed_start_files(tmp_path, 0)[0]] == ["a/config", "b/.envrc"]
