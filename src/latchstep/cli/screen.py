"""The one place that writes to the terminal. Text of models and tools passes through `printable` on its way.

Whatever the encoding of the output, nothing here raises for a character; only an output that takes no more does,
as `OutputLost`.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from typing import TextIO

from latchstep.core.printable import printable

STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

PLAIN = str.maketrans({"▸": ">", "✓": "+", "✗": "x", "–": "-", "…": "...", "·": "-", "›": ">", "⏎": "|", "│": "|"})
"""What our own marks become where the output cannot show them."""

DEFAULT_WIDTH = 120
"""Columns where there is no terminal to ask."""

_BLANK_END = re.compile(r"[ \t]+\Z")


class OutputLost(Exception):
    """stdout takes nothing more: its reader has gone, or its disk is full."""


def put(out: TextIO, text: str) -> None:
    """Write and flush. Raises OutputLost."""
    try:
        out.write(text)
        out.flush()
    except (OSError, ValueError) as error:
        raise OutputLost(getattr(error, "strerror", None) or str(error)) from error


class Screen:
    """Lines, streamed pieces, and one status line at the bottom where there is a terminal.

    terminal: the cursor can be moved, so that a status line can be redrawn.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out if out is not None else sys.stdout
        self.terminal = self.out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.colours = self.terminal and not os.environ.get("NO_COLOR")
        self._encoding = self.out.encoding or "ascii"
        self.unicode = self._encoding.lower().replace("-", "").startswith("utf")
        self._open = False
        self._held = ""
        self._status = False
        self._later: list[str] = []

    @property
    def width(self) -> int:
        """Columns, at least 20."""
        try:
            columns = os.get_terminal_size(self.out.fileno()).columns if self.out.isatty() else 0
        except (OSError, ValueError):
            columns = 0
        return max(20, columns or DEFAULT_WIDTH)

    def style(self, text: str, *names: str) -> str:
        """Our own text in a style. Never pass what is untrusted and not yet printable."""
        if not self.colours or not text:
            return text
        return f"\x1b[{';'.join(STYLES[name] for name in names)}m{text}\x1b[0m"

    def line(self, text: str = "") -> None:
        """A line of its own. `text` must be printable already (it may carry our styles)."""
        self._clear()
        self.end()
        lines, self._later = [*self._later, text], []
        self._write("\n".join(lines) + "\n")

    def later(self, text: str) -> None:
        """A line that is said with the next one; never, where none comes: a mistake is said alone."""
        self._later.append(text)

    def piece(self, text: str) -> None:
        """A piece of untrusted text, where the last piece ended. Blanks wait for what follows them, so that a run of
        them is seen as one whatever pieces it comes in."""
        self._clear()
        text = self._held + text
        found = _BLANK_END.search(text)
        self._held = found[0] if found else ""
        shown = printable(text[: len(text) - len(self._held)])
        if shown:
            self._write(shown)
            self._open = not shown.endswith("\n")

    def prompt(self, text: str) -> None:
        """Our own text, with the cursor behind it; the person's Enter ends the line."""
        self._clear()
        self.end()
        self._write(text)

    def end(self) -> None:
        """End the streamed line, if one is open."""
        self._held = ""
        if self._open:
            self._write("\n")
            self._open = False

    def status(self, text: str) -> None:
        """Replace the status line; only where the cursor can be moved, and no streamed line is open."""
        if self.terminal and not self._open:
            self._clear()
            self._write(self.style(cut_to(text, self.width - 1), "dim"))
            self._status = True

    def _clear(self) -> None:
        if self._status:
            self._write("\r\x1b[K")
            self._status = False

    def _write(self, text: str) -> None:
        if not self.unicode:  # a terminal of another age: better a plain mark than a crash
            text = text.translate(PLAIN).encode(self._encoding, "replace").decode(self._encoding)
        put(self.out, text)


def columns_of(char: str) -> int:
    """Columns that a printable character takes."""
    if " " <= char <= "~":
        return 1
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut_to(text: str, columns: int) -> str:
    """The head of a printable line that fits, with a mark where something is missing."""
    return text if len(pieces := fold(text, columns)) == 1 else fold(pieces[0], columns - 1)[0] + "…"


def fold(text: str, columns: int) -> list[str]:
    """A printable line in pieces of at most so many columns. Nothing is lost."""
    if text.isascii():
        return [text[at : at + columns] for at in range(0, len(text), columns)] or [""]
    pieces, used = [""], 0
    for char in text:
        takes = columns_of(char)
        if used + takes > columns:
            pieces.append("")
            used = 0
        pieces[-1] += char
        used += takes
    return pieces


def gutter(text: str, columns: int, indent: str = "  ") -> list[str]:
    """Untrusted text, escaped and whole, each row behind a bar: however it is made, it cannot pass for our own words.

    A row that goes on in the next one has a `:` there instead of the bar.
    """
    room = max(10, columns - len(indent) - 2)
    rows = []
    for line in printable(text).split("\n"):
        first, *more = fold(line, room)
        rows.append(f"{indent}│ {first}")
        rows += [f"{indent}: {piece}" for piece in more]
    return rows
