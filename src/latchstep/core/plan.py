"""The plan: what the model said it would do, as it last said it. Kept in the state, shown, never acted on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from .state import State

Progress = Literal["open", "doing", "done"]

PLAN = "latchstep.plan"
"""The key of a result's details that holds a plan. Nothing else is called that by accident."""

MARKS: dict[Progress, str] = {"done": "[x]", "doing": "[>]", "open": "[ ]"}


class Item(msgspec.Struct, frozen=True):
    """One thing to do."""

    text: str
    status: Progress = "open"


def plan_in(details: Any) -> tuple[Item, ...] | None:
    """The plan that a result's details say, None where they say none. Details may be anything."""
    if not isinstance(details, dict) or PLAN not in details:
        return None
    try:
        return msgspec.convert(details[PLAN], tuple[Item, ...])
    except msgspec.ValidationError:
        return None


def rows(plan: tuple[Item, ...]) -> list[str]:
    """One row an item, whatever its text holds."""
    return [f"{MARKS[item.status]} {' '.join(item.text.split())}" for item in plan]


def plan_text(state: State) -> str:
    """The plan for whoever goes on with nothing else in mind; "" where there is none."""
    if not state.plan:
        return ""
    head = "The plan as it last stood ([x] done, [>] being done, [ ] open):"
    return "\n".join([head, *rows(state.plan)])
