"""What a run at the terminal works with: kit and rules from a set-up, the folder's own, and what was granted there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from latchstep.core.rules import Limits, Rules
from latchstep.errors import DefinitionError
from latchstep.journal.store import Store
from latchstep.model.base import Model
from latchstep.policy.preset import preset
from latchstep.policy.rule import Rule, parse_rule, rule_for
from latchstep.policy.trust import SETTINGS, Settings, narrowed
from latchstep.session.build import build_rules
from latchstep.session.coding import coding_kit
from latchstep.session.kit import Kit
from latchstep.tool.base import Tool

from . import granted
from .asking import Always, ask, can_ask
from .configured import configured
from .confining import CONFINING, confinement, extras_of
from .driving import PROGRAM
from .running import Setup, state_root
from .screen import Screen
from .trusting import config_of, say_standing, under


def prepare(
    model: Model, root: Path, setup: Setup, directory: Path | None, screen: Screen | None, *, path: str | None = None
) -> tuple[Kit, Rules]:
    """What a run works with, and its rules. Without a screen nobody is asked. Raises DefinitionError."""
    from latchstep.tool.head import head_of

    asks = screen is not None and can_ask()
    state = directory.parent.parent if directory is not None else state_root()
    config = config_of(root, state)
    setup = under(setup, config)
    if screen is not None:
        say_standing(config, setup, screen)
    also = extras_of(setup, root, state)
    sandbox = confinement(root, setup, directory, screen, path=path, also=also)
    setup = msgspec.structs.replace(setup, level=sandbox.level)
    if setup.on_doubt == "ask" and not asks:
        raise DefinitionError("on-doubt ask needs a person at a terminal; give --on-doubt report or --on-doubt fail")
    written = (str(root), *setup.also_write, *((setup.cache,) if setup.cache else ()))
    hooks = configured(state, map(Path, written)).hooks
    settings = config.settings if config.standing == "trusted" else narrowed(config.settings)
    rules = rules_of(setup, settings, root, state)
    policy = preset(setup.mode, rules, asks=asks, sandboxed=setup.level in CONFINING, root=str(root))  # type: ignore[arg-type]
    always = Always(root, state, rules)

    def kit_for(folder: Path | None, more: list[Tool], *, snapshots: bool = True) -> Kit:
        kit = coding_kit(
            model,
            root,
            directory=folder,
            approve=(lambda question: ask(screen, question, always)) if screen is not None and asks else None,
            setup=msgspec.to_builtins(setup),
            path=path,
            sandbox=sandbox,
            notes=config.instructions,
            trusted=config.standing == "trusted",
            more=more,
            hooks=hooks,
            snapshots=snapshots,
            also=also,
        )
        kit.head = head_of(root)
        return kit

    def part(folder: Path, max_steps: int) -> tuple[Kit, Rules]:
        kit = kit_for(folder, _pages(setup), snapshots=False)
        return kit, build_rules(kit, limits=limits_of(setup, max_steps), policy=policy)

    kit = kit_for(directory, [*_pages(setup), *_parts(setup, directory, root, part)])
    return kit, build_rules(
        kit,
        limits=limits_of(setup, setup.max_steps or Limits().max_steps),
        policy=policy,
        checks=setup.checks if setup.mode != "plan" else (),  # nothing is changed, or can be
        on_doubt=setup.on_doubt,
    )


def limits_of(setup: Setup, max_steps: int) -> Limits:
    return Limits(max_steps=max_steps, max_context=setup.max_context or None)


def _pages(setup: Setup) -> list[Tool]:
    """`fetch`, where hosts were named."""
    from latchstep.tool.fetch import fetch_tool

    return [fetch_tool(setup.fetch)] if setup.fetch else []


def _parts(setup: Setup, directory: Path | None, root: Path, part: Callable[..., Any]) -> list[Tool]:
    """`task`, where sessions are kept and something may be done."""
    from latchstep.session.task import task_tool

    if directory is None or setup.mode == "plan":
        return []
    store = Store(directory.parent.parent)
    return [task_tool(store, directory.name, part, workspace=str(root), program=PROGRAM)]


def rules_of(setup: Setup, settings: Settings, root: Path, state: Path) -> list[Rule]:
    """What was given for this run, what the folder's settings say, and what was granted in this workspace. The
    settings' are those that its standing leaves it. Raises DefinitionError."""
    rules = _rules(setup)
    try:
        rules += _rules(settings)
    except DefinitionError as error:
        raise DefinitionError(f"{SETTINGS}: {error}") from None
    return rules + [parse_rule(grant.rule) for grant in granted.load(state, root)]


def _rules(given: Setup | Settings) -> list[Rule]:
    says = (("allow", given.allow), ("ask", given.ask), ("deny", given.deny))
    return [rule_for(word, text) for word, texts in says for text in texts]  # type: ignore[arg-type]
