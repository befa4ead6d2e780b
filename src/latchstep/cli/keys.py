"""Keys that are not in the environment: one file a service, `0600`, or a command such as a keyring's.

They are put into this process's own environment, where the catalogue looks. No command inherits it, no argument
list holds them, and what they are is masked in whatever tools say.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from pathlib import Path

from latchstep.core.printable import printable
from latchstep.errors import DefinitionError
from latchstep.model.catalog import SERVICES, key_variable

from .running import state_root

FOLDER = "keys"
COMMAND = "LATCHSTEP_KEY_COMMAND"
MAX_KEY = 16 * 1024
"""Bytes of a key file, or of what the command prints."""
COMMAND_SECONDS = 60.0
"""A keyring may ask its person for a password meanwhile."""


def bring_keys(model: str) -> None:
    """Find the key of the service that a model's name begins with, or, where none is named, every key in a file.

    A variable that is set comes first, then the file `keys/SERVICE` beside the sessions, then the command in
    LATCHSTEP_KEY_COMMAND, with `{service}` in its words replaced. Raises DefinitionError.
    """
    named = model.partition(":")[0]
    for name in [named] if named in SERVICES else [] if model else list(SERVICES):
        service = SERVICES[name]
        if not service.key or key_variable(service):
            continue
        key = _from_file(state_root() / FOLDER / name) or (_from_command(name) if name == named else "")
        if key:
            os.environ[service.key] = key


def _from_file(path: Path) -> str:
    """The first line. A file that others can read is refused: its key is no secret."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise DefinitionError(f"{path}: the key cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in (0, os.geteuid()):
            raise DefinitionError(f"{path} must be a file of yours")
        if about.st_mode & 0o077:
            raise DefinitionError(f"{path} can be read by others (mode {about.st_mode & 0o777:o}): chmod 600 it")
        return _line(file.read(MAX_KEY), str(path))


def _from_command(service: str) -> str:
    typed = os.environ.get(COMMAND, "")
    if not typed.strip():
        return ""
    try:
        words = [word.replace("{service}", service) for word in shlex.split(typed)]
        done = subprocess.run(words, stdout=subprocess.PIPE, timeout=COMMAND_SECONDS, check=False)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise DefinitionError(f"{COMMAND}: {printable(str(error))}") from None
    if done.returncode:
        raise DefinitionError(f"{COMMAND} ended with exit status {done.returncode}")
    return _line(done.stdout[:MAX_KEY], COMMAND)


def _line(data: bytes, source: str) -> str:
    try:
        return data.decode("ascii").split("\n", 1)[0].strip()
    except UnicodeDecodeError:
        raise DefinitionError(f"{source}: the key is not ASCII") from None
