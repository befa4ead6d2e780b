"""`todo`: the model says what it is about to do, and what of it is done. The state keeps it, and people see it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from latchstep.core.plan import PLAN, Progress, rows
from latchstep.core.plan import Item as Kept
from latchstep.errors import ToolError

from .base import Output, Tool
from .define import tool

MAX_ITEMS = 50
"""Items of a plan."""
MAX_TEXT = 500
"""Characters of one item."""
MAX_DOING = 3
"""Items that may be under way at once."""

DESCRIPTION = f"""\
Keep the plan of your work, which the person sees. Give the whole list each time: it replaces the last one. Use it for \
work of three steps or more, not for less. Mark an item `doing` before you begin it (at most {MAX_DOING} at a time) \
and `done` as soon as it is; add what you find on the way. An empty list takes the plan back."""


class Item(msgspec.Struct, forbid_unknown_fields=True):
    """One thing to do."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
    status: Progress = "open"


def todo_tool() -> Tool:
    """The tool. What it says reaches `State.plan` by its result."""

    @tool(effect="read", alone=True, thread=False, description=DESCRIPTION)
    def todo(items: Annotated[list[Item], Meta(max_length=MAX_ITEMS)]) -> Output:
        if blank := next((number for number, item in enumerate(items, 1) if not item.text.strip()), 0):
            raise ToolError(f"item {blank} is blank; the plan was not changed")
        doing = sum(item.status == "doing" for item in items)
        if doing > MAX_DOING:
            raise ToolError(f"{doing} items are `doing`; at most {MAX_DOING} may be. The plan was not changed")
        plan = tuple(Kept(item.text, item.status) for item in items)
        done = sum(item.status == "done" for item in items)
        head = f"The plan: {done} of {len(plan)} done." if plan else "There is no plan any more."
        return Output("\n".join([head, *rows(plan)]), {PLAN: plan})

    return todo
