"""`list`: what a folder holds, as paths that can be given to the other tools.

Sorted, bounded, without `.git` and without what `.gitignore` leaves out; what is not shown is counted.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from latchstep.errors import ToolError

from .base import Output, Tool
from .define import tool
from .opened import Entry
from .text import shown, size_of
from .tree import PassedOver, missing, walk
from .workspace import Workspace

MAX_ROWS = 1000
"""Entries of one result."""
MAX_LEVELS = 16
"""Levels of folders that one call can ask for."""


def list_tool(workspace: Workspace) -> Tool:
    """The `list` tool."""

    @tool(effect="read", name="list")
    def list_folder(
        path: Annotated[str, "Folder, relative to the workspace"] = ".",
        depth: Annotated[int, Meta(ge=1, le=MAX_LEVELS, description="Levels of folders to show")] = 2,
    ) -> Output:
        """List a folder: one path a line, folders with a `/` at the end, files with their size.

        What .gitignore leaves out is not shown.
        """
        passed = PassedOver()
        rows: list[str] = []
        counts = {"file": 0, "folder": 0, "link": 0, "other": 0}
        try:
            if workspace.kind(path) == "file":
                raise ToolError(f"{shown(path)} is a file; use read")
            for place, entry, _ in walk(workspace, path, passed, depth):
                counts[entry.kind] += 1
                if len(rows) < MAX_ROWS:
                    rows.append(_row(place, entry))
                elif sum(counts.values()) >= MAX_ROWS * 20:
                    break
        except ToolError as error:
            raise missing(workspace, path, error) from None
        return Output("\n".join([*rows, _summary(counts, passed, depth)]), {"entries": sum(counts.values())})

    return list_folder


def _row(place: str, entry: Entry) -> str:
    match entry.kind:
        case "folder":
            return shown(place) + "/"
        case "link":
            return f"{shown(place)} -> {shown(entry.target)}"
        case "file":
            return f"{shown(place)}  ({size_of(entry.size)})"
    return f"{shown(place)}  (not a regular file)"


def _summary(counts: dict[str, int], passed: PassedOver, depth: int) -> str:
    total = sum(counts.values())
    words = ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in counts.items() if count)
    notes = [f"{words or 'empty folder'}, {depth} level{'' if depth == 1 else 's'} deep"]
    if total > MAX_ROWS:
        more = "at least " if total >= MAX_ROWS * 20 else ""
        notes.append(
            f"{more}{total - MAX_ROWS} further entries are not shown (MAX_ROWS {MAX_ROWS}); list a folder of it"
        )
    if passed.ignored:
        notes.append(f"{passed.ignored} left out by .gitignore")
    if passed.unreadable:
        notes.append(f"{passed.unreadable} folders could not be read")
    if passed.crowded:
        notes.append(f"folders with too many entries to show all: {', '.join(map(shown, passed.crowded[:5]))}")
    return f"[{'; '.join(notes)}]"
