"""The composition root: from what a caller declares to a kit and the rules. Nothing else puts parts together."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from latchstep.core import wording
from latchstep.core.message import ToolCall, clean
from latchstep.core.rules import FINAL, RUN, Limits, OnDoubt, OnStaleApproval, Questions, Rules, Traits, Verdict
from latchstep.core.secrets import Masker, secret_values
from latchstep.errors import DefinitionError
from latchstep.model.base import Model
from latchstep.tool.base import Tool
from latchstep.tool.define import render, tool

from .kit import Checker, Kit, no_checks

Policy = Callable[[ToolCall, Traits], Verdict]
"""May this call run? Pure. It sees only calls whose tool exists and whose arguments are valid."""


def allow_declared(call: ToolCall, traits: Traits) -> Verdict:
    """A library agent's default: the developer declared the tool, so it may run."""
    return RUN


def toolbox(tools: Iterable[Any]) -> dict[str, Tool]:
    """Tools by name, in their order. A plain function becomes one (effect `write`, never repeated)."""
    box: dict[str, Tool] = {}
    if not isinstance(tools, Iterable):
        raise DefinitionError(f"tools is a list of functions or Tools, not {type(tools).__name__}")
    for given in tools:
        if not isinstance(given, Tool) and not callable(given):
            raise DefinitionError(f"a tool is a function or a Tool, not {type(given).__name__}")
        made = given if isinstance(given, Tool) else tool(given)
        if made.name in box:
            raise DefinitionError(f"two tools are named {made.name!r}; names must differ")
        box[made.name] = made
    return box


def resolve_model(given: Any) -> Model:
    """A model object as it is, a name through the catalogue."""
    if isinstance(given, str):
        from latchstep.model.catalog import model

        return model(given)
    if not isinstance(given, Model):
        raise DefinitionError(f"a model is a name or an object with `name` and `stream`, not {type(given).__name__}")
    return given


def own_secrets() -> Masker | None:
    """Masks what this process has in its environment as secrets, and nothing that only looks like one: a developer's
    tool may be there to give the model a token."""
    values = secret_values(os.environ)
    return Masker(values, shapes=False) if values else None


def build_kit(  # one argument a part: this is where they meet
    model: Any,
    tools: Iterable[Any] = (),
    system: str | None = None,
    *,
    output: Any = None,
    workspace: str | Path | None = None,
    check: Checker | None = None,
    approve: Callable[..., Any] | None = None,
    summarizer: Any = None,
    deps: Any = None,
    **more: Any,
) -> Kit:
    if system is not None and not isinstance(system, str):
        raise DefinitionError(f"system is a string, not {type(system).__name__}")
    if approve is not None and not callable(approve):
        raise DefinitionError(f"approve is a function, not {type(approve).__name__}")
    box = toolbox(tools)
    if "masker" not in more:
        more["masker"] = own_secrets()
    if output is not None:
        from .output import output_type

        if FINAL in box:
            raise DefinitionError(f"the tool {FINAL!r} is how the output is given; name yours otherwise")
        output = output_type(output)
    return Kit(
        model=resolve_model(model),
        tools=box,
        output=output,
        render=render,
        system=clean(system or ""),
        workspace=Path(workspace) if workspace is not None else None,
        check=check or no_checks,
        approve=approve,
        summarizer=resolve_model(summarizer) if summarizer is not None else None,
        deps=deps,
        **more,
    )


def build_rules(
    kit: Kit,
    *,
    limits: Limits | None = None,
    policy: Policy | None = None,
    checks: Sequence[str] = (),
    on_doubt: OnDoubt = "report",
    on_stale_approval: OnStaleApproval = "ask",
    questions: Questions = "together",
    strict_protocol: bool = False,
) -> Rules:
    """The rules over a kit. Raises DefinitionError for a choice that does not exist."""
    if on_doubt not in ("report", "ask", "fail"):
        raise DefinitionError(f"on_doubt must be 'report', 'ask' or 'fail', not {on_doubt!r}")
    if on_stale_approval not in ("ask", "abandon"):
        raise DefinitionError(f"on_stale_approval must be 'ask' or 'abandon', not {on_stale_approval!r}")
    if questions not in ("together", "in_turn"):
        raise DefinitionError(f"questions must be 'together' or 'in_turn', not {questions!r}")
    if isinstance(checks, str) or not all(isinstance(command, str) and command.strip() for command in checks):
        raise DefinitionError("a check is a command; checks is a list of commands")
    if limits is not None and not isinstance(limits, Limits):
        raise DefinitionError(f"limits is a Limits, not {type(limits).__name__}")
    if policy is not None and not callable(policy):
        raise DefinitionError(f"policy is a function, not {type(policy).__name__}")
    traits = {
        name: Traits(made.effect, made.replay, made.settle is not None, made.alone, bool(made.before), made.asks)
        for name, made in kit.tools.items()
    }
    may = policy or allow_declared

    def judge(call: ToolCall) -> Verdict:
        rejection = examine(kit, call)
        if rejection:
            return Verdict("reject", rejection)
        verdict = _said(may, call, traits[call.name])
        return Verdict("ask", rule=verdict.rule) if verdict.kind == "run" and traits[call.name].asks else verdict

    return Rules(
        judge=judge,
        traits=lambda name: traits.get(name, Traits()),
        known=lambda name: name in kit.tools or (kit.output is not None and name == FINAL),
        output=kit.output.judge if kit.output is not None else None,
        limits=limits or Limits(),
        checks=tuple(checks),
        on_doubt=on_doubt,
        on_stale_approval=on_stale_approval,
        questions=questions,
        strict_protocol=strict_protocol,
        overhead=kit.overhead,
    )


def _said(may: Policy, call: ToolCall, traits: Traits) -> Verdict:
    """The policy's verdict. One that fails, or says something else, permits nothing."""
    try:
        verdict = may(call, traits)
    except Exception as error:
        return Verdict("refuse", f"the policy failed ({wording.of_error(error)})")
    if not isinstance(verdict, Verdict) or verdict.kind not in ("run", "ask", "refuse", "reject"):
        return Verdict("refuse", f"the policy gave {verdict!r:.200}, which is no verdict")
    return verdict


def examine(kit: Kit, call: ToolCall) -> str:
    """Why this call cannot run, in words that say what would be valid; "" if it can."""
    if call.name not in kit.tools:
        there_are = [*kit.tools, *([FINAL] if kit.output is not None else [])]
        close = difflib.get_close_matches(call.name, there_are, n=3, cutoff=0.4)
        names = ", ".join(close or sorted(there_are)[:20]) or "none"
        return f"Rejected: there is no tool named {call.name[:80]!r}. {'Did you mean' if close else 'Tools'}: {names}."
    if call.flaw:
        return f"Rejected: {call.flaw}. Send the arguments of {call.name} as one JSON object."
    try:
        kit.validated(call)
    except ValueError as error:
        return f"Rejected: {error}"
    return ""
