"""The one file that opens paths for tools: beneath the workspace or an extra root, by descriptor, regular files only.

`openat2` resolves in the kernel where it works, a walk of descriptors elsewhere: no path is checked first and
opened later. Links that stay inside are followed; absolute ones, and all that lead out, are refused.
Writes replace a file whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from latchstep.errors import DefinitionError, ToolError

from . import beneath
from .opened import MAX_FILE_BYTES, Entry, File, Kind, Missing, contents_of, entries_of, outside, refusal, too_large
from .path import is_protected, is_under, relative_path
from .roots import Extra, Root, refuse_unfit
from .text import cut, shown

T = TypeVar("T")

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Workspace:
    """A folder, further ones beside it, and the only way into them. Close it, or use it as a context manager.

    root: an existing folder, else DefinitionError. protected: further paths that file tools never write.
    ways: how paths are opened; the best way that works here by default. also: the further folders.
    Paths given to its methods are relative to the root, or absolute within it or one of the others; the real paths
    that they give are relative to the root, in another folder absolute. Methods raise ToolError with a text for the
    model. Safe to use from several threads.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        protected: Sequence[str | os.PathLike[str]] = (),
        ways: beneath.Ways | None = None,
        also: Sequence[Extra] = (),
    ) -> None:
        given = Path(os.path.abspath(root))
        try:
            self.root = given.resolve(strict=True)
            refuse_unfit(also, str(self.root))
            self._roots = [Root(self.root, os.open(self.root, _FOLDER))]
        except (OSError, RuntimeError, ValueError) as error:
            raise DefinitionError(f"the workspace {str(root)!r} is not a folder that can be opened: {error}") from error
        try:
            for extra in also:
                fd = os.open(extra.path, _FOLDER | os.O_NOFOLLOW)
                self._roots.append(Root(Path(extra.path), fd, extra.path, extra.writable))
        except OSError as error:
            self.close()
            raise DefinitionError(f"the folder {extra.path} cannot be opened: {error.strerror}") from error
        self._closed = False
        self.written = tuple(root.path for root in self._roots if root.writable)
        self._spellings = (given, self.root)
        self._protected = tuple(Path(os.path.realpath(path)) for path in protected)
        self._ways = beneath.best_ways() if ways is None else ways
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def close(self) -> None:
        self._closed = True
        for root in self._roots:
            os.close(root.fd)
        self._roots = self._roots[:0]

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def locate(self, path: str) -> tuple[str, str]:
        """What real paths in the path's folder begin with ("" in the workspace), and its spelling beneath that."""
        root, relative = self._find(path)
        return root.name, relative

    def read(self, path: str, limit: int = MAX_FILE_BYTES) -> File:
        """The bytes of a regular file. Never waits: a FIFO, socket or device is refused."""
        with self._open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY) as (fd, real):
            return File(real, *self._attempt(path, partial(contents_of, fd, path, limit)))

    def scan(self, path: str) -> tuple[str, list[Entry], bool]:
        """The real path of a folder, its entries by name, and whether `MAX_ENTRIES` left some out."""
        with self._open(path, os.O_RDONLY | os.O_DIRECTORY) as (fd, real):
            return real, *self._attempt(path, partial(entries_of, fd))

    def kind(self, path: str) -> Kind | None:
        """What the path leads to, links followed; None where nothing is there."""
        try:
            with self._open(path, beneath.O_PATH) as (fd, _):
                mode = os.fstat(fd).st_mode
        except Missing:
            return None
        return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"

    def current(self, path: str) -> File | None:
        """The file that a write to this path would replace, or None where it would make one.

        Raises ToolError where the write itself would: outside, protected, not a regular file, hard-linked.
        """
        try:
            with self._parent(path) as (parent, name, real):
                return self._target(parent, name, real, path)[1]
        except Missing:
            self.place(path)
            return None

    def place(self, path: str) -> str:
        """The real path that a write would go to, also where its folders are still missing."""
        name, relative = self.locate(path)
        if path.endswith("/"):
            raise ToolError(f"{shown(path)} names a folder, not a file")
        parts = relative.split("/")
        for end in range(len(parts), 0, -1):
            if end < len(parts) and parts[end - 1] == "..":
                raise ToolError(f"{shown(path)}: a folder before `..` does not exist")
            try:
                with self._parent(_joined(name, "/".join(parts[:end]))) as (_, last, real):
                    place = "/".join(part for part in (real, last, *parts[end:]) if part)
            except Missing:
                continue
            self._refuse_protected(place, path)
            return place
        raise Missing(f"{shown(path)} does not exist")

    def update(
        self,
        path: str,
        make: Callable[[str, File | None], bytes],
        note: Callable[[File, File | None], None] = lambda file, present: None,
        *,
        mode: int | None = None,
    ) -> tuple[File, File | None]:
        """Write a file whole: the new one and the one it replaced, if any. Missing folders are made.

        make is given the real path and the present file, or None; it returns the new bytes or raises to refuse.
        note is given what is returned. Both are called under the path's lock, so that no update of ours is lost.
        Mode and owner are kept; a link stays and its target is replaced. Whatever fails, the old bytes stay.
        mode: that of a new file, less the umask.
        """
        place = self.place(path)
        with self._lock(place):
            if self.lacking(place):
                make(place, None)  # may refuse, before folders are made for it
            with self._folders(place, path), self._parent(path) as (parent, name, real):
                file, present = self._put(parent, name, real, path, make, mode)
            note(file, present)
            return file, present

    def remove(self, path: str, sha256: str, note: Callable[[File], None] = lambda file: None) -> File:
        """Remove a file, if it has these bytes; what it was. Raises ToolError where a write to it would."""
        place = self.place(path)
        with self._lock(place), self._parent(place) as (parent, name, real):
            status, present = self._target(parent, name, real, path)
            if present is None:
                raise Missing(f"{shown(path)} does not exist")
            if present.sha256 != sha256:
                raise ToolError(f"{shown(path)} was changed by someone else just now; read it again")

            def unlink() -> None:
                beneath.refuse_changed(parent, name, status)
                os.unlink(name, dir_fd=parent)
                os.fsync(parent)

            self._attempt(path, unlink)
            note(present)
            return present

    def rename(self, path: str, new: str, sha256: str) -> str:
        """Give a file with these bytes another path, where nothing stands yet; its real new path. Raises ToolError."""
        place, target = self.place(path), self.place(new)
        if self.locate(place)[0] != self.locate(target)[0]:
            raise ToolError(f"{shown(new)} lies in another folder than {shown(path)}; write it there, delete it here")
        with (
            self._lock(place),
            self._folders(target, new),
            self._parent(place) as (parent, name, real),
            self._parent(target) as (other, called, _),
        ):
            status, present = self._target(parent, name, real, path)
            if present is None or present.sha256 != sha256:
                raise ToolError(f"{shown(path)} was changed by someone else just now; read it again")

            def move() -> None:
                beneath.refuse_changed(parent, name, status)
                beneath.refuse_changed(other, called, None)
                os.rename(name, called, src_dir_fd=parent, dst_dir_fd=other)
                os.fsync(other)
                os.fsync(parent)

            self._attempt(path, move)
        return target

    # How a path becomes a descriptor

    def _find(self, path: str) -> tuple[Root, str]:
        """The root that a path lies in, by its spelling alone, and the path relative to it."""
        if self._closed:
            raise ToolError("the workspace is closed")
        root = next((root for root in self._roots[1:] if is_under(path, root.path)), self._roots[0])
        try:
            return root, relative_path(path, (root.path,) if root.name else self._spellings)
        except ValueError as error:
            raise ToolError(f"{shown(cut(path, 200))}: {error}".removeprefix(": ")) from None

    @contextlib.contextmanager
    def _open(self, path: str, flags: int) -> Iterator[tuple[int, str]]:
        """A descriptor of what the path leads to, and its real path."""
        root, relative = self._find(path)
        fd = self._attempt(path, lambda: self._opened(root, relative, flags))
        try:
            self.refuse_gone(root)
            yield fd, _joined(root.name, self._attempt(path, lambda: beneath.name_of(fd, root.fd)))
        finally:
            os.close(fd)

    def _opened(self, root: Root, relative: str, flags: int) -> int:
        try:
            return self._ways.open(root.fd, relative, flags | os.O_CLOEXEC)
        except FileNotFoundError:
            other = None if relative.isascii() else self._other_form(root, relative)
            if other is None:
                raise
            return self._ways.open(root.fd, other, flags | os.O_CLOEXEC)

    def _attempt(self, path: str, act: Callable[[], T]) -> T:
        """Do it, and say what the system said in words for the model."""
        root = self._find(path)[0]
        try:
            return act()
        except OSError as error:
            self.refuse_gone(root)
            raise refusal(path, _called(root), error) from error

    def refuse_gone(self, *roots: Root) -> None:
        """Raises ToolError where one of these (by default of all) was removed or moved, or another took its place."""
        for root in roots or self._roots:
            try:
                same = os.path.samestat(os.stat(root.path), os.fstat(root.fd))
            except OSError:
                same = False
            if not same:
                raise ToolError(f"the {_called(root)} no longer exists, or another folder took its place")

    def _other_form(self, root: Root, relative: str) -> str | None:
        """The path as the disk spells it, where it is the same text in another Unicode normal form."""
        found = ""
        for part in relative.split("/"):
            if not part.isascii():
                fd = self._ways.open(root.fd, found or ".", _FOLDER)
                try:
                    part = beneath.spelled(fd, part)
                finally:
                    os.close(fd)
            found = _joined(found, part)
        return found if found != relative else None

    # Writing

    def _put(  # noqa: PLR0917 (of `update` alone)
        self, parent: int, name: str, real: str, path: str, make: Callable[[str, File | None], bytes], mode: int | None
    ) -> tuple[File, File | None]:
        status, present = self._target(parent, name, real, path)
        data = make(_joined(real, name), present)
        if len(data) > MAX_FILE_BYTES:
            raise ToolError(f"{shown(path)}: {too_large(len(data), MAX_FILE_BYTES)}")
        try:
            beneath.replace(parent, name, data, status, self._ways, mode=mode if present is None else None)
        except beneath.NotDurable as error:
            raise ToolError(f"{shown(path)} was written, but may be lost in a power cut ({error.strerror})") from error
        except FileExistsError as error:
            raise ToolError(f"{shown(path)} was changed by someone else just now; read it again") from error
        except OSError as error:
            raise ToolError(f"{shown(path)} could not be written ({error.strerror}); nothing was changed") from error
        return File(_joined(real, name), data, hashlib.sha256(data).hexdigest()), present

    @contextlib.contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str, str]]:
        """The folder that holds the file, the file's name in it, and the folder's real path.

        A link as last part is followed to where its target would be, but never through a missing one.
        """
        root, relative = self._find(path)
        for _ in range(beneath.MAX_LINKS):
            folder, _, name = relative.rpartition("/")
            if name in ("", ".", "..") or path.endswith("/"):
                raise ToolError(f"{shown(path)} names a folder, not a file")
            with self._open(_joined(root.name, folder) or ".", os.O_RDONLY | os.O_DIRECTORY) as (fd, real):
                name = self._attempt(path, partial(beneath.spelled, fd, name))
                target = self._attempt(path, partial(beneath.link_target, fd, name))
                if target is None:
                    self._refuse_protected(_joined(real, name), path)
                    yield fd, name, real
                    return
            if target.startswith("/"):
                raise outside(path, _called(root))
            _, relative = self._find(followed := _joined(real, target))
            if self.kind(followed) is None:
                raise ToolError(f"{shown(path)} is a link to something that does not exist; no file is made through it")
        raise ToolError(f"{shown(path)}: more than {beneath.MAX_LINKS} links (MAX_LINKS)")

    def lacking(self, place: str) -> list[str]:
        """The folders of a real path that do not exist, the outermost first."""
        top, relative = self.locate(place)
        parts, found = relative.split("/")[:-1], list[str]()
        while parts and self.kind(folder := _joined(top, "/".join(parts))) is None:
            found.insert(0, folder)
            parts.pop()
        return found

    def remove_empty(self, folders: Sequence[str]) -> None:
        """Remove those of these folders that hold nothing, the last first."""
        for folder in reversed(folders):
            with contextlib.suppress(ToolError, OSError), self._parent(folder) as (above, name, _):
                os.rmdir(name, dir_fd=above)

    @contextlib.contextmanager
    def _folders(self, place: str, path: str) -> Iterator[None]:
        """With what was lacking of a real path's folders; it goes again where nothing comes of it."""
        lacking = self.lacking(place)
        try:
            for folder in lacking:
                self._refuse_protected(self.place(folder), path)
                with self._parent(folder) as (above, name, _):
                    self._attempt(path, partial(beneath.make_folder, above, name))
            yield
        except BaseException:
            self.remove_empty(lacking)
            raise

    def _target(self, parent: int, name: str, real: str, path: str) -> tuple[os.stat_result | None, File | None]:
        """The file that stands at a name of an open folder, fit to be replaced; (None, None) where none does."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=parent)
        except FileNotFoundError:
            self.refuse_gone()
            return None, None
        except OSError as error:
            raise ToolError(f"{shown(path)} cannot be replaced: {error.strerror}") from error
        try:
            status = os.fstat(fd)
            data, sha256 = self._attempt(path, partial(contents_of, fd, path, MAX_FILE_BYTES))
            if status.st_nlink > 1:
                raise ToolError(
                    f"{shown(path)} is hard-linked, maybe to a file elsewhere; put a copy in its place first"
                )
            if not os.access(name, os.W_OK, dir_fd=parent):
                raise ToolError(f"{shown(path)} is read-only; not written")
            return status, File(_joined(real, name), data, sha256, stat.S_IMODE(status.st_mode))
        finally:
            os.close(fd)

    def _refuse_protected(self, place: str, path: str) -> None:
        root = self._find(place)[0]
        if not root.writable:
            raise ToolError(f"{shown(path)}: {shown(root.name)} may be read, not written")
        part = next((part for part in place.split("/") if is_protected(part)), None)
        full = self.root / place
        if part is None and not any(full == p or p in full.parents for p in self._protected):
            return
        raise ToolError(f"{shown(path)}: {part or 'this path'} is never written by file tools")

    @contextlib.contextmanager
    def _lock(self, place: str) -> Iterator[None]:
        with self._guard:
            lock = self._locks.setdefault(place, threading.Lock())
        with lock:
            yield


def _joined(folder: str, name: str) -> str:
    return "/".join(part for part in (folder, name) if part)


def _called(root: Root) -> str:
    return f"{'folder' if root.name else 'workspace'} {root.path}"
