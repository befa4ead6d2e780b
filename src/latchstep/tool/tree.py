"""Walking the folders of a workspace: in order, bounded, without `.git`, without what `.gitignore` leaves out.

Links are shown by whoever walks and never followed. What is passed over is counted, so that it can be said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from latchstep.errors import ToolError

from .encoding import decode
from .ignore import Rules, ignored, parse_rules
from .opened import Entry, is_missing
from .text import shown
from .workspace import Workspace

MAX_DEPTH = 64
"""Folders below the start that are entered at most."""
MAX_IGNORE_BYTES = 256 * 1024
"""Largest `.gitignore` that is read; a larger one leaves nothing out."""


@dataclass(slots=True)
class PassedOver:
    """What a walk did not show: counts, and folders that hold more than may be looked at."""

    ignored: int = 0
    unreadable: int = 0
    too_deep: int = 0
    crowded: list[str] = field(default_factory=list)


def walk(
    workspace: Workspace, start: str, passed: PassedOver, depth: int = MAX_DEPTH
) -> Iterator[tuple[str, Entry, int]]:
    """(real path, entry, level from 1) of all below a folder, each folder before its content."""
    real, rules, _ = above(workspace, start)
    yield from _walk(workspace, real, rules, (1, min(depth, MAX_DEPTH)), passed)


def above(workspace: Workspace, start: str) -> tuple[str, Rules, bool]:
    """A folder's real path, the rules in force for what is in it, and whether rules leave the folder itself out: then
    none of them is in force, since whoever names an ignored folder wants to see into it."""
    real = workspace.scan(start)[0]
    top = workspace.locate(start)[0]
    parts = tuple(real.split("/")) if real else ()
    rules: Rules = ()
    left_out = False
    for count in range(len(top.split("/")) if top else 0, len(parts)):
        folder = "/".join(parts[:count])
        rules = _with_rules(workspace, folder, workspace.scan(folder or ".")[1], rules)
        if ignored(rules, parts[: count + 1], True):
            rules, left_out = (), True
    return real, rules, left_out


def _walk(
    workspace: Workspace, folder: str, rules: Rules, levels: tuple[int, int], passed: PassedOver
) -> Iterator[tuple[str, Entry, int]]:
    level, deepest = levels
    try:
        real, entries, crowded = workspace.scan(folder or ".")
    except ToolError:
        passed.unreadable += 1
        return
    if real != folder:  # moved or exchanged for a link while we walked
        passed.unreadable += 1
        return
    if crowded:
        passed.crowded.append(folder or ".")
    rules = _with_rules(workspace, folder, entries, rules)
    for entry in entries:
        if entry.name == ".git":
            continue
        path = f"{folder}/{entry.name}" if folder else entry.name
        if ignored(rules, tuple(path.split("/")), entry.kind == "folder"):
            passed.ignored += 1
            continue
        yield path, entry, level
        if entry.kind == "folder":
            if level < deepest:
                yield from _walk(workspace, path, rules, (level + 1, deepest), passed)
            elif deepest == MAX_DEPTH:
                passed.too_deep += 1


def _with_rules(workspace: Workspace, folder: str, entries: list[Entry], rules: Rules) -> Rules:
    if not any(entry.name == ".gitignore" and entry.kind == "file" for entry in entries):
        return rules
    try:
        data = workspace.read(f"{folder}/.gitignore" if folder else ".gitignore", MAX_IGNORE_BYTES).data
    except ToolError:
        return rules
    decoded = decode(data)
    found = parse_rules(decoded.text) if decoded is not None else ()
    return ((len(folder.split("/")) if folder else 0, found), *rules) if found else rules


def missing(workspace: Workspace, path: str, error: ToolError) -> ToolError:
    """The refusal of a path that is not there, with the nearest names of its folder."""
    if not is_missing(error):
        return error
    from difflib import get_close_matches

    folder, _, name = path.rstrip("/").rpartition("/")
    try:
        names = {entry.name.casefold(): entry.name for entry in workspace.scan(folder or ".")[1]}
    except ToolError:
        return ToolError(f"{shown(path)} does not exist, nor does its folder. Use list to see what there is.")
    close = [names[match] for match in get_close_matches(name.casefold()[:255], names, n=3)]
    near = [shown(f"{folder}/{match}" if folder else match) for match in close]
    return ToolError(f"{shown(path)} does not exist." + (f" Did you mean {' or '.join(near)}?" if near else ""))
