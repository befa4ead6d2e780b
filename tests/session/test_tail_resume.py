"""A resume after compactions: what is read of a journal, and what a copy of it is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.state import fold
from latchstep.journal.base import restored
from latchstep.journal.file import FileJournal
from latchstep.journal.store import Store
from latchstep.session import compacting
from latchstep.session import session as module

from .fakes import go, session_of
from .test_compaction import Provider, look

LIMITS = ls.Limits(max_context=4_000, keep_recent=500)


async def run(journal: FileJournal, steps: int) -> None:
    session = session_of(Provider(steps), [look], journal=journal, limits=LIMITS)
    await session.run("go")
    await session.close()


def test_b52_an_opening_reads_from_the_last_snapshot_and_a_copy_keeps_its_own_name(tmp_path: Path) -> None:
    """What lies before a snapshot is on disk by then, so nothing before it has to be verified."""
    store = Store(tmp_path)
    go(run(store.create("one", time=0.0, workspace=str(tmp_path)), 40))
    lines = [msgspec.json.decode(line) for line in (tmp_path / "sessions/one/journal.jsonl").read_bytes().splitlines()]
    snapshots = [line for line in lines if line["type"] == "session.snapshot"]
    assert len(snapshots) > 2
    for line in snapshots:
        assert line["b"] == line["n"] == line["needed"]
    store.fork("one", lines[-1]["n"], "two", time=0.0)
    for name in ("one", "two"):
        with store.open(name) as journal:
            assert next(journal.live()).seq == snapshots[-1]["n"]
            state = restored(journal)
            assert (state.session_id, state.workspace) == (name, str(tmp_path))
            assert state.transcript == fold(journal.read()).transcript


def test_a_crash_between_a_compaction_and_its_snapshot_does_no_harm(tmp_path: Path) -> None:
    store = Store(tmp_path)
    go(run(store.create("one", time=0.0), 40))
    path = tmp_path / "sessions/one/journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [at for at, line in enumerate(lines) if b'"type":"session.snapshot"' in line]
    path.write_bytes(b"".join(lines[: whole[-1]]))
    with store.open("one") as journal:
        assert next(journal.live()).seq == whole[-2]
        assert isinstance(list(journal.live())[-1], ev.ContextCompacted)
        assert restored(journal) == fold(journal.read())
        go(run(journal, 45))


def test_a_session_without_a_compaction_is_read_from_a_snapshot_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacting, "SNAPSHOT_EVERY", 4_000)
    monkeypatch.setattr(module, "SNAPSHOT_EVERY", 4_000)
    store = Store(tmp_path)
    journal = store.create("one", time=0.0)
    session = session_of(Provider(40, window=1 << 40), [look], journal=journal)
    go(session.run("go"))
    go(session.close())
    with store.open("one") as journal:
        snapshots = [event for event in journal.read() if isinstance(event, ev.SessionSnapshot)]
        assert [snapshot.needed for snapshot in snapshots] == [snapshot.seq for snapshot in snapshots]
        sizes = [len(snapshot.state) for snapshot in snapshots]
        assert 3 < len(sizes) < 9, "each after as much as the one before has itself"
        assert sum(sizes) < journal.size * 0.6
        assert next(journal.live()).seq == snapshots[-1].seq
        assert restored(journal) == fold(journal.read())
        head = journal.head
        go(run(journal, 1))
    with store.open("one") as journal:
        assert next(journal.live()).seq > head, "an opening of a long one leaves a snapshot for the next"


def test_a_state_too_large_for_a_line_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "MAX_SNAPSHOT", 1_000)
    store = Store(tmp_path)
    go(run(store.create("one", time=0.0), 40))
    with store.open("one") as journal:
        assert not [event for event in journal.read() if isinstance(event, ev.SessionSnapshot)]
        assert restored(journal).transcript
