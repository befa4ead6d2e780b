"""One line of a session list, from a bounded head and tail of its journal.

What is shown is verified, the rest is not looked at: thousands of sessions must list at once.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from latchstep.core.event import MessageAccepted, SessionCreated
from latchstep.errors import JournalError, JournalTooNew

from .disk import Disk
from .frame import HEAD, Cursor, cursor_at
from .reader import JOURNAL, MAX_HEADER, decode, open_journal, read_header, unstarted, valid_end

HEAD_BYTES = 8 * 1024
TAIL_BYTES = 4 * 1024
MAX_PEEK = 512 * 1024
"""Bytes of a head or tail that are read where the first ones do not hold a whole prompt or last line."""

MAX_PROMPT = 200
"""Characters of the first prompt that an entry shows."""

_PROMPT = b'"type":"message.accepted",'
_IDLE = ("session.created", "session.opened", "session.snapshot", "workspace.snapshot")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A session as a list shows it. Times are Unix seconds and only labels.

    status: how the last run ended, `unfinished` if it did not, `empty` if there was none, `unknown` if the last
    line is longer than MAX_PEEK, `newer` if a later version wrote it (workspace and times are what it claims).
    damaged: what does not verify of what was looked at; empty if nothing.
    """

    id: str
    directory: str
    workspace: str = ""
    created: float = 0.0
    last: float = 0.0
    prompt: str = ""
    status: str = "unfinished"
    parent: str = ""
    damaged: str = ""


class _Claims(msgspec.Struct):
    workspace: str = ""
    time: float = 0.0


class _Last(msgspec.Struct):
    type: str = ""
    time: float = 0.0
    status: str = ""


def read_entry(disk: Disk, directory: Path) -> Entry:
    """The entry of the session in `directory`. Never raises for what is wrong with it: `damaged` says it."""
    try:
        handle = open_journal(disk, directory, "read")
    except JournalError as error:
        return Entry(id=directory.name, directory=str(directory), damaged=str(error))
    try:
        try:
            header = read_header(disk, handle, directory / JOURNAL)
        except JournalTooNew as error:
            return _newer(disk.read(handle, MAX_HEADER, 0), directory, str(error))
        if header is None:
            raise unstarted(directory)
        return _entry(disk, handle, directory, header)
    except JournalError as error:
        return Entry(id=directory.name, directory=str(directory), damaged=str(error))
    except OSError as error:
        return Entry(id=directory.name, directory=str(directory), damaged=f"it cannot be read: {error.strerror}")
    finally:
        disk.close(handle)


def _newer(data: bytes, directory: Path, why: str) -> Entry:
    """The entry of a session that a later version wrote, by what its line 0 claims: it is still of its folder."""
    try:
        claims = msgspec.json.decode(data.partition(b"\n")[0], type=_Claims)
    except (msgspec.DecodeError, UnicodeDecodeError):
        claims = _Claims()
    return Entry(
        id=directory.name,
        directory=str(directory),
        workspace=claims.workspace,
        created=claims.time,
        last=claims.time,
        status="newer",
        damaged=why,
    )


def _entry(disk: Disk, handle: int, directory: Path, header: SessionCreated) -> Entry:
    time, status, damaged = 0.0, "unknown", _misnamed(header, directory)
    try:
        end = disk.size(handle)
        time, status, whole = _last(disk, handle, end)
        if not whole:  # torn, or damaged: find out as an opening would
            time, status, _ = _last(disk, handle, valid_end(disk, handle, directory / JOURNAL).offset)
        prompt = _first_prompt(disk, handle, directory)
    except JournalError as error:
        prompt, damaged = "", str(error)
    return Entry(
        id=directory.name,
        directory=str(directory),
        workspace=header.workspace,
        created=header.time,
        last=time or header.time,
        prompt=prompt,
        status=status,
        parent=header.parent,
        damaged=damaged,
    )


def _misnamed(header: SessionCreated, directory: Path) -> str:
    if header.session_id == directory.name:
        return ""
    return f"the folder is named {directory.name}, but its journal belongs to {header.session_id}"


def _first_prompt(disk: Disk, handle: int, directory: Path) -> str:
    """The first message of a person, cut; empty if it does not begin and end within MAX_PEEK."""
    size = HEAD_BYTES
    while True:
        data = disk.read(handle, size, 0)
        cursor = Cursor()
        for line in data.split(b"\n")[:-1]:
            n, offset = cursor.n, cursor.offset
            if not cursor.accept(line):
                return ""
            head = HEAD.match(line)
            if head is None or not line.startswith(_PROMPT, head.end()):
                continue
            event = decode(directory, line, n, offset)
            if isinstance(event, MessageAccepted) and event.source in {"start", "prompt"}:
                return event.message.text[:MAX_PROMPT]
        if len(data) < size or size >= MAX_PEEK:
            return ""
        size = min(size * 8, MAX_PEEK)


def _last(disk: Disk, handle: int, end: int) -> tuple[float, str, bool]:
    """Time and status by the last whole lines before `end`, and whether the very last one is valid in itself."""
    size = TAIL_BYTES
    while True:
        start = max(0, end - size)
        data = disk.read(handle, end - start, start)
        lines = data.split(b"\n")[:-1]  # what has no newline is being written, or torn
        if start:
            lines = lines[1:]
        if lines and ((cursor := cursor_at(lines[-1], 0)) is None or not cursor.accept(lines[-1])):
            return 0.0, "unfinished", False
        time, status = 0.0, ""
        for line in reversed(lines):
            try:
                event = msgspec.json.decode(line, type=_Last)
            except (msgspec.DecodeError, UnicodeDecodeError):
                event = _Last()
            time = time or event.time
            if event.type not in _IDLE:
                status = event.status if event.type == "run.finished" else "unfinished"
                break
        if status or not start or size >= MAX_PEEK:
            return time, status or ("unknown" if start else "empty"), True
        size = min(size * 8, MAX_PEEK)
