"""Opening beneath a folder's descriptor and replacing a file in one: the system calls under `workspace`.

`openat2(2)` with RESOLVE_BENEATH where a probe shows that it works, else a walk that opens each part with
O_NOFOLLOW and expands links itself. Both refuse with EXDEV what would lead out, and every absolute link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

O_PATH = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)
"""To look at a file without opening it, where the system can."""

MAX_LINKS = 40
"""Symbolic links followed on the way to one file, as in the kernel."""

_OPENAT2 = 437  # the same on every architecture that got it with its first number (Linux 5.6)
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_BENEATH = 0x08
_RETRIES = 100  # `..` meets EAGAIN while something anywhere is renamed

OpenBeneath = Callable[[int, str, int], int]


@dataclass(frozen=True, slots=True)
class Ways:
    """How files are opened and made on this system.

    open(root, path, flags): a descriptor of a relative path beneath an open folder; links that stay inside are
        followed. OSError EXDEV where it would lead out or a link on the way is absolute.
    nameless: new files are written without a name first, so that a kill leaves nothing behind.
    """

    open: OpenBeneath
    nameless: bool


@cache
def best_ways() -> Ways:
    """The kernel's own where they work, found by trying (a sandbox may forbid them), else the portable ones."""
    opener = kernel_opener()
    return PORTABLE if opener is None else Ways(opener, hasattr(os, "O_TMPFILE"))


@cache
def kernel_opener() -> OpenBeneath | None:
    if sys.platform != "linux":
        return None
    try:
        opener = _openat2()
        folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ImportError, AttributeError):
        return None
    try:
        os.close(opener(folder, ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        os.readlink(f"/proc/self/fd/{folder}")
    except OSError:
        return None
    finally:
        os.close(folder)
    return opener


def _openat2() -> OpenBeneath:
    import ctypes

    class OpenHow(ctypes.Structure):
        _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))

    syscall: Any = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long

    def opener(root: int, path: str, flags: int) -> int:
        how = OpenHow(flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
        name = ctypes.c_char_p(os.fsencode(path))
        for _ in range(_RETRIES):
            fd = syscall(
                ctypes.c_long(_OPENAT2),
                ctypes.c_int(root),
                name,
                ctypes.byref(how),
                ctypes.c_size_t(ctypes.sizeof(how)),
            )
            if fd >= 0:
                return int(fd)
            number = ctypes.get_errno()
            if number not in (errno.EAGAIN, errno.EINTR):
                break
        raise OSError(number, os.strerror(number), path)

    return opener


def walk_beneath(root: int, path: str, flags: int) -> int:
    """The same without `openat2`: one descriptor a part, `..` goes back to the one before, links are expanded."""
    folders = [os.dup(root)]
    parts = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    followed = 0
    try:
        if path.startswith("/"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        while parts:
            part = parts.pop()
            if part == "..":
                if len(folders) == 1:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
                os.close(folders.pop())
                continue
            target = link_target(folders[-1], part)
            if target is not None:
                followed += 1
                if followed > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                if target.startswith("/"):
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
                parts.extend(piece for piece in reversed(target.split("/")) if piece not in ("", "."))
                continue
            if not parts:
                return os.open(part, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folders[-1])
            folders.append(
                os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folders[-1])
            )
        return os.open(".", flags | os.O_CLOEXEC, dir_fd=folders[-1])
    finally:
        for folder in folders:
            os.close(folder)


PORTABLE = Ways(walk_beneath, nameless=False)


def link_target(folder: int, name: str) -> str | None:
    """What the symbolic link at a name says; None where something else stands there, or nothing."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def spelled(fd: int, name: str) -> str:
    """The name as an open folder has it, where that is the same text in another Unicode normal form."""
    if name.isascii():
        return name
    names = os.listdir(fd)
    wanted = unicodedata.normalize("NFC", name)
    return name if name in names else next((n for n in names if unicodedata.normalize("NFC", n) == wanted), name)


def name_of(fd: int, root: int) -> str:
    """The real path of an open file relative to an open folder. OSError(EXDEV) where it lies outside by now."""
    path, above = _full_name(fd), _full_name(root).rstrip("/")
    if path == (above or "/"):
        return ""
    if not path.startswith(above + "/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    return path[len(above) + 1 :]


def _full_name(fd: int) -> str:
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{fd}")


class NotDurable(OSError):
    """The file stands as asked, but the folder could not be synced."""


def replace(
    folder: int, name: str, data: bytes, present: os.stat_result | None, ways: Ways, *, mode: int | None = None
) -> None:
    """Put a file of these bytes at a name of an open folder, whole or not at all, durable on return.

    present: the status of the file to be replaced, whose owner is kept, and its mode if no other is given; None where
    there must be none: a new file has mode 0666 if no other is given, less the umask.
    FileExistsError where what stands there is something else by now. No other file is left behind on an error.
    """
    if ways.nameless:
        try:
            _replace(folder, name, data, present, mode, nameless=True)
        except _NoNameless:
            _replace(folder, name, data, present, mode, nameless=False)
    else:
        _replace(folder, name, data, present, mode, nameless=False)
    try:
        os.fsync(folder)
    except OSError as error:
        raise NotDurable(error.errno, error.strerror, name) from error


class _NoNameless(Exception):
    """This file system has no files without a name, or a security module forbids to name one."""


def _replace(
    folder: int, name: str, data: bytes, present: os.stat_result | None, mode: int | None, *, nameless: bool
) -> None:
    fd, temporary = _temporary(folder, nameless, 0o600 if present is not None else 0o666 if mode is None else mode)
    try:
        try:
            if present is not None:
                _keep_attributes(folder, name, fd)
            _fill(fd, data, present, mode)
            if nameless:
                temporary = _give_name(fd, folder, name, present)
        finally:
            os.close(fd)
        if temporary:
            refuse_changed(folder, name, present)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
        raise


def _temporary(folder: int, nameless: bool, mode: int) -> tuple[int, str]:
    """A new file to write to and its name: none where the system can, so that a kill leaves nothing behind."""
    if nameless:
        try:
            fd, name = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, mode, dir_fd=folder), ""
        except OSError as error:
            raise _NoNameless from error
    else:
        name = random_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, mode, dir_fd=folder)
    give_to_owner(fd, folder)
    return fd, name


def give_to_owner(made: int, folder: int) -> None:
    """What root makes in somebody else's folder is theirs, as are the commands that run there."""
    if os.geteuid() == 0 and (status := os.fstat(folder)).st_uid != 0:
        os.fchown(made, status.st_uid, status.st_gid)


def make_folder(above: int, name: str) -> None:
    """Make a folder in an open one, durably, unless somebody else just did."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=above)
        made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        give_to_owner(made, above)
        os.close(made)
    os.fsync(above)


def random_name() -> str:
    """A name for what is not finished yet."""
    return f".latchstep-{os.urandom(8).hex()}.tmp"


def _fill(fd: int, data: bytes, present: os.stat_result | None, mode: int | None) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
    if present is not None:
        made = os.fstat(fd)
        if (made.st_uid, made.st_gid) != (present.st_uid, present.st_gid):
            with contextlib.suppress(PermissionError):
                os.fchown(fd, present.st_uid, present.st_gid)
        # Like the kernel on a write: new bytes do not inherit the right to run as somebody else.
        kept = present.st_mode if mode is None else mode
        os.fchmod(fd, stat.S_IMODE(kept) & ~(stat.S_ISUID | stat.S_ISGID))
    os.fsync(fd)


def _keep_attributes(folder: int, name: str, made: int) -> None:
    """Give the new file the access list and the attributes of the one that it replaces, where there are such things."""
    if not hasattr(os, "listxattr"):
        return
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
        try:
            for key in sorted(os.listxattr(fd)):
                if key.startswith("user.") or key == "system.posix_acl_access":
                    os.setxattr(made, key, os.getxattr(fd, key))
        finally:
            os.close(fd)


def _give_name(fd: int, folder: int, name: str, present: os.stat_result | None) -> str:
    """Name a nameless file: its own name at once where none stood there (returns ""), else a temporary one."""
    temporary = name if present is None else random_name()
    try:
        os.link(f"/proc/self/fd/{fd}", temporary, dst_dir_fd=folder, follow_symlinks=True)
    except FileExistsError:
        raise
    except OSError as error:
        raise _NoNameless from error
    return "" if present is None else temporary


def refuse_changed(folder: int, name: str, present: os.stat_result | None) -> None:
    """The last look before the rename: what stands at the name must still be what was read."""
    try:
        now = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        now = None
    if (now is None) != (present is None):
        raise FileExistsError(errno.EEXIST, "changed meanwhile", name)
    if now is not None and present is not None:
        fields = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
        if any(getattr(now, field) != getattr(present, field) for field in fields):
            raise FileExistsError(errno.EEXIST, "changed meanwhile", name)
