"""What the crash tests share: a journal on a simulated disk, and what must be true of it after a crash."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from latchstep.core.codec import encode_event
from latchstep.core.event import Event, MessageAccepted, SessionCreated, SessionSnapshot, ToolFinished, ToolStarted
from latchstep.core.message import user
from latchstep.journal.file import FileJournal
from latchstep.journal.reader import JOURNAL
from latchstep.testing import crash
from latchstep.testing.disk import SimDisk

HOME = Path("/sim/s1")
FILE = HOME / JOURNAL
HEADER = SessionCreated(session_id="s1", workspace="/work", time=1.0)


def event(i: int) -> Event:
    """Events of different kinds and lengths, some longer than a sector."""
    kinds: tuple[Event, ...] = (
        MessageAccepted(message_id=f"m{i}", source="start", message=user(f"say {i}\n\u2028 {{}} \\")),
        ToolStarted(call_id=f"c{i}", name="bash", sha256="ab" * 32, idempotency_key=f"k{i}"),
        ToolFinished(call_id=f"c{i}", name="bash", outcome="ok", content="out " * (i * 37 % 200)),
    )
    return kinds[i % 3]


def snapshot(needed: int) -> Event:
    return SessionSnapshot(needed=needed, state=msgspec.Raw(b'{"queue":[1,2],"n":{"n":1,"b":1}}'))


def sync(journal: FileJournal) -> None:
    asyncio.run(journal.sync())


def synced_journal(groups: tuple[int, ...], disk: SimDisk | None = None) -> tuple[SimDisk, list[bytes]]:
    """A journal of groups of the given sizes, each synced, after its header. The disk, and the lines."""
    disk = disk or SimDisk()
    with FileJournal.create(HOME, HEADER, disk=disk) as journal:
        for size in groups:
            sync(journal)
            journal.append([event(journal.head + 1 + i) for i in range(size)])
        sync(journal)
    return disk, disk.content(FILE).splitlines(keepends=True)


def create_or_open(disk: SimDisk) -> FileJournal:
    return crash.create_or_open(disk, HOME, HEADER)


def told(events: list[Event]) -> list[bytes]:
    """Events as they can be compared."""
    return [encode_event(found) for found in events]


def expected(upto: int) -> list[bytes]:
    """`told` of what `synced_journal` wrote, up to a number of lines."""
    wanted = [HEADER, *(event(i) for i in range(1, upto))]
    return [encode_event(msgspec.structs.replace(found, seq=n)) for n, found in enumerate(wanted)][:upto]


def numbers_b(line: bytes) -> int:
    """The `b` of a line."""
    return int(line.split(b'"b":')[1].split(b",")[0])
