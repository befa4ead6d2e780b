"""What an open descriptor of a workspace holds: a folder's entries, a file's bytes. Bounded, and never waiting."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from typing import Literal

from latchstep.errors import ToolError

from .text import shown, size_of

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Largest file that is read or written."""
MAX_ENTRIES = 20_000
"""Entries of one folder that are looked at."""

Kind = Literal["file", "folder", "link", "other"]


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was read. `path` is the real one, relative to the root, with `/`. mode: if it is to be replaced."""

    path: str
    data: bytes
    sha256: str
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A member of a folder. `size` in bytes; `target` is what a link says, unresolved."""

    name: str
    kind: Kind
    size: int = 0
    target: str = ""


class Missing(ToolError):
    """Nothing is at the path. A class of its own so that it can be told from other refusals."""


def is_missing(error: ToolError) -> bool:
    """Whether a refusal only says that nothing is there."""
    return isinstance(error, Missing)


def outside(path: str, where: str) -> ToolError:
    return ToolError(f"{shown(path)} leads out of the {where}, as every absolute link does")


def refusal(path: str, where: str, error: OSError) -> ToolError:
    """What the system said of a path that was to be opened in some folder, in words for the model."""
    match error.errno:
        case errno.ENOENT:
            return Missing(f"{shown(path)} does not exist")
        case errno.EXDEV:
            return outside(path, where)
        case errno.ELOOP:
            return ToolError(f"{shown(path)}: too many links, or one that must not be followed")
        case errno.ENOTDIR:
            return ToolError(f"{shown(path)}: something on the way is not a folder")
        case errno.ENXIO | errno.ENODEV:
            return ToolError(f"{shown(path)} is not a regular file")
    return ToolError(f"{shown(path)}: {error.strerror}")


def entries_of(fd: int) -> tuple[list[Entry], bool]:
    """The entries of an open folder by name, and whether there are more than are looked at."""
    entries: list[Entry] = []
    more = False
    with os.scandir(fd) as found:
        for item in found:
            more = len(entries) == MAX_ENTRIES
            if more:
                break
            with contextlib.suppress(FileNotFoundError):
                entries.append(_entry(item, fd))
    return sorted(entries, key=lambda entry: entry.name), more


def _entry(item: os.DirEntry[str], fd: int) -> Entry:
    if item.is_symlink():
        return Entry(item.name, "link", target=os.readlink(item.name, dir_fd=fd))
    if item.is_dir(follow_symlinks=False):
        return Entry(item.name, "folder")
    if item.is_file(follow_symlinks=False):
        return Entry(item.name, "file", item.stat(follow_symlinks=False).st_size)
    return Entry(item.name, "other")


def contents_of(fd: int, path: str, limit: int) -> tuple[bytes, str]:
    """The bytes behind a descriptor and their SHA-256. Bounded even where the file grows while it is read."""
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{shown(path)} is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{shown(path)} is not a regular file")
    if status.st_size > limit:
        raise ToolError(f"{shown(path)}: {too_large(status.st_size, limit)}")
    pieces, count = [], 0
    while piece := os.read(fd, 1024 * 1024):
        pieces.append(piece)
        count += len(piece)
        if count > limit:
            raise ToolError(f"{shown(path)}: {too_large(count, limit)}")
    data = b"".join(pieces)
    return data, hashlib.sha256(data).hexdigest()


def too_large(count: int, limit: int) -> str:
    return f"{size_of(count)} is more than the limit of {size_of(limit)} for a file (MAX_FILE_BYTES)"
