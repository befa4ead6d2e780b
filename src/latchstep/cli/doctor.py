"""`latchstep doctor`: what works on this machine, found out by trying it, and what does not protect you yet."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable

from latchstep import __version__
from latchstep.journal.store import default_root
from latchstep.session.blocking import run_blocking

from .screen import Screen

Finding = tuple[str, str]
"""(`ok`, `warn` or `bad`, what was found)."""


def examine() -> int:
    """Print each finding; 1 if something without which nothing works is broken."""
    screen = Screen()
    worst = 0
    for title, probe in PROBES:
        try:
            level, text = probe()
        except Exception as error:
            level, text = "bad", f"{type(error).__name__}: {error}"
        mark, colour = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "bad": ("✗", "red")}[level]
        screen.line(f"{screen.style(mark, colour)} {title.ljust(10)} {text}")
        worst = max(worst, level == "bad")
    return worst


def _program() -> Finding:
    return (
        "ok",
        f"latchstep {__version__}, Python {platform.python_version()}, {platform.system()} {platform.release()}",
    )


def _state() -> Finding:
    """Sessions can be made, written and made durable where they are kept."""
    root = default_root()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=root, prefix=".doctor-") as file:
        file.write(b"x")
        file.flush()
        began = time.perf_counter()
        os.fsync(file.fileno())
        took = (time.perf_counter() - began) * 1000
    free = os.statvfs(root)
    left = free.f_bavail * free.f_frsize / 1e9
    level = "warn" if left < 1 else "ok"
    return level, f"sessions lie in {root} ({left:.1f} GB free, a barrier takes {took:.1f} ms)"


def _shell() -> Finding:
    """A command runs in the spawner, and everything it leaves behind ends with it."""
    from latchstep.tool.spawner import Spawner

    async def trial() -> str:
        spawner = Spawner()
        try:
            ended = await spawner.run("echo hello; sleep 60 &", cwd=tempfile.gettempdir(), timeout=10)
        finally:
            await spawner.close()
        return (ended.head + ended.tail).decode().strip()

    said = run_blocking(trial())
    return ("ok", "commands run, and what they leave behind is ended") if said == "hello" else ("bad", f"said {said!r}")


def _paths() -> Finding:
    from latchstep.tool import beneath

    name = "openat2" if beneath.kernel_opener() is not None else "a walk of descriptors (openat2 does not work here)"
    return "ok", f"file tools open paths beneath the workspace by {name}"


def _sandbox() -> Finding:
    return (
        "warn",
        "none: commands run with all your rights. Each is asked about, but what you allow can do anything you can. "
        "Mode auto is off",
    )


def _models() -> Finding:
    from latchstep.model.catalog import SERVICES

    usable = [name for name, service in SERVICES.items() if service.key and os.environ.get(service.key)]
    if usable:
        return "ok", f"keys are set for {', '.join(usable)}"
    return "warn", "no provider key is set; give --base-url of a local server, or set one (see docs/models.md)"


def _terminal() -> Finding:
    if not sys.stdout.isatty():
        return "warn", "stdout is not a terminal: nobody can be asked, so what needs a question is declined"
    return "ok", f"a terminal ({os.environ.get('TERM', 'no TERM')}); questions can be asked"


PROBES: list[tuple[str, Callable[[], Finding]]] = [
    ("program", _program),
    ("state", _state),
    ("shell", _shell),
    ("paths", _paths),
    ("sandbox", _sandbox),
    ("models", _models),
    ("terminal", _terminal),
]
