"""`latchstep demo`: the real loop, tools, journal and checks on a small broken project; only the model is scripted.

With `--crash` the process that runs it kills itself with SIGKILL while the tests run, and a second one resumes.
"""

from __future__ import annotations

import difflib
import os
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from latchstep.core import event as ev
from latchstep.core.printable import one_line, printable
from latchstep.errors import LatchstepError
from latchstep.journal.base import new_session_id, restored
from latchstep.journal.reader import TOOLS_LOCK, read_journal
from latchstep.journal.store import Store
from latchstep.session.blocking import run_blocking

from .demo_script import demo_model
from .driving import PROGRAM, Show, drive
from .human import summary
from .preparing import prepare
from .running import Setup, state_root
from .screen import Screen

TASK = "The tests of this shop fail. Find out why, and repair it."
PROJECT = Path(__file__).parent / "demo_project"

ROOM = 256 * 1024
"""Bytes that must fit where sessions are kept; the demo's own takes less than a fifth of it."""


class Stage(msgspec.Struct, frozen=True):
    """Where one showing of the demo happens."""

    root: Path
    store: Store
    session_id: str
    test: str
    screen: Screen


def run_demo(crash: bool) -> int:
    """Exit status of the run. Leaves the repaired project in a temporary folder, and its session in the store."""
    screen = Screen()
    folder = Path(tempfile.mkdtemp(prefix="latchstep-demo-")).resolve()
    root = folder / "shop"
    _copy(PROJECT, root)
    run_blocking(_make_repository(root, screen))
    stage = Stage(root, _usable_store(folder, screen), new_session_id(time.time()), test_command(), screen)
    screen.line(screen.style(f"A small project with failing tests: {printable(str(root))}", "bold"))
    screen.line(f"Allowed: edits in that folder, and the command `{stage.test}`.")
    screen.line("The model is a script that answers what it is sent; all else is real.")
    screen.line()
    if crash:
        _first_life(stage)
        status = _second_life(stage)
    else:
        status = _life(stage, TASK)
    _afterwards(stage)
    return status


def test_command() -> str:
    """What runs the project's tests: the interpreter that runs us, by a name that its own folder knows it by."""
    python = "python3" if os.access(Path(sys.executable).parent / "python3", os.X_OK) else shlex.quote(sys.executable)
    return f"{python} -m unittest -q"


def _path() -> str:
    """PATH with the folder of this interpreter first, so that `python3` in a command is the one running us."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _copy(source: Path, target: Path) -> None:
    """The files, and not their modes: an installation may be read-only, and the copy is there to be changed."""
    for path in sorted(source.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            to = target / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())


def _usable_store(folder: Path, screen: Screen) -> Store:
    """The user's own, or where that cannot be written, one beside the project."""
    try:
        store = Store(state_root())
        store.sessions.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=store.sessions, buffering=0) as file:
            file.write(bytes(ROOM))
            return store
    except (OSError, LatchstepError) as error:
        own = Store(folder / "state")
        why = printable(str(getattr(error, "strerror", None) or error))
        screen.line(screen.style(f"(sessions cannot be kept where they should be: {why}; this one goes to", "yellow"))
        screen.line(screen.style(f" {printable(str(own.root))})", "yellow"))
        return own


def _life(stage: Stage, task: str | None, watch: Show = lambda event: None) -> int:
    setup = Setup(model="scripted:demo", mode="edits", allow=(stage.test,), checks=(stage.test,))
    directory = stage.store.sessions / stage.session_id
    kit, rules = prepare(demo_model(stage.test), stage.root, setup, directory, stage.screen, path=_path())
    if task is None:
        journal = stage.store.open(stage.session_id)
    else:
        journal = stage.store.create(stage.session_id, time=time.time(), workspace=str(stage.root), program=PROGRAM)
    return drive(journal, restored(journal), kit, rules, task, screen=stage.screen, watch=watch)


def _first_life(stage: Stage) -> None:
    """A process of its own that kills itself the moment the test command shows life."""
    pid = os.fork()  # nothing else runs in this process yet: no thread, no event loop
    if pid == 0:
        try:
            _life(stage, TASK, _die_when_the_tests_talk)
        except BaseException as error:
            print(f"{type(error).__name__}: {printable(str(error))}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)  # it should never get here
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        raise LatchstepError(f"process {pid}, which was to die while the tests ran, ended before that")
    screen = stage.screen
    screen.line()
    screen.line(
        screen.style(f"Process {pid} was killed by SIGKILL while the tests ran. No handler, no goodbye.", "bold", "red")
    )


def _die_when_the_tests_talk(event: ev.Event) -> None:
    if isinstance(event, ev.ToolOutput):
        os.kill(os.getpid(), signal.SIGKILL)


def _second_life(stage: Stage) -> int:
    """What was left of the first process, then the resume."""
    from latchstep.tool.toolslock import wait_until_quiet

    screen = stage.screen
    quiet = run_blocking(wait_until_quiet(stage.store.directory(stage.session_id) / TOOLS_LOCK, 5.0))
    left = "Nothing of it is left running: its tests died with it." if quiet else "Something of it still runs!"
    screen.line(screen.style(left, "bold", "green" if quiet else "red"))
    screen.line(screen.style(f"Process {os.getpid()} opens the session and goes on.", "bold"))
    screen.line()
    return _life(stage, None)


async def _make_repository(root: Path, screen: Screen) -> None:
    from latchstep.tool.spawner import Spawner

    spawner = Spawner()
    identity = "-c user.name=demo -c user.email=demo@localhost -c commit.gpgsign=false"
    try:
        ended = await spawner.run(
            f"git init -q . && git add -A && git {identity} commit -q -m 'A small shop'",
            cwd=root,
            env={"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
            timeout=20,
        )
    finally:
        await spawner.close()
    if ended.exit_status != 0:
        why = one_line((ended.head + ended.tail).decode(errors="replace"), 200)
        screen.line(screen.style(f"(it is not made a git repository: {why})", "yellow"))


# -- what it shows at the end -----------------------------------------------------------------------------


def _afterwards(stage: Stage) -> None:
    screen = stage.screen
    screen.line()
    screen.line(screen.style("What changed", "bold"))
    for line in _diff(stage.root):
        colour = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
        screen.line(("  " + screen.style(printable(line.rstrip()), colour)).rstrip())
    screen.line()
    screen.line(screen.style("What is on record", "bold") + screen.style("  (seq, seconds, event)", "dim"))
    for line in _timeline(list(read_journal(stage.store.directory(stage.session_id)))):
        screen.line("  " + line)
    screen.line()
    screen.line(screen.style("Next", "bold"))
    home = "" if stage.store.root == _own_root() else f"LATCHSTEP_HOME={shlex.quote(str(stage.store.root))} "
    for command, what in (
        (f"{home}{_ourselves()} show {stage.session_id}", "the whole story again, from the journal"),
        (f"{_ourselves()} demo --crash", "the same, killed in the middle and resumed"),
        (f"{_ourselves()} doctor", "what works on this machine"),
        (f'{_ourselves()} run "TASK" --base-url http://127.0.0.1:8080/v1', "your own task, with a local model"),
    ):
        screen.line(f"  {screen.style(printable(command), 'cyan')}   {screen.style(what, 'dim')}")


def _own_root() -> Path | None:
    try:
        return state_root()
    except LatchstepError:
        return None


def _ourselves() -> str:
    """How we were called: by name, or as a module of an interpreter."""
    as_module = sys.orig_argv[1:3] == ["-m", "latchstep"]
    return f"{shlex.quote(sys.executable)} -m latchstep" if as_module else "latchstep"


def _diff(root: Path) -> Iterator[str]:
    for old in sorted(PROJECT.rglob("*.py")):
        name = old.relative_to(PROJECT)
        before, after = old.read_text(encoding="utf-8"), (root / name).read_text(encoding="utf-8")
        yield from difflib.unified_diff(
            before.splitlines(), after.splitlines(), f"a/{name}", f"b/{name}", lineterm="", n=1
        )


def _timeline(events: list[ev.Event]) -> Iterator[str]:
    """The stored events in short; those that say little are only counted."""
    calls = {}
    skipped: Counter[str] = Counter()
    for event in events:
        detail = None
        match event:
            case ev.SessionOpened():
                detail = f"by process {event.pid}"
            case ev.MessageAccepted():
                detail = event.source
            case ev.MessageCompleted():
                calls.update({call.id: summary(call.arguments) for call in event.message.calls})
                detail = ", ".join(call.name for call in event.message.calls) or "an answer"
            case ev.ToolStarted():
                detail = f"{event.name} {calls.get(event.call_id, '')}"
            case ev.ToolFinished():
                detail = f"{event.name}: {event.outcome.replace('_', ' ')}{_exit_of(event)}"
            case ev.CheckFinished():
                detail = f"{event.command}: {'passed' if event.passed else 'failed'}"
            case ev.RunFinished():
                detail = event.status
        if detail is None:
            skipped[event.type] += 1
            continue
        yield f"{event.seq:4d} {event.elapsed:6.2f}  {event.type:17s} {one_line(detail, 62)}"
    if skipped:
        yield "     and " + ", ".join(f"{count} x {name}" for name, count in skipped.items())


def _exit_of(event: ev.ToolFinished) -> str:
    status = event.details.get("exit") if isinstance(event.details, dict) else None
    return f", exit status {status}" if status is not None else ""
