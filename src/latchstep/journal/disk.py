"""The seam to the disk: everything a journal or a store does to files goes through one `Disk`.

That is what makes crashes testable: `testing.disk.SimDisk` is the same seam with a cache that can be lost.
Handles are small integers; errors are OSError, as the system gives them. `sync` and `sync_directory` are
the only barriers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

Mode = Literal["read", "append", "create", "lock"]
"""`append` and `create` also read. `create` refuses a file that exists; `lock` makes it where it is missing."""


class Disk(Protocol):
    """What is needed of a file system. Not for general use: paths are followed as given, by their owner."""

    def open(self, path: Path, mode: Mode) -> int:
        """A handle. New files have mode 0600 whatever the umask; a symbolic link is refused as the last part."""
        ...

    def write(self, handle: int, data: bytes) -> int:
        """Append; how many bytes were taken, which may be fewer than given."""
        ...

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """At most `size` bytes from `offset` on; fewer only at the end of the file."""
        ...

    def size(self, handle: int) -> int: ...

    def truncate(self, handle: int, size: int) -> None: ...

    def sync(self, handle: int) -> None:
        """A barrier: return when the file's bytes and size survive a power cut. May be called in a thread."""
        ...

    def lock(self, handle: int) -> bool:
        """Take the file for this handle alone, until it is closed or its process dies; False if it is taken."""
        ...

    def close(self, handle: int) -> None: ...

    def make_directory(self, path: Path) -> None:
        """Mode 0700 whatever the umask. FileExistsError where something is there."""
        ...

    def sync_directory(self, path: Path) -> None:
        """A barrier: return when the directory's entries survive a power cut."""
        ...

    def names(self, path: Path) -> list[str]:
        """The entries of a directory, in no order."""
        ...

    def rename(self, old: Path, new: Path) -> None: ...

    def unlink(self, path: Path) -> None: ...

    def remove_directory(self, path: Path) -> None:
        """An empty one."""
        ...


_FLAGS: dict[Mode, int] = {
    "read": os.O_RDONLY,
    "append": os.O_RDWR | os.O_APPEND,
    "create": os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL,
    "lock": os.O_RDWR | os.O_APPEND | os.O_CREAT,
}


class OsDisk:
    """The real disk."""

    def open(self, path: Path, mode: Mode) -> int:
        handle = os.open(path, _FLAGS[mode] | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if mode in {"create", "lock"}:
            try:
                os.fchmod(handle, 0o600)
            except OSError:
                os.close(handle)
                raise
        return handle

    def write(self, handle: int, data: bytes) -> int:
        return os.write(handle, data)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        data = os.pread(handle, size, offset)
        while len(data) < size and (more := os.pread(handle, size - len(data), offset + len(data))):
            data += more
        return data

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        if sys.platform == "darwin":  # fsync there stops at the drive's cache: man 2 fsync
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(handle)
        if os.fstat(handle).st_nlink == 0:  # it has no name any more, and what has none survives nothing
            raise OSError(errno.ENOENT, "the file was deleted while it was in use")

    def lock(self, handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise OSError(
                error.errno, f"{error.strerror} (files there cannot be locked, which a session needs)"
            ) from None
        return True

    def close(self, handle: int) -> None:
        os.close(handle)

    def make_directory(self, path: Path) -> None:
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)

    def sync_directory(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def names(self, path: Path) -> list[str]:
        return os.listdir(path)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        os.rmdir(path)


def write_all(disk: Disk, handle: int, data: bytes) -> None:
    """Append all of it, however short single writes are."""
    written = disk.write(handle, data)
    while written < len(data):
        taken = disk.write(handle, data[written:])
        if taken <= 0:
            raise OSError("the disk takes no more bytes and gives no reason")
        written += taken


def ensure_directory(disk: Disk, path: Path) -> None:
    """Make a directory, and what is missing above it, and make the entry durable also where it was there:
    whoever made it may have crashed before."""
    try:
        disk.make_directory(path)
    except FileExistsError:
        pass
    except FileNotFoundError:
        ensure_directory(disk, path.parent)
        try:
            disk.make_directory(path)
        except FileExistsError:  # another process was here in between
            pass
    disk.sync_directory(path.parent)


def is_there(disk: Disk, path: Path) -> bool:
    try:
        return path.name in disk.names(path.parent)
    except OSError:
        return False


def remove_bare(disk: Disk, directory: Path, names: Set[str]) -> None:
    """Remove a directory in which only files of these names lie. Where the disk refuses, it stays."""
    with suppress(OSError):
        if (found := set(disk.names(directory))) <= names:
            for name in found:
                disk.unlink(directory / name)
            disk.remove_directory(directory)
