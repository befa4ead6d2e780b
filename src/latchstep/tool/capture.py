"""What a command wrote, in bounded memory: the first and the last bytes, exact counts, and the whole in a file.

The file is made when memory no longer holds everything, `0600`, and takes at most `FILE_LIMIT` bytes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from latchstep.core.secrets import Masker, Redactor

KEEP = 65_536
"""Bytes kept from the beginning, and at least as many from the end."""
FILE_LIMIT = 64 * 2**20
"""Bytes of one command's output kept on disk; beyond it they are counted and not kept."""


def output_path(folder: Path | None, call_id: str) -> Path | None:
    """A new file's path for the output of this call; None without a folder."""
    if folder is None:
        return None
    name = re.sub(r"[^A-Za-z0-9_-]", "_", call_id)[:80] or "call"
    path, count = folder / f"{name}.txt", 1
    while path.exists():
        path, count = folder / f"{name}-{count}.txt", count + 1
    return path


class Capture:
    """Fills while a command runs, and stays readable when its coroutine was cancelled.

    masker: takes secrets out, here and in the file; counts are of what is left.
    total: bytes written by the command. head, tail: the first and the last of them; they are adjacent unless
    `missing`. path: where the whole is or would be kept, None for nowhere. kept: bytes in that file.
    problem: why the file is not whole, "" when it is.
    """

    def __init__(self, path: Path | None = None, masker: Masker | None = None) -> None:
        self.path = path
        self._redactor = Redactor(masker) if masker is not None else None
        self.total = self.kept = self._newlines = 0
        self.problem = ""
        self._head, self._tail = bytearray(), bytearray()
        self._last = b""
        self._fd = -1

    @property
    def head(self) -> bytes:
        return bytes(self._head)

    @property
    def tail(self) -> bytes:
        return bytes(self._tail)

    @property
    def missing(self) -> int:
        """Bytes between head and tail that are no longer in memory."""
        return self.total - len(self._head) - len(self._tail)

    @property
    def lines(self) -> int:
        """Lines, the last one counted though it may lack its newline."""
        return self._newlines + (self.total > 0 and self._last != b"\n")

    @property
    def held(self) -> int:
        """Bytes of a line not yet ended that wait for its rest."""
        return self._redactor.held if self._redactor is not None else 0

    def since(self, offset: int) -> tuple[bytes, bytes]:
        """What came from this byte on, as far as memory holds it: two pieces, adjacent unless bytes are missing."""
        return bytes(self._head[offset:]), bytes(self._tail[max(0, offset - self.total + len(self._tail)) :])

    def feed(self, data: bytes) -> None:
        self._take(self._redactor.feed(data) if self._redactor is not None else data)

    def flush(self) -> None:
        """Nothing more comes for now: take what waited for the rest of its line."""
        if self._redactor is not None:
            self._take(self._redactor.flush())

    def _take(self, data: bytes) -> None:
        if not data:
            return
        self.total += len(data)
        self._newlines += data.count(b"\n")
        self._last = data[-1:]
        if self._fd >= 0:
            self._write(data)
        if (room := KEEP - len(self._head)) > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if self._fd < 0 and len(self._tail) > 2 * KEEP and not self.missing:
            self.save()
        if len(self._tail) > 2 * KEEP:
            del self._tail[:-KEEP]

    def save(self) -> bool:
        """Put what is in memory on disk, if nothing is there yet. Whether there is a file."""
        if self._fd < 0 and not self.kept and self.path is not None and not self.missing and not self.problem:
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._fd = os.open(self.path, flags, 0o600)
            except OSError as error:
                self.problem = f"the output could not be kept: {error.strerror}"
            else:
                self._write(self._head)
                self._write(self._tail)
        return self.kept > 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes | bytearray) -> None:
        if self.problem:
            return
        view = memoryview(data)[: max(0, FILE_LIMIT - self.kept)]
        if len(view) < len(data):
            self.problem = f"only the first {FILE_LIMIT:,} bytes are kept (output file limit)"
        try:
            while view:
                written = os.write(self._fd, view)
                self.kept += written
                view = view[written:]
        except OSError as error:
            self.problem = f"only the first {self.kept:,} bytes could be kept: {error.strerror}"
