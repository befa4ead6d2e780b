"""The modes of the terminal agent: which calls run, which are asked about, which are refused.

Pure. A command is allowed only as the exact string that was allowed; anything cleverer needs a parser of
shell, and a prefix is never one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection
from typing import Literal, get_args

from latchstep.core.message import ToolCall
from latchstep.core.rules import RUN, Traits, Verdict
from latchstep.errors import DefinitionError

Mode = Literal["ask", "plan", "edits", "auto", "unconfined"]

EDITING = frozenset({"write", "edit"})
"""The tools that mode `edits` lets run."""

MAX_REMEDY = 200
"""Characters of a command that a refusal repeats as what could have been allowed."""


def preset(
    mode: Mode, allow: Collection[str] = (), *, asks: bool = True, sandboxed: bool = False
) -> Callable[[ToolCall, Traits], Verdict]:
    """The policy of a mode.

    plan: read only. ask: writes and commands are asked about. edits: file edits run, commands are asked
    about. auto: everything runs, in a sandbox. unconfined: everything runs. allow: commands that run in any mode
    but `plan`, as exact strings.
    asks: False where nobody can be asked: a question becomes a refusal that says what would have allowed it.
    sandboxed: whether commands are confined by mechanism.

    Raises DefinitionError for an unknown mode, and for `auto` where there is no sandbox: then nothing runs unasked.
    """
    if mode not in get_args(Mode):
        raise DefinitionError(f"there is no mode {mode!r}; modes are {', '.join(get_args(Mode))}")
    if mode == "auto" and not sandboxed:
        raise DefinitionError(
            "mode 'auto' runs commands unasked inside a sandbox, and none works here (latchstep doctor says why); "
            "use 'ask' with --allow CMD, or 'unconfined' on a machine you can lose"
        )
    allowed = frozenset(allow)

    def policy(call: ToolCall, traits: Traits) -> Verdict:
        if traits.effect == "read" or mode in ("auto", "unconfined"):
            return RUN
        if mode == "plan":
            return Verdict("refuse", "mode 'plan' only reads; --mode ask or edits would allow changes", "mode plan")
        if call.name in EDITING:
            return RUN if mode == "edits" else _question(call, mode, "--mode edits", asks)
        command = call.arguments.get("command")
        if isinstance(command, str) and command in allowed:
            return RUN
        return _question(call, mode, _remedy(command), asks)

    return policy


def _remedy(command: object) -> str:
    if not isinstance(command, str):
        return "--mode unconfined"
    return f"--allow {shlex.quote(command)}" if len(command) <= MAX_REMEDY else "--allow with exactly this command"


def _question(call: ToolCall, mode: Mode, remedy: str, asks: bool) -> Verdict:
    if asks:
        return Verdict("ask", f"{call.name} changes things")
    return Verdict("refuse", f"nobody can be asked here; {remedy} would have allowed it", f"mode {mode}")
