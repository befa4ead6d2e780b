"""What can be said of a path by its spelling alone. Pure: what `..` and links mean is found by opening."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

_UNEXPANDED = re.compile(r"~$|~[^/]*/|\$(?:HOME|\{HOME\})(?:/|$)")

MAX_PATH = 4096
"""Characters of a path."""


def relative_path(path: str, roots: Iterable[Path]) -> str:
    """The path relative to a root, parts joined by one `/`; an absolute one must lie under one of the roots.

    `.` is the root itself; `..` stays as it is. Raises ValueError saying what is wrong.
    """
    if not path:
        raise ValueError("the path is empty; `.` is the workspace itself")
    if "\0" in path:
        raise ValueError("a path cannot hold a NUL character")
    if len(path) > MAX_PATH:
        raise ValueError(f"{len(path)} characters are more than a path may have ({MAX_PATH}, MAX_PATH)")
    if _UNEXPANDED.match(path):
        raise ValueError("`~` and $HOME are not expanded here; give a path inside the workspace")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ValueError("not a valid file name") from None
    parts = _parts(path)
    if not path.startswith("/"):
        return "/".join(parts) or "."
    for root in roots:
        if is_under(path, root):
            return "/".join(parts[len(root.parts) - 1 :]) or "."
    raise ValueError(f"lies outside of the workspace {next(iter(roots))}")


def is_under(path: str, folder: Path) -> bool:
    """Whether an absolute path is spelled as one in this folder, or as the folder itself."""
    above = folder.parts[1:]
    return path.startswith("/") and tuple(_parts(path)[: len(above)]) == above


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part and part != "."]


def is_protected(name: str) -> bool:
    """Names that no file tool writes in or under: `.git` and our own, in every spelling a file system equates.

    Ignorable characters, case, trailing dots and blanks, streams and the DOS short name: the list git itself
    keeps (`is_hfs_dotgit`, `is_ntfs_dotgit`).
    """
    plain = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    plain = plain.casefold().split(":")[0].rstrip(". ")
    return plain in (".git", "git~1") or plain.startswith(".latchstep")
