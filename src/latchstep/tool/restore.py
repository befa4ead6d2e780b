"""Putting a workspace's files back as a snapshot holds them: first a plan that a person can read, then its steps.

What no snapshot holds is never written and never removed: ignored, too large, unreadable, every `.git`. Each file
changes whole or not at all; a plan that was interrupted is finished by making it again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from latchstep.errors import SessionError

from . import beneath
from .encoding import decode
from .gitstore import FILE, LINK, PROGRAM, TREE, Objects, object_id, tree_entries
from .ignore import Rules, ignored, parse_rules
from .path import is_protected
from .snapshot import FILES, LEFT_OUT, PRIVATE, Shadow, Taken, open_folder, read_file
from .tree import MAX_IGNORE_BYTES

Node = tuple[str, bytes]
"""Mode and id of what stands at a path."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is done at one path. now, then: the node that stands there and the one that shall; None for nothing."""

    path: str
    now: Node | None
    then: Node | None

    @property
    def what(self) -> Literal["create", "change", "remove"]:
        return "create" if self.now is None else "remove" if self.then is None else "change"

    @property
    def folder(self) -> bool:
        return TREE in (self.now or self.then or ("",))[:1]


@dataclass(frozen=True, slots=True)
class Plan:
    """steps in the order in which they are done; left_alone: (path, why) of what differs, or may, and stays."""

    tree: str
    steps: tuple[Step, ...]
    left_alone: tuple[tuple[str, str], ...]
    private: frozenset[str]


class _Held:
    """A snapshot's tree, read."""

    def __init__(self, objects: Objects, tree: str) -> None:
        self._objects = objects
        top = {name: oid for _, name, oid in self.entries(bytes.fromhex(tree))}
        if FILES not in top:
            raise SessionError(f"{tree[:12]} is no snapshot")
        self.files = top[FILES]
        lines = self._lines(top.get(LEFT_OUT))
        self.left_out = dict(zip(lines[::2], lines[1::2], strict=False))
        self.private = frozenset(self._lines(top.get(PRIVATE)))
        self._rules: dict[str, tuple[Rules, dict[str, Node]]] = {}

    def entries(self, oid: bytes) -> Iterator[tuple[str, bytes, bytes]]:
        kind, data = self._objects.read(oid)
        if kind != "tree":
            raise SessionError(f"object {oid.hex()[:12]} of the snapshots is no tree")
        return tree_entries(data)

    def folder(self, oid: bytes) -> dict[str, Node]:
        found = {os.fsdecode(name): (mode, oid) for mode, name, oid in self.entries(oid)}
        for name, (mode, _) in found.items():
            if is_protected(name) or mode not in (TREE, LINK, FILE, PROGRAM):
                raise SessionError(f"a tree of the snapshots is damaged: it names {name!r}, mode {mode}")
        return found

    def _lines(self, oid: bytes | None) -> list[str]:
        return [os.fsdecode(line) for line in self._objects.read(oid)[1].split(b"\0")[:-1]] if oid else []

    def why_not(self, path: str, is_folder: bool) -> str:
        """Why this snapshot says nothing of a path; "" where it does: then what it does not hold was not there."""
        parts = tuple(path.split("/"))
        for end in range(1, len(parts) + 1):
            above = "/".join(parts[:end])
            if above in self.left_out:
                return self.left_out[above]
            if ignored(self._rules_at("/".join(parts[: end - 1])), parts[:end], is_folder or end < len(parts)):
                return "ignored"
        return ""

    def _rules_at(self, path: str) -> Rules:
        return self._known(path)[0]

    def _known(self, path: str) -> tuple[Rules, dict[str, Node]]:
        """The ignore rules in force in a folder of this snapshot, and its entries."""
        if path not in self._rules:
            if path:
                above, _, name = path.rpartition("/")
                rules, entries = self._known(above)
                mode, oid = entries.get(name, ("", b""))
                entries = self.folder(oid) if mode == TREE else {}
            else:
                rules, entries = (), self.folder(self.files)
            mode, oid = entries.get(".gitignore", ("", b""))
            if mode in (FILE, PROGRAM):
                data = self._objects.read(oid)[1]
                decoded = decode(data) if len(data) <= MAX_IGNORE_BYTES else None
                if decoded is not None:
                    rules = ((len(path.split("/")) if path else 0, parse_rules(decoded.text)), *rules)
            self._rules[path] = rules, entries
        return self._rules[path]


def plan(shadow: Shadow, present: Taken, tree: str) -> Plan:
    """What must be done so that the files, of which `present` was just taken, are those of `tree`.

    Every object that is needed is read and verified, so that nothing is begun that cannot be finished. Raises
    SessionError where one is missing or damaged.
    """
    now, then = _Held(shadow.objects, present.tree), _Held(shadow.objects, tree)
    removals, creations, left = [], [], {}
    root = os.open(shadow.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in _differences(now, then, now.files, then.files):
            why = _why_left(root, step, now, then)
            if why:
                left[step.path] = why
            elif step.then is None:
                removals.append(step)
            else:
                creations.append(step)
                if not step.folder:
                    shadow.objects.read(step.then[1])
        for path, why in then.left_out.items():
            if path not in now.left_out and not _stands(root, path):  # nobody can tell whether it was changed before
                left.setdefault(path, f"it is gone, and was not kept: {why}")
    finally:
        os.close(root)
    removals.sort(key=lambda step: step.path.count("/"), reverse=True)  # what is in a folder before it
    removals.sort(key=lambda step: step.folder)
    return Plan(tree, (*removals, *creations), tuple(sorted(left.items())), then.private)


def complete(objects: Objects, tree: str, whole: set[bytes]) -> bool:
    """Whether all that a snapshot holds is there and verifies. `whole` are objects known to be, and is added to."""
    waiting = [(TREE, bytes.fromhex(tree))]
    try:
        while waiting:
            mode, oid = waiting.pop()
            if oid not in whole:
                kind, data = objects.read(oid)
                waiting += [(mode, inner) for mode, _, inner in (tree_entries(data) if mode == TREE else ())]
                if kind != ("tree" if mode == TREE else "blob"):
                    return False
                whole.add(oid)
    except SessionError:
        return False
    return True


def _differences(now: _Held, then: _Held, mine: bytes | None, theirs: bytes | None, path: str = "") -> Iterator[Step]:
    """Steps for all that differs, folders before what is in them. One sort of thing in place of another is a
    removal and a creation."""
    here = now.folder(mine) if mine else {}
    there = then.folder(theirs) if theirs else {}
    for name in sorted({*here, *there}):
        old, new = here.get(name), there.get(name)
        if old == new:
            continue
        below = f"{path}/{name}" if path else name
        kinds = {_sort(node) for node in (old, new) if node is not None}
        if old and new and len(kinds) == 1:
            if kinds != {TREE}:
                yield Step(below, old, new)
        else:
            if old:
                yield Step(below, old, None)
            if new:
                yield Step(below, None, new)
        mine_below, theirs_below = (node[1] if node is not None and node[0] == TREE else None for node in (old, new))
        if mine_below or theirs_below:
            yield from _differences(now, then, mine_below, theirs_below, below)


def _sort(node: Node) -> str:
    return FILE if node[0] == PROGRAM else node[0]


def _why_left(root: int, step: Step, now: _Held, then: _Held) -> str:
    """Why a difference stays: one of the two snapshots says nothing of the path."""
    if step.then is None:
        return then.why_not(step.path, step.folder)
    if step.now is not None:
        return ""
    if step.path in now.left_out:
        return now.left_out[step.path]
    why = now.why_not(step.path, step.folder)
    if not why or step.folder:
        return ""
    return f"{why}, and something is there" if _stands(root, step.path) else ""


def _stands(root: int, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    try:
        fd = open_folder(root, folder)
    except OSError:
        return False
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


# -- doing it ----------------------------------------------------------------------------------------------


def restore(shadow: Shadow, wanted: Plan) -> list[tuple[str, str]]:
    """Do it, durably. (path, why) of what could not be done; the rest is done all the same."""
    failed = []
    touched = dict.fromkeys(step.path.rpartition("/")[0] for step in wanted.steps)
    root = os.open(shadow.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in wanted.steps:
            try:
                _do(root, shadow.objects, step, step.path in wanted.private or f"{step.path}/" in wanted.private)
            except FileExistsError:
                failed.append((step.path, "something is there that no snapshot holds, or that was changed meanwhile"))
            except OSError as error:
                failed.append((step.path, error.strerror or str(error)))
        for path in touched:
            with contextlib.suppress(OSError):  # it may be gone
                fd = open_folder(root, path)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
    finally:
        os.close(root)
    return failed


def _do(root: int, objects: Objects, step: Step, private: bool) -> None:
    above, _, name = step.path.rpartition("/")
    folder = open_folder(root, above)
    try:
        if step.then is None:
            _remove(folder, name, step)
        elif step.folder:
            _make_folder(folder, name, private)
        elif step.then[0] == LINK:
            _link(folder, name, objects.read(step.then[1])[1], step)
        else:
            _write(folder, name, objects.read(step.then[1])[1], step, private)
    finally:
        os.close(folder)


def _remove(folder: int, name: str, step: Step) -> None:
    if step.folder:
        with contextlib.suppress(FileNotFoundError):
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # it holds what no snapshot does, and stays
                    raise
        return
    _present(folder, name, step)
    os.unlink(name, dir_fd=folder)


def _make_folder(folder: int, name: str, private: bool) -> None:
    try:
        os.mkdir(name, 0o700 if private else 0o777, dir_fd=folder)
    except FileExistsError:
        os.close(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder))


def _link(folder: int, name: str, target: bytes, step: Step) -> None:
    if step.now is None:
        os.symlink(target, os.fsencode(name), dir_fd=folder)
        return
    _present(folder, name, step)
    temporary = beneath.random_name()
    os.symlink(target, os.fsencode(temporary), dir_fd=folder)
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _write(folder: int, name: str, data: bytes, step: Step, private: bool) -> None:
    runs = step.then is not None and step.then[0] == PROGRAM
    if step.now is None:
        mode = (0o777 if runs else 0o666) & (0o700 if private else 0o777)
        beneath.replace(folder, name, data, None, beneath.best_ways(), mode=mode)
        return
    status = _present(folder, name, step)
    mode = stat.S_IMODE(status.st_mode) & ~0o111
    if runs:
        mode |= (mode & 0o444) >> 2 | 0o100
    beneath.replace(folder, name, data, status, beneath.best_ways(), mode=mode)


def _present(folder: int, name: str, step: Step) -> os.stat_result:
    """The status of what stands there, which must be what the plan was made of. Raises OSError."""
    assert step.now is not None
    if step.now[0] == LINK:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        data = os.fsencode(os.readlink(name, dir_fd=folder))
    else:
        data, status = read_file(folder, name)
    if object_id("blob", data) != step.now[1]:
        raise OSError(0, "it was changed meanwhile")
    return status
