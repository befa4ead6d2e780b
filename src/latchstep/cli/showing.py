"""`latchstep sessions` and `latchstep show`: what is on record, read without taking the writer's place."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from latchstep.core import event as ev
from latchstep.core.printable import one_line, printable
from latchstep.journal.reader import read_journal
from latchstep.journal.store import Store, default_root

from .human import Human, closing
from .screen import Screen


def list_sessions(everywhere: bool) -> int:
    """One line a session, those of this folder unless all are asked for."""
    screen = Screen()
    store = Store(default_root())
    here = os.path.realpath(Path.cwd())
    entries = store.list()
    mine = [entry for entry in entries if everywhere or entry.workspace == here]
    for entry in mine:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last))
        state = f"damaged: {entry.damaged}" if entry.damaged else entry.status
        colour = "red" if entry.damaged else {"completed": "green", "unfinished": "yellow"}.get(entry.status, "dim")
        where = f"  {printable(entry.workspace)}" if everywhere else ""
        line = f"{entry.id}  {when}  {screen.style(one_line(state, 40).ljust(11), colour)}{where}"
        screen.line(f"{line}  {one_line(entry.prompt, 60)}")
    if not mine:
        others = len(entries) - len(mine)
        more = f"; {others} elsewhere (latchstep sessions --all)" if others else ""
        screen.line(f"no sessions of {printable(here)}{more}")
    return 0


def show_session(prefix: str, as_json: bool) -> int:
    """The story of a session, every line of its journal verified. Damage ends the story and is said."""
    store = Store(default_root())
    session_id = store.find(prefix)
    directory = store.directory(session_id)
    screen = Screen()
    if not as_json:
        human = Human(screen)
    began = 0.0
    for event in read_journal(directory):
        if as_json:
            sys.stdout.write(ev.encode_event(event).decode() + "\n")
            continue
        if isinstance(event, ev.SessionCreated):
            screen.line(screen.style(f"session {session_id} · {printable(event.workspace) or 'no workspace'}", "bold"))
        elif isinstance(event, ev.SessionOpened) and event.epoch > 1:
            screen.line(screen.style(f"{_clock(event)}  opened again (process {event.pid})", "yellow"))
        elif isinstance(event, ev.RunStarted):
            began = event.time
            mode = printable(str(event.setup.get("mode", "")))
            screen.line(
                screen.style(f"{_clock(event)}  {printable(event.model)}{' · mode ' + mode if mode else ''}", "dim")
            )
        elif isinstance(event, ev.ApprovalRequested):
            for question in event.questions:
                screen.line(screen.style(f"  asked: may {printable(question.name)} run?", "yellow"))
        elif isinstance(event, ev.RunFinished):
            closing(event, max(event.elapsed, event.time - began), session_id, str(directory), screen)
            screen.line()
        else:
            human.show(event)
    return 0


def _clock(event: ev.Event) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
