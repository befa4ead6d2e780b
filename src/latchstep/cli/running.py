"""`latchstep run` and `latchstep resume`: build a session from options and record, drive it, show it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from latchstep import __version__
from latchstep.core import event as ev
from latchstep.core.printable import printable
from latchstep.core.rules import Limits
from latchstep.core.state import State, fold
from latchstep.errors import DefinitionError, ModelError, SessionError
from latchstep.journal.base import Journal, new_session_id
from latchstep.journal.store import Store, default_root
from latchstep.model.base import Model
from latchstep.policy.preset import preset
from latchstep.session.blocking import run_blocking
from latchstep.session.build import build_rules
from latchstep.session.coding import coding_kit
from latchstep.session.session import Session

from .asking import ask
from .human import Human, closing
from .main import EXIT
from .screen import Screen

PROGRAM = f"latchstep {__version__}"


Watch = Callable[[ev.Event], None]


class Setup(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is needed to build the same agent again; recorded in `run.started`."""

    model: str = ""
    base_url: str = ""
    mode: str = "ask"
    allow: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    max_steps: int = 0


def run_task(task: str, *, cwd: Path | None, as_json: bool, session: str | None, **options: Any) -> int:
    """A new session in a folder (or a given one), and a run in it."""
    if session is not None:
        return resume_session(task, cwd=cwd, as_json=as_json, session=session, anyway=False, **options)
    setup = _setup(Setup(), **options)
    model = resolve(setup)
    root = _folder(cwd or Path.cwd())
    store = Store(default_root())
    now = time.time()
    journal = store.create(new_session_id(now), time=now, workspace=str(root), program=PROGRAM)
    return drive(journal, fold(journal.live()), model, root, setup, task, as_json=as_json)


def resume_session(
    task: str | None, *, cwd: Path | None, as_json: bool, session: str | None, anyway: bool, **options: Any
) -> int:
    """Go on in a session: its unfinished run, or a new one for `task`."""
    store = Store(default_root())
    here = cwd or Path.cwd()
    session_id = store.find(session) if session is not None else store.last(str(here))
    if session_id is None:
        raise SessionError(f"there is no session of {here} yet; begin one with: latchstep run TASK")
    journal = store.open(session_id)
    try:
        state = fold(journal.live())
        started = state.run.started if state.run is not None else None
        recorded = msgspec.convert(started.setup, Setup) if started is not None else Setup()
        if task is None and (state.run is None or not state.run.active):
            raise SessionError(f"session {session_id} has no unfinished run; give a task: latchstep resume TASK")
        setup = _setup(recorded, **options)
        model = resolve(setup)
        root = _folder(cwd or Path(state.workspace))
        _same_head(root, state, anyway)
    except BaseException:
        journal.close()
        raise
    return drive(journal, state, model, root, setup, task, as_json=as_json)


def _setup(base: Setup, **options: Any) -> Setup:
    """The recorded set-up, with what was typed now on top."""
    given = {
        "model": options["model"],
        "base_url": options["base_url"],
        "mode": options["mode"],
        "allow": options["allow"],
        "checks": options["check"],
        "max_steps": options["max_steps"],
    }
    return msgspec.structs.replace(base, **{name: value for name, value in given.items() if value})


def resolve(setup: Setup) -> Model:
    """The model that was named. Raises DefinitionError that says what to type."""
    from latchstep.model.catalog import model

    name = setup.model or os.environ.get("LATCHSTEP_MODEL", "")
    if not name and not setup.base_url:
        raise DefinitionError(
            "no model was named: give --model provider:name (or set LATCHSTEP_MODEL), or --base-url of a local server"
        )
    if not name or ":" not in name:
        name = f"openai-chat:{name or 'default'}"
    try:
        return model(name, base_url=setup.base_url or None)
    except ModelError as error:  # a key is missing: said before anything starts
        raise DefinitionError(error.message) from error


def _folder(path: Path) -> Path:
    if not path.exists():
        raise DefinitionError(f"the workspace {path} does not exist; give another with --cwd DIR")
    if not path.is_dir():
        raise DefinitionError(f"the workspace {path} is not a folder; give one with --cwd DIR")
    return path.resolve()


def _same_head(root: Path, state: State, anyway: bool) -> None:
    """An unfinished run goes on only where it began: at the commit that was pinned for it."""
    from latchstep.tool.head import head_of

    if state.run is None or not state.run.active or anyway:
        return
    then, now = state.run.started.head, head_of(root)
    if then != now:
        raise SessionError(
            f"HEAD of {root} was {then[:12] or 'none'} when this run began and is {now[:12] or 'none'} now: "
            "its files may have changed under it. Check that commit out again, or resume with --anyway"
        )


def drive(
    journal: Journal,
    state: State,
    model: Model,
    root: Path,
    setup: Setup,
    task: str | None,
    *,
    as_json: bool,
    screen: Screen | None = None,
    path: str | None = None,
    watch: Watch | None = None,
) -> int:
    """Run in this session until it ends; the exit status. `watch` sees each event after it was shown."""
    from latchstep.tool.head import head_of

    asks = not as_json and sys.stdin.isatty() and sys.stdout.isatty()
    policy = preset(setup.mode, setup.allow, asks=asks)  # type: ignore[arg-type]
    screen = screen or Screen()
    try:
        kit = coding_kit(
            model,
            root,
            directory=journal.directory,
            approve=(lambda question: ask(screen, question)) if asks else None,
            setup=msgspec.to_builtins(setup),
            path=path,
        )
    except BaseException:
        journal.close()
        raise
    kit.head = head_of(root)
    limits = Limits(max_steps=setup.max_steps) if setup.max_steps else Limits()
    rules = build_rules(kit, limits=limits, policy=policy, checks=setup.checks)

    async def main() -> int:
        session = Session(journal, kit, rules, state=state, program=PROGRAM)
        try:
            if as_json:
                return await _stream_json(session, task)
            _opening(screen, session, setup, root, journal)
            return await _stream_text(session, task, screen, watch)
        finally:
            await session.close()

    return run_blocking(main())


def _opening(screen: Screen, session: Session, setup: Setup, root: Path, journal: Journal) -> None:
    screen.line(screen.style(f"{PROGRAM} · {printable(session.kit.model.name)} · mode {setup.mode} · {root}", "dim"))
    if setup.mode == "unconfined":
        screen.line(
            screen.style("unconfined: every command runs unasked, with all your rights and no sandbox.", "bold", "red")
        )
    if (recovered := getattr(journal, "recovered", None)) is not None:
        screen.line(screen.style(printable(str(recovered)), "yellow"))
    if session.unfinished:
        lost = [entry for entry in session.state.turn if entry.status == "lost"]
        screen.line(screen.style("going on with the unfinished run", "yellow"))
        for entry in lost:
            screen.line(screen.style(f"  {printable(entry.call.name)} was running when the process died", "yellow"))


async def _stream_text(session: Session, task: str | None, screen: Screen, watch: Watch | None) -> int:
    human = Human(screen)
    if session.unfinished:
        human.recall(session.state)
    began = time.monotonic()
    ending: ev.RunFinished | None = None
    async with session.stream(task) as run:
        with signals(session):
            ticking = asyncio.ensure_future(human.tick())
            try:
                async for event in run:
                    human.show(event)
                    if watch is not None:
                        watch(event)
                    if isinstance(event, ev.RunFinished):
                        ending = event
            finally:
                ticking.cancel()
                with suppress(asyncio.CancelledError):
                    await ticking
    assert ending is not None
    directory = session.journal.directory
    closing(ending, time.monotonic() - began, session.id, str(directory or "memory"), screen)
    return EXIT[ending.status]


async def _stream_json(session: Session, task: str | None) -> int:
    def put(event: ev.Event) -> None:
        sys.stdout.write(ev.encode_event(event).decode() + "\n")
        sys.stdout.flush()

    status = "failed"
    async with session.stream(task) as run:
        with signals(session):
            for event in session.journal.read(-1 if session.journal.head <= 1 else session.journal.head - 1):
                put(event)
            async for event in run:
                put(event)
                if isinstance(event, ev.RunFinished):
                    status = event.status
    return EXIT[status]


class signals:
    """SIGINT, SIGTERM and SIGHUP cancel the run and keep the session; a second SIGINT leaves at once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._caught, number)

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._loop.remove_signal_handler(number)

    def _caught(self, number: signal.Signals) -> None:
        if self._session.interrupted and number == signal.SIGINT:
            os._exit(130)  # the journal is safe as it is, and the spawner ends with our pipe
        self._session.cancel(signal.Signals(number).name, by="signal")


def default_path() -> str:
    """PATH with the folder of this interpreter first, so that `python3` in a command is the one running us."""
    first = os.path.dirname(sys.executable)
    return os.pathsep.join([first, os.environ.get("PATH", os.defpath)])
