"""`latchstep replay`: runs the loop again on a recorded session, and says that it is the same or where it first is not.

The session itself is only read. Nothing runs but the loop, unless live tools are asked for.
"""

from __future__ import annotations

import difflib
import sys
import time
from itertools import pairwise
from pathlib import Path

import msgspec

from latchstep.core import event as ev
from latchstep.core.codec import encode_event
from latchstep.core.printable import one_line, printable
from latchstep.errors import DefinitionError, SessionError
from latchstep.journal.base import new_session_id
from latchstep.journal.blob import read_blob
from latchstep.journal.reader import read_journal
from latchstep.journal.store import Store
from latchstep.model.scripted import ScriptedModel
from latchstep.session.blocking import run_blocking
from latchstep.session.coding import coding_kit
from latchstep.session.kit import Kit
from latchstep.session.player import LABELS, Difference, Replayed
from latchstep.session.replay import blobs_of, replay

from .driving import PROGRAM
from .running import folder, here, state_root, typed
from .screen import Screen

MAX_ROWS = 40
"""Rows of a difference that are shown."""

MAX_ROW = 300
"""Characters of one of them."""


def replay_session(session: str | None, *, run: int | None, live_tools: bool, cwd: Path | None, keep: bool) -> int:
    """0 where the replay is the same, 1 where it differs."""
    if live_tools and cwd is None:
        raise DefinitionError("--live-tools runs what was recorded again: give a copy of the workspace with --cwd DIR")
    store = Store(state_root())
    found = store.find(typed(session, "--session")) if session is not None else store.last(str(here()))
    if found is None:
        raise SessionError(f"there is no session of {printable(str(here()))}; name one with --session ID")
    directory = store.directory(found)
    events = list(read_journal(directory))
    root = folder(cwd) if cwd is not None and live_tools else None
    live = _live(root, events) if root is not None else None
    journal, kept = None, new_session_id(time.time())
    if keep:
        workspace = str(root) if root is not None else ""
        journal = store.create(kept, time=time.time(), workspace=workspace, program=f"{PROGRAM} (replay of {found})")
    blob = blobs_of(lambda digest: read_blob(directory, digest))
    try:
        done = run_blocking(replay(events, blob=blob, run=run or 0, journal=journal, live=live))
    finally:
        if journal is not None:
            journal.close()
    _tell(Screen(), found, done)
    if keep:
        print(f"kept as session {kept}")
    return 1 if done.difference is not None else 0


def _live(root: Path, events: list[ev.Event]) -> Kit:
    from latchstep.tool.head import head_of

    print(f"live tools: every call that ran then runs again in {printable(str(root))}, unasked.", file=sys.stderr)
    heads = [event.head for event in events if isinstance(event, ev.RunStarted)]
    if heads and heads[0] != (now := head_of(root)):
        print(f"HEAD was {heads[0][:12] or 'none'} then and is {now[:12] or 'none'} there.", file=sys.stderr)
    return coding_kit(ScriptedModel([]), root)


def _tell(screen: Screen, session_id: str, done: Replayed) -> None:
    for kind, count in sorted(done.taken.items()):
        said = f"NOT REPLAYED: {count} × {one_line(kind, 60)}, taken over from the record as it stands"
        screen.line(screen.style(said, "bold", "yellow"))
    for run_id in done.blind:
        said = f"NOT COMPARED: the requests of {one_line(run_id, 60)}, whose system prompt or tools are not kept"
        screen.line(screen.style(said, "bold", "yellow"))
    kinds = done.kinds
    total = sum(kinds.values())
    counts = f"{total} event{'s' if total != 1 else ''}"
    for name, kind in (("runs", "run.started"), ("answers", "message.completed"), ("tool results", "tool.finished")):
        counts += f" · {kinds[kind]} {name if kinds[kind] != 1 else name[:-1]}"
    if compacted := kinds["context.compacted"]:
        counts += f" · {compacted} compaction{'s' if compacted != 1 else ''}"
    if done.difference is None:
        screen.line(screen.style("same", "bold", "green") + f" · {counts}")
        screen.line(screen.style(f"session {session_id}", "dim"))
        return
    where = f" at event {done.difference.seq}; the same until there: {counts}"
    screen.line(screen.style("different", "bold", "red") + where)
    for row in _rows(done.difference):
        colour = {"-": "red", "+": "green"}.get(row[:1], "dim")
        screen.line(screen.style(row, colour))
    screen.line(screen.style(f"session {session_id}", "dim"))


def _rows(difference: Difference) -> list[str]:
    """What was recorded (-) and what the replay did (+), field by field."""
    then, now = _fields(difference.recorded), _fields(difference.replayed)
    kind = difference.recorded.type if difference.recorded is not None else ""
    diff = difflib.unified_diff(then, now, f"recorded {kind}", "replayed", lineterm="", n=1)
    rows = [one_line(row, MAX_ROW) for row in _near([row for row in diff if not row.startswith("@@")])]
    if len(rows) > MAX_ROWS:
        rows = [*rows[:MAX_ROWS], f"… {len(rows) - MAX_ROWS} rows more"]
    if difference.said:
        rows.append("one of these is not what was sent then:")
        rows += [f"  {message.role}: {one_line(_said(message), 150)}" for message in difference.said[-10:]]
        rows.append("if each of them is, then the system prompt or the tools are not")
    return rows


def _near(rows: list[str]) -> list[str]:
    """Two long rows that differ far from their beginnings begin near there."""
    for at, (then, now) in enumerate(pairwise(list(rows))):
        same = next((n for n, (a, b) in enumerate(zip(then[1:], now[1:], strict=False)) if a != b), 0)
        if same > MAX_ROW // 2 and then[0] == "-" and now[0] == "+":
            rows[at : at + 2] = [f"{row[0]}… {row[same - 50 :]}" for row in (then, now)]
    return rows


def _said(message: object) -> str:
    return msgspec.json.encode(getattr(message, "blocks", ())).decode()


def _fields(event: ev.Event | None) -> list[str]:
    if event is None:
        return ["nothing: the run was over"]
    rows: list[str] = []
    for name, value in msgspec.json.decode(encode_event(event)).items():
        if name not in LABELS and name != "run_id":
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            if not isinstance(value, str) and len(text) > MAX_ROW // 3:
                text = msgspec.json.format(text, indent=1)
            first, *more = text.split("\n")
            rows += [f"{name}: {first}", *(f"  {line}" for line in more)]
    return rows
