"""`grep` by ripgrep: the same tool as in `grep.py`, many times faster, run in the spawner like any command.

What it prints is read as untrusted. The same search gives the same rows: where there are more than may be shown, it
is made again in the order of paths.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from latchstep.errors import ToolError

from .base import Output, Tool
from .capture import Capture
from .define import tool
from .encoding import decode
from .grep import MAX_CHARACTERS, MAX_SECONDS, around
from .ignore import Rule, alternatives, glob_rules, literal
from .regex import MAX_PATTERN
from .spawner import Finished, Spawner
from .text import clean_output, shown
from .tree import above, missing
from .workspace import Workspace

MAX_OUTPUT = 32 * 1024 * 1024
"""Bytes of ripgrep's answer that are read."""
MAX_SAID = 4000
"""Characters of its complaints that are read."""

_RULES = (
    "--no-config --hidden --no-require-git --no-ignore-global --no-ignore-exclude --no-ignore-dot --no-ignore-parent "
    "--crlf --glob '!.git'"
)
"""What is searched is what `grep.py` searches: hidden files too, without `.git` and what `.gitignore` leaves out. Those
above the workspace do not count, nor does a `\\r` at a line's end."""


class _Text(msgspec.Struct):
    """ripgrep's way to say a string: as text, or in base64 where it is not UTF-8."""

    text: str | None = None
    bytes: str | None = None

    @property
    def path(self) -> str:
        return self.text if self.text is not None else os.fsdecode(b64decode(self.bytes or ""))

    def __str__(self) -> str:
        if self.text is not None:
            return self.text
        data = b64decode(self.bytes or "")
        decoded = decode(data)
        return decoded.raw if decoded is not None else data.decode("utf-8", "replace")

    def characters(self, start: int) -> int:
        """How many characters so many bytes are."""
        data = self.text.encode() if self.text is not None else b64decode(self.bytes or "")
        return len(data[:start].decode("utf-8", "replace"))


class _Span(msgspec.Struct):
    start: int


class _Data(msgspec.Struct):
    path: _Text
    lines: _Text
    line_number: int | None = None
    submatches: list[_Span] = []


class _Row(msgspec.Struct):
    type: str
    data: _Data


_ROWS = msgspec.json.Decoder(_Row)


def ripgrep(*roots: Path) -> str:
    """The program's path, "" where there is none. One that lies where tools write is not the person's."""
    found = shutil.which("rg")
    real = os.path.realpath(found) if found else ""
    return "" if not real or any(map(Path(real).is_relative_to, roots)) or not os.path.isabs(found or "") else real


def ripgrep_tool(workspace: Workspace, spawner: Spawner, program: str) -> Tool:
    """The `grep` tool by this ripgrep."""

    @tool(effect="read")
    async def grep(
        pattern: Annotated[
            str, Meta(min_length=1, max_length=MAX_PATTERN, description="Regular expression (Rust's: no look-around)")
        ],
        path: Annotated[str, "File or folder to search"] = ".",
        *,
        glob: Annotated[str | None, "Only files like this: *.py, src/**/*.{ts,tsx}"] = None,
        ignore_case: bool = False,
        multiline: Annotated[bool, "Let the pattern match across lines; . matches a line's end too"] = False,
        context: Annotated[int, Meta(ge=0, le=20, description="Lines shown before and after a match")] = 0,
        limit: Annotated[int, Meta(ge=1, le=1000, description="Matching lines to show")] = 100,
    ) -> Output:
        """Search files line by line. Gives `path:line: text`.

        Skips what .gitignore leaves out, and files with a NUL byte (binary ones) that `path` does not name.
        """
        try:
            top, place = workspace.locate(path)
            apart = workspace.kind(path) == "file"
            if not apart:
                real, _, apart = above(workspace, path)
                place = workspace.locate(real or ".")[1]
        except ToolError as error:
            raise missing(workspace, path, error) from None
        words = ["--json"]  # each further option costs time, so none is given that changes nothing
        words += ["-C", str(context)] if context else []
        words += ["-i"] if ignore_case else []
        words += ["-U", "--multiline-dotall"] if multiline else []
        # Else from the top, so that each `.gitignore` on the way counts.
        apart = apart or "\n" in place or ".git" in place.split("/")
        where = ["-e", pattern, "--", f"./{place}" if apart and place != "." else "./"]
        search = _Search(spawner, top or str(workspace.root), program, limit)
        wanted = _wanted(glob, place) + ([] if apart or place == "." else _within(place))
        ended = await search.run([*words, *where], wanted)
        if search.full:
            ended = await search.run([*words, "--sort", "path", *where], wanted)
        said = await search.complaints([*words, *where], wanted) if ended is not None and ended.exit_status == 2 else ""
        is_wanted = partial(_is_wanted, glob_rules(glob or ""), place)
        return _report(search, ended, said, context, top, is_wanted=is_wanted)

    return grep


class _Search:
    """One run of ripgrep: its rows as they come, until there are enough."""

    def __init__(self, spawner: Spawner, root: str, program: str, limit: int) -> None:
        self.spawner, self.root, self.program, self.limit = spawner, root, program, limit
        self.full = False
        self.data = bytearray()

    async def run(self, words: list[str], wanted: list[str]) -> Finished | None:
        """How it ended; None where it was stopped because there is more than may be shown."""
        self.full, self.data = False, bytearray()
        matches = 0
        task: asyncio.Task[Finished]

        def more(data: bytes) -> None:
            nonlocal matches
            matches += data.count(b'{"type":"match"')
            self.data += data
            if not self.full and (matches > self.limit or len(self.data) > MAX_OUTPUT):
                self.full = True
                task.cancel()

        command = self._command(words, wanted, "2>/dev/null")
        run = self.spawner.run(command, cwd=self.root, timeout=MAX_SECONDS, capture=Capture(), on_output=more)
        task = asyncio.ensure_future(run)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self.full or (current is not None and current.cancelling()):
                task.cancel()
                await asyncio.wait([task])
                raise
            await asyncio.wait([task])
            return None

    def _command(self, words: list[str], wanted: list[str], ends: str) -> str:
        program = f"{shlex.quote(self.program)} {_RULES}"
        if not wanted:
            return f"exec {program} {shlex.join(words)} {ends}"
        return f"printf '%s\\n' {shlex.join(wanted)} | {program} --ignore-file /dev/stdin {shlex.join(words)} {ends}"

    async def complaints(self, words: list[str], wanted: list[str]) -> str:
        """What it says of what went wrong. Asked for apart: its rows and its complaints could cut into each other."""
        command = self._command(words, wanted, "2>&1 >/dev/null")
        ended = await self.spawner.run(command, cwd=self.root, timeout=MAX_SECONDS)
        return clean_output(ended.head)[:MAX_SAID]


def _wanted(glob: str | None, place: str) -> list[str]:
    """A glob as ignore rules, which yield to `.gitignore` where ripgrep's own `--glob` would not."""
    if not glob:
        return []
    rules = ["*", "!*/"]
    for one in alternatives(glob):
        one = one + "**" if one.endswith("/") else one
        below = "/".join(map(literal, place.split("/")))
        rules.append("!" + (f"/{below}/{one.lstrip('/')}" if "/" in one and place != "." else one))
    return rules


def _within(place: str) -> list[str]:
    """Ignore rules that leave one folder alone to be searched."""
    parts = list(map(literal, place.split("/")))
    above = ["/".join(["", *parts[:end]]) for end in range(len(parts) + 1)]
    return [rule for outer, inner in pairwise(above) for rule in (f"{outer}/*", f"!{inner}/")]


def _is_wanted(rules: Sequence[Rule], place: str, path: str) -> bool:
    """Whether a file is one that was asked for: a `.gitignore` that takes a file back outweighs the rules above."""
    if path == place:
        return True
    below = path if place == "." else path.removeprefix(f"{place}/")
    if place != "." and below == path:
        return False
    return not rules or any(rule.matches(below.split("/"), False) for rule in rules)


def _report(
    search: _Search, ended: Finished | None, said: str, context: int, top: str, *, is_wanted: Callable[[str], bool]
) -> Output:
    rows = _read(search, is_wanted)
    notes: list[str] = []
    if ended is not None and ended.exit_status not in (0, 1) and not rows:
        if ended.timed_out:
            notes.append(f"stopped: {MAX_SECONDS:g} seconds had passed (MAX_SECONDS)")
        else:
            raise ToolError(_advised(said) or f"ripgrep failed: {ended.exit_status or ended.signal}")
    elif said.strip():
        notes.append(f"{len(said.strip().splitlines())} files or folders could not be read")
    shown_rows, matches, files = _show(rows, search.limit, context, f"{top}/" if top else "")
    if search.full:
        notes.append(f"stopped: there are more than {min(search.limit, matches)} matching lines; narrow the search")
    elif sum(map(len, shown_rows)) > MAX_CHARACTERS:
        notes.append(f"stopped: the result reached {MAX_CHARACTERS} characters (MAX_CHARACTERS); narrow the search")
    if not matches:
        notes.append("no line matches")
    text = "\n".join([*shown_rows, *([f"[{'; '.join(notes)}]"] if notes else [])])
    return Output(text, {"matches": matches, "files": files})


def _advised(said: str) -> str:
    """Its complaint about a pattern, without advice that cannot be followed here."""
    said, _, advice = said.removeprefix("rg: ").strip().partition("\n\nConsider enabling")
    return said + ("\nSet multiline to true to match across lines." if "multiline" in advice else "")


def _read(search: _Search, is_wanted: Callable[[str], bool]) -> list[_Row]:
    """The rows that were asked for, in the order of paths."""
    rows = []
    for line in bytes(search.data).split(b"\n"):
        with suppress(msgspec.DecodeError):  # its summary, and the end of what was stopped
            rows.append(_ROWS.decode(line))
    rows = [row for row in rows if row.type in ("match", "context")]
    wanted = {path: is_wanted(path.removeprefix("./")) for path in {row.data.path.path for row in rows}}
    rows = [row for row in rows if wanted[row.data.path.path]]
    return sorted(rows, key=lambda row: row.data.path.path)  # stable: within a file they come in order


def _show(rows: list[_Row], limit: int, context: int, before: str) -> tuple[list[str], int, int]:
    """The rows as the tool shows them; how many lines matched, in how many files."""
    out: list[str] = []
    matches, characters, last, around_until = 0, 0, ("", 0), ("", 0)
    files = set()
    for row in rows:
        name, number = before + row.data.path.path.removeprefix("./"), row.data.line_number or 0
        lines = str(row.data.lines).rstrip("\n").split("\n")
        if matches == limit and (name != around_until[0] or number > around_until[1]):
            break
        hit = row.type == "match" and matches < limit
        if hit:
            matches += 1
            files.add(name)
            around_until = (name, number + len(lines) - 1 + context)
        if context and out and last != (name, number - 1):
            out.append("--")
        sign = ":" if hit else "-"
        start = row.data.lines.characters(row.data.submatches[0].start) if row.data.submatches else 0
        for offset, line in enumerate(lines):
            text = around(clean_output(line.rstrip("\r").replace("\r", " ")), start if not offset else None)
            out.append(f"{shown(name)}{sign}{number + offset}{sign} {text}")
            characters += len(out[-1]) + 1
            last = (name, number + offset)
        if characters > MAX_CHARACTERS:
            break
    return out, matches, len(files)
