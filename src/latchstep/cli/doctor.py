"""`latchstep doctor`: what works on this machine, and what does not protect you yet. Every line was found by trying."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from latchstep import __version__
from latchstep.core.event import MessageAccepted
from latchstep.core.message import user
from latchstep.core.printable import one_line
from latchstep.errors import JournalLocked, LatchstepError, ToolError
from latchstep.journal.store import Store
from latchstep.session.blocking import run_blocking

from .asking import is_terminal
from .running import state_root
from .screen import Screen

Finding = tuple[str, str]
"""(`ok`, `warn` or `bad`, what was found)."""

LITTLE_SPACE = 1.0
"""Gigabytes free below which the disk is worth a warning."""


def examine() -> int:
    """Print each finding; 1 if something without which nothing works is broken."""
    screen = Screen()
    worst = 0
    for title, probe in PROBES:
        try:
            level, text = probe()
        except LatchstepError as error:
            level, text = "bad", str(error)
        except OSError as error:
            level, text = "bad", ": ".join(str(part) for part in (error.filename, error.strerror) if part)
        except Exception as error:
            level, text = "bad", f"{type(error).__name__}: {error}"
        mark, colour = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "bad": ("✗", "red")}[level]
        screen.line(f"{screen.style(mark, colour)} {title.ljust(10)} {one_line(text, 800)}")
        worst = max(worst, level == "bad")
    return worst


def _program() -> Finding:
    """The libraries a run needs can be imported."""
    for name in ("msgspec", "httpx2", "click"):
        import_module(name)
    return (
        "ok",
        f"latchstep {__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}",
    )


def _state() -> Finding:
    """A session is made where sessions lie, written, made durable, found locked, and read back."""
    root = state_root()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".doctor-") as folder:
        store = Store(Path(folder))
        journal = store.create("trial", time=time.time())
        try:
            journal.append([MessageAccepted(message_id="trial", source="prompt", message=user("trial"))])
            began = time.perf_counter()
            run_blocking(journal.sync())
            took = (time.perf_counter() - began) * 1000
            try:
                store.open("trial").close()
                return "bad", f"a second process could write the same session in {root}: its files cannot be locked"
            except JournalLocked:
                pass
        finally:
            journal.close()
        if not (report := store.verify("trial")).sound or report.lines != 2:
            return "bad", f"what is written in {root} does not come back: {report.damaged or report.torn}"
    disk = os.statvfs(root)
    free = disk.f_bavail * disk.f_frsize / 1e9
    return (
        "warn" if free < LITTLE_SPACE else "ok",
        f"sessions can be written, locked and read back in {root} ({free:.1f} GB free, a barrier takes {took:.1f} ms)",
    )


def _run(command: str, cwd: str | Path) -> str:
    """What a command says in a spawner of its own, which then ends with all it started."""
    from latchstep.tool.spawner import Spawner

    async def trial() -> str:
        spawner = Spawner()
        try:
            ended = await spawner.run(command, cwd=cwd, timeout=10)
        finally:
            await spawner.close()
        return (ended.head + ended.tail).decode(errors="replace").strip()

    return run_blocking(trial())


def _shell() -> Finding:
    """A command runs; a process that it leaves behind is alive after it, and dead when the spawner has ended."""
    from latchstep.tool.spawner import Spawner, still_running

    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder) / "tools.lock"

        async def trial() -> tuple[str, bool]:
            spawner = Spawner(lock_path=lock)
            try:
                ended = await spawner.run("echo hello; (sleep 60 >/dev/null 2>&1 &)", cwd=folder, timeout=10)
                return (ended.head + ended.tail).decode(errors="replace").strip(), still_running(lock)
            finally:
                await spawner.close()

        said, left = run_blocking(trial())
        if said != "hello" or not left:
            return "bad", f"a command that says hello said {said[:100]!r}"
        if still_running(lock):
            return "bad", "a process that a command left behind could not be ended"
    return "ok", "commands run, and a process that one left behind was ended"


def _gate() -> Finding:
    """A line of shell is parsed into what it runs."""
    from latchstep.policy.line import Commands
    from latchstep.policy.shell import can_parse, parse

    if not can_parse():
        return "warn", "tree-sitter or tree-sitter-bash is not installed: every command is asked about, rules or not"
    parsed = parse("cat a | wc -l && (rm b)")
    names = [one.words[0].text for one in parsed.commands] if isinstance(parsed, Commands) else []
    if names != ["cat", "wc", "rm"]:
        return "warn", f"shell is not parsed rightly ({parsed}): every command is asked about"
    return "ok", "shell is parsed, and each command of a line is held against the rules"


def _git() -> Finding:
    said = _run("git --version", tempfile.gettempdir())
    return ("ok", said) if said.startswith("git version") else ("warn", f"git does not run here: {said}")


def _paths() -> Finding:
    """A file beneath a workspace is read, and a link that leads out of it is not followed."""
    from latchstep.tool import beneath
    from latchstep.tool.workspace import Workspace

    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / "inside"
        inside.mkdir()
        (inside / "file").write_bytes(b"x")
        (inside / "out").symlink_to(Path(folder))
        with Workspace(inside) as workspace:
            if workspace.read("file").data != b"x":
                return "bad", "a file in a workspace reads wrongly"
            try:
                workspace.scan("out")
                return "bad", "a link out of the workspace was followed"
            except ToolError:
                pass
    how = "openat2" if beneath.kernel_opener() is not None else "a walk of descriptors (openat2 does not work here)"
    return "ok", f"file tools read beneath the workspace and refuse a link out of it, by {how}"


def _sandbox() -> Finding:
    """Each level is run in a folder, and is given things to do that it must not let happen."""
    from latchstep.tool.probe import best
    from latchstep.tool.sandbox import NOT_COVERED, Level, Sandbox

    with tempfile.TemporaryDirectory() as folder:

        def make(level: Level) -> Sandbox:
            return Sandbox(level, os.path.realpath(folder), hidden=(str(state_root()),))

        found, problems = run_blocking(best(make))
    why = "".join(f". Not {problem}" for problem in problems)
    if found.level == "none":
        return "warn", f"none: each command is asked about, but what you allow can do anything you can{why}"
    return (
        "ok" if found.level == "bubblewrap" else "warn",
        f"{found.level}: commands write their workspace only, read programs and no home, and have no network. "
        f"Not covered: {NOT_COVERED[found.level]}{why}",
    )


def _hooks() -> Finding:
    """Each hook of the person's own configuration, and whether its command is there."""
    from .configured import FILE, configured

    root = state_root()
    hooks = configured(root).hooks
    if not hooks:
        return "ok", f"none are set in {root / FILE}"
    missing = [hook for hook in hooks if not os.access(hook.command[0], os.X_OK) or os.path.isdir(hook.command[0])]
    told = (
        f"{hook.when} {hook.tool}: {hook.command[0]}{' (cannot be run, so no such call will)' * (hook in missing)}"
        for hook in hooks
    )
    return "warn" if missing else "ok", "; ".join(told)


def _models() -> Finding:
    """Keys are set, or a server on this machine lists its models."""
    from latchstep.model.catalog import SERVICES

    from .models import survey

    usable = [f"{it.service}: {it.why}" for it in survey() if it.usable and SERVICES[it.service].base_url]
    if usable:
        return "ok", "; ".join(usable)
    return "warn", "no provider key is set and no local server answers; latchstep models says more"


def _local() -> Finding:
    """The small model says something."""
    from latchstep.http import Deadlines
    from latchstep.model.base import Request
    from latchstep.model.catalog import model

    request = Request(request_id="trial", messages=(user("Say hello."),), max_output=4)

    async def trial() -> None:
        async for _ in model("local", deadlines=Deadlines(first=20)).stream(request):
            pass

    began = time.perf_counter()
    try:
        run_blocking(trial())
    except LatchstepError as error:
        return "warn", str(error)  # nobody needs it
    return "ok", f"local:smollm2 loaded and answered in this process in {time.perf_counter() - began:.1f} s"


def _terminal() -> Finding:
    for stream, name in ((sys.stdin, "stdin"), (sys.stdout, "stdout")):
        if not is_terminal(stream):
            return "warn", f"{name} is not a terminal: nobody can be asked, so what needs a question is declined"
    plain = "" if Screen().unicode else f"; it shows {sys.stdout.encoding}, so other characters become marks"
    return "ok", f"a terminal ({os.environ.get('TERM') or 'no TERM'}); questions can be asked{plain}"


PROBES: list[tuple[str, Callable[[], Finding]]] = [
    ("program", _program),
    ("state", _state),
    ("shell", _shell),
    ("gate", _gate),
    ("git", _git),
    ("paths", _paths),
    ("sandbox", _sandbox),
    ("hooks", _hooks),
    ("models", _models),
    ("local", _local),
    ("terminal", _terminal),
]
