"""`FileJournal`: a session's record on disk, one line an event, one writer.

`append` writes at once; `sync` is one fdatasync in the journal's own thread. After a failed write or sync the
file is cut back to what is certain, the writer is poisoned, and only a fresh opening goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from latchstep.core.codec import encode_event, stamp
from latchstep.core.event import Event, SessionCreated
from latchstep.errors import JournalDamaged, JournalError, JournalLocked, JournalPoisoned

from .barrier import Barrier, Syncer
from .blob import BLOBS, digest_of, keep_blob
from .disk import Disk, OsDisk, ensure_directory, is_there, remove_bare, write_all
from .frame import MAX_LINE, Cursor, checksum, frame, walk
from .reader import (
    JOURNAL,
    MAX_HEADER,
    OUTPUTS,
    blocks,
    decode,
    live_start,
    open_journal,
    read_header,
    reading,
    start_at,
    unstarted,
    valid_end,
)

LOCK = "lock"
MAX_HOLDER = 300
"""Bytes of the lock file that are read and written: who holds it."""

MAX_TORN = 16 * 1024 * 1024
"""Bytes of a torn end that are kept beside the journal."""

SYNC_WAIT = 60.0
"""Seconds that `sync` waits for the disk. After that the journal is poisoned, as if the sync had failed."""

CLOSE_WAIT = 10.0
"""Seconds that `close` waits for a sync under way. After that the lock stays held until the process ends."""


_INTERRUPTED = ("a write was interrupted; the next opening will see what of it arrived", ())


@dataclass(frozen=True, slots=True)
class Torn:
    """The end of a journal that was never acknowledged, as an opening found and cut it.

    line, offset: where the valid part ended. size: bytes cut. why: what was wrong with the first bad line.
    kept: the file that holds what was cut, up to MAX_TORN bytes.
    """

    line: int
    offset: int
    size: int
    why: str
    kept: Path

    def __str__(self) -> str:
        return (
            f"the journal ended in {self.size} bytes that were never acknowledged (line {self.line}, "
            f"byte {self.offset}: {self.why}); they were cut off and kept in {self.kept.name}"
        )


class FileJournal:
    """A `Journal` in a directory. Make one with `create` or `open`; both take the session's lock.

    recovered: the torn end that this opening cut, or None.
    """

    def __init__(
        self, disk: Disk, directory: Path, handles: tuple[int, int], cursor: Cursor, torn: Torn | None = None
    ) -> None:
        """Not for callers: `create` and `open` hold the lock and know what they verified."""
        self.directory: Path = directory
        self.recovered = torn
        self._disk, (self._lock, self._handle) = disk, handles
        self._path = directory / JOURNAL
        self._head = self._synced = cursor.n - 1
        self._size = self._synced_size = cursor.offset
        self._crc = cursor.p
        self._unsynced: list[type[Event]] = []
        self._blobs: set[str] = set()
        self._syncer = Syncer(disk, self._handle)
        self._barrier: Barrier | None = None
        self._poison: tuple[str, tuple[str, ...]] | None = None

    @classmethod
    def create(cls, directory: Path, header: SessionCreated, *, disk: Disk | None = None) -> FileJournal:
        """Start a session: the directory and what is missing above it, and `header` as line 0.

        The header is durable at the first `sync`, like any line. A journal whose own line 0 was never written
        whole is set aside and begun again. What cannot be begun leaves no new folder. Raises JournalError if a session
        is there, JournalLocked, JournalPoisoned.
        """
        disk = disk or OsDisk()
        if (size := len(encode_event(header))) > MAX_HEADER - 100:
            raise JournalError(f"the header has {size} bytes; MAX_HEADER allows {MAX_HEADER - 100}")
        path = directory / JOURNAL
        lock = handle = -1
        there, ours = is_there(disk, directory), False
        try:
            ensure_directory(disk, directory)
            lock = _take_lock(disk, directory)
            torn = None
            try:
                handle = disk.open(path, "create")
                ours = True
            except FileExistsError:
                handle = disk.open(path, "append")
                if read_header(disk, handle, path) is not None:
                    raise JournalError(f"{directory} holds a session already") from None
                torn = _set_aside(disk, directory, handle, Cursor(flaw="line 0 was never written whole"))
            journal = cls(disk, directory, (lock, handle), Cursor(), torn)
            disk.sync_directory(directory)
            journal.append([header])
        except BaseException as error:
            if not there and isinstance(error, OSError | JournalPoisoned):
                remove_bare(disk, directory, {LOCK, JOURNAL} if ours else {LOCK})
            _close_all(disk, handle, lock)
            if isinstance(error, OSError):
                raise JournalError(f"{directory} cannot be made a session: {error.strerror}") from error
            raise
        return journal

    @classmethod
    def open(cls, directory: Path, *, disk: Disk | None = None) -> FileJournal:
        """Go on with a session: verify it from the last snapshot on, cut a torn end, and make all of it durable.

        Raises JournalLocked, JournalDamaged, JournalTooNew, JournalError. Nothing is cut before line 0 proved
        to be of a format this program knows.
        """
        disk = disk or OsDisk()
        path = directory / JOURNAL
        lock = handle = -1
        try:
            handle = open_journal(disk, directory, "append")
            lock = _take_lock(disk, directory)
            if read_header(disk, handle, path) is None:
                raise unstarted(path)
            cursor = valid_end(disk, handle, path)
            torn = _set_aside(disk, directory, handle, cursor) if cursor.flaw else None
            disk.sync(handle)  # what was read may be in the cache only: nobody acts on it before it is on disk
        except BaseException as error:
            _close_all(disk, handle, lock)
            if isinstance(error, OSError):
                raise JournalError(f"{path} cannot be recovered: {error.strerror}") from error
            raise
        return cls(disk, directory, (lock, handle), cursor, torn)

    @property
    def head(self) -> int:
        return self._head

    @property
    def synced(self) -> int:
        self._settle()
        return self._synced

    @property
    def size(self) -> int:
        return self._size

    def append(self, events: Sequence[Event]) -> int:
        """See `Journal.append`. One write for the group. Lines written while a `sync` is under way keep its `b`.

        Raises JournalPoisoned; JournalError, and ValueError for what is not JSON, with nothing written.
        """
        if self._barrier is not None or self._poison is not None:
            self._settle()
            self._refuse_poisoned()
        n, b, crc = self._head, self._synced + 1, self._crc
        lines = []
        for event in events:
            n += 1
            if event.seq:
                stamp(event, 0)
            line = frame(n, b, crc, encode_event(event)[1:-1])
            if len(line) > MAX_LINE:
                raise JournalError(f"a {event.type} event has {len(line)} bytes; MAX_LINE allows {MAX_LINE}")
            crc = checksum(line)
            lines.append(line)
        if not lines:
            return self._head
        data = lines[0] if len(lines) == 1 else b"".join(lines)
        self._poison = _INTERRUPTED  # stands if anything, such as a KeyboardInterrupt, ends this between two steps
        try:
            write_all(self._disk, self._handle, data)
        except OSError as error:
            self._poison = self._cut_back("writing", error, [type(event) for event in events], self._head + 1)
            raise JournalPoisoned(*self._poison) from error
        for seq, event in enumerate(events, self._head + 1):
            stamp(event, seq)
            self._unsynced.append(type(event))
        self._head, self._crc = n, crc
        self._size += len(data)
        self._poison = None
        return n

    async def sync(self) -> None:
        """See `Journal.sync`. Callers at the same time share one barrier if it covers them; with nothing new
        there is none. A cancelled wait leaves the barrier to end by itself, and the next call takes it over.
        One that takes longer than SYNC_WAIT poisons the journal: whether it ever ends nobody knows."""
        self._settle()
        self._refuse_poisoned()
        target = self._head
        while self._synced < target:
            self._refuse_poisoned()
            if self._barrier is None:
                self._barrier = self._syncer.begin(self._head, self._size)
            if not await self._barrier.wait(SYNC_WAIT):
                self._poison = self._poison or self._overdue()
                self._refuse_poisoned()
            self._settle()

    def live(self) -> Iterator[Event]:
        """See `Journal.live`. Reads backwards to the last snapshot and to the line it needs; nothing before."""
        with reading(self._disk, self.directory) as handle:
            first = live_start(self._disk, handle, self._path, self._size)
        return self._events(first)

    def read(self, after: int = -1) -> Iterator[Event]:
        """See `Journal.read`. Raises JournalDamaged at the first line that does not verify."""
        return self._events(after + 1)

    def _events(self, first: int) -> Iterator[Event]:
        head, end = self._head, self._size
        if first > head:
            return
        with reading(self._disk, self.directory) as handle:
            cursor = start_at(self._disk, handle, first, end)
            n, offset = cursor.n, cursor.offset
            for line in walk(blocks(self._disk, handle, offset, end), cursor):
                if n >= first:
                    yield decode(self._path, line, n, offset)
                n, offset = cursor.n, cursor.offset
        if n <= head:
            raise JournalDamaged(str(self._path), n, offset, cursor.flaw or "the file ends before it")

    def put_blob(self, data: bytes) -> str:
        """See `Journal.put_blob`. On disk when it returns, so that a line that names it never stands alone.
        Raises JournalError; the journal goes on."""
        if (digest := digest_of(data)) not in self._blobs:
            try:
                keep_blob(self._disk, self.directory, data)
            except OSError as error:
                raise JournalError(f"{self.directory / BLOBS}: a blob cannot be kept: {error.strerror}") from error
            self._blobs.add(digest)
        return digest

    def outputs(self) -> Path:
        """The folder for full tool outputs, made when first asked for."""
        ensure_directory(self._disk, self.directory / OUTPUTS)
        return self.directory / OUTPUTS

    def close(self) -> None:
        """Give up the lock. Idempotent. Does not sync: the next opening does, before it acts on anything."""
        if self._lock < 0:
            return
        self._settle()
        self._poison = self._poison or (f"{self._path}: the journal is closed", ())
        lock, self._lock = self._lock, -1
        if not self._syncer.stop(CLOSE_WAIT):
            return  # the disk hangs: the lock says truly that a write is still under way
        self._settle()
        _close_all(self._disk, self._handle, lock)

    def __enter__(self) -> FileJournal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _settle(self) -> None:
        """Take over how the last barrier ended. Never raises: whoever must not go on asks `_refuse_poisoned`."""
        barrier = self._barrier
        if barrier is None or not barrier.done:
            return
        self._barrier = None
        if barrier.error is None and barrier.size <= barrier.found <= self._size:
            del self._unsynced[: barrier.head - self._synced]
            self._synced, self._synced_size = barrier.head, barrier.size
            return
        if barrier.error is None:  # nothing is cut off: what of it is ours nobody knows
            unsure, shown = _named(self._unsynced, self._synced + 1)
            sizes = f"it has {barrier.found} bytes where {barrier.size} were written"
            text = f"{self._path}: another program changed the file: {sizes}; perhaps lost: {shown}"
            self._poison = self._poison or (text, unsure)
            return
        withdrawn, first = self._unsynced, self._synced + 1
        self._unsynced, self._head, self._size = [], self._synced, self._synced_size
        self._poison = self._cut_back("syncing", barrier.error, withdrawn, first)

    def _cut_back(
        self, doing: str, error: Exception, events: list[type[Event]], first: int
    ) -> tuple[str, tuple[str, ...]]:
        withdrawn, shown = _named(events, first)
        text = f"{self._path}: {doing} failed ({_words(error)}); withdrawn: {shown}"
        try:
            self._disk.truncate(self._handle, self._size)
        except Exception as second:
            text += f"; cutting them off failed too ({_words(second)}): the next opening will see them"
        return text, withdrawn

    def _overdue(self) -> tuple[str, tuple[str, ...]]:
        """Nothing is cut off: the disk still has it in hand, and cutting could wait for ever as well."""
        unsure, shown = _named(self._unsynced, self._synced + 1)
        text = f"{self._path}: the disk did not answer within SYNC_WAIT, {SYNC_WAIT:g} s; perhaps lost: {shown}"
        return text, unsure

    def _refuse_poisoned(self) -> None:
        if self._poison is not None:
            raise JournalPoisoned(*self._poison)


def _take_lock(disk: Disk, directory: Path) -> int:
    path = directory / LOCK
    handle = disk.open(path, "lock")
    try:
        if not disk.lock(handle):
            text = disk.read(handle, MAX_HOLDER, 0).decode(errors="replace")
            shown = "".join(char if char.isprintable() else "?" for char in text)
            raise JournalLocked(str(directory), shown or "another process")
        holder = f"pid {os.getpid()}: {' '.join(sys.argv)}".encode(errors="replace")
        disk.truncate(handle, 0)
        write_all(disk, handle, holder[:MAX_HOLDER])
    except BaseException:
        disk.close(handle)
        raise
    return handle


def is_written(directory: Path) -> bool:
    """Whether whoever took the session's lock last is alive. Asks nobody for the lock: that could refuse a writer."""
    try:
        pid = int((directory / LOCK).read_bytes()[:MAX_HOLDER].removeprefix(b"pid ").partition(b":")[0])
        os.kill(pid, 0)
    except (OSError, ValueError) as error:
        return isinstance(error, PermissionError)
    return True


def _set_aside(disk: Disk, directory: Path, handle: int, cursor: Cursor) -> Torn:
    """Copy what lies behind the cursor to a file of its own, durably, and cut it off."""
    names = set(disk.names(directory))
    number = next(i for i in range(1, len(names) + 2) if _torn_name(cursor.n, i) not in names)
    kept = directory / _torn_name(cursor.n, number)
    size = disk.size(handle) - cursor.offset
    copy = disk.open(kept, "create")
    try:
        for block in blocks(disk, handle, cursor.offset, cursor.offset + min(size, MAX_TORN)):
            write_all(disk, copy, block)
        disk.sync(copy)
    finally:
        disk.close(copy)
    disk.sync_directory(directory)
    disk.truncate(handle, cursor.offset)
    return Torn(cursor.n, cursor.offset, size, cursor.flaw, kept)


def _torn_name(n: int, number: int) -> str:
    return f"torn-{n}.bin" if number == 1 else f"torn-{n}-{number}.bin"


def _close_all(disk: Disk, *handles: int) -> None:
    for handle in handles:
        if handle >= 0:
            disk.close(handle)


def _named(events: list[type[Event]], first: int) -> tuple[tuple[str, ...], str]:
    """Each event as number and type, and the first of them as words."""
    named = tuple(f"{n} {kind.__struct_config__.tag}" for n, kind in enumerate(events, first))
    return named, ", ".join(named[:8]) + (f" and {len(named) - 8} more" if len(named) > 8 else "")


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
