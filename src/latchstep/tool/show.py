"""What a model reads of a command's output: its beginning and its end, whole lines, and exact counts of the rest.

At most `OUTPUT_LIMIT` bytes of output are shown; bytes shown and bytes left out add up to what the command wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from .capture import Capture
from .text import clean_output, is_binary

OUTPUT_LIMIT = 30_000
"""Bytes (UTF-8) of a command's output that the model sees, at most a third of them from the beginning."""
LINE_LIMIT = 2_000
"""Characters of one line; a longer one is shown by its beginning and its end."""
LINE_END = 500
"""Characters of its end."""


def show(capture: Capture) -> str:
    """The output as text without control bytes, with notes in brackets; what is cut is kept on disk, if anywhere."""
    capture.flush()
    if not capture.total:
        return "(no output)"
    return show_pieces(capture.head, capture.tail, capture.total, capture.lines, lambda: where(capture))


def show_pieces(head: bytes, tail: bytes, total: int, all_lines: int, place: Callable[[], str]) -> str:
    """The same for the two ends of some output of so many bytes and lines; they are adjacent if they are all of it."""
    if is_binary(head) or is_binary(tail):
        return f"(binary, {total:,} bytes{_readable_end(head + tail)}; {place()})"
    if len(head) + len(tail) == total:
        lines = _lines(head + tail)
        shown, _, cut = _take(lines, OUTPUT_LIMIT)
        if len(shown) == len(lines):
            text = "\n".join(shown)
            note = f"\n[long lines are cut; {place()}]" if cut else ""
            return text + note if text.strip() else f"(nothing visible, {total:,} bytes)"
        first, last = lines, lines
    else:
        # The last piece of the head and the first of the tail are parts of lines: shown only for want of others.
        first, last = _lines(head), _lines(tail)
        first, last = first[:-1] or first, last[1:] or last
    top, top_bytes, _ = _take(first, OUTPUT_LIMIT // 3)
    room = OUTPUT_LIMIT - sum(len(line.encode()) + 1 for line in top)
    end, end_bytes, _ = _take(reversed(last), room)
    left_bytes = total - top_bytes - min(end_bytes, total - top_bytes)
    left_lines = max(0, all_lines - len(top) - len(end))
    note = (
        f"[{left_lines:,} lines ({left_bytes:,} bytes) left out here, of {all_lines:,} lines "
        f"({total:,} bytes); {place()}]"
    )
    return "\n".join([*top, note, *reversed(end)])


def _lines(data: bytes) -> list[bytes]:
    """The lines of `data`, each with its newline."""
    return re.findall(rb"[^\n]*\n|[^\n]+", data)


def _take(lines: Iterable[bytes], limit: int) -> tuple[list[str], int, bool]:
    """As many lines from the front as fit in `limit` bytes once cleaned; what they take raw; whether any was cut."""
    shown: list[str] = []
    taken, room, any_cut = 0, limit, False
    for raw in lines:
        text, cut = _show_line(raw)
        room -= len(text.encode()) + 1
        if room < 0:
            break
        shown.append(text)
        taken += len(raw)
        any_cut = any_cut or cut
    return shown, taken, any_cut


def _show_line(raw: bytes) -> tuple[str, bool]:
    raw = raw.removesuffix(b"\n")
    text = raw.decode("utf-8", "replace")
    if not text.isprintable():
        text = clean_output(raw).replace("\n", " ")
    if len(text) <= LINE_LIMIT:
        return text, False
    begin, end = text[: LINE_LIMIT - LINE_END], text[-LINE_END:]
    return f"{begin} […{len(text) - LINE_LIMIT:,} characters of this line left out…] {end}", True


def where(capture: Capture) -> str:
    """Where the whole is kept, as far as it is. Ends the capture."""
    capture.save()
    capture.close()
    if not capture.kept:
        return capture.problem or "the whole was not kept"
    return f"the whole is in {capture.path}" + (f", but {capture.problem}" if capture.problem else "")


def _readable_end(data: bytes) -> str:
    """Text at the end of binary output: often the error message of what came after it."""
    text = re.sub(r"(\\x[0-9a-f]{2})+", "\x00", clean_output(data[-512:].replace(b"\r", b"\n")))
    words = " ".join(re.findall(r"[ -~]{3,}", text))[-200:]
    return f", readable at its end: {words!r}" if words else ""
