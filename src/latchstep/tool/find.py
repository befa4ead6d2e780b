"""`find`: files by a glob, as paths that can be given to the other tools.

In the order of paths, bounded, without `.git` and without what `.gitignore` leaves out; what is not shown is counted.
"""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Meta

from latchstep.errors import ToolError

from .base import Output, Tool
from .define import tool
from .grep import MAX_SECONDS
from .ignore import MAX_RULE, glob_rules
from .text import shown
from .tree import PassedOver, missing, walk
from .workspace import Workspace

MAX_FOUND = 1000
"""Paths of one result."""

_ADVICE = (
    ("[", "[ begins a class of characters; for the sign itself write \\["),
    (",", "several globs are written {a,b}"),
    ("../", "a glob is for paths beneath `path`"),
)
"""What may be meant otherwise in a glob that finds nothing."""


def find_tool(workspace: Workspace) -> Tool:
    """The `find` tool."""

    @tool(effect="read")
    def find(
        glob: Annotated[
            str, Meta(min_length=1, max_length=MAX_RULE, description="*.py, src/**/test_*.{ts,tsx}, docs/")
        ],
        path: Annotated[str, "Folder to look in"] = ".",
        *,
        limit: Annotated[int, Meta(ge=1, le=MAX_FOUND, description="Paths to show")] = 200,
    ) -> Output:
        """Find files by name. A glob without `/` is for names in any folder, another for paths beneath `path`.

        With a `/` at its end it finds folders. What .gitignore leaves out is not found.
        """
        folders = glob.endswith("/")
        top = str(workspace.root)
        rules = glob_rules((glob.removeprefix(top) if glob.startswith(f"{top}/") else glob).rstrip("/") or "*")
        found: list[str] = []
        passed, more, late = PassedOver(), 0, False
        deadline = time.monotonic() + MAX_SECONDS
        try:
            if workspace.kind(path) == "file":
                raise ToolError(f"{shown(path)} is a file; path is the folder to look in")
            start = workspace.scan(path)[0]
            depth = len(start.split("/")) if start else 0
            for place, entry, _ in walk(workspace, path, passed):
                if late := time.monotonic() > deadline:
                    break
                below = place.split("/")[depth:]
                if (entry.kind == "folder") == folders and any(rule.matches(below, folders) for rule in rules):
                    if len(found) < limit:
                        found.append(shown(place) + ("/" if folders else ""))
                    else:
                        more += 1
        except ToolError as error:
            raise missing(workspace, path, error) from None
        return Output("\n".join([*found, *_notes(found, more, late, passed, glob)]), {"found": len(found) + more})

    return find


def _notes(found: list[str], more: int, late: bool, passed: PassedOver, glob: str) -> list[str]:
    notes = [] if found else [f"no {'folder' if glob.endswith('/') else 'file'} is called so"]
    if more:
        notes.append(f"{more} more are not shown; narrow the glob or raise the limit (at most {MAX_FOUND})")
    if late:
        notes.append(f"stopped: {MAX_SECONDS:g} seconds had passed (MAX_SECONDS)")
    if passed.ignored and not found:
        notes.append(f"{passed.ignored} files or folders left out by .gitignore")
    if passed.unreadable:
        notes.append(f"{passed.unreadable} folders could not be read")
    if passed.crowded or passed.too_deep:
        notes.append("some folders were too large or too deep to look through")
    if not found:
        notes += [advice for sign, advice in _ADVICE if sign in glob]
        notes += [] if glob.endswith("/") else ["a glob for folders ends in /"]
    return [f"[{'; '.join(notes)}]"] if notes else []
