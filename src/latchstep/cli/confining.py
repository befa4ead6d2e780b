"""Which sandbox holds the commands of a run: found by trying, before anything is recorded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from latchstep.core.printable import one_line
from latchstep.errors import DefinitionError

from .running import Setup
from .screen import Screen

if TYPE_CHECKING:
    from latchstep.tool.roots import Extra
    from latchstep.tool.sandbox import Sandbox

CONFINING = ("bubblewrap", "landlock")


def extras_of(setup: Setup, root: Path, state: Path) -> tuple[Extra, ...]:
    """The folders beside the workspace, whatever holds commands. Raises DefinitionError where one may not be."""
    from latchstep.tool.roots import Extra, refuse_unfit

    extras = (*map(Extra, setup.also), *(Extra(path, True) for path in setup.also_write))
    home = os.path.realpath(os.path.expanduser("~"))
    apart = [(os.path.realpath(state), "the store of sessions"), *([(setup.cache, "the cache")] if setup.cache else [])]
    refuse_unfit(extras, str(root), home=home, apart=apart)
    return extras


def confinement(
    root: Path,
    setup: Setup,
    directory: Path | None,
    screen: Screen | None,
    *,
    path: str | None = None,
    also: tuple[Extra, ...] = (),
) -> Sandbox:
    """The sandbox of a run, tried before anything is recorded. In mode `plan`, and in a workspace that the person
    cannot write, nothing is written in it. Raises DefinitionError."""
    from latchstep.session.blocking import run_blocking
    from latchstep.tool.probe import best
    from latchstep.tool.sandbox import Level, Sandbox

    wanted = setup.sandbox
    if setup.mode == "unconfined":
        if wanted in CONFINING:
            raise DefinitionError(f"mode unconfined has no sandbox; for --sandbox {wanted} use --mode auto")
        wanted = "none"
    stores = directory.parents[:2] if directory is not None else ()  # of sessions, and of all that is ours
    hidden = tuple(str(store) for store in stores if not root.is_relative_to(store))
    environ = {**os.environ, **({"PATH": path} if path is not None else {})}
    looks = not os.access(root, os.W_OK)
    if looks and wanted != "none" and screen is not None:
        screen.later(screen.style("you cannot write this folder: commands only read in it", "yellow"))
    looks |= setup.mode == "plan"

    def make(level: Level) -> Sandbox:
        return Sandbox(level, str(root), setup.net, setup.cache, hidden, environ, also=also, looks=looks)

    passed = directory.parents[1] / "trials" if directory is not None else None
    found, problems = run_blocking(best(make, wanted, passed))
    if problems and screen is not None:
        for problem in problems:
            screen.later(screen.style(f"no sandbox {one_line(problem, 300)}", "yellow"))
    return found
