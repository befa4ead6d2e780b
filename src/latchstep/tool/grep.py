"""`grep`: lines that match a regular expression, as `path:line: text`.

In the process, so every part is bounded: the pattern's work for one line (`regex`), each line, each file,
the time and the result. What was not searched is said.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from latchstep.errors import ToolError

from .base import Output, Tool
from .define import tool
from .encoding import decode
from .ignore import Rule, glob_rules
from .regex import MAX_LINE, MAX_PATTERN, compile_pattern
from .text import shown, size_of
from .tree import PassedOver, missing, walk
from .workspace import Workspace

MAX_SECONDS = 20.0
"""Time for one search."""
MAX_FILE_BYTES = 16 * 1024 * 1024
"""Largest file that is searched."""
MAX_CHARACTERS = 40_000
"""Characters of one result."""
MAX_SHOWN = 300
"""Characters shown of one line, around the match."""


@dataclass(slots=True)
class Search:
    pattern: re.Pattern[str]
    longest: int
    context: int
    limit: int
    deadline: float
    rows: list[str] = field(default_factory=list)
    characters: int = 0
    matches: int = 0
    files: int = 0
    searched: int = 0
    long_lines: int = 0
    unreadable: int = 0
    end: str = ""

    def add(self, row: str) -> None:
        self.rows.append(row)
        self.characters += len(row) + 1
        if self.characters > MAX_CHARACTERS:
            self.end = f"the result reached {MAX_CHARACTERS} characters (MAX_CHARACTERS)"


def grep_tool(workspace: Workspace) -> Tool:
    """The `grep` tool."""

    @tool(effect="read")
    def grep(
        pattern: Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN, description="Python regular expression")],
        path: Annotated[str, "File or folder to search"] = ".",
        *,
        glob: Annotated[str | None, "Only files like this: *.py, src/**/*.{ts,tsx}"] = None,
        ignore_case: bool = False,
        context: Annotated[int, Meta(ge=0, le=20, description="Lines shown before and after a match")] = 0,
        limit: Annotated[int, Meta(ge=1, le=1000, description="Matching lines to show")] = 100,
    ) -> Output:
        """Search files line by line. Gives `path:line: text`.

        Skips what .gitignore leaves out, and files with a NUL byte (binary ones) that `path` does not name.
        """
        compiled, longest = compile_pattern(pattern, ignore_case)
        search = Search(compiled, longest, context, limit, time.monotonic() + MAX_SECONDS)
        passed = PassedOver()
        try:
            named = workspace.kind(path) == "file"
            for place in _files(workspace, path, glob, passed):
                if _late(search):
                    break
                if place is not None:
                    search_file(workspace, place, search, named)
        except ToolError as error:
            raise missing(workspace, path, error) from None
        return Output(_report(search, passed), {"matches": search.matches, "files": search.files})

    return grep


def _files(workspace: Workspace, path: str, glob: str | None, passed: PassedOver) -> Iterator[str | None]:
    """The files to search. None between them, for what is passed over, so that the time can be looked at."""
    if workspace.kind(path) == "file":
        yield "/".join(filter(None, workspace.locate(path)))
        return
    start = workspace.scan(path)[0]
    rules: tuple[Rule, ...] = glob_rules(glob) if glob else ()
    depth = len(start.split("/")) if start else 0
    for place, entry, _ in walk(workspace, path, passed):
        below = place.split("/")[depth:]
        wanted = entry.kind == "file" and (not glob or any(rule.matches(below, False) for rule in rules))
        yield place if wanted else None


def _late(search: Search) -> bool:
    if not search.end and time.monotonic() > search.deadline:
        search.end = f"{MAX_SECONDS:g} seconds had passed (MAX_SECONDS)"
    return bool(search.end)


def search_file(workspace: Workspace, path: str, search: Search, named: bool = False) -> None:
    try:
        data = workspace.read(path, MAX_FILE_BYTES).data
    except ToolError:
        search.unreadable += 1
        return
    decoded = decode(data)
    if decoded is None or ("\0" in decoded.raw and not named):
        return
    search.searched += 1
    lines = decoded.text.split("\n")
    if lines[-1] == "":
        lines.pop()
    hits: dict[int, re.Match[str]] = {}
    for index, line in enumerate(lines):
        if (index % 64 == 63 or len(line) > 200) and _late(search):
            break
        if len(line) > search.longest:
            search.long_lines += 1
        elif match := search.pattern.search(line):
            if search.matches == search.limit:
                search.end = f"there are more than {search.limit} matching lines"
                break
            search.matches += 1
            hits[index] = match
    if hits:
        search.files += 1
        _show(shown(path), lines, hits, search)


def _show(name: str, lines: list[str], hits: dict[int, re.Match[str]], search: Search) -> None:
    """The matching lines and those around them, in order, each once; `--` between groups as grep does."""
    last = -1
    for hit in hits:
        for number in range(max(last + 1, hit - search.context), min(len(lines), hit + search.context + 1)):
            if search.context and search.rows and (last < 0 or number != last + 1):
                search.add("--")
            sign = ":" if number in hits else "-"
            match = hits[number].start() if number in hits else None
            search.add(f"{name}{sign}{number + 1}{sign} {around(lines[number], match)}")
            last = number
            if search.characters > MAX_CHARACTERS:
                return


def around(line: str, match: int | None) -> str:
    """The line, or the part of it around where the match begins."""
    if len(line) <= MAX_SHOWN:
        return line
    start = max(0, min(match - MAX_SHOWN // 3, len(line) - MAX_SHOWN)) if match else 0
    part = line[start : start + MAX_SHOWN]
    return f"{'…' if start else ''}{part}{'…' if start + MAX_SHOWN < len(line) else ''}"


def _report(search: Search, passed: PassedOver) -> str:
    notes = []
    if not search.matches:
        notes.append(f"no line matches in {search.searched} file{'' if search.searched == 1 else 's'}")
        if "\n" in search.pattern.pattern or r"\n" in search.pattern.pattern:
            notes.append("a pattern is matched within one line, which has no \\n")
    if search.end:
        notes.append(f"stopped: {search.end}; narrow the pattern, path or glob")
    if search.long_lines:
        notes.append(
            f"{search.long_lines} lines over {search.longest} characters were not searched"
            + ("" if search.longest == MAX_LINE else " (a pattern with fewer repeats reaches longer lines)")
        )
    if search.unreadable or passed.unreadable:
        notes.append(
            f"{search.unreadable + passed.unreadable} files or folders could not be read, or have more than "
            f"{size_of(MAX_FILE_BYTES)} (MAX_FILE_BYTES)"
        )
    if passed.crowded or passed.too_deep:
        notes.append("some folders were too large or too deep to search whole")
    return "\n".join([*search.rows, *([f"[{'; '.join(notes)}]"] if notes else [])])
