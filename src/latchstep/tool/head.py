"""The commit a workspace stands at, read from files: no git program runs, since a repository can make one run code."""

from __future__ import annotations

import re
from pathlib import Path

_MAX = 4096
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs/[A-Za-z0-9._/-]{1,200}")


def head_of(root: Path) -> str:
    """The commit (hex) that HEAD names; "" outside a repository, before its first commit, or where unreadable.

    Layout: gitrepository-layout(5). A worktree's `.git` file and packed refs are followed.
    """
    git = root / ".git"
    if git.is_file():
        link = _text(git)
        if not link.startswith("gitdir: "):
            return ""
        git = root / link.removeprefix("gitdir: ")
    head = _text(git / "HEAD")
    if _COMMIT.fullmatch(head):
        return head
    ref = head.removeprefix("ref: ")
    if not _REF.fullmatch(ref) or ".." in ref:
        return ""
    common = _text(git / "commondir")
    for base in (git, git / common if common else git):
        if _COMMIT.fullmatch(found := _text(base / ref)):
            return found
        if found := _packed(base / "packed-refs", ref):
            return found
    return ""


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return file.read(_MAX).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _packed(path: Path, ref: str) -> str:
    try:
        with path.open("rb") as file:
            for line in file:
                commit, _, name = line.decode("utf-8", "replace").strip().partition(" ")
                if name == ref and _COMMIT.fullmatch(commit):
                    return commit
    except OSError:
        pass
    return ""
