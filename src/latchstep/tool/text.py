"""Text from programs made harmless: no control bytes, no escape sequences, progress lines collapsed."""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC: titles, links, the clipboard
    r"|\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|[\x1b\x9b]\[?[0-?]*[ -/]*[@-~]"  # CSI and short sequences
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean_output(data: bytes | str) -> str:
    """What a terminal would show of a program's output, as text.

    NUL, C0 and C1 bytes except tab and newline are shown as `\\xNN`, ANSI and OSC sequences dropped, and of a line
    rewritten with `\\r` only its last state stays. Bytes that are not UTF-8 become U+FFFD.
    """
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(_last_state(line) for line in text.split("\n"))
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _last_state(line: str) -> str:
    """Of a line written over and over, the last state that shows anything."""
    states = [state for state in line.split("\r") if _CONTROLS.sub("", state).strip()]
    return states[-1] if states else ""


def looks_binary(data: bytes) -> bool:
    """Is over 30 % of the beginning neither text nor valid UTF-8?"""
    sample = data[:8192]
    if not sample:
        return False
    text = sample.decode("utf-8", "replace")
    odd = sum(1 for char in text if char == "\ufffd" or (char < " " and char not in "\t\n\r\x1b\b\f"))
    return odd > 0.3 * len(text)
