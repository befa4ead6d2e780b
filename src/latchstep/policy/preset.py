"""The modes of the terminal agent over its rules: which calls run, which are asked about, which are refused. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from latchstep.core.message import ToolCall
from latchstep.core.rules import RUN, Traits, Verdict
from latchstep.errors import DefinitionError

from .gate import READS, Decision, decide
from .rule import EDITING, SHELLS, Rule

Mode = Literal["ask", "plan", "edits", "auto", "unconfined"]

OWN = frozenset({"job_stop"})
"""Tools that change nothing but what a command allowed before has started."""

NOBODY = "nobody can be asked here. Decide it yourself as fits best, go on, and say at the end what you assumed"

LOOKS = (
    ", and runs no command where no sandbox holds it",
    ", and of commands runs those alone that are known to read in the workspace and do nothing else",
)
"""What mode `plan` says of a command that it does not run, without a sandbox and with one."""

MAX_REMEDY = 200
"""Characters of a command that a refusal repeats as what could have been allowed."""


def preset(
    mode: Mode, rules: Sequence[Rule] = (), *, asks: bool = True, sandboxed: bool = False, root: str = ""
) -> Callable[[ToolCall, Traits], Verdict]:
    """The policy of a mode.

    plan: reads, and commands that only read. ask: other writes and commands are asked about. edits: file edits run
    too. auto: everything runs, in a sandbox. unconfined: everything runs. A rule that denies holds in every mode, one
    that asks in all but `unconfined`, one that allows in all but `plan`. Where no sandbox holds commands, which follow
    links out of the workspace, only rules and `unconfined` let one run.

    rules: read at each call, so that one granted meanwhile holds. asks: False where nobody can be asked: a question
    becomes a refusal that says what would have allowed it, one of the model's own that it decide itself.
    root: the workspace.

    Raises DefinitionError for an unknown mode, and for `auto` without a sandbox.
    """
    if mode not in get_args(Mode):
        raise DefinitionError(f"there is no mode {mode!r}; modes are {', '.join(get_args(Mode))}")
    if mode == "auto" and not sandboxed:
        raise DefinitionError(
            "mode 'auto' runs commands unasked inside a sandbox, and none works here (latchstep doctor says why); "
            "use 'ask' with --allow CMD, or 'unconfined' on a machine you can lose"
        )

    def policy(call: ToolCall, traits: Traits) -> Verdict:
        if traits.asks and not asks:
            return Verdict("refuse", NOBODY, "nobody to ask")
        if not rules and (traits.effect == "read" or mode == "unconfined"):
            return RUN
        decision = decide(rules, call, root)
        if mode == "plan" and decision.says == "allow":  # by what it is, and not by a rule
            decision = decide([rule for rule in rules if rule.says != "allow"], call, root)
        if decision.says == "deny":
            return Verdict("refuse", f"a rule forbids it: {decision.rule}", decision.rule)
        if mode == "unconfined":
            return RUN
        if decision.says == "allow" and READS in decision.rule and not sandboxed:
            decision = Decision("open", reason="no sandbox holds it")
        if mode == "plan" and traits.effect != "read" and decision.says != "allow":
            held = LOOKS[sandboxed] if call.name in SHELLS else ""
            return Verdict("refuse", f"mode 'plan' only reads{held}; --mode ask or edits would allow more", "mode plan")
        if decision.says == "allow":
            return Verdict("run", "", decision.rule)
        if decision.says == "open" and (traits.effect == "read" or _by_mode(mode, call, decision, rules)):
            return RUN
        return _question(call, mode, decision, asks)

    return policy


def _by_mode(mode: Mode, call: ToolCall, decision: Decision, rules: Sequence[Rule]) -> bool:
    """The mode lets it run. In `auto` not where it is unclear whether a rule that asks or denies speaks of it."""
    if mode == "auto":
        return not (decision.unclear and any(rule.says != "allow" for rule in rules))
    return call.name in OWN or (mode == "edits" and call.name in EDITING)


def _question(call: ToolCall, mode: Mode, decision: Decision, asks: bool) -> Verdict:
    why = f"a rule asks about it: {decision.rule}" if decision.says == "ask" else decision.reason
    if asks:
        plain = decision.says == "open" and call.name not in SHELLS  # then the call itself says all there is to say
        return Verdict("ask", "" if plain else why, decision.rule)
    return Verdict(
        "refuse", f"nobody can be asked here, and {why}; {_remedy(call)} would have allowed it", f"mode {mode}"
    )


def _remedy(call: ToolCall) -> str:
    command = call.arguments.get("command")
    if call.name in EDITING:
        return "--mode edits"
    if call.name not in SHELLS or not isinstance(command, str):
        return "--mode unconfined"
    return f"--allow {shlex.quote(command)}" if len(command) <= MAX_REMEDY else "--allow with exactly this command"
