"""What a person has allowed for always in a workspace: kept under LATCHSTEP_HOME, never in the repository.

One file a workspace, `0600`, replaced whole. One that others could have written grants nothing, and is said.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec

from latchstep.core.printable import one_line
from latchstep.errors import DefinitionError
from latchstep.policy.rule import Rule, parse_rule

FOLDER = "grants"

MAX_SIZE = 10_000_000


class Grant(msgspec.Struct, frozen=True):
    """A rule, who granted it, and when (seconds since 1970)."""

    rule: str
    by: str
    time: float


class _File(msgspec.Struct, frozen=True):
    """folder: which one it is about, as `identity_of` says; "" where that is not known."""

    workspace: str
    grants: tuple[Grant, ...] = ()
    folder: str = ""


def identity_of(root: Path) -> str:
    """Which folder it is, and which repository: a clone put in its place is another."""
    parts = []
    for path in (root, root / ".git"):
        try:
            parts.append(str(os.stat(path, follow_symlinks=False).st_ino))
        except OSError:
            parts.append("-")
    return ":".join(parts)


def path_of(state: Path, root: Path) -> Path:
    """Where the grants of a workspace lie."""
    return state / FOLDER / f"{sha256(os.fsencode(root)).hexdigest()[:32]}.json"


def load(state: Path, root: Path) -> tuple[Grant, ...]:
    """What is granted in this workspace; nothing in another that was put in its place. Raises DefinitionError where the
    file is damaged or not only ours."""
    path = path_of(state, root)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise DefinitionError(f"{path} could have been written by others, so it grants nothing; remove it")
        data = file.read(MAX_SIZE)
    try:
        kept = msgspec.json.decode(data, type=_File)
        for grant in kept.grants:
            parse_rule(grant.rule)
    except (msgspec.DecodeError, DefinitionError) as error:
        raise DefinitionError(f"{path} is damaged ({error}); repair or remove it") from None
    if kept.workspace != str(root):
        raise DefinitionError(f"{path} is about {one_line(kept.workspace, 200)}, not this folder; remove it")
    now = identity_of(root)
    since = f"{now.partition(':')[0]}:-"  # a repository was made in it since
    return kept.grants if kept.folder in ("", now, since) else ()


def person() -> str:
    """Who grants and trusts."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # one who has a number only, as in a container
        return str(os.getuid())


def keep(state: Path, root: Path, rule: Rule) -> None:
    """Grant a rule. It is on disk when this returns."""
    with _locked(state, root) as grants:
        if all(grant.rule != str(rule) for grant in grants):
            _write(state, root, (*grants, Grant(str(rule), person(), time.time())))


def revoke(state: Path, root: Path, rule: str) -> None:
    """Take a rule back. Raises DefinitionError where it was not granted."""
    with _locked(state, root) as grants:
        left = tuple(grant for grant in grants if grant.rule != rule)
        if left == grants:
            raise DefinitionError(f"{rule!r} is not granted in {root}")
        _write(state, root, left)


def _write(state: Path, root: Path, grants: tuple[Grant, ...]) -> None:
    replace_whole(path_of(state, root), _File(str(root), grants, identity_of(root)))


@contextmanager
def _locked(state: Path, root: Path) -> Iterator[tuple[Grant, ...]]:
    """The grants, while nobody else changes any."""
    with locked(state / FOLDER):
        yield load(state, root)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While nobody else replaces a file in this folder of the person's. What was replaced stays replaced."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_whole(path: Path, content: object) -> None:
    """Put JSON in place of the file, whole and `0600`. Its bytes are on disk when this returns."""
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(handle, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
        file.flush()
        os.fsync(handle)
    os.replace(part, path)


def list_grants(root: Path, state: Path, take_back: str | None) -> int:
    """`latchstep grants`: print what is granted here, or take one rule back."""
    if take_back is not None:
        revoke(state, root, take_back)
        return 0
    grants = load(state, root)
    if not grants:
        print(f"nothing was allowed for always in {one_line(str(root), 4096)}")
    for grant in grants:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(grant.time))
        print(f"{when}  {one_line(grant.by, 40)}  {grant.rule}")
    return 0
