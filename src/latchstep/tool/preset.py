"""Sets of built-in tools, put together from their parts."""

from __future__ import annotations

from .base import Tool
from .edit import edit_tool
from .grep import grep_tool
from .list import list_tool
from .read import read_tool
from .seen import Seen
from .workspace import Workspace
from .write import write_tool


def file_tools(workspace: Workspace, seen: Seen) -> tuple[Tool, ...]:
    """`read`, `list`, `grep`, `write` and `edit` of one workspace. Refill `seen` after a resume (`Seen.restore`)."""
    return (
        read_tool(workspace, seen),
        list_tool(workspace),
        grep_tool(workspace),
        write_tool(workspace, seen),
        edit_tool(workspace, seen),
    )
