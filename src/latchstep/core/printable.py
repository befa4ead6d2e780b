"""Untrusted text → text that is safe to show anywhere: a terminal, a log, a question for approval.

One function for every surface: what could move a cursor, hide, reorder or imitate is shown as an escape.
"""

from __future__ import annotations

import re
import unicodedata

_PLAIN = re.compile(r"[\x20-\x7e\n\t]*")
_BLANKS = re.compile(r"[ \t]{40,}")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters, marks and symbols by category, and nothing to see: Hangul fillers, joiners, the empty Braille pattern."""


def printable(text: str) -> str:
    """The text with every control, format, bidi, surrogate, private and unassigned character escaped.

    Newlines stay, tabs become four blanks, blanks that are not U+0020 and letters that look like one are escaped,
    and a run of 40 blanks or more is shown as its length, so that nothing can be pushed out of sight.
    """
    if not _PLAIN.fullmatch(text):
        text = "".join(_visible(char) for char in text)
    return _BLANKS.sub(lambda run: f" [{len(run[0])} blanks] ", text).replace("\t", "    ")


def _visible(char: str) -> str:
    if char in "\n\t" or " " <= char <= "~":
        return char
    category = unicodedata.category(char)
    if category in _HIDDEN or category == "Zs" or char in _BLANK_LETTERS:
        code = ord(char)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return char


def one_line(text: str, width: int = 100) -> str:
    """The text on one line of at most `width` characters; what is cut is counted."""
    flat = printable(text).replace("\n", "⏎ ").strip()
    if len(flat) <= width:
        return flat
    tail = f" … (+{len(flat) - width + 12})"
    return flat[: width - len(tail)] + tail
