"""`edit`: one text in a file replaced by another, exactly.

Matched in LF space with the byte order mark set aside; only what differs is written, so all other bytes, line
ends and the end of the file stay. Where nothing matches the model is told why and shown the nearest text.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, Any

from latchstep.core.message import clean
from latchstep.errors import ToolError

from .base import Context, Output, Tool
from .change import done, findings, reader_marks, reader_notice, refuse_changed, refuse_stale, settle_by_hash
from .define import tool
from .diff import nearest, unified
from .encoding import Decoded, decode, splice, to_lf
from .seen import Seen
from .text import cut, shown, size_of
from .tree import missing
from .workspace import File, Workspace

MAX_OLD = 1_000_000
"""Characters of `old` and of `new`."""
MAX_HINT = 4000
"""Characters of what is shown when nothing matches."""

_LOOKALIKES = str.maketrans("‘’‚“”„–—−\u00a0\u2009\u202f", "'''\"\"\"---   ")


def edit_tool(workspace: Workspace, seen: Seen) -> Tool:
    """The `edit` tool. `seen` says which bytes the model knows."""

    def prepare(arguments: dict[str, Any], context: Context) -> Any:
        path = arguments["path"]
        present = workspace.current(path)
        data, _ = _edited(workspace, path, present, seen, arguments)
        return findings(present.path if present else path, present, data)

    @tool(effect="write", prepare=prepare, settle=settle_by_hash(workspace))
    def edit(
        path: Annotated[str, "File, relative to the workspace"],
        old: Annotated[str, "Text to replace, exactly as in the file; it must occur once unless all is true"],
        new: Annotated[str, "Text to put in its place"],
        context: Context,
        all: Annotated[bool, "Replace every occurrence"] = False,
    ) -> Output:
        """Replace a text in a file. The text must match exactly, blanks and indentation included."""
        lines: list[int] = []

        def make(real: str, present: File | None) -> bytes:
            refuse_stale(real, present, context.found, seen)
            arguments = {"old": old, "new": new, "all": all}
            data, lines[:] = _edited(workspace, path, present, seen, arguments)
            return data

        file, present = workspace.update(path, make)
        where = ", ".join(map(str, lines[:10])) + (", …" if len(lines) > 10 else "")
        words = (
            f"Replaced {len(lines)} occurrence{'' if len(lines) == 1 else 's'} in {shown(file.path)} (line {where})."
        )
        return Output(*done(file, present, seen, words))

    return edit


def _edited(
    workspace: Workspace, path: str, present: File | None, seen: Seen, arguments: dict[str, Any]
) -> tuple[bytes, list[int]]:
    """The file's bytes after the edit, and the lines where it was made. Raises ToolError where it cannot be."""
    if present is None:
        try:
            workspace.read(path)
        except ToolError as error:
            raise missing(workspace, path, error) from None
        raise ToolError(f"{shown(path)} was changed by someone else just now; read it again")
    refuse_changed(present, seen)
    decoded = decode(present.data)
    if decoded is None:
        raise ToolError(f"{shown(path)} is binary ({size_of(len(present.data))}); edit works on text")
    return replace_text(shown(path), decoded, arguments["old"], arguments["new"], bool(arguments.get("all", False)))


def replace_text(path: str, file: Decoded, old: str, new: str, every: bool = False) -> tuple[bytes, list[int]]:
    """The bytes of a file with `old` replaced, and the line numbers of the places (from 1).

    Raises ToolError: nothing to do, no match, several matches without `every`, a character the encoding lacks.
    """
    old, new = _fit(old, file), _fit(new, file)
    if max(len(old), len(new)) > MAX_OLD:
        raise ToolError(f"old or new has more than {MAX_OLD} characters (MAX_OLD); use smaller edits")
    if not old:
        raise ToolError("old is empty; give the text to replace, or use write for a whole file")
    if old == new:
        raise ToolError("old and new are the same; there is nothing to change")
    text = file.text
    places = _places(text, old, every)
    if not places and len(old) > 1 and old[-1] == new[-1:] == "\n" and text.endswith(old[:-1]):
        old, new = old[:-1], new[:-1]  # the last line, given with the newline it does not have
        places = [len(text) - len(old)]
    if not places:
        raise ToolError(_why_not(path, text, old, new))
    lines = _line_numbers(text, places)
    if len(places) > 1 and not every:
        where = ", ".join(map(str, lines[:10])) + (", …" if len(lines) > 10 else "")
        raise ToolError(
            f"old occurs {len(places)} times in {path} (lines {where}). Nothing was changed. "
            "Add lines around it so that it occurs once, or set all to true"
        )
    if (notice := reader_notice(new)) and notice not in text:
        raise ToolError(f"new holds the notice {notice!r}, which a reader adds and no file has. Nothing was changed")
    news = [new] * len(places)
    news[-1] = _kept_end(text, places[-1] + len(old), new, places[-1])
    if news == [old]:
        raise ToolError("edit keeps the end of a file as it is, with or without a last newline; use write to change it")
    raw = splice(file.raw, places, old, news)
    _verify(text, old, places, news, raw)
    try:
        return file.encode(raw), lines
    except UnicodeEncodeError as error:
        raise ToolError(
            f"{path} is written in {file.encoding}, which has no {error.object[error.start]!r}; nothing was changed"
        ) from error


def _fit(text: str, file: Decoded) -> str:
    return to_lf(text.removeprefix("\ufeff") if file.mark else text)


def _places(text: str, old: str, every: bool) -> list[int]:
    """Where `old` stands. With `every` no two overlap; else each counts, since any of them may be meant."""
    places, at = [], text.find(old)
    while at >= 0:
        places.append(at)
        at = text.find(old, at + (len(old) if every else 1))
    return places


def _line_numbers(text: str, places: list[int]) -> list[int]:
    numbers, line, done_to = [], 1, 0
    for place in places:
        line += text.count("\n", done_to, place)
        done_to = place
        numbers.append(line)
    return numbers


def _kept_end(text: str, end: int, new: str, start: int) -> str:
    """The new text so that a file with a newline at its end keeps it, and one without gets none."""
    if end != len(text):
        return new
    if text.endswith("\n"):
        before = new or text[:start]
        return new if before.endswith("\n") or not before else new + "\n"
    return new.removesuffix("\n")


def _verify(text: str, old: str, places: list[int], news: list[str], raw: str) -> None:
    """Mixed CR and LF ends can join where something between them goes; then the result is not what was asked."""
    pieces, at = [], 0
    for place, new in zip(places, news, strict=True):
        pieces += [text[at:place], new]
        at = place + len(old)
    if to_lf(raw) != "".join([*pieces, text[at:]]):
        raise ToolError("the line ends of this file are mixed so that this edit would join two; use write")


# Why nothing matched


def _why_not(path: str, text: str, old: str, new: str) -> str:
    head = f"old was not found in {path}. Nothing was changed. {_reason(text, old, new)}".rstrip()
    near = nearest(text, old)
    if near is None:
        return head + " No line of the file is like it."
    number, lines = near
    rows = [f"{number + index:>6}| {cut(line, 200)}" for index, line in enumerate(lines)]
    span = f"line {number}" if len(lines) == 1 else f"lines {number}-{number + len(lines) - 1}"
    diff = unified("old, against the file", old.strip("\n"), "\n".join(lines))
    hint = "\n".join([f"Nearest text, {span}:", *rows, *(diff.split("\n")[1:] if diff else [])])
    return clean(f"{head}\n{cut(hint, MAX_HINT)}")


def _reason(text: str, old: str, new: str) -> str:
    if marks := reader_marks(old):
        return f"It holds {marks}, which are no part of the file."
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
