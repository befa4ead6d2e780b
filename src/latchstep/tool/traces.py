"""What a folder holds that programs outside start by themselves: hooks and settings of git, shells and editors.

No sandbox can tell a good one from a bad one, so a run says at its end which of them are new or changed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterator
from itertools import islice

NAMES = frozenset(
    {".envrc", ".vscode", ".idea", ".devcontainer", ".gitmodules", ".mise.toml", "mise.toml", ".zed", ".nvim.lua",
     ".exrc", ".pre-commit-config.yaml", ".husky", ".githooks"}
)  # fmt: skip
"""Files and folders that a shell, an editor or git reads when somebody goes there."""
IN_GIT = ("config", "config.worktree", "commondir", "info/attributes", "hooks", "rebase-merge/git-rebase-todo")
"""What git runs programs by, and the list that `git rebase --continue` would work off."""

MAX_ENTRIES = 20_000
"""Files and folders that are looked at, the upper ones first."""
MAX_FILES, MAX_DEPTH = 1_000, 8
"""Of a folder among `NAMES`."""
MAX_NAMED = 20

Traces = dict[str, str]
"""Relative path -> what it was: a hash, or what kind of thing."""


def traces(root: str) -> Traces:
    """What there is now, at most `MAX_ENTRIES` looked at; "" is among them where that was not all."""
    found: Traces = {}
    seen, pending = 0, deque([root])
    while pending:
        folder = pending.popleft()
        try:
            with os.scandir(folder) as listed:
                entries = list(islice(listed, MAX_ENTRIES + 1))
        except OSError:
            continue
        seen += len(entries)
        if seen > MAX_ENTRIES:
            found[""] = "cut"
            break
        names = {entry.name for entry in entries}
        if {"HEAD", "config", "objects", "refs"} <= names:  # git takes this folder itself for a repository
            found |= _of_git(root, folder)
            continue
        for entry in entries:
            if entry.name == ".git":
                found |= _of_git(root, entry.path)
            elif entry.name.casefold() in NAMES:
                found |= dict(_files(root, entry.path))
            elif entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
    return found


def new_or_changed(before: Traces, after: Traces) -> list[str]:
    """The paths to look at before anything is started there, as lines."""
    paths = sorted(path for path, what in after.items() if path and before.get(path) != what)
    gone = sorted(path for path in before if path.endswith("/HEAD") and path not in after)
    lines = [*paths[:MAX_NAMED], *(f"{path} is gone, so git may take another folder for its own" for path in gone)]
    if len(paths) > MAX_NAMED:
        lines.append(f"and {len(paths) - MAX_NAMED} more")
    if "" in after:
        lines.append(f"(only {MAX_ENTRIES:,} files were looked at)")
    return lines


def _of_git(root: str, git: str) -> Iterator[tuple[str, str]]:
    if not os.path.isdir(git) or os.path.islink(git):
        yield from _files(root, git)
        return
    if os.path.exists(f"{git}/HEAD"):
        yield os.path.relpath(f"{git}/HEAD", root), "a repository"
    for name in IN_GIT:
        for path, what in _files(root, f"{git}/{name}"):
            if not path.endswith(".sample") and what not in PLACEHOLDERS:
                yield path, what


def _files(root: str, path: str, depth: int = MAX_DEPTH) -> Iterator[tuple[str, str]]:
    """A file, or the files of a folder, each with a hash of its content. Never waits, whatever lies there."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            with os.scandir(path) as entries:
                below = sorted(entry.path for entry in islice(entries, MAX_FILES))
            for entry in below if depth else ():
                yield from _files(root, entry, depth - 1)
            return
        content = (
            os.fsencode(os.readlink(path)) if stat.S_ISLNK(mode) else _content(path) if stat.S_ISREG(mode) else b""
        )
    except OSError:
        return
    yield os.path.relpath(path, root), hashlib.sha256(content).hexdigest()


def _content(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as file:
        return file.read(1 << 20) or b""


PLACEHOLDERS = {hashlib.sha256(content).hexdigest() for content in (b"", b".\n")}
"""Of what the sandbox itself puts there, which does nothing."""
