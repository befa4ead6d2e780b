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

A hunk must fit at one place alone, from its `@@` line on and behind the hunk before it. What is not understood is
refused with its line number.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from latchstep.core.message import clean
from latchstep.errors import ToolError

from .diff import nearest
from .encoding import Decoded, Span, to_lf
from .replace import apply
from .text import cut

MAX_PATCH = 2_000_000
"""Characters of a patch."""
MAX_FILES = 200
"""Files of one patch."""

_BEGIN, _END, _EOF = "*** Begin Patch", "*** End Patch", "*** End of File"
_FILE = re.compile(r"\*\*\* (Add|Delete|Update) File: (.+)")
_MOVE = "*** Move to: "


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
    lines = to_lf(text).strip("\n").split("\n")
    if lines[0].strip() != _BEGIN:
        raise _wrong(1, f"a patch begins with {_BEGIN!r}")
    if lines[-1].strip() != _END:
        raise _wrong(len(lines), f"a patch ends with {_END!r}")
    files: list[FilePatch] = []
    for number, line in enumerate(lines[1:-1], 2):
        if found := _FILE.fullmatch(line.rstrip()):
            files.append(FilePatch(found[1], found[2].strip()))  # type: ignore[arg-type]
            if len(files) > MAX_FILES:
                raise _wrong(number, f"a patch may change {MAX_FILES} files (MAX_FILES)")
        elif not files:
            raise _wrong(number, "expected '*** Add File: ', '*** Delete File: ' or '*** Update File: '")
        else:
            _take(files[-1], line, number)
    _refuse_odd(files, len(lines))
    return files


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
        anchor = line[2:].strip()
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
            if all(sign == " " for sign, _ in hunk.rows):
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
        at = _after_anchors(path, lines, hunk, at)
        place = _place(path, lines, hunk, at)
        spans.append(_span(hunk, lines, starts, place, ended))
        at = place + len(hunk.old)
    return apply(path, file, spans)


def _after_anchors(path: str, lines: list[str], hunk: Hunk, at: int) -> int:
    """The line behind the `@@` lines; they are looked for one after the other, from `at` on."""
    for anchor in hunk.start:
        found = next((n for n in range(at, len(lines)) if lines[n].strip() == anchor), None)
        if found is None:
            found = next((n for n in range(at, len(lines)) if anchor in lines[n]), None)
        if found is None:
            raise _wrong(hunk.line, f"no line like '@@ {cut(anchor, 200)}' is in {path} from line {at + 1} on")
        # The anchor itself may be the hunk's first line of context.
        at = found if hunk.old and hunk.old[0].strip() == lines[found].strip() else found + 1
    return at


def _place(path: str, lines: list[str], hunk: Hunk, at: int) -> int:
    """The line at which the hunk's old lines stand. Exactly, else but for blanks at the ends of lines."""
    count = len(hunk.old)
    if not count:
        return at if hunk.start else len(lines)
    exact, bare = (lines, hunk.old), ([line.rstrip() for line in lines], [line.rstrip() for line in hunk.old])
    for there, old in (exact, bare):
        found = [n for n in range(at, len(lines) - count + 1) if there[n] == old[0] and there[n : n + count] == old]
        if hunk.last:
            found = [n for n in found if n + count == len(lines)]
        if len(found) == 1 or (found and hunk.start):
            return found[0]
        if found:
            where = ", ".join(str(n + 1) for n in found[:10])
            raise _wrong(
                hunk.line, f"the hunk fits {path} at lines {where}; give more context, or an @@ line before it"
            )
    raise _wrong(hunk.line, f"the hunk does not fit {path} from line {at + 1} on{_nearest(lines, hunk)}")


def _nearest(lines: list[str], hunk: Hunk) -> str:
    near = nearest("\n".join(lines), "\n".join(hunk.old))
    if near is None:
        return ""
    rows = "\n".join(f"{near[0] + n:>6}| {cut(line, 200)}" for n, line in enumerate(near[1]))
    return clean(f". Nearest text:\n{rows}")


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


def _wrong(line: int, what: str) -> ToolError:
    return ToolError(f"line {line} of the patch: {what}. Nothing was changed")
