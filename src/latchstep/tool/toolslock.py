"""`tools.lock`: how a later process tells whether anything of a dead run still lives.

Guard and worker of the spawner hold it shared, and every child inherits an open of its own: unlocking that
(`flock -u`) frees nothing but itself. Whoever gets it exclusively knows that all of them are gone.
"""

from __future__ import annotations

import fcntl
import os
import time

from latchstep.tool import proctable

RETRY = 0.005
RETRIES = 200


def hold(path: bytes) -> int:
    """A descriptor of its own open of the file, locked shared; -1 without a path.

    A probe may hold the lock for a moment. Raises BlockingIOError when it is held for a second.
    """
    if not path:
        return -1
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(RETRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            time.sleep(RETRY)
    os.close(fd)
    raise BlockingIOError(11, "the lock of the tools is held exclusively by another process")


def still_running(path: str | os.PathLike[str]) -> bool:
    """Does anything that a spawner with this lock started still live? False where there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def holders(path: str | os.PathLike[str]) -> list[tuple[int, str]]:
    """Processes that hold the file open, as far as they can be seen: pid and command line, empty where there is no
    /proc. The spawner's own two hide what they have open, and end by themselves."""
    found, held = [], os.stat(path)
    for pid in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not pid.isdecimal() or int(pid) == os.getpid():
            continue
        try:
            if any(_same(f"/proc/{pid}/fd/{fd}", held) for fd in os.listdir(f"/proc/{pid}/fd")):
                command = proctable.read_file(f"/proc/{pid}/cmdline", 4096).rstrip(b"\0").replace(b"\0", b" ")
                found.append((int(pid), command.decode(errors="replace")))
        except OSError:  # it has ended, or is not ours to look into
            pass
    return sorted(found)


def _same(path: str, held: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), held)
    except OSError:
        return False


async def wait_until_quiet(path: str | os.PathLike[str], timeout: float) -> bool:
    """Wait up to `timeout` seconds for `still_running` to become false. Whether it did."""
    import asyncio

    until = time.monotonic() + timeout
    while still_running(path):
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(0.02)
    return True
