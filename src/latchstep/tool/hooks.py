"""Hooks around a tool: before a call, its arguments may be changed or the call refused; after it, its result replaced.

Rule: a hook makes another tool of a tool, and the loop keeps no list of them. What a hook before a call makes of it
is recorded, validated and judged again, so that what a person approves is what runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from latchstep.core import wording
from latchstep.errors import FatalToolError, ToolError

from .base import Before, Context, Output, Tool
from .define import render, tool
from .threads import invoke

After = Callable[[dict[str, Any], Output, Context], Any]
"""A hook after a call: (its arguments as the tool took them, its result, its context) -> another result, or None."""

ENDED = "(the call itself had ended; the hook that looks at its result had not)"


def before_tool(given: Callable[..., Any] | Tool, hook: Before) -> Tool:
    """The tool, with a hook before each of its calls that is valid and that no rule forbids.

    hook(arguments, context): sync or async, without effects; `arguments` is a copy of the JSON object. Return other
    arguments (or change these), `Verdict("refuse", why)` to decline the call, or None to keep it. It is consulted once
    a call, within the tool's deadline; where it raises or takes too long, the call does not run and its outcome is
    `error`. The hook wrapped last looks first.
    """
    made = given if isinstance(given, Tool) else tool(given)
    return replace(made, before=(hook, *made.before))


def after_tool(given: Callable[..., Any] | Tool, hook: After) -> Tool:
    """The tool, with a hook after each of its calls, those that raise included.

    hook(arguments, output, context): sync or async, within the tool's deadline. Return what the tool might have
    returned, or None to keep what it did. Where it raises, the result says that the call was made, and is withheld.
    A call stopped by its deadline or a cancel has no result, and is not shown to the hook.
    """
    made = given if isinstance(given, Tool) else tool(given)
    name = made.context or "latchstep_context"

    async def function(**arguments: Any) -> Any:
        context = arguments.pop(name, None) or Context()
        own = {**arguments, name: context} if made.context else arguments
        raised: Exception | None = None
        try:
            output = render(await invoke(made.function, (), made.thread, own))
        except FatalToolError:
            raise
        except Exception as error:
            raised, output = error, Output(wording.of_error(error), outcome="error", is_error=True)
        context.captured = ENDED
        try:
            said = await invoke(hook, (arguments, output, context), made.thread)
        except FatalToolError:
            raise
        except Exception as error:
            raise ToolError(wording.withheld(wording.of_error(error))) from error
        if said is None and raised is not None:
            raise raised
        return output if said is None else said

    return replace(made, function=function, context=name)
