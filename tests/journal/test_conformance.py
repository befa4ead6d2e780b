"""Both journals keep the seam's promises."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from latchstep.core.event import SessionCreated
from latchstep.journal.base import Journal, MemoryJournal
from latchstep.journal.file import FileJournal
from latchstep.testing.disk import SimDisk
from latchstep.testing.journal import JOURNAL_CHECKS, RESUME_CHECKS, Make, Reopen


def reopen_file(journal: Journal) -> Journal:
    assert isinstance(journal, FileJournal)
    journal.close()
    return FileJournal.open(journal.directory)


@pytest.fixture
def make_file(tmp_path: Path) -> Make:
    numbers = count()

    def make() -> Journal:
        number = next(numbers)
        return FileJournal.create(tmp_path / str(number), SessionCreated(session_id=str(number)))

    return make


@pytest.mark.parametrize("check", JOURNAL_CHECKS)
def test_memory(check: Callable[[Make], None]) -> None:
    check(MemoryJournal)


@pytest.mark.parametrize("check", JOURNAL_CHECKS)
def test_file(check: Callable[[Make], None], make_file: Make) -> None:
    check(make_file)


@pytest.mark.parametrize("check", JOURNAL_CHECKS)
def test_simulated_disk(check: Callable[[Make], None]) -> None:
    check(lambda: FileJournal.create(Path("/sim/s"), SessionCreated(session_id="s"), disk=SimDisk()))


@pytest.mark.parametrize("check", RESUME_CHECKS)
def test_file_reopened(check: Callable[[Make, Reopen], None], make_file: Make) -> None:
    check(make_file, reopen_file)
