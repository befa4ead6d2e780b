"""What of a repository makes the person's own git run programs, and so stays read-only while commands may write; and
who the person is to git.

Only looks. A mount pins its own name and not the folders above it, so each of these is held too.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from .guard import OURS

GUARDED: dict[str, bytes | None] = {
    "config": b"",
    "config.worktree": b"",
    "commondir": b".\n",
    "info/attributes": b"",
    "hooks": None,
}
"""By path in a git directory: what is put there where nothing is (None: a folder), which changes nothing for git."""
OTHERS = (".hg/hgrc", ".hg/hgrc-not-shared", ".hg/sharedpath", ".jj/repo/config.toml", ".sl/config")
"""The same of other systems of version control, where a workspace has their folder."""
GUARDED_WORKTREE = ("config.worktree", "commondir", "gitdir")
OWN = ".latchstep"
"""Beginning of the names of our own configuration. A folder of just this name is held where there is none."""

MAX_DIRECTORIES = 200
"""Git directories (modules, worktrees) of one repository; beyond it the whole is read-only."""
MAX_SMALL = 4096
MAX_CONFIG = 1 << 20
"""Bytes of a config that are looked through."""

SETTING = re.compile(r'(?im)^[ \t]*(hookspath|path|attributesfile)[ \t]*=[ \t]*"?([^"\n;#]+)')

SECTION = re.compile(r"(?ims)^[ \t]*\[user\].*?(?=^[ \t]*\[|\Z)")
IDENTITY = re.compile(r"(?im)^[ \t]*(?:name|email)[ \t]*=[^\n\\]*$")


@dataclass(frozen=True, slots=True)
class Guards:
    """beside: git directories outside the workspace that commits need. pins: held, and writable. readonly: held as
    they are. made: what is to be put there first. note: what does not work therefore.
    """

    beside: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    readonly: tuple[str, ...] = ()
    made: tuple[tuple[str, bytes | None], ...] = ()
    note: str = ""


def guards_of(root: str) -> Guards:
    """The guards of a workspace, from what is there now."""
    names = {OWN, *_own(root)}
    own = [path for name in sorted(names) if not os.path.islink(path := f"{root}/{name}")]
    made: list[tuple[str, bytes | None]] = [(path, None) for path in own if _is_ours(path)]
    held: list[str] = []
    for path in (f"{root}/{name}" for name in OTHERS):
        folder = os.path.dirname(path)
        if os.path.isdir(folder) and os.path.realpath(path) == path:
            held += _between(root, folder)[1:]
            own.append(path)
            made += [(path, b"")] if _is_ours(path) else []
    git = f"{root}/.git"
    if os.path.islink(git) or not os.path.exists(git):
        return Guards((), tuple(held), tuple(own), tuple(made))
    beside: tuple[str, ...] = ()
    if os.path.isfile(git):
        own.append(git)
        base = _named_by(git, root)
        if not base:
            return Guards(
                (), tuple(held), tuple(own), tuple(made), ".git names a folder that does not name it in return"
            )
        beside = () if base.startswith(root + "/") else (base,)
    else:
        base = git
    try:
        pins, readonly, placed = _repository(base)
        for path, content in _in_workspace(root, base):
            pins += _between(root, os.path.dirname(path))[1:]
            readonly.append(path)
            placed += [(path, content)] if _is_ours(path) else []
        pins += _between(root, os.path.dirname(base))[1:] if not beside else []
    except ValueError as error:
        return Guards(beside, tuple(held), (*own, base), tuple(made), f"{base} is read-only as a whole: {error}")
    return Guards(beside, (*held, *pins), (*own, *readonly), (*made, *placed))


def merged(*several: Guards) -> Guards:
    """Those of several folders as one."""
    parts = zip(*((it.beside, it.pins, it.readonly, it.made) for it in several), strict=True)
    return Guards(*(tuple(dict.fromkeys(chain(*part))) for part in parts))  # type: ignore[arg-type]


def _repository(base: str) -> tuple[list[str], list[str], list[tuple[str, bytes | None]]]:
    """What to pin, to hold read-only and to make. Raises ValueError where parts cannot be held."""
    pins: dict[str, None] = {}
    readonly: list[str] = []
    made: list[tuple[str, bytes | None]] = []
    for path in (base, *_below(base)):
        for name in ("", "info", "modules", "worktrees", *GUARDED):
            part = f"{path}/{name}".rstrip("/")
            if os.path.islink(part):
                raise ValueError(f"{part} is a link")
            if name not in GUARDED and os.path.exists(part) and not os.path.isdir(part):
                raise ValueError(f"{part} is no folder")
        if len(readonly) > MAX_DIRECTORIES * len(GUARDED):
            raise ValueError(f"it holds more than {MAX_DIRECTORIES} repositories (MAX_DIRECTORIES)")
        is_worktree = os.path.basename(os.path.dirname(path)) == "worktrees"
        for name in GUARDED_WORKTREE if is_worktree else GUARDED:
            full = f"{path}/{name}"
            pins.update(dict.fromkeys(_between(base, os.path.dirname(full))))
            readonly.append(full)
            if _is_ours(full):
                made.append((full, GUARDED.get(name, b"")))
    return list(pins), readonly, made


def _in_workspace(root: str, base: str) -> Iterator[tuple[str, bytes | None]]:
    """What git's settings take from the workspace itself: a folder of hooks, further settings, attributes."""
    home = os.path.expanduser("~")
    for file in (f"{base}/config", f"{home}/.gitconfig", f"{home}/.config/git/config"):
        for name, value in SETTING.findall(_text(file, MAX_CONFIG)):
            start = os.path.dirname(file) if name.lower() == "path" else root
            path = os.path.normpath(os.path.join(start, os.path.expanduser(value.strip())))
            inside = path.startswith(root + "/") and not path.startswith((base + "/", f"{root}/.git/"))
            if inside and os.path.realpath(path) == path:
                yield path, None if name.lower() == "hookspath" else b""


def identity(home: str) -> bytes:
    """A `.gitconfig` that says no more than who the person is, from theirs: what a commit needs."""
    for file in (f"{home}/.gitconfig", f"{home}/.config/git/config"):
        section = SECTION.search(_text(file, MAX_CONFIG))
        if section and (lines := IDENTITY.findall(section[0])):
            return os.fsencode("\n".join(["[user]", *lines, ""]))
    return b""


def _is_ours(path: str) -> bool:
    """Whether nothing of the person's is there."""
    try:
        return int(os.lstat(path).st_mtime) == OURS
    except OSError:
        return True


def _own(root: str) -> Iterator[str]:
    if not os.path.isdir(root):
        return
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.name.casefold().startswith(OWN) and not entry.name.endswith(".tmp"):
                yield entry.name


def _between(base: str, path: str) -> list[str]:
    """The folders from base down to path, both included."""
    parts = Path(path).relative_to(base).parts
    return [os.path.join(base, *parts[:count]) for count in range(len(parts) + 1)]


def _below(base: str) -> Iterator[str]:
    """Git directories of submodules and of further worktrees. A submodule's name may have slashes, and hold others."""
    pending = [f"{base}/{name}" for name in ("modules", "worktrees")]
    seen = 0
    while pending:
        path = pending.pop()
        if (seen := seen + 1) > 10 * MAX_DIRECTORIES:
            raise ValueError("its modules and worktrees hold too many folders")
        try:
            with os.scandir(path) as entries:
                folders = sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:
            continue
        for folder in folders:
            if os.path.lexists(f"{folder}/HEAD"):
                yield folder
                pending += [f"{folder}/modules", f"{folder}/worktrees"]
            else:
                pending.append(folder)


def _named_by(file: str, root: str) -> str:
    """The repository that a `.git` file names: one in the workspace, or one that names the file in return, since a
    file alone could name any other."""
    git = _followed(file, r"gitdir: (.+)")
    if not git or git.startswith(root + "/"):
        return git
    back = _followed(f"{git}/gitdir", r"(.+)")  # a worktree
    if back == os.path.realpath(file):
        return _followed(f"{git}/commondir", r"(.+)")
    tree = _followed(f"{git}/config", r"(?ms)^\[core\][^\[]*?^\s*worktree\s*=\s*([^\n]+)")  # a submodule
    return git if tree == os.path.dirname(file) else ""


def _followed(file: str, pattern: str) -> str:
    """The real path that a small file names (group 1 of the pattern), relative to its folder; "" for none."""
    found = re.search(pattern, _text(file, MAX_SMALL))
    if found is None:
        return ""
    return os.path.realpath(os.path.join(os.path.dirname(file), found[1].strip()))


def _text(path: str, most: int) -> str:
    """The beginning of a regular file, "" for anything else: a FIFO, that somebody put there, would be waited for."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return os.fsdecode(file.read(most)) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else ""
    except OSError:
        return ""
