"""`latchstep trust`, and what a folder's standing means for a run in it.

Who vouched for which folder lies in `trust.json` beside the sessions. A folder is known by its real path, by which
folder that is, and by what it configures.
"""

from __future__ import annotations

import sys
import time
from hashlib import sha256
from pathlib import Path

import msgspec

from latchstep.core.printable import one_line, printable
from latchstep.errors import DefinitionError, ToolError
from latchstep.policy.trust import (
    INSTRUCTIONS,
    SETTINGS,
    Settings,
    Standing,
    Trust,
    mode_under,
    narrowed,
    settings_from,
    standing,
    understood,
)
from latchstep.tool.opened import is_missing
from latchstep.tool.workspace import Workspace

from .asking import can_ask, forget_what_was_typed
from .configured import own_bytes
from .granted import identity_of, locked, person, replace_whole
from .running import Setup, Typed, folder, here, state_root
from .screen import Screen, gutter

FILE = "trust.json"
MAX_CONFIG = 256 * 1024
"""Bytes of each file that configures."""
WORDS = ("would be followed as your own words; untrusted, it is read as data", "is followed as your own words")
SAYS = (
    "its checks would run and its allow rules hold; untrusted, it can only narrow",
    "its checks run and its allow rules hold",
)
MENDED = "until it is mended, only what narrows in it holds, trusted or not"
"""What each file means, untrusted and trusted."""
MAX_SIZE = 10_000_000
"""Bytes of what is kept of all folders."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder configures, and how it stands. problem: why its settings cannot be read; then those parts are left
    that can be and only narrow."""

    instructions: str
    text: str
    settings: Settings
    standing: Standing
    digest: str
    identity: str
    problem: str = ""

    @property
    def empty(self) -> bool:
        return not self.instructions and not self.text


def config_of(root: Path, state: Path) -> Config:
    """Read it, beneath the folder and bounded. What cannot be read counts as absent, and its problem is said.

    state: where it is kept who vouched for it.
    """
    texts, problems = [], []
    with Workspace(root) as workspace:
        for name in (INSTRUCTIONS, SETTINGS):
            try:
                texts.append(workspace.read(name, MAX_CONFIG).data)
            except ToolError as error:
                texts.append(b"")
                if not is_missing(error):
                    problems.append(str(error))
    digest = sha256(b"\0".join(sha256(text).digest() for text in texts)).hexdigest()
    settings, text = Settings(), texts[1].decode("utf-8", "replace")
    try:
        settings = settings_from(text)
    except DefinitionError as error:
        settings = understood(text)
        problems.append(str(error))
    identity = identity_of(root)
    return Config(
        instructions=texts[0].decode("utf-8", "replace"),
        text=text,
        settings=settings,
        standing=standing(_known(state), str(root), identity, digest),
        digest=digest,
        identity=identity,
        problem="; ".join(problems),
    )


def _known(state: Path) -> list[Trust]:
    path = state / FILE
    try:
        return msgspec.json.decode(own_bytes(path, MAX_SIZE) or b"[]", type=list[Trust])
    except msgspec.DecodeError as error:
        raise DefinitionError(f"{path} cannot be read ({error}); mend or remove it") from error


def _keep(state: Path, root: Path, *own: Trust) -> None:
    """What holds of this folder from now on, in place of what did. Others may be vouched for at the same time."""
    with locked(state):
        replace_whole(state / FILE, [*(it for it in _known(state) if it.path != str(root)), *own])


def trust(cwd: Path | None, yes: bool, revoke: bool) -> int:
    """Show what a folder configures, ask, and keep the answer. 0 where it is as wanted, 1 where it was declined."""
    root, state, screen = folder(cwd or here()), state_root(), Screen()
    if revoke:
        _keep(state, root)
        screen.line(f"{one_line(str(root), 4096)} is not trusted.")
        return 0
    config = config_of(root, state)
    _show(config, root, screen)
    if config.standing == "trusted":
        screen.line("It is trusted as it stands.")
        return 0
    if not yes and not _agreed(screen):
        screen.line("Nothing was changed.")
        return 1
    own = Trust(path=str(root), identity=config.identity, digest=config.digest, by=person(), at=time.time())
    _keep(state, root, own)
    screen.line("It is trusted until one of these files changes, or: latchstep trust --revoke")
    return 0


def _agreed(screen: Screen) -> bool:
    if not can_ask():
        raise DefinitionError("nobody can be asked here; say --yes to trust the folder without a question")
    forget_what_was_typed()
    screen.prompt("Trust this folder? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _show(config: Config, root: Path, screen: Screen) -> None:
    screen.line(screen.style(one_line(str(root), 4096), "bold") + f" · {config.standing}")
    if config.problem:
        screen.line(screen.style(printable(config.problem), "yellow"))
    if config.empty:
        screen.line(f"It has no {INSTRUCTIONS} and no {SETTINGS}; trusting it changes nothing until it has.")
        return
    for name, text, meaning in (
        (INSTRUCTIONS, config.instructions, WORDS[config.standing == "trusted"]),
        (SETTINGS, config.text, SAYS[config.standing == "trusted"] if SETTINGS not in config.problem else MENDED),
    ):
        if text:
            screen.line(f"{name}: {meaning}")
            for row in gutter(text.removesuffix("\n"), screen.width):
                screen.line(row)


def under(setup: Setup, config: Config) -> Setup:
    """The set-up of a run in this folder: what was typed, and what the folder's settings may add or take away."""
    trusted = config.standing == "trusted"
    settings = config.settings if trusted else narrowed(config.settings)
    steps = [most for most in (setup.max_steps, settings.max_steps) if most]
    own = Typed(mode=setup.mode, checks=setup.checks, max_steps=setup.max_steps)
    return msgspec.structs.replace(
        setup,
        typed=None if settings == Settings() else own,
        mode=mode_under(settings, setup.mode or None, config.standing),
        max_steps=0 if not steps else steps[0] if trusted else min(steps),
        checks=tuple(dict.fromkeys((*setup.checks, *settings.checks))),
    )


def say_standing(config: Config, setup: Setup, screen: Screen) -> None:
    """A line each at the start of a run on what there is to say. setup: as the folder's settings left it."""
    if setup.typed is not None and setup.typed.mode not in ("", setup.mode):
        said = f"mode {setup.mode}, not {setup.typed.mode}: {SETTINGS} narrows it"
        screen.later(screen.style(said, "yellow"))
    if setup.mode == "plan" and setup.checks:
        screen.later(screen.style("in mode plan nothing changes, and no check runs", "yellow"))
    if config.problem:
        screen.later(screen.style(printable(config.problem), "yellow"))
    if config.standing == "trusted" or config.empty:
        return
    was = "what this folder configures has changed since it was trusted"
    said = was if config.standing == "changed" else "this folder is not trusted"
    screen.later(screen.style(f"{said}: its {_names(config)} can only narrow (latchstep trust)", "yellow"))


def _names(config: Config) -> str:
    return " and ".join(name for name, text in ((INSTRUCTIONS, config.instructions), (SETTINGS, config.text)) if text)
