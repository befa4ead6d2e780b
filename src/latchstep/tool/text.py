"""Text as a model and a terminal can take it: no control characters, no escape sequences, strict UTF-8.

Pure. Everything a tool hands on passes through `clean_output`; names of files pass through `shown`.
Every pattern here scans in linear time, since the input is hostile.
"""

from __future__ import annotations

import re

from latchstep.core.message import clean

SAMPLE_BYTES = 8192
"""How much of the start of some bytes decides whether they are text."""

# ECMA-48: CSI with parameters, then strings (OSC, DCS, SOS, PM, APC) up to their terminator, then any other
# escape. A string that is not ended on its line loses its introducer only, so that it cannot hide what follows.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[\]\[PX^_]"
    r"|\x1b[ -/]*[0-~]"
)
_OVERSTRUCK = re.compile(r"[^\n\x08]\x08")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NO_TEXT = bytes(sorted({*range(0x20), 0x7F} - set(b"\t\n\r\b\f\x1b")))
_NEEDS_WORK = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def clean_output(output: str | bytes) -> str:
    """The text of some output without escape sequences and without control characters other than tab and newline.

    Bytes are read as UTF-8, with U+FFFD for what is not. Of a line that was rewritten with carriage returns
    (a progress bar) the last state stays; overstruck characters (`man`) are dropped.
    """
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else output
    if not _NEEDS_WORK.search(text):
        return text
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    if "\x08" in text:
        text = _OVERSTRUCK.sub("", text)
    if "\r" in text:
        text = "\n".join(_last_state(line) if "\r" in line else line for line in text.split("\n"))
    return clean(_CONTROLS.sub("", text))


def _last_state(line: str) -> str:
    for state in reversed(line.split("\r")):
        if _CONTROLS.sub("", state):
            return state
    return ""


def is_binary(data: bytes) -> bool:
    """True where the start of the data is not text: one NUL in 64 bytes, or one in 20 that no text holds.

    Bytes over 0x7f are no evidence: old single-byte encodings are full of them, while packed data cannot
    avoid the control characters.
    """
    sample = data[:SAMPLE_BYTES]
    if not sample:
        return False
    return sample.count(0) * 64 >= len(sample) or (len(sample) - len(sample.translate(None, _NO_TEXT))) * 20 > len(
        sample
    )


def cut(text: str, limit: int) -> str:
    """The text, or its head with a note of how many characters are missing. `limit` counts characters."""
    return text if len(text) <= limit else f"{text[:limit]}… (+{len(text) - limit} characters)"


def shown(name: str) -> str:
    """A file's name on one line: what cannot be printed is escaped, so that no name can forge a row."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in name)


def size_of(count: int) -> str:
    """A number of bytes for people: `812 B`, `4.0 KiB`, `1.5 MiB`."""
    if count < 1024:
        return f"{count} B"
    if count < 1024**2:
        return f"{count / 1024:.1f} KiB"
    return f"{count / 1024**2:.1f} MiB"
