"""`latchstep sessions verify` and `salvage`: whether what is on record is whole, and what to do where it is not."""

from __future__ import annotations

import os
import time
from pathlib import Path

from latchstep.core.printable import one_line, printable
from latchstep.errors import JournalError
from latchstep.journal.base import new_session_id
from latchstep.journal.reader import read_journal
from latchstep.journal.store import Report, Store
from latchstep.session.rewind import past_of
from latchstep.tool.restore import complete
from latchstep.tool.snapshot import Shadow

from .driving import how_to_go_on
from .running import here, state_root
from .screen import Screen
from .showing import DAMAGED


def verify_sessions(prefix: str | None, everywhere: bool) -> int:
    """One line a session, and one for each thing that is wrong with it. Nothing is changed."""
    screen, store = Screen(), Store(state_root())
    if prefix is not None:
        ids = [store.find(prefix)]
    else:
        mine = "" if everywhere else os.path.realpath(here())
        ids = [entry.id for entry in store.list() if everywhere or entry.workspace in (mine, "")]
    if not ids:
        screen.line("there is no session to verify")
    return max((_verify(store, session_id, screen) for session_id in ids), default=0)


def _verify(store: Store, session_id: str, screen: Screen) -> int:
    shown = one_line(session_id, 100)
    try:
        report = store.verify(session_id)
    except JournalError as error:  # it cannot be read at all, or by this version
        screen.line(f"{shown}  {screen.style('not verified', 'red')}: {printable(str(error))}")
        return DAMAGED
    size = f"{report.lines:,} line{'' if report.lines == 1 else 's'}, {report.size:,} bytes"
    if report.sound:
        screen.line(f"{shown}  {screen.style('sound', 'green')}  {size}")
    else:
        screen.line(f"{shown}  {screen.style('damaged', 'red')}  {size} are whole")
    for said in [*_findings(report), *_snapshots(store, session_id, report)]:
        screen.line(f"  {said}")
    if report.damaged:
        screen.line(f"  what is whole can be copied into a new session: latchstep sessions salvage {shown}")
    return 0 if report.sound else DAMAGED


def _findings(report: Report) -> list[str]:
    said = []
    if report.damaged:
        said.append(printable(report.damaged))
    if report.torn:
        said.append(f"{printable(report.torn)}: never acknowledged; the next opening cuts it off and keeps a copy")
    if report.blobs:
        said.append(f"blobs that are not what their names say: {', '.join(report.blobs)}")
    if report.missing:
        said.append(
            "system prompts or tools of its runs are missing from blobs/: a replay cannot compare what was sent"
        )
    return said


def _snapshots(store: Store, session_id: str, report: Report) -> list[str]:
    """Whether the files could go back: no part of the record, but what a rewind counts on."""
    if report.damaged:
        return []
    past = past_of(read_journal(store.directory(session_id)))
    trees = {taken.tree for taken in past.snapshots if taken.tree}
    objects, whole = Shadow(Path(past.workspace), store.root).objects, set[bytes]()
    bad = [tree for tree in sorted(trees) if not complete(objects, tree, whole)]
    if not bad:
        return []
    return [f"{len(bad)} of {len(trees)} snapshots of its files are not whole: a rewind to them is refused"]


def salvage_session(prefix: str) -> int:
    screen, store = Screen(), Store(state_root())
    session_id, now = store.find(prefix), time.time()
    new_id = new_session_id(now)
    directory, last = store.salvage(session_id, new_id, time=now)
    screen.line(f"session {new_id} · {printable(str(directory))}")
    screen.line(f"It is a copy of {one_line(session_id, 100)} up to line {last}, which was not touched.")
    screen.line(f"To go on: {how_to_go_on(new_id)}")
    return 0
