"""The patch envelope that models are trained on → what each file becomes. Pure.

    *** Begin Patch
    *** Update File: PATH        (*** Move to: PATH may follow)
    @@ a line to start from
     context
    -removed
    +added
    *** Add File: PATH
    +each line
    *** Delete File: PATH
    *** End Patch

A hunk must fit at one place alone, from its `@@` line on and behind the hunk before it. What wraps a patch (a fence, a
here-document) and the blank lines between its sections count for nothing. What is not understood is refused with its
line number.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Literal

import msgspec

from latchstep.core.message import clean
from latchstep.errors import ToolError

from .diff import nearest
from .encoding import Decoded, Span, to_lf
from .replace import apply, reason
from .text import cut

MAX_PATCH = 2_000_000
"""Characters of a patch."""
MAX_FILES = 200
"""Files of one patch."""

_BEGIN, _END, _EOF = "*** Begin Patch", "*** End Patch", "*** End of File"
_FILE = re.compile(r"\*\*\* (Add|Delete|Update) File: (.+)")
_MOVE = "*** Move to: "
_OPENS = re.compile(r"|```\w*|(?:apply_patch\s*)?<<-?\s*['\"]?\w+['\"]?")
_CLOSES = re.compile(r"|```|\w+")
_RANGES = re.compile(r"-\d+(?:,\d+)? \+\d+(?:,\d+)? @@.*")
"""What a unified diff says in an `@@` line. Numbers that a model gives are often wrong, so they count for nothing."""


class Hunk(msgspec.Struct):
    """rows: (` `, `-` or `+`, line). start: the `@@` lines to look for first, in order. last: it ends where the file
    does. line: where it stands in the patch, from 1."""

    line: int
    start: list[str] = []
    rows: list[tuple[str, str]] = []
    last: bool = False

    @property
    def old(self) -> list[str]:
        """The lines that must be there."""
        return [line for sign, line in self.rows if sign != "+"]

    @property
    def new(self) -> list[str]:
        """The lines that shall be there."""
        return [line for sign, line in self.rows if sign != "-"]


class FilePatch(msgspec.Struct):
    """What becomes of one file. text: the whole of an added one. move: its new path, "" where it stays."""

    kind: Literal["Add", "Delete", "Update"]
    path: str
    text: str = ""
    move: str = ""
    hunks: list[Hunk] = []


def parse_patch(text: str) -> list[FilePatch]:
    """The files of a patch, each once. Raises ToolError that names the line that is wrong."""
    if len(text) > MAX_PATCH:
        raise ToolError(f"the patch has {len(text)} characters; the limit is {MAX_PATCH} (MAX_PATCH)")
    lines = to_lf(text).split("\n")
    first, last = _envelope(lines)
    files: list[FilePatch] = []
    blank = 0
    for number, line in enumerate(lines[first + 1 : last], first + 2):
        if not line:
            blank += 1
            continue
        found = _FILE.fullmatch(line.rstrip())
        if files and not found and not line.startswith(("@@", _MOVE)):  # else they only stood between parts
            for before in range(number - blank, number):
                _take(files[-1], "", before)
        blank = 0
        if found:
            files.append(FilePatch(found[1], found[2].strip()))  # type: ignore[arg-type]
            if len(files) > MAX_FILES:
                raise _wrong(number, f"a patch may change {MAX_FILES} files (MAX_FILES)")
        elif not files:
            raise _wrong(number, "expected '*** Add File: ', '*** Delete File: ' or '*** Update File: '")
        else:
            _take(files[-1], line, number)
    _refuse_odd(files, last + 1)
    return files


def _envelope(lines: list[str]) -> tuple[int, int]:
    """Where the first and the last line of the patch itself stand."""
    first, last = 0, len(lines) - 1
    while first < last and _OPENS.fullmatch(lines[first].strip()):
        first += 1
    while first < last and _CLOSES.fullmatch(lines[last].strip()):
        last -= 1
    for at, mark, verb in ((first, _BEGIN, "begins"), (last, _END, "ends")):
        if lines[at].strip().removesuffix(" ***") != mark:
            raise _wrong(at + 1, f"a patch {verb} with the line {mark!r}, not with {cut(lines[at], 80)!r}")
    return first, last


def _take(file: FilePatch, line: str, number: int) -> None:
    """One line that belongs to a file."""
    if file.kind == "Delete":
        if line.strip():
            raise _wrong(number, f"nothing may follow the deletion of {file.path}")
    elif file.kind == "Add":
        if not line.startswith("+"):
            raise _wrong(number, f"each line of the new file {file.path} begins with '+'")
        file.text += line[1:] + "\n"
    elif line.startswith(_MOVE) and not file.hunks and not file.move:
        file.move = line.removeprefix(_MOVE).strip()
    elif line.startswith("@@"):
        anchor = "" if _RANGES.fullmatch(line[2:].strip()) else line[2:].strip().removesuffix("@@").rstrip()
        if file.hunks and not file.hunks[-1].rows:
            file.hunks[-1].start += [anchor] if anchor else []
        else:
            file.hunks.append(Hunk(number, [anchor] if anchor else []))
    elif line.rstrip() == _EOF and file.hunks:
        file.hunks[-1].last = True
    elif line[:1] in (" ", "-", "+", ""):
        if not file.hunks or file.hunks[-1].last:
            file.hunks.append(Hunk(number))
        file.hunks[-1].rows.append((line[:1] or " ", line[1:]))
    else:
        raise _wrong(number, "each line of a hunk begins with ' ', '-' or '+', and a hunk with '@@'")


def _refuse_odd(files: list[FilePatch], lines: int) -> None:
    if not files:
        raise _wrong(lines, "the patch changes no file")
    named = [path for file in files for path in (file.path, file.move) if path]
    if twice := next((path for path in named if named.count(path) > 1), None):
        raise ToolError(f"{twice} is named twice; give one section for each file. Nothing was changed")
    for file in files:
        for hunk in file.hunks:
            if hunk.old == hunk.new:
                raise _wrong(hunk.line, "this hunk changes nothing")
        if file.kind == "Update" and not file.hunks and not file.move:
            raise ToolError(f"the section for {file.path} changes nothing. Nothing was changed")


def patched(path: str, file: Decoded, hunks: list[Hunk]) -> bytes:
    """The file's bytes after its hunks. Raises ToolError where one does not fit, or fits in two places."""
    lines = file.text.split("\n")
    ended = lines[-1] == ""
    if ended:
        lines.pop()
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    spans, at = [], 0
    for hunk in hunks:
        place = _place(path, lines, hunk, at)
        last = max(n for n, (sign, _) in enumerate(hunk.rows) if sign != " ")
        body = Hunk(hunk.line, rows=hunk.rows[: last + 1])  # the next hunk may begin with what this one ends with
        spans.append(_span(body, lines, starts, place, ended))
        at = place + len(body.old)
    return apply(path, file, spans)


def _starts(path: str, lines: list[str], hunk: Hunk, at: int) -> list[int]:
    """The lines behind the `@@` lines, from `at` on: the first wherever it stands, each further at its next place."""
    starts = [at]
    for depth, anchor in enumerate(hunk.start):
        rest = range(at, len(lines))
        found = [n for n in rest if lines[n].strip() == anchor] or [n for n in rest if anchor in lines[n]]
        if depth:
            found = _nexts(found, starts)
        if not found:
            raise _wrong(hunk.line, f"no line like '@@ {cut(anchor, 200)}' is in {path} from line {at + 1} on")
        # The anchor itself may be the hunk's first line of context.
        starts = [n if hunk.old and hunk.old[0].strip() == lines[n].strip() else n + 1 for n in found]
    return starts


def _nexts(places: list[int], starts: list[int]) -> list[int]:
    """The first of the places behind each of the starts."""
    behind = {bisect_left(places, start) for start in starts}
    return [places[index] for index in sorted(behind) if index < len(places)]


def _place(path: str, lines: list[str], hunk: Hunk, at: int) -> int:
    """The line at which the hunk's old lines stand. Exactly, else but for blanks at the ends of lines."""
    starts = _starts(path, lines, hunk, at)
    found = _fits(lines, hunk, at)
    if hunk.start:
        found = _nexts(found, starts)
    if not hunk.old:
        found = starts if hunk.start and not hunk.last else [len(lines)]
    if len(found) == 1:
        return found[0]
    if found:
        where = ", ".join(str(n + 1) for n in found[:10])
        raise _wrong(hunk.line, f"the hunk fits {path} at lines {where}; give more context, or an @@ line before it")
    said = f"the hunk does not fit {path} " + ("at its end" if hunk.last else f"from line {min(starts) + 1} on")
    if before := _fits(lines, hunk, 0):
        said += f"; it fits at line {before[0] + 1}, but hunks come in the order of the file"
    raise _wrong(hunk.line, said, _nearest(lines, hunk))


def _fits(lines: list[str], hunk: Hunk, at: int) -> list[int]:
    """Where the hunk's old lines stand, from a line on."""
    old, count = hunk.old, len(hunk.old)
    for bare in (False, True) if count else ():
        if bare:
            lines, old = [line.rstrip() for line in lines], [line.rstrip() for line in old]
        found = [n for n in range(at, len(lines) - count + 1) if lines[n] == old[0] and lines[n : n + count] == old]
        if found := [n for n in found if not hunk.last or n + count == len(lines)]:
            return found
    return []


def _nearest(lines: list[str], hunk: Hunk) -> str:
    text, old = "\n".join(lines), "\n".join(hunk.old)
    near = nearest(text, old)
    rows = [f"{near[0] + n:>6}| {cut(line, 200)}" for n, line in enumerate(near[1])] if near else []
    why = "" if old in text else reason(text, old, "\n".join(hunk.new))
    return clean("".join([f". {why}".rstrip(". "), *([".\nNearest text:\n", "\n".join(rows)] if rows else [])]))


def _span(hunk: Hunk, lines: list[str], starts: list[int], place: int, ended: bool) -> Span:
    """Whole lines, context as the file has it, with the newline behind the last, where the file has one there."""
    at, put = place, []
    for sign, line in hunk.rows:
        put += [line] if sign == "+" else [lines[at]] if sign == " " else []
        at += sign != "+"
    old, new = ("".join(line + "\n" for line in part) for part in (lines[place:at], put))
    if at < len(lines) or ended:
        return Span(starts[place], old, new)
    if old:
        return Span(starts[place], old[:-1], new[:-1])
    return Span(starts[place] - 1, "", "\n" + new[:-1]) if place else Span(0, "", new)


def _wrong(line: int, what: str, more: str = "") -> ToolError:
    return ToolError(f"line {line} of the patch: {what}. Nothing was changed{more}")
