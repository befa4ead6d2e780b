"""Drives one run of a session at the terminal: its events out, signals and answers in, an exit status at the end.

Whatever ends it from outside, a signal or an output that takes no more, is an ordinary cancel: the session stays.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from latchstep import __version__
from latchstep.core import event as ev
from latchstep.core.codec import encode_event
from latchstep.core.printable import one_line, printable
from latchstep.core.rules import Rules
from latchstep.core.state import State
from latchstep.journal.base import Journal
from latchstep.session.blocking import run_blocking
from latchstep.session.kit import Kit
from latchstep.session.session import Session

from .human import Human, closing, summary
from .screen import OutputLost, Screen, put

PROGRAM = f"latchstep {__version__}"

EXIT = {
    "completed": 0,
    "failed": 1,
    "max_steps": 3,
    "budget": 3,
    "stalled": 3,
    "unverified": 4,
    "cancelled": 130,
}

IN_DOUBT = {
    "report": "it is not run again, and the model is told so",
    "ask": "you are asked whether it shall run again",
    "fail": "it is not run again, and the run fails",
}

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

MAX_START_FILES = 20
"""Files that run by themselves later, named at the end of a run."""

AGAIN = 0.02
"""Seconds between two tries of a cancel that the run has not recorded yet."""

GO_ON = ' "go on"'

_C1 = re.compile(rb"\xc2[\x80-\x9f]|\x7f")
"""Controls that JSON need not escape, in UTF-8: a terminal may take U+009B for the beginning of a command."""

Show = Callable[[ev.Event], None]


def drive(
    journal: Journal,
    state: State,
    kit: Kit,
    rules: Rules,
    task: str | None,
    *,
    screen: Screen | None,
    watch: Show = lambda event: None,
) -> int:
    """Run in this session until it ends; the exit status. Without a screen, events go to stdout as JSON.

    `watch` sees each event after it was shown. Takes the journal, and closes it.
    """

    async def main() -> int:
        session = Session(journal, kit, rules, state=state, program=PROGRAM)
        with Signals(session):
            try:
                if screen is None:
                    return await _as_json(session, task, watch)
                return await _as_text(session, task, screen, watch)
            finally:
                await session.close()

    try:
        return run_blocking(main())
    finally:
        journal.close()


async def _as_text(session: Session, task: str | None, screen: Screen, watch: Show) -> int:
    human = Human(screen)
    began = time.monotonic()
    try:
        _opening(screen, session)
        if task is None and not session.unfinished:
            screen.line(screen.style("asking the last turn again", "yellow"))
        if any(item.status != "done" for item in session.state.plan):
            screen.line(screen.style("the plan so far:", "yellow"))
            human.plan(session.state.plan)
    except OutputLost as error:
        return _unheard(session, error, 1)
    if session.unfinished:
        human.recall(session.state)

    def show(event: ev.Event) -> None:
        human.show(event)
        watch(event)

    ticking = asyncio.ensure_future(human.tick())
    try:
        ending, lost = await _follow(session, task, show)
    finally:
        ticking.cancel()
        with suppress(asyncio.CancelledError, OutputLost):
            await ticking
    if lost is not None:
        return _unheard(session, lost, EXIT[ending.status])
    for row in _start_files(session):
        screen.line(screen.style(row, "yellow"))
    closing(ending, time.monotonic() - began, session.id, str(session.journal.directory or "memory"), screen)
    if ending.error is not None and ending.error.kind == "JOURNAL":
        screen.line(f"To go on, when it can be written: {how_to_go_on(session.id).removesuffix(GO_ON)}")
    elif ending.status == "failed" and session.state.answerable:
        screen.line(f"To go on: {how_to_go_on(session.id).removesuffix(GO_ON)}  # asks the last turn again")
    elif ending.status not in ("completed", "cancelled"):
        screen.line(f"To go on: {how_to_go_on(session.id)}")
    elif ending.status == "cancelled":
        screen.line(f"The session is kept. To go on: {how_to_go_on(session.id)}")
    return EXIT[ending.status]


async def _as_json(session: Session, task: str | None, watch: Show) -> int:
    def show(event: ev.Event) -> None:
        put_json(event)
        watch(event)

    try:
        for event in session.journal.read(-1 if session.journal.head <= 1 else session.journal.head - 1):
            show(event)
    except OutputLost as error:
        return _unheard(session, error, 1)
    ending, lost = await _follow(session, task, show)
    return EXIT[ending.status] if lost is None else _unheard(session, lost, EXIT[ending.status])


def _start_files(session: Session) -> list[str]:
    """What the run left behind that runs by itself later, in rows; none where nothing was changed."""
    from latchstep.tool.startfiles import StartFile, changed_start_files

    run, root = session.state.run, session.kit.workspace
    if run is None or not run.wrote or root is None or not root.is_dir():
        return []
    found, whole = changed_start_files(root, run.started.time)
    for extra in session.kit.setup.get("also_write", ()):
        more, all_of_it = changed_start_files(Path(extra), run.started.time)
        found += [StartFile(f"{extra}/{it.path}", it.why) for it in more]
        whole = whole and all_of_it
    rows = [f"  {one_line(it.path, 100)}: {it.why}" for it in found[:MAX_START_FILES]]
    if len(found) > MAX_START_FILES:
        rows.append(f"  … and {len(found) - MAX_START_FILES} more")
    if not whole:
        rows.append("  … the tree is too large to be looked through; there may be more")
    return ["Changed during this run, and run by itself later:", *rows] if rows else []


def put_json(event: ev.Event) -> None:
    """One event on one line of stdout, in UTF-8 whatever the locale, without controls. Raises OutputLost."""
    line = _C1.sub(lambda found: b"\\u00%02x" % found[0][-1], encode_event(event)) + b"\n"
    try:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    except (OSError, ValueError) as error:
        raise OutputLost(getattr(error, "strerror", None) or str(error)) from error


async def _follow(session: Session, task: str | None, show: Show) -> tuple[Any, OutputLost | None]:
    """Show each event of the run; how it ended, and what the output said if it was lost before that."""
    async with session.stream(task) as run:
        try:
            async for event in run:
                show(event)
        except OutputLost as error:
            session.cancel(f"the output was lost: {error}", by="terminal")
            return await run.result(), error
        return await run.result(), None


def _unheard(session: Session, lost: OutputLost, status: int) -> int:
    """The output takes no more: what is left to say goes to stderr."""
    with suppress(OutputLost):
        put(
            sys.stderr,
            f"Error: the output could not be written ({lost}); session {session.id} is kept. "
            f"To go on: {how_to_go_on(session.id)}\n",
        )
    return status or 1


def how_to_go_on(session_id: str) -> str:
    return f"latchstep resume --session {session_id}{GO_ON}"


def _opening(screen: Screen, session: Session) -> None:
    kit, mode = session.kit, str(session.kit.setup.get("mode", "ask"))
    where, held = one_line(str(kit.workspace), 4096), holds(kit.setup)
    screen.line(screen.style(f"{PROGRAM} · {printable(kit.model.name)} · mode {mode} · {held} · {where}", "dim"))
    if mode == "unconfined":
        screen.line(
            screen.style("unconfined: every command runs unasked, with all your rights and no sandbox.", "bold", "red")
        )
    if (recovered := getattr(session.journal, "recovered", None)) is not None:
        screen.line(screen.style(printable(f"the process ended while it was writing: {recovered}"), "yellow"))
    if session.unfinished:
        _unfinished(screen, session)


def _unfinished(screen: Screen, session: Session) -> None:
    """Which run goes on, and what becomes of what was under way when its process ended."""
    state, run = session.state, session.state.run
    assert run is not None
    said = [*state.transcript, *(queued.message for queued in state.queue)]
    task = next((message.text for message in reversed(said) if message.id.startswith("prompt-")), "")
    steps = f"{run.steps} step{'' if run.steps == 1 else 's'} so far"
    screen.line(screen.style(f"going on with the unfinished run ({steps}): {one_line(task, 80)}", "yellow"))
    if run.cancelled:
        screen.line(screen.style("  it was being stopped when the process ended, and is stopped now", "yellow"))
    elif state.request is not None:
        screen.line(screen.style("  the model had not answered when the process ended: it is asked again", "yellow"))
    elif state.answered is not None:  # the last process may not have shown it
        screen.piece(state.answered.text)
        screen.end()
    for entry in state.turn:
        if entry.status == "lost":
            again = "it is safe to repeat, and runs again" if entry.replay == "safe" else _in_doubt(session, entry)
            call = f"{one_line(entry.call.name, 40)} {one_line(summary(entry.call.arguments), 80)}".rstrip()
            screen.line(screen.style(f"  {call}: was running when the process ended; {again}", "yellow"))


def holds(setup: dict[str, Any]) -> str:
    """What holds the commands of a run, in words."""
    match level := str(setup.get("level", "")):
        case "":
            return "no commands"
        case "none":
            return "no sandbox"
        case _:
            net = str(setup.get("net", "none"))
            words = {"none": "no network", "host": "network of this machine"}
            return f"sandbox {level}, {words.get(net) or one_line(net.replace('allow:', 'network of '), 60)}"


def _in_doubt(session: Session, entry: Any) -> str:
    if session.rules.traits(entry.call.name).settles:
        return "whether it took effect is looked up"
    return "whether it took effect is unknown: " + IN_DOUBT[session.rules.on_doubt]


class Signals:
    """SIGINT, SIGTERM and SIGHUP cancel the run and keep the session; a second SIGINT leaves at once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._interrupts = 0
        self._pending: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._caught, number)

    def __exit__(self, *_: object) -> None:
        if self._pending is not None:
            self._pending.cancel()
        for number in SIGNALS:
            self._loop.remove_signal_handler(number)

    def _caught(self, number: signal.Signals) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            with suppress(OSError):
                if select.select((), (2,), (), 0)[1]:  # a terminal that takes nothing shall not hold it up
                    os.write(2, f"\nThe session is kept. To go on: {how_to_go_on(self._session.id)}\n".encode())
            os._exit(130)  # the journal is safe as it is, and the spawner ends with our pipe
        self._cancel(signal.Signals(number).name)

    def _cancel(self, name: str) -> None:
        """Cancel the run, and again until that is on record: its beginning may not be yet."""
        self._session.cancel(name, by="signal")
        run = self._session.state.run
        if run is None or not run.cancelled:
            self._pending = self._loop.call_later(AGAIN, self._cancel, name)
