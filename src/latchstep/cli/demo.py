"""`latchstep demo`: the real loop, tools, journal and checks on a small broken project; only the model is scripted.

With `--crash` the process that runs it kills itself with SIGKILL while the tests run, and a second one resumes.
"""

from __future__ import annotations

import difflib
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from latchstep.core import event as ev
from latchstep.core.printable import printable
from latchstep.core.state import fold
from latchstep.journal.base import new_session_id
from latchstep.journal.reader import read_journal
from latchstep.journal.store import Store, default_root
from latchstep.session.blocking import run_blocking

from .demo_script import TEST, demo_model
from .human import summary
from .running import PROGRAM, Setup, Watch, default_path, drive
from .screen import Screen

TASK = "The tests of this shop fail. Find out why, and repair it."
PROJECT = Path(__file__).parent / "demo_project"
SETUP = Setup(model="scripted:demo", mode="edits", allow=(TEST,), checks=(TEST,))


def run_demo(crash: bool) -> int:
    """Exit status of the run. Leaves the repaired project in a temporary folder, and its session in the store."""
    screen = Screen()
    root = Path(tempfile.mkdtemp(prefix="latchstep-demo-")).resolve() / "shop"
    shutil.copytree(PROJECT, root, ignore=shutil.ignore_patterns("__pycache__"))
    run_blocking(_make_repository(root, screen))
    screen.line(screen.style(f"A small project with failing tests: {root}", "bold"))
    screen.line(f"Allowed: edits in that folder, and the command `{TEST}`. The model is a script; all else is real.")
    screen.line()
    session_id = new_session_id(time.time())
    if crash:
        _first_life(session_id, root, screen)
        status = _second_life(session_id, root, screen)
    else:
        status = _life(session_id, root, screen, TASK)
    _afterwards(session_id, root, screen)
    return status


def _life(session_id: str, root: Path, screen: Screen, task: str | None, watch: Watch | None = None) -> int:
    store = Store(default_root())
    if task is None:
        journal = store.open(session_id)
    else:
        journal = store.create(session_id, time=time.time(), workspace=str(root), program=PROGRAM)
    return drive(
        journal,
        fold(journal.live()),
        demo_model(),
        root,
        SETUP,
        task,
        as_json=False,
        screen=screen,
        path=default_path(),
        watch=watch,
    )


def _first_life(session_id: str, root: Path, screen: Screen) -> None:
    """A process of its own that kills itself the moment the test command shows life."""
    pid = os.fork()  # nothing else runs in this process yet: no thread, no event loop
    if pid == 0:
        try:
            _life(session_id, root, screen, TASK, _die_when_the_tests_talk)
        finally:
            os._exit(1)  # it should never get here
    _, status = os.waitpid(pid, 0)
    died = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "nobody"
    screen.line()
    screen.line(
        screen.style(f"Process {pid} was killed by {died} while the tests ran. No handler, no goodbye.", "bold", "red")
    )


def _die_when_the_tests_talk(event: ev.Event) -> None:
    if isinstance(event, ev.ToolOutput):
        os.kill(os.getpid(), signal.SIGKILL)


def _second_life(session_id: str, root: Path, screen: Screen) -> int:
    """What was left of the first process, then the resume."""
    from latchstep.tool.toolslock import wait_until_quiet

    lock = Store(default_root()).directory(session_id) / "tools.lock"
    quiet = run_blocking(wait_until_quiet(lock, 5.0))
    left = "Nothing of it is left running: its tests died with it." if quiet else "Something of it still runs!"
    screen.line(screen.style(left, "bold", "green" if quiet else "red"))
    screen.line(screen.style(f"Process {os.getpid()} opens the session and goes on.", "bold"))
    screen.line()
    return _life(session_id, root, screen, None)


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
        why = printable((ended.head + ended.tail).decode(errors="replace").strip())
        screen.line(screen.style(f"(no git repository could be made: {why})", "yellow"))


# -- what it shows at the end -----------------------------------------------------------------------------


def _afterwards(session_id: str, root: Path, screen: Screen) -> None:
    screen.line()
    screen.line(screen.style("What changed", "bold"))
    for line in _diff(root):
        colour = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
        screen.line("  " + screen.style(printable(line), colour))
    screen.line()
    screen.line(screen.style("What is on record", "bold") + screen.style("  (seq, seconds, event)", "dim"))
    for line in _timeline(list(read_journal(Store(default_root()).directory(session_id)))):
        screen.line("  " + line)
    screen.line()
    screen.line(screen.style("Next", "bold"))
    for command, what in (
        (f"latchstep show {session_id}", "the whole story again, from the journal"),
        ("latchstep demo --crash", "the same, killed in the middle and resumed"),
        ("latchstep doctor", "what works on this machine"),
        ('latchstep run "TASK" --base-url http://127.0.0.1:8080/v1', "your own task, with a local model"),
    ):
        screen.line(f"  {screen.style(command, 'cyan')}   {screen.style(what, 'dim')}")


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
                detail = f"{event.name}: {event.outcome.replace('_', ' ')}"
            case ev.CheckFinished():
                detail = f"{event.command}: {'passed' if event.passed else 'failed'}"
            case ev.RunFinished():
                detail = event.status
        if detail is None:
            skipped[event.type] += 1
            continue
        yield f"{event.seq:4d} {event.elapsed:6.2f}  {event.type:17s} {printable(detail)[:80]}"
    if skipped:
        yield "     and " + ", ".join(f"{count} x {name}" for name, count in skipped.items())
