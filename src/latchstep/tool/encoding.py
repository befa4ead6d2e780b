"""A text file as text and back: encoding, byte order mark and line ends are the file's own and stay.

Pure. Text is matched and shown in *LF space*: every line end is one `\\n`, the mark is set aside.
What is not changed keeps its bytes, so a file is never re-encoded as a whole by an edit.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass

from .text import is_binary

_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Decoded:
    """The text of a file. `mark` + `raw` in `encoding` gives the file's bytes back, each of them.

    damaged: the file is UTF-8 but for some bytes; these stand in `raw` as lone surrogates.
    """

    raw: str
    encoding: str
    mark: bytes = b""
    damaged: bool = False

    @property
    def text(self) -> str:
        """The text in LF space."""
        return to_lf(self.raw)

    def encode(self, raw: str) -> bytes:
        """The bytes of a file with this text. Raises ValueError, in words to be put behind the file's name, where it
        holds a character that the encoding lacks, or what stands for damaged bytes when they are shown."""
        if self.damaged and raw.count("\ufffd") > self.raw.count("\ufffd"):
            raise ValueError("has bytes that are not UTF-8, which are only shown as \ufffd; use edit beside them")
        try:
            return self.mark + raw.encode(self.encoding, "surrogateescape" if self.damaged else "strict")
        except UnicodeEncodeError as error:
            raise ValueError(f"is written in {self.encoding}, which has no {error.object[error.start]!r}") from error


def decode(data: bytes) -> Decoded | None:
    """The text in some bytes, or None where they are not text."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                raw = data[len(mark) :].decode(encoding)
            except UnicodeDecodeError:
                break
            return Decoded(raw, encoding, mark)
    try:
        raw = data.decode()
    except UnicodeDecodeError:
        return None if is_binary(data) else _decode_other(data)
    return None if is_binary(data) else Decoded(raw, "utf-8")


def _decode_other(data: bytes) -> Decoded:
    """Not UTF-8: a UTF-8 file with damage where any of its other characters are valid, else one byte a character."""
    raw = data.decode("utf-8", "surrogateescape")
    if any(c > "\x7f" and not "\udc80" <= c <= "\udcff" for c in raw):
        return Decoded(raw, "utf-8", damaged=True)
    try:
        return Decoded(data.decode("cp1252"), "cp1252")
    except UnicodeDecodeError:
        return Decoded(data.decode("latin-1"), "latin-1")


def to_lf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def line_end(raw: str) -> str:
    """The one line end of a text that has only that one, else `\\n`."""
    ends = set(_LINE_END.findall(raw))
    return ends.pop() if len(ends) == 1 else "\n"


def raw_positions(raw: str, positions: list[int]) -> list[int]:
    """Where positions of LF space lie in the raw text. A `\\r\\n` is never split."""
    if "\r\n" not in raw:
        return positions
    # After k pairs LF space is k characters behind: the k-th pair's newline stands at (its place) - k.
    pairs = [match.start() - count for count, match in enumerate(re.finditer("\r\n", raw))]
    return [position + bisect_left(pairs, position) for position in positions]


@dataclass(frozen=True, slots=True)
class Span:
    """A text at a place in LF space, and what is put there."""

    start: int
    old: str
    new: str

    @property
    def end(self) -> int:
        return self.start + len(self.old)


def splice(raw: str, changes: list[Span]) -> str:
    """The raw text with these changes (ascending, in LF space, none over another) made.

    Only what differs is touched: a common head and tail keep their line ends. Each new line end is that of the
    line it replaces; further ones take the last of those, else the end of the line they are put into.
    """
    spans, middles = [], []
    for change in changes:
        old, new = change.old, change.new
        head = common(old, new)
        tail = common(old[head:][::-1], new[head:][::-1])
        spans += [change.start + head, change.end - tail]
        middles.append(new[head : len(new) - tail])
    places = raw_positions(raw, spans)
    pieces, done = [], 0
    for index, middle in enumerate(middles):
        first, last = places[2 * index], places[2 * index + 1]
        pieces += [raw[done:first], _with_ends(middle, raw, first, last)]
        done = last
    return "".join([*pieces, raw[done:]])


def _with_ends(middle: str, raw: str, first: int, last: int) -> str:
    """New text with the line ends that fit what it replaces, raw[first:last]."""
    lines = middle.split("\n")
    if len(lines) == 1:
        return middle
    ends: list[str] = _LINE_END.findall(raw[first:last])
    ends.append(ends[-1] if ends else _nearest_end(raw, first, last))
    ended = [line + ends[min(index, len(ends) - 1)] for index, line in enumerate(lines[:-1])]
    return "".join([*ended, lines[-1]])


def common(left: str, right: str) -> int:
    """Length of the common head of two texts."""
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    low, high = 0, length
    while low < high - 1:
        middle = (low + high) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle
    return low


def _nearest_end(raw: str, first: int, last: int) -> str:
    """The end of the line that a region without one lies in; of the line before, at the end of the text."""
    after = _LINE_END.search(raw, last)
    if after:
        return after.group()
    newline, lone = raw.rfind("\n", 0, first), raw.rfind("\r", 0, first)
    if newline < 0 and lone < 0:
        return "\n"
    if lone > newline:
        return "\r"
    return "\r\n" if raw[newline - 1 : newline] == "\r" else "\n"
