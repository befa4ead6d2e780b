"""What the journal tests share."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from latchstep.core.event import ClockPassed, Event, MessageAccepted, RunFinished, SessionCreated, SessionSnapshot
from latchstep.core.message import user
from latchstep.journal.disk import OsDisk
from latchstep.journal.file import FileJournal
from latchstep.journal.frame import ORIGIN, checksum, frame

HEADER = SessionCreated(session_id="s1", time=5.0)


def clock(i: int, size: int = 3) -> Event:
    return ClockPassed(limit="x" * size, seconds=float(i))


def prompt(text: str, time: float = 0.0) -> Event:
    return MessageAccepted(message_id="m1", source="start", message=user(text), time=time)


def finished(time: float = 0.0, text: str = "") -> Event:
    return RunFinished(status="completed", time=time, final_text=text)


def snapshot(needed: int, state: bytes = b"{}") -> Event:
    return SessionSnapshot(needed=needed, state=msgspec.Raw(state))


def sync(journal: FileJournal) -> None:
    asyncio.run(journal.sync())


def framed(*bodies: bytes) -> bytes:
    """Lines of a journal that nobody synced."""
    lines, p = [], ORIGIN
    for n, body in enumerate(bodies):
        lines.append(frame(n, 0, p, body))
        p = checksum(lines[-1])
    return b"".join(lines)


def raw_journal(directory: Path, *bodies: bytes) -> Path:
    """A session directory whose journal has these record bodies."""
    directory.mkdir(mode=0o700)
    (directory / "journal.jsonl").write_bytes(framed(*bodies))
    return directory


class CountingDisk(OsDisk):
    """The real disk, counting bytes read and writes made."""

    def __init__(self) -> None:
        self.bytes_read = self.writes = 0

    def read(self, handle: int, size: int, offset: int) -> bytes:
        data = super().read(handle, size, offset)
        self.bytes_read += len(data)
        return data

    def write(self, handle: int, data: bytes) -> int:
        self.writes += 1
        return super().write(handle, data)
