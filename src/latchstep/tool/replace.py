"""Texts of a file replaced by others: exactly, all of them or none, with all other bytes as they were.

Matched in LF space with the byte order mark set aside. Where nothing matches, the error says why and shows the nearest
text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from latchstep.core.message import clean
from latchstep.errors import ToolError

from .change import numbered_copy, reader_marks, reader_notice
from .diff import nearest, unified
from .encoding import Decoded, Span, splice, to_lf
from .text import clean_output, cut
from .tolerant import LOOKALIKES, nearly

MAX_OLD = 1_000_000
"""Characters of `old` and of `new`."""
MAX_PLACES = 100_000
"""Places that one edit may change."""
MAX_COMPARED = 2_000_000
"""Characters of a file that are looked at to find out why nothing matched."""
MAX_HINT = 4000
"""Characters of what is shown when nothing matches."""

_UNSEEN = re.compile("[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe0f\ufeff]")
_LOOKALIKES = {**LOOKALIKES, **str.maketrans("–—−", "---")}


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One replacement. `old` must occur once, unless `all` is true."""

    old: str
    new: str
    all: bool = False


class Replaced(msgspec.Struct, frozen=True):
    """The file's bytes after it, the line of each place (from 1, before it), and what was tolerated, in words."""

    data: bytes
    lines: list[int]
    notes: list[str]


def replace_texts(path: str, file: Decoded, changes: Sequence[Change]) -> Replaced:
    """All the changes, each matched against the file as it is. Raises ToolError, and then nothing is changed:
    nothing to do, no match, several matches without `all`, two changes of one place, a character the encoding lacks.
    """
    spans: list[Span] = []
    notes: list[str] = []
    for number, change in enumerate(changes):
        try:
            found, note = _found(path, file, change)
        except ToolError as error:
            if len(changes) == 1:
                raise
            raise ToolError(f"edits[{number}]: {error}") from None
        spans += found
        notes += [note] if note else []
        if len(spans) > MAX_PLACES:
            raise ToolError(f"more than {MAX_PLACES} places would change (MAX_PLACES); use smaller edits")
    spans.sort(key=lambda span: span.start)
    lines = line_numbers(file.text, spans)
    data = apply(path, file, spans)
    return Replaced(data, lines, list(dict.fromkeys(notes)))


def _found(path: str, file: Decoded, change: Change) -> tuple[list[Span], str]:
    """Where one change is to be made, and what was tolerated to find that."""
    old, new, text = _fit(change.old, file), _fit(change.new, file), file.text
    if max(len(old), len(new)) > MAX_OLD:
        raise ToolError(f"old or new has more than {MAX_OLD} characters (MAX_OLD); use smaller edits")
    if not old:
        raise ToolError("old is empty; give the text to replace, or use write for a whole file")
    if old == new:
        raise ToolError("old and new are the same; there is nothing to change")
    notice = reader_notice(new)
    if marks := f"the notice {notice!r}" if notice and notice not in text else numbered_copy(new, text):
        raise ToolError(
            f"new holds {marks}, which a reader adds and no file has. Nothing was changed; "
            "if it is really meant, use write with verbatim"
        )
    places = _places(text, old, change.all)
    unended = not text.endswith("\n") and text.endswith(old[:-1])
    if not places and len(old) > 1 and old[-1] == new[-1:] == "\n" and unended:
        old, new = old[:-1], new[:-1]  # the last line, given with the newline it does not have
        places = [len(text) - len(old)]
    spans = [Span(place, old, new) for place in places]
    if len(spans) > 1 and not change.all:
        lines = line_numbers(text, spans)
        where = ", ".join(map(str, lines[:10])) + (", …" if len(lines) > 10 else "")
        raise ToolError(
            f"old occurs {len(places)} times in {path} (lines {where}). Nothing was changed. "
            "Add lines around it so that it occurs once, or set all to true"
        )
    if spans:
        return spans, ""
    near = nearly(text, old, new) if len(text) <= MAX_COMPARED and not change.all and new not in text else None
    if near is None:
        raise ToolError(_why_not(path, text, old, new))
    return [near[0]], near[1]


def apply(path: str, file: Decoded, spans: list[Span]) -> bytes:
    """The file's bytes with these changes (ascending) made. Raises ToolError where they cannot be made together."""
    text = file.text
    for before, after in pairwise(spans):
        if before.end > after.start or before.start == after.start:
            line = line_numbers(text, [after])[0]
            raise ToolError(f"two of the edits change the same text of {path} (line {line}). Nothing was changed")
    if spans and (last := spans[-1]).end == len(text):
        kept = Span(last.start, last.old, _kept_end(text, last.new, last.start))
        spans = [*spans[:-1], kept]
        if len(spans) == 1 and kept.new == kept.old:
            raise ToolError(
                "edit keeps the end of a file as it is, with or without a last newline; use write to change it"
            )
    raw = splice(file.raw, spans)
    _verify(text, spans, raw)
    try:
        return file.encode(raw)
    except ValueError as error:
        raise ToolError(f"{path} {error}; nothing was changed") from error


def _fit(text: str, file: Decoded) -> str:
    return to_lf(text.removeprefix("\ufeff") if file.mark else text)


def _places(text: str, old: str, every: bool) -> list[int]:
    """Where `old` stands. With `every` no two overlap; else each counts, since any of them may be meant."""
    places, at = [], text.find(old)
    while at >= 0:
        places.append(at)
        if len(places) > MAX_PLACES:
            raise ToolError(f"old occurs more than {MAX_PLACES} times (MAX_PLACES); add lines around it")
        at = text.find(old, at + (len(old) if every else 1))
    return places


def line_numbers(text: str, spans: Sequence[Span]) -> list[int]:
    """The line (from 1) in which each of these places (ascending) begins."""
    numbers, line, done_to = [], 1, 0
    for span in spans:
        line += text.count("\n", done_to, span.start)
        done_to = span.start
        numbers.append(line)
    return numbers


def _kept_end(text: str, new: str, start: int) -> str:
    """Text at the end of a file, so that one with a newline there keeps it, and one without gets none."""
    if not text:
        return new
    if text.endswith("\n"):
        before = new or text[:start]
        return new if before.endswith("\n") or not before else new + "\n"
    return new.rstrip("\n")


def _verify(text: str, spans: list[Span], raw: str) -> None:
    """Mixed CR and LF ends can join where something between them goes; then the result is not what was asked."""
    pieces, at = [], 0
    for span in spans:
        pieces += [text[at : span.start], span.new]
        at = span.end
    if to_lf(raw) != "".join([*pieces, text[at:]]):
        raise ToolError("the line ends of this file are mixed so that this edit would join two; use write")


# Why nothing matched


def _why_not(path: str, text: str, old: str, new: str) -> str:
    text = text[:MAX_COMPARED]
    why = reason(text, old, new)
    head = f"old was not found in {path}. Nothing was changed. {why}".rstrip()
    near = nearest(text, old)
    if near is None:
        return head if why else head + " No line of the file is like it."
    number, lines = near
    rows = [f"{number + index:>6}| {cut(line, 200)}" for index, line in enumerate(lines)]
    span = f"line {number}" if len(lines) == 1 else f"lines {number}-{number + len(lines) - 1}"
    diff = unified("old, against the file", old.strip("\n"), "\n".join(lines))
    hint = "\n".join([f"Nearest text, {span}:", *rows, *(diff.split("\n")[1:] if diff else [])])
    return clean(f"{head}\n{cut(hint, MAX_HINT)}")


def reason(text: str, old: str, new: str) -> str:
    """What the file has in place of a text that is not in it, in words; "" where that cannot be told."""
    if marks := reader_marks(old):
        return f"It holds {marks}, which are no part of the file."
    if (shown := clean_output(old)).strip() and shown in clean_output(text):
        return (
            "The same text is there with control characters, escape sequences or damaged bytes in it, which are not "
            "shown: take the text beside them, or change them by a command."
        )
    if (shown := _UNSEEN.sub("", old)).strip() and shown in _UNSEEN.sub("", text):
        which = sorted({f"U+{ord(c):04X}" for c in _UNSEEN.findall(text + old)})
        return f"The same text is there but for characters that cannot be seen ({', '.join(which[:5])})."
    if _squeezed(old) and _squeezed(old) in _squeezed(text):
        return "The same words are there, but blanks differ: compare indentation, tabs and blanks at line ends."
    if _folded(old) in _folded(text):
        return "The same text is there with other letter case, quotes, dashes or Unicode forms."
    if "\\n" in old and old.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"') in text:
        return "It holds escapes (\\n, \\t) where the file has the characters themselves."
    if new.strip() and new in text:
        return "The new text is already there; this edit may have been made before."
    return ""


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text.translate(_LOOKALIKES)).casefold()
