"""Real processes and a real file: a second writer, SIGKILL in the middle of appends, a file size limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from latchstep.core.event import ClockPassed, SessionCreated
from latchstep.errors import JournalLocked
from latchstep.journal.file import FileJournal

HOLDER = """
import sys
from pathlib import Path
from latchstep.core.event import SessionCreated
from latchstep.journal.file import FileJournal
journal = FileJournal.create(Path(sys.argv[1]), SessionCreated(session_id="s"))
print("held", flush=True)
sys.stdin.read()
"""

WRITER = """
import asyncio, sys
from pathlib import Path
from latchstep.core.event import ClockPassed
from latchstep.journal.file import FileJournal
journal = FileJournal.open(Path(sys.argv[1]))
async def write():
    n = journal.head
    while True:
        for _ in range(3):
            n = journal.append([ClockPassed(limit="x" * (n % 700), seconds=float(n + 1))])
        if n % 2:
            await journal.sync()
            print(n, flush=True)
asyncio.run(write())
"""

LIMITED = """
import resource, sys
from pathlib import Path
from latchstep.core.event import ClockPassed, SessionCreated
from latchstep.errors import JournalPoisoned
from latchstep.journal.file import FileJournal
journal = FileJournal.create(Path(sys.argv[1]), SessionCreated(session_id="s"))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    while True:
        journal.append([ClockPassed(limit="x", seconds=1.0)])
except JournalPoisoned as error:
    print(journal.head, journal.size, *error.withdrawn, sep="|")
"""


def child(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def test_a_second_writer_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with child(HOLDER, tmp_path / "s") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(JournalLocked) as caught:
            FileJournal.open(tmp_path / "s")
        assert f"pid {holder.pid}" in caught.value.holder
        assert str(tmp_path / "s") in caught.value.holder  # its command
        holder.kill()
        holder.wait()
    with FileJournal.open(tmp_path / "s") as journal:
        assert journal.head == 0
        with pytest.raises(JournalLocked, match=f"pid {os.getpid()}"):
            FileJournal.open(tmp_path / "s")
    FileJournal.open(tmp_path / "s").close()


def test_killed_in_the_middle_of_appends(tmp_path: Path) -> None:
    """A dozen times in a row, on one journal: each acknowledged record is there at the very next opening."""
    home = tmp_path / "s"
    FileJournal.create(home, SessionCreated(session_id="s")).close()
    for round_ in range(12):
        with child(WRITER, home) as writer:
            assert writer.stdout is not None
            acknowledged = [int(writer.stdout.readline()) for _ in range(1 + 3 * round_)]
            writer.send_signal(signal.SIGKILL)
            acknowledged += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
            writer.wait()
        with FileJournal.open(home) as journal:
            assert journal.head >= acknowledged[-1]
            events = list(journal.read())
        assert [event.seq for event in events] == list(range(journal.head + 1))
        for event in events[1:]:
            assert isinstance(event, ClockPassed)
            assert (event.seconds, len(event.limit)) == (event.seq, (event.seq - 1) % 700)


def test_a_file_size_limit_cuts_back_to_a_whole_line(tmp_path: Path) -> None:
    for limit in (1000, 1037):
        home = tmp_path / str(limit)
        with child(LIMITED, home, limit) as limited:
            assert limited.stdout is not None
            head, size, withdrawn = limited.stdout.read().strip().split("|")
        assert withdrawn == f"{int(head) + 1} clock.passed"
        data = (home / "journal.jsonl").read_bytes()
        assert len(data) == int(size) <= limit
        assert data.endswith(b"}\n")
        with FileJournal.open(home) as journal:
            assert journal.recovered is None
            assert journal.head == int(head)
