"""The commit a workspace stands at, read from files: no git program runs, since a repository can make one run code.

What is read is bounded, and only regular files are.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

MAX_SMALL = 4096
"""Bytes of `HEAD`, a loose ref, `.git` or `commondir`."""
MAX_PACKED = 64 * 1024 * 1024
"""Bytes of `packed-refs`."""

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs(?:/(?!\.)[^\x00-\x20\x7f~^:?*\[\\/]+)+")  # git-check-ref-format(1)
MAX_REF = 250


def head_of(root: Path) -> str:
    """The commit (hex) that HEAD names; "" outside a repository, before its first commit, or where unreadable.

    The repository is that of the nearest folder upwards that has a `.git`. Layout: gitrepository-layout(5). A
    worktree's `.git` file and packed refs are followed.
    """
    found = next((folder for folder in (root, *root.parents) if os.path.lexists(folder / ".git")), None)
    if found is None:
        return ""
    git = found / ".git"
    if link := _text(git):
        if not link.startswith("gitdir: "):
            return ""
        git = found / link.removeprefix("gitdir: ")
    head = _text(git / "HEAD")
    if _COMMIT.fullmatch(head):
        return head
    ref = head.removeprefix("ref: ")
    if not _REF.fullmatch(ref) or ".." in ref or len(ref) > MAX_REF:
        return ""
    common = _text(git / "commondir")
    for base in (git, git / common if common else git):
        if _COMMIT.fullmatch(commit := _text(base / ref)):
            return commit
        if commit := _packed(base / "packed-refs", ref):
            return commit
    return ""


def _read(path: Path, most: int) -> bytes:
    """At most so many bytes of a regular file; none of anything else, and no waiting for it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        pieces = []
        while most > 0 and (piece := os.read(fd, min(most, 1 << 20))):
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _text(path: Path) -> str:
    return _read(path, MAX_SMALL).decode("utf-8", "replace").strip()


def _packed(path: Path, ref: str) -> str:
    found = re.search(rb"^([0-9a-f]{40,64}) " + re.escape(ref.encode()) + rb"$", _read(path, MAX_PACKED), re.M)
    commit = found[1].decode() if found else ""
    return commit if _COMMIT.fullmatch(commit) else ""
