"""`tools.lock`: how a later process tells whether anything of a dead run still lives.

Guard and worker of the spawner hold it shared, and every child inherits an open of its own: unlocking that
(`flock -u`) frees nothing but itself. Whoever gets it exclusively knows that all of them are gone.
"""

from __future__ import annotations

import fcntl
import os
import time

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


async def wait_until_quiet(path: str | os.PathLike[str], timeout: float) -> bool:
    """Wait up to `timeout` seconds for `still_running` to become false. Whether it did."""
    import asyncio

    until = time.monotonic() + timeout
    while still_running(path):
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(0.02)
    return True
