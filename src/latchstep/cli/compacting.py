"""`latchstep compact`: a session's context is summarised now, between two runs, or wished for the unfinished one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from latchstep.core.event import ContextCompacted, ModelRequested
from latchstep.errors import SessionError
from latchstep.journal.base import restored
from latchstep.journal.store import Store
from latchstep.session.blocking import run_blocking
from latchstep.session.session import Session

from .driving import EXIT, PROGRAM, Signals, how_to_go_on
from .human import Human
from .preparing import prepare
from .running import folder, here, last_session, recorded, resolve, state_root, typed
from .screen import Screen


def compact_session(focus: str, session: str | None) -> int:
    """Compact the session named, or the last one of this folder. The model is the one on record."""
    store, screen = Store(state_root()), Screen()
    journal = store.open(last_session(store, session, here()))
    try:
        state = restored(journal)
        if state.run is None:
            raise SessionError("there is nothing to compact yet")
        model, setup = resolve(recorded(state))
        root = folder(Path(state.workspace) if state.workspace else here())
        kit, rules = prepare(model, root, setup, journal.directory, screen)
        human = Human(screen)

        async def main() -> int:
            driver = Session(journal, kit, rules, state=state, program=PROGRAM)
            ticking = asyncio.ensure_future(human.tick())
            with Signals(driver):
                try:
                    human.show(ModelRequested(request_id="", because="compact"))
                    return _say(screen, human, driver, await driver.compact(typed(focus, "FOCUS")))
                finally:
                    ticking.cancel()
                    await driver.close()

        return run_blocking(main())
    finally:
        journal.close()


def _say(screen: Screen, human: Human, session: Session, done: ContextCompacted | None) -> int:
    if done is not None:
        human.show(done)
        return 0
    if not session.unfinished:
        screen.line("cancelled; nothing was changed")
        return EXIT["cancelled"]
    screen.line(f"The run is unfinished; it is compacted when it goes on: {how_to_go_on(session.id)}")
    return 0
