"""`latchstep sessions` and `latchstep show`: what is on record, read without taking the writer's place.

What is shown was verified. Damage ends the story where it lies, is said, and is the exit status.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from latchstep.core import event as ev
from latchstep.core.printable import one_line, printable
from latchstep.errors import JournalError
from latchstep.journal.file import is_written
from latchstep.journal.reader import read_journal
from latchstep.journal.store import Store

from .driving import GO_ON, how_to_go_on, put_json
from .human import Human, closing, summary
from .running import here, last_session, state_root
from .screen import Screen

DAMAGED = 5
"""The exit status of whoever met damage."""

POLL = 0.2
"""Seconds between two looks at a journal that somebody writes."""

COLOURS = {"completed": "green", "unfinished": "yellow", "damaged": "red"}


def list_sessions(everywhere: bool) -> int:
    """One line a session: those of this folder, and damaged ones that no longer say whose they are."""
    screen = Screen()
    store = Store(state_root())
    workspace = "" if everywhere else os.path.realpath(here())
    entries = store.list()
    mine = [entry for entry in entries if everywhere or entry.workspace == workspace or not entry.workspace]
    for entry in mine:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last)) if entry.last else " " * 16
        status = "damaged" if entry.damaged and entry.status != "newer" else entry.status
        shown = screen.style(status.ljust(11), COLOURS.get(status, "dim"))
        where = f"  {one_line(entry.workspace, 4096)}" if everywhere else ""
        what = one_line(entry.damaged or entry.prompt, 200 if entry.damaged else 60)
        screen.line(f"{one_line(entry.id, 100)}  {when}  {shown}{where}  {what}".rstrip())
    if not mine:
        others = f"; {len(entries)} elsewhere (latchstep sessions --all)" if entries else ""
        screen.line(f"no sessions of {one_line(workspace, 4096) or 'any folder'}{others}")
    return DAMAGED if any(entry.damaged for entry in mine) else 0


def show_session(named: str | None, as_json: bool, follow: bool = False, after: int = -1) -> int:
    """The story of a session, else of this folder's last, after a `seq`; every line of its journal and blob verified.

    follow: goes on with what comes, until the run is over or whoever wrote it is gone.
    """
    store = Store(state_root())
    session_id = store.find(named) if named is not None else last_session(store, None, here())
    directory = store.directory(session_id)
    screen = None if as_json else Screen()
    story = Story(screen, session_id, str(directory)) if screen is not None else None
    try:
        for event in _read(directory, follow, after if story is None else -1):
            if story is None:
                put_json(event)
            elif event.seq > after:
                story.tell(event)
            else:
                story.pass_over(event)
    except JournalError:
        if screen is not None and story is not None and story.began:
            screen.line(screen.style("here the story ends: what follows cannot be read", "red"))
        raise
    if story is not None:
        story.end()
    return _verified(store, session_id, screen)


def _read(directory: Path, follow: bool, after: int) -> Iterator[ev.Event]:
    over = False
    while True:
        alone = not follow or not is_written(directory)  # asked before the last look, which then misses nothing
        for event in read_journal(directory, after):
            after, over = event.seq, isinstance(event, ev.RunFinished)
            yield event
        if over or alone:
            return
        time.sleep(POLL)


def _verified(store: Store, session_id: str, screen: Screen | None) -> int:
    """What only a verification of everything finds: a torn end, which is no damage, and blobs, which are."""
    report = store.verify(session_id)
    if report.torn and screen is not None:
        end = f"{printable(report.torn)}, and nothing proves that it was ever acknowledged"
        screen.line(screen.style(f"(the record ends in what does not verify, and is not told: {end})", "yellow"))
    if report.blobs:
        raise JournalError(f"{len(report.blobs)} of its blobs do not verify: {', '.join(report.blobs)}")
    return 0 if report.sound else DAMAGED


class Story:
    """Tells stored events in their order, with what live events need not say."""

    def __init__(self, screen: Screen, session_id: str, where: str) -> None:
        self.screen, self.session_id, self.where = screen, session_id, where
        self.human = Human(screen)
        self.began = self.running = False
        self.calls: dict[str, str] = {}

    def pass_over(self, event: ev.Event) -> None:
        """Not told, but what is told may be about it."""
        self.running = isinstance(event, ev.RunStarted) or (self.running and not isinstance(event, ev.RunFinished))
        if isinstance(event, ev.MessageCompleted):
            self._remember(event)
        elif isinstance(event, ev.RunStarted):
            self.human.show(event)

    def _remember(self, event: ev.MessageCompleted) -> None:
        self.calls |= {call.id: summary(call.arguments) for call in event.message.calls}
        self.human.remember(event.message)

    def tell(self, event: ev.Event) -> None:
        screen, self.began = self.screen, True
        match event:
            case ev.SessionCreated():
                where = one_line(event.workspace, 4096) or "no workspace"
                screen.line(screen.style(f"session {self.session_id} · {where}", "bold"))
                if event.parent:
                    origin = f"a copy of {one_line(event.parent, 100)} up to line {event.parent_seq}"
                    screen.line(screen.style(origin, "dim"))
            case ev.SessionOpened() if event.epoch > 1:
                screen.line(screen.style(f"{_clock(event)}  opened again (process {event.pid})", "yellow"))
            case ev.RunStarted():
                self.running = True
                self.human.show(event)
                mode = printable(str(event.setup.get("mode", "ask"))) if event.setup else ""
                said = f"{_clock(event)}  {printable(event.model)}{' · mode ' + mode if mode else ''}"
                screen.line(screen.style(said, "dim"))
            case ev.MessageCompleted():
                self._remember(event)
                self.human.show(event)
            case ev.CallChanged():
                self.calls[event.call_id] = summary(event.arguments)
                self.human.show(event)
            case ev.ApprovalRequested():
                self.human.questions(event)
                for question in event.questions:
                    call = f"{one_line(question.name, 40)} {one_line(self.calls.get(question.call_id, ''), 110)}"
                    screen.line(screen.style(f"  asked: {call.rstrip()}", "yellow"))
            case ev.RunFinished():
                self.running = False
                closing(event, event.elapsed, self.session_id, self.where, screen)
                screen.line()
            case ev.Unknown():
                screen.line(screen.style(f"  ({one_line(event.name, 60)}: an event this version does not know)", "dim"))
            case _:
                self.human.show(event)

    def end(self) -> None:
        if self.running:
            how = how_to_go_on(self.session_id).removesuffix(GO_ON)
            self.screen.line(self.screen.style(f"no ending is on record yet. To go on: {how}", "yellow"))


def _clock(event: ev.Event) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
