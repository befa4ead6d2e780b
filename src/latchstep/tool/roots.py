"""Folders that tools may use beside the workspace: which may be one. Held to the same rules as the workspace itself."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from latchstep.errors import DefinitionError

from .path import is_protected

BARRED = ("/proc", "/sys", "/dev")
"""Of the kernel, not of the disk: our own keys can be read there."""


@dataclass(frozen=True, slots=True)
class Extra:
    """path: a real one. writable: else it may only be read."""

    path: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Root:
    """A folder that is opened beneath. name: what real paths in it begin with; "" for the workspace's, which are
    relative."""

    path: Path
    fd: int
    name: str = ""
    writable: bool = True


def refuse_unfit(extras: Sequence[Extra], root: str, *, home: str = "", apart: Iterable[tuple[str, str]] = ()) -> None:
    """Raises DefinitionError, in one line, unless each of these may be used beside the workspace.

    home: neither it nor what lies above it may be one. apart: what else must not overlap with one, and what it is.
    """
    others = [(root, "the workspace"), *apart, *((path, "the system's") for path in BARRED)]
    for extra in extras:
        path = extra.path
        if not os.path.isdir(path) or os.path.realpath(path) != path:
            raise DefinitionError(f"the folder {path} does not exist any more, or a link leads to it; make it again")
        if home and within(home, path):
            raise DefinitionError(f"{path} is your home folder or above it; name a folder in it")
        for other, what in others:
            if within(path, other) or within(other, path):
                raise DefinitionError(f"{path} and {what} {other} overlap; name a folder apart from it")
        if extra.writable and (part := next(filter(is_protected, Path(path).parts), "")):
            raise DefinitionError(f"{path} lies in {part}, where tools never write; it may only be read (--also)")
        others.append((path, "the folder"))


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
