"""The one place that writes to the terminal. Text of models and tools passes through `printable` on its way."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from latchstep.core.printable import printable

STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Screen:
    """Lines, streamed pieces, and one status line at the bottom where there is a terminal."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out if out is not None else sys.stdout
        self.terminal = self.out.isatty()
        self.colours = self.terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        encoding = (self.out.encoding or "ascii").lower().replace("-", "")
        self.unicode = encoding.startswith("utf")
        self._column = 0
        self._status = ""

    def style(self, text: str, *names: str) -> str:
        """Our own text in a style. Never pass what is untrusted and not yet printable."""
        if not self.colours or not text:
            return text
        return f"\x1b[{';'.join(STYLES[name] for name in names)}m{text}\x1b[0m"

    def line(self, text: str = "") -> None:
        """A line of its own. `text` must be printable already (it may carry our styles)."""
        self._clear()
        self.end()
        self._write(text + "\n")

    def piece(self, text: str) -> None:
        """A piece of untrusted text, where the last piece ended."""
        self._clear()
        shown = printable(text)
        if shown:
            self._write(shown)
            self._column = 0 if shown.endswith("\n") else 1

    def end(self) -> None:
        """End the streamed line, if one is open."""
        if self._column:
            self._write("\n")
            self._column = 0

    def status(self, text: str) -> None:
        """Replace the status line; only on a terminal, and only where no streamed line is open."""
        if self.terminal and not self._column:
            self._clear()
            self._status = text
            self._write(text)

    def _clear(self) -> None:
        if self._status:
            self._write("\r\x1b[K")
            self._status = ""

    def _write(self, text: str) -> None:
        if not self.unicode:  # a terminal of another age: better a question mark than a crash
            text = text.encode(self.out.encoding or "ascii", "replace").decode(self.out.encoding or "ascii")
        self.out.write(text)
        self.out.flush()
