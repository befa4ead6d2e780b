"""Reading a journal from a disk: blockwise, verified, without a lock, also while somebody writes it.

What is read is verified line by line; what is not read is not vouched for. A bad line is damage if a later
line proves that it was acknowledged, and else the torn end of a write: see `frame.find_acknowledged`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from latchstep.core.codec import KNOWN, decode_event, stamp
from latchstep.core.event import FORMAT, Event, SessionCreated, SessionSnapshot
from latchstep.errors import JournalDamaged, JournalError, JournalTooNew

from .disk import Disk, OsDisk
from .frame import HEAD, HEAD_ROOM, Cursor, cursor_at, find_acknowledged, segments, walk

JOURNAL = "journal.jsonl"
OUTPUTS = "outputs"
TOOLS_LOCK = "tools.lock"
"""Held shared by whatever runs tools for the session: busy means that a tool of it is still alive."""

BLOCK = 256 * 1024
"""Bytes of one read. At four times as much the allocator gives fresh pages each time, and reading costs more."""
MAX_HEADER = 64 * 1024
"""Bytes of line 0."""

_TYPE = b'"type":"'
_SNAPSHOT = b'session.snapshot",'


class _Header(msgspec.Struct):
    type: str = ""
    format: int = 0


class _Kind(msgspec.Struct):
    type: str = ""
    critical: bool = False


def blocks(disk: Disk, handle: int, start: int, end: int | None = None) -> Iterator[bytes]:
    """The file's bytes from `start` to `end`, or to where it ends by then."""
    while end is None or start < end:
        block = disk.read(handle, BLOCK if end is None else min(BLOCK, end - start), start)
        if not block:
            return
        yield block
        start += len(block)


def open_journal(disk: Disk, directory: Path, mode: Literal["read", "append"]) -> int:
    """A handle on a session's journal. JournalError where there is none, or it cannot be opened."""
    path = directory / JOURNAL
    try:
        return disk.open(path, mode)
    except FileNotFoundError:
        raise JournalError(f"{directory} holds no session: {JOURNAL} is missing") from None
    except OSError as error:
        raise JournalError(f"{path} cannot be opened: {error.strerror}") from error


@contextmanager
def reading(disk: Disk, directory: Path) -> Iterator[int]:
    """A handle for reading a session's journal. What the disk refuses is a JournalError."""
    handle = open_journal(disk, directory, "read")
    try:
        yield handle
    except OSError as error:
        raise JournalError(f"{directory / JOURNAL} cannot be read: {error.strerror}") from error
    finally:
        disk.close(handle)


def unstarted(path: Path) -> JournalError:
    """What to say of a journal whose line 0 was never written whole."""
    return JournalError(
        f"{path} holds no session: its first line was never written whole, so nothing in it was ever "
        "acknowledged; start a new session"
    )


def read_header(disk: Disk, handle: int, path: Path) -> SessionCreated | None:
    """Line 0; None if it was never written whole. Nothing else of a file may be believed, or cut, before.

    Raises JournalTooNew, and JournalDamaged if it was acknowledged and does not verify.
    """
    line, newline, _ = disk.read(handle, MAX_HEADER, 0).partition(b"\n")
    try:
        claims = msgspec.json.decode(line, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError):
        claims = _Header()
    if claims.type == "session.created" and claims.format > FORMAT:
        raise JournalTooNew(f"{path} has format {claims.format}; this program reads up to {FORMAT}: upgrade it")
    cursor = Cursor(flaw="it has no newline")
    if not newline or not cursor.accept(line):
        refuse_damage(disk, handle, path, cursor)
        return None
    header = decode(path, line, 0, 0)
    if not isinstance(header, SessionCreated):
        raise JournalDamaged(str(path), 0, 0, f"it is {header.type}, not session.created")
    return header


def refuse_damage(disk: Disk, handle: int, path: Path, cursor: Cursor) -> None:
    """Raise JournalDamaged if the bad line at the cursor was acknowledged; return if it is a torn end."""
    later = find_acknowledged(blocks(disk, handle, cursor.offset), cursor.n)
    if later is None:
        return
    proof = f"line {later.n}, whole at byte {cursor.offset + later.offset}, proves that it was acknowledged"
    if later.n < 0:
        proof = "looking for later lines took more than MAX_RESYNC, so whether it was acknowledged is unknown"
    advice = "`latchstep sessions salvage` copies what lies before it into a new session"
    raise JournalDamaged(str(path), cursor.n, cursor.offset, f"{cursor.flaw}; {proof}; {advice}")


def decode(path: Path, line: bytes, n: int, offset: int) -> Event:
    """The event in a verified line, stamped with its number.

    An unknown type gives `Unknown`; JournalTooNew if it is flagged critical.
    """
    try:
        event = decode_event(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:
            kind = msgspec.json.decode(line, type=_Kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            kind = _Kind()
        if kind.critical and kind.type not in KNOWN:
            raise JournalTooNew(
                f"{path}: line {n} is {kind.type}, which this program does not know and may not skip: upgrade it"
            ) from None
        raise JournalDamaged(str(path), n, offset, f"it verifies but is no event: {error}") from None
    stamp(event, n)
    return event


def find_backwards(disk: Disk, handle: int, needle: bytes, end: int) -> int:
    """Offset of the last place where `needle` lies whole before `end`, or -1."""
    step, high = BLOCK // 4, end
    while high > 0:
        low = max(0, high - step)
        window = disk.read(handle, min(high + len(needle) - 1, end) - low, low)
        if (found := window.rfind(needle)) >= 0:
            return low + found
        high, step = low, BLOCK
    return -1


def find_line(disk: Disk, handle: int, n: int, end: int) -> Cursor | None:
    """The cursor at line `n`, looked for backwards from `end`; None if no line there begins as it must."""
    found = -1 if n == 0 else find_backwards(disk, handle, b'\n{"n":%d,"b":' % n, end)
    if n and found < 0:
        return None
    return cursor_at(disk.read(handle, HEAD_ROOM, found + 1), found + 1)


def find_snapshot(disk: Disk, handle: int, end: int) -> tuple[Cursor, bytes] | None:
    """The last `session.snapshot` before `end` that is whole, and where it stands."""
    while (found := find_backwards(disk, handle, _SNAPSHOT, end)) >= 0:
        end = found
        low = max(0, found - HEAD_ROOM)
        newline = disk.read(handle, found - low, low).rfind(b"\n")
        start = low + newline + 1
        cursor = cursor_at(disk.read(handle, HEAD_ROOM, start), start)
        if newline < 0 or cursor is None or not _head_ends_at(disk, handle, start, found):
            continue  # inside another record, or its newline is gone: the lines around it will be verified
        before = Cursor(cursor.n, cursor.b, cursor.p, start)
        for line in walk(blocks(disk, handle, start), cursor):
            return before, line
    return None


def _head_ends_at(disk: Disk, handle: int, start: int, mark: int) -> bool:
    head = HEAD.match(disk.read(handle, HEAD_ROOM, start))
    return head is not None and start + head.end() == mark - len(_TYPE)


def recovery_start(disk: Disk, handle: int, end: int) -> Cursor:
    """Where an opening must begin to verify: at the last snapshot, or before it.

    The snapshot may stand in a group that no sync covered, and a power cut may have kept it and lost a line
    before it. Its `b` names the first line that this can be true of, so verification begins there. If that
    line cannot even be found, an earlier snapshot serves, and at last line 0.
    """
    while (found := find_snapshot(disk, handle, end)) is not None:
        snapshot, _ = found
        if snapshot.b == snapshot.n:
            return snapshot
        if (first := find_line(disk, handle, snapshot.b, snapshot.offset)) is not None:
            return first
        end = snapshot.offset
    return Cursor()


def valid_end(disk: Disk, handle: int, path: Path) -> Cursor:
    """Verify as an opening must. The cursor stands where the valid part ends; its `flaw` says what is wrong with a
    torn end behind it, if there is one. Raises JournalDamaged."""
    cursor = recovery_start(disk, handle, disk.size(handle))
    for _ in walk(blocks(disk, handle, cursor.offset), cursor):
        pass
    if cursor.flaw:
        refuse_damage(disk, handle, path, cursor)
    return cursor


def live_start(disk: Disk, handle: int, path: Path, end: int) -> int:
    """The line a fold must start from: what the last snapshot needs, or 0."""
    found = find_snapshot(disk, handle, end)
    if found is None:
        return 0
    event = decode(path, found[1], found[0].n, found[0].offset)
    return min(event.needed, found[0].n) if isinstance(event, SessionSnapshot) else 0


def start_at(disk: Disk, handle: int, n: int, end: int) -> Cursor:
    """The cursor at line `n`, or at line 0 where it cannot be found: the walk will say what is wrong."""
    return find_line(disk, handle, n, end) or Cursor()


def read_journal(directory: Path, after: int = -1, verify: bool = True, *, disk: Disk | None = None) -> Iterator[Event]:
    """The events of a session with `seq` > after, in order, up to where the file ends by then.

    Takes no lock and may run while somebody writes: an incomplete last line is left out, and calling again
    with the last `seq` goes on. Everything read is verified; `verify=False` believes complete lines.
    Raises JournalDamaged, JournalTooNew, JournalError.
    """
    disk = disk or OsDisk()
    path = directory / JOURNAL
    with reading(disk, directory) as handle:
        if read_header(disk, handle, path) is None:
            raise unstarted(path)
        cursor = start_at(disk, handle, max(after, 0), disk.size(handle))
        lines = verified if verify else _believed
        for n, offset, line in lines(disk, handle, path, cursor):
            if n > after:
                yield decode(path, line, n, offset)


def verified(disk: Disk, handle: int, path: Path, cursor: Cursor) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of each valid line from the cursor on. Stops at a torn end, leaving its place
    and flaw in the cursor; raises JournalDamaged if what stops it was acknowledged."""
    proven = -1
    while True:
        n, offset = cursor.n, cursor.offset
        for line in walk(blocks(disk, handle, offset), cursor):
            yield n, offset, line
            n, offset = cursor.n, cursor.offset
        if not cursor.flaw:
            return
        try:
            refuse_damage(disk, handle, path, cursor)
        except JournalDamaged:
            # The proof was read after the bad line, and a writer may have finished that line in between. If it was
            # acknowledged it is whole by now, so only a second look is final.
            if proven == n:
                raise
            proven, cursor.flaw = n, ""
        else:
            return


def _believed(disk: Disk, handle: int, path: Path, cursor: Cursor) -> Iterator[tuple[int, int, bytes]]:
    n = cursor.n
    for offset, line in segments(blocks(disk, handle, cursor.offset)):
        head = HEAD.match(line)
        if head is None or int(head[1]) != n:
            raise JournalDamaged(str(path), n, cursor.offset + offset, "it has no head, or another line's")
        yield n, cursor.offset + offset, line
        n += 1
