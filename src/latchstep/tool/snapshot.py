"""Snapshots of a workspace: all its files as a git tree in a shadow store, whatever the user's own `.git` says.

Folders are walked by descriptor and no link is followed. A file whose status is as it was is not read again; one that
was changed within `RACY` of being read is, however it looks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from latchstep.errors import SessionError

from .encoding import decode
from .gitstore import FILE, LINK, PROGRAM, TREE, Kind, Objects, Pack, object_id, tree_bytes
from .ignore import Rules, ignored, parse_rules
from .path import is_protected
from .snapindex import Folder, Seen, load, save
from .text import size_of
from .tree import MAX_DEPTH, MAX_IGNORE_BYTES

MAX_FILE = 16 * 1024 * 1024
"""Bytes of the largest file that a snapshot holds."""
MAX_FILES = 200_000
"""Files and folders of a workspace; one that has more gets no snapshots."""
MAX_NEW = 1024 * 1024 * 1024
"""Bytes of files that one snapshot reads because no earlier one holds them."""
RACY = 2_000_000_000
"""Nanoseconds: how coarse the times of a file system may be. A file that was changed this shortly before it was read
may have been changed again within the same tick (git: racy-git)."""

FILES, LEFT_OUT, PRIVATE = b"files", b"left-out", b"private"
"""What a snapshot's tree holds: the files; path and reason of what is not among them; paths that nobody else may read
(a folder's ends in `/`). The last two are lists ended by NUL, and there only if they are not empty."""

Add = Callable[[Kind, bytes], bytes]

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot: its tree (hex), how many files and links it holds, and (path, why) of what it leaves out."""

    tree: str
    files: int
    left_out: tuple[tuple[str, str], ...]


class Shadow:
    """The snapshots of one workspace, under `home/snapshots/`, shared by all its sessions.

    `home` itself is no part of the workspace, even where it lies in it. One thread at a time calls `take`.
    """

    def __init__(self, root: Path, home: Path) -> None:
        self.root = Path(os.path.realpath(root))
        path = os.fsencode(self.root)
        self.objects = Objects(home / "snapshots" / hashlib.sha256(path).hexdigest()[:32], path)
        self.never = Path(os.path.realpath(home))
        self._folders: dict[str, Folder] | None = None
        self._tree, self._unsaved = b"", False
        self._lock = -1

    # -- who is at work in the workspace -------------------------------------------------------------------

    def join(self) -> None:
        """Work in it, beside others. SessionError while somebody restores its files."""
        if not self._locked(fcntl.LOCK_SH):
            raise SessionError(f"the files of {self.root} are being restored just now; try again when that is done")

    def alone(self) -> bool:
        """Have it for oneself; False while a session is at work in it."""
        return self._locked(fcntl.LOCK_EX)

    def leave(self) -> None:
        self._save()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _locked(self, how: int) -> bool:
        if self._lock < 0:
            self.objects.place()  # the journal comes before what a snapshot takes of the disk
            path = self.objects.folder / "lock"
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, how | fcntl.LOCK_NB)
        except BlockingIOError:
            self.leave()
            return False
        return True

    # -- taking ----------------------------------------------------------------------------------------------

    def take(self, stop: Callable[[], bool] = lambda: False) -> Taken:
        """A snapshot of all files as they are now, durable when it returns.

        `stop` is asked often; where it says so SessionError is raised, as where a bound is exceeded. Raises OSError.
        """
        if self._folders is None:
            self._folders, self._tree = load(self.objects.folder, self.objects.names())
        scan = _Scan(self, self._folders, stop)
        root = os.open(self.root, _FOLDER)
        try:
            scan.walk(root)
            if scan.unchanged:
                scan.plant(object_id)
                taken = scan.summary(object_id)
                if taken.tree == self._tree.hex():
                    self._folders = scan.folders
                    return taken
            with self.objects.pack() as pack:
                scan.read(root, pack)
                scan.plant(pack.add)
                taken = scan.summary(pack.add)
        finally:
            os.close(root)
        first = not self._folders
        self._folders, self._tree, self._unsaved = scan.folders, bytes.fromhex(taken.tree), True
        if first:
            self._save()
        return taken

    def _save(self) -> None:
        if self._unsaved and self._folders is not None:
            save(self.objects.folder, self.objects.names(), self._folders, self._tree)
            self._unsaved = False


class _Scan:
    """One look at the whole workspace: `walk` looks, `read` stores what is new, `plant` makes the trees of it."""

    def __init__(self, shadow: Shadow, old: dict[str, Folder], stop: Callable[[], bool]) -> None:
        self._root, self._never, self._stop = shadow.root, shadow.never, stop
        self._old = old
        self.folders: dict[str, Folder] = {}  # each after those in it
        self.todo: dict[str, list[tuple[str, os.stat_result]]] = {}
        self.left_out: list[tuple[str, str]] = []
        self.unchanged = True
        self._count = self._new = 0
        self._device = 0

    def walk(self, fd: int, path: str = "", depth: int = 0, rules: Rules = (), digest: bytes = b"") -> None:
        """Look at a folder and all below it."""
        self._go_on()
        own = os.fstat(fd)
        self._device = self._device or own.st_dev
        if own.st_dev != self._device:
            self._leave(path, "on another file system")
            return
        if depth > MAX_DEPTH:
            self._leave(path, f"more than {MAX_DEPTH} folders deep (MAX_DEPTH)")
            return
        rules, digest = _with_rules(fd, path, rules, digest)
        folder, same = self._look(fd, path, rules, digest)
        for name in tuple(folder.folders):
            below = f"{path}/{name}" if path else name
            try:
                inner = os.open(name, _FOLDER, dir_fd=fd)
            except OSError as error:
                self._leave(below, f"cannot be read: {error.strerror}")
                del folder.folders[name]
                continue
            try:
                self.walk(inner, below, depth + 1, rules, digest)
            finally:
                os.close(inner)
            if below not in self.folders:
                del folder.folders[name]
        folder.closed = not own.st_mode & 0o077
        old = self._old.get(path)
        folder.same = (
            same
            and old is not None
            and len(folder.files) == len(old.files)
            and folder.folders.keys() == old.folders.keys()
        )
        self.unchanged = self.unchanged and folder.same
        self.folders[path] = folder

    def _look(self, fd: int, path: str, rules: Rules, digest: bytes) -> tuple[Folder, bool]:
        """One folder's entries, and whether they are those of the last time. The hot loop: a file that is as it was
        costs a status and a comparison."""
        before = self._old.get(path) or Folder(b"?")
        fresh = before.rules != digest
        folder = Folder(digest)
        files, known_files = folder.files, before.files
        known_folders, known_passed = ({}, {}) if fresh else (before.folders, before.passed)
        same = True
        with os.scandir(fd) as found:
            for item in found:
                name = item.name
                known = known_files.get(name)
                if known is None or fresh:
                    is_folder = item.is_dir(follow_symlinks=False)
                    if is_folder and name in known_folders:
                        folder.folders[name] = None
                        continue
                    if known_passed.get(name) is is_folder or self._passes(path, name, is_folder, rules):
                        folder.passed[name] = is_folder
                        continue
                    if is_folder:
                        folder.folders[name] = None
                        continue
                try:
                    status = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if (
                    known is not None
                    and known[0] == status.st_mtime_ns
                    and known[1] == status.st_ctime_ns
                    and known[2] == status.st_size
                    and known[3] == status.st_ino
                    and known[4] == status.st_mode
                ):
                    files[name] = known
                    continue
                if self._changed(path, name, status, folder, rules):
                    same = False
        self._count += len(files) + len(folder.folders)
        if self._count > MAX_FILES:
            raise SessionError(f"the workspace has more than {MAX_FILES:,} files (MAX_FILES)")
        return folder, same

    def _passes(self, path: str, name: str, is_folder: bool, rules: Rules) -> bool:
        """Whether a rule leaves it out: git's, our own, or one of an ignore file. Many rules take long."""
        self._go_on()
        full = f"{path}/{name}" if path else name
        return (
            is_protected(name)
            or (is_folder and self._root / full == self._never)
            or (bool(rules) and ignored(rules, tuple(full.split("/")), is_folder))
        )

    def _changed(self, path: str, name: str, status: os.stat_result, folder: Folder, rules: Rules) -> bool:
        """Something that is new, or not as it was; whether it is a file to be read."""
        full = f"{path}/{name}" if path else name
        if stat.S_ISDIR(status.st_mode):  # where a file was
            if self._passes(path, name, True, rules):
                folder.passed[name] = True
            else:
                folder.folders[name] = None
        elif not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            self._leave(full, "not a file, a folder or a link")
        elif status.st_size > MAX_FILE:
            self._leave(full, f"{size_of(status.st_size)}, more than {size_of(MAX_FILE)} (MAX_FILE)")
        else:
            self.todo.setdefault(path, []).append((name, status))
            self._count += 1
            self._new += status.st_size
            if self._new > MAX_NEW:
                raise SessionError(f"more than {size_of(MAX_NEW)} are in no snapshot yet (MAX_NEW)")
            return True
        return False

    def _go_on(self) -> None:
        if self._stop():
            raise SessionError("the snapshot was stopped")

    def _leave(self, path: str, why: str) -> None:
        self.left_out.append((path, why))

    def read(self, root: int, pack: Pack) -> None:
        """Store what is new. What goes away or changes its kind meanwhile is left out, and said."""
        for path, names in self.todo.items():
            try:
                fd = open_folder(root, path)
            except OSError as error:
                self._leave(path, f"cannot be read: {error.strerror}")
                continue
            try:
                for name, status in names:
                    self._go_on()
                    try:
                        self.folders[path].files[name] = _stored(fd, name, status, pack)
                    except FileNotFoundError:
                        pass
                    except OSError as error:
                        self._leave(f"{path}/{name}" if path else name, f"cannot be read: {error.strerror}")
            finally:
                os.close(fd)

    def plant(self, add: Add) -> None:
        """The trees, from the innermost folders outwards."""
        for path, folder in self.folders.items():
            below = f"{path}/" if path else ""
            inner = [(name, self.folders[below + name]) for name in folder.folders if below + name in self.folders]
            if folder.same and all(each.same for _, each in inner):
                folder.tree, folder.private = self._old[path].tree, self._old[path].private
                continue
            folder.same = False
            entries = [(TREE, os.fsencode(name), each.tree) for name, each in inner]
            entries += [(_mode(seen[4]), os.fsencode(name), seen[5]) for name, seen in folder.files.items()]
            folder.tree = add("tree", tree_bytes(entries))
            folder.private = tuple(
                name for name, seen in folder.files.items() if not seen[4] & 0o077 and stat.S_ISREG(seen[4])
            )

    def summary(self, add: Add) -> Taken:
        """The tree that holds everything: `files`, and beside it what is left out and which files are private."""
        private = [f"{path}/" for path, folder in self.folders.items() if folder.closed and path]
        for path, folder in self.folders.items():
            private += [f"{path}/{name}".removeprefix("/") for name in folder.private]
        left_out = tuple(sorted(self.left_out))
        made = [(TREE, FILES, self.folders[""].tree)]
        for name, lines in ((LEFT_OUT, [f"{path}\0{why}" for path, why in left_out]), (PRIVATE, sorted(private))):
            if lines:
                made.append((FILE, name, add("blob", b"".join(os.fsencode(line) + b"\0" for line in lines))))
        count = sum(len(folder.files) for folder in self.folders.values())
        return Taken(add("tree", tree_bytes(made)).hex(), count, left_out)


def _mode(mode: int) -> str:
    return LINK if stat.S_ISLNK(mode) else PROGRAM if mode & 0o100 else FILE


def open_folder(root: int, path: str) -> int:
    """A descriptor of a folder below an open one, no link followed on the way. Raises OSError."""
    fd = os.dup(root)
    for part in path.split("/") if path else ():
        try:
            inner = os.open(part, _FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def read_file(folder: int, name: str, most: int = MAX_FILE) -> tuple[bytes, os.stat_result]:
    """A regular file's bytes and its status before they were read. OSError where it is none, or is longer."""
    fd = os.open(name, _READ, dir_fd=folder)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is no file any more")
        pieces, size = [], 0
        while piece := os.read(fd, min(1 << 20, most + 1 - size)):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise OSError(0, f"it has more than {size_of(most)}")
        return b"".join(pieces), status
    finally:
        os.close(fd)


def _stored(folder: int, name: str, status: os.stat_result, pack: Pack) -> Seen:
    now = time.time_ns()
    if stat.S_ISLNK(status.st_mode):
        data = os.fsencode(os.readlink(name, dir_fd=folder))
    else:
        data, status = read_file(folder, name)
    oid = pack.add("blob", data)
    settled = max(status.st_mtime_ns, status.st_ctime_ns) < now - RACY
    times = (status.st_mtime_ns, status.st_ctime_ns) if settled else (-1, -1)
    return *times, status.st_size, status.st_ino, status.st_mode, oid


def _with_rules(fd: int, path: str, rules: Rules, digest: bytes) -> tuple[Rules, bytes]:
    """The rules in force in a folder, and a digest of all they were read from."""
    try:
        data, _ = read_file(fd, ".gitignore", MAX_IGNORE_BYTES)
    except OSError:
        return rules, digest
    decoded = decode(data)
    found = parse_rules(decoded.text) if decoded is not None else ()
    digest = hashlib.sha256(digest + os.fsencode(path) + b"\0" + data).digest()[:16]
    return ((len(path.split("/")) if path else 0, found), *rules), digest
