"""The person's own configuration, `config.toml` in LATCHSTEP_HOME: the hooks, for now.

What it names runs with all rights of the person, so it must be theirs alone, and no file of a project is taken for it.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from latchstep.core.printable import one_line
from latchstep.errors import DefinitionError
from latchstep.tool.command_hooks import CommandHook

FILE = "config.toml"
MAX_SIZE = 256 * 1024

TOOLS = (
    "read", "list", "find", "grep", "write", "edit", "apply_patch", "bash", "job_read", "job_stop", "todo", "ask_user",
    "fetch", "task",
)  # fmt: skip
"""The tools that a run at the terminal may have."""


class Configured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file may say."""

    hooks: tuple[CommandHook, ...] = ()


def configured(state: Path, written: Iterable[Path] = ()) -> Configured:
    """What the person configured. Raises DefinitionError for a file that is not theirs alone, or says what is unknown.

    written: folders that the model may write, the workspace first; neither the file nor what a hook runs may lie there.
    """
    path = state / FILE
    data = own_bytes(path, MAX_SIZE)
    if data is None:
        return Configured()
    try:
        found = msgspec.convert(tomllib.loads(data.decode()), Configured)
    except (ValueError, RecursionError) as error:
        raise DefinitionError(f"{path}: {one_line(str(error), 300)}") from None
    for hook in found.hooks:
        if hook.tool not in (*TOOLS, "*"):
            raise DefinitionError(f"{path}: there is no tool {hook.tool!r}; it is one of {', '.join(TOOLS)}, or *")
    for folder in written:
        for word in (str(path), *(word for hook in found.hooks for word in _files(hook, folder))):
            if Path(os.path.realpath(word)).is_relative_to(os.path.realpath(folder)):
                raise DefinitionError(f"{path}: {word} lies in {folder}, which the model may write; keep it elsewhere")
    return found


def _files(hook: CommandHook, folder: Path) -> Iterator[str]:
    """Its program, and what else it names that is a file already, as a script is."""
    yield hook.command[0]
    yield from (path for word in hook.command[1:] if os.path.isfile(path := os.path.join(folder, word)))


def own_bytes(path: Path, most: int) -> bytes | None:
    """What stands in a file of the person's; None where there is none. Raises DefinitionError where it could be
    somebody else's, or has more than `most` bytes."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        why = "is a link; put the file itself there" if path.is_symlink() else f"cannot be read: {error.strerror}"
        raise DefinitionError(f"{path} {why}") from None
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise DefinitionError(f"{path} must be a file of yours")
        if about.st_mode & 0o022:
            raise DefinitionError(f"{path} can be written by others (mode {about.st_mode & 0o777:o}): chmod 600 it")
        data = file.read(most + 1)
    if len(data) > most:
        raise DefinitionError(f"{path} has more than {most:,} bytes")
    return data
