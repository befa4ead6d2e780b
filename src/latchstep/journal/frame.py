"""A line and the record in it, as bytes; pure.

    {"n":12,"b":11,"p":"9f02c1aa","type":"tool.started",…,"crc":"5be01c77"}

A line is verified without parsing: the head and the tail it must have are built and compared as bytes.
`n` is the sequence, `b` the first `n` that no returned sync covered when the line was written, `p` the
checksum of the line before it (`00000000` for line 0), `crc` is CRC-32 of all bytes before `,"crc"`.
Whoever copies a record reframes its raw body; nothing is ever decoded and encoded again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from zlib import crc32

MAX_LINE = 64 * 1024 * 1024
"""Bytes of one line. A longer one is refused by the writer and is damage to a reader."""

MAX_RESYNC = 1024 * 1024 * 1024
"""Bytes of checksums computed while looking for later lines; content made to look like heads costs them."""

ORIGIN = b"00000000"
HEAD = re.compile(rb'\{"n":(0|[1-9][0-9]{0,14}),"b":(0|[1-9][0-9]{0,14}),"p":"([0-9a-f]{8})",(?=")')
HEAD_ROOM = 80
"""No head is longer than this."""

_TAIL = re.compile(rb',"crc":"([0-9a-f]{8})"\}\Z')
_TAIL_SIZE = 18


def frame(n: int, b: int, p: bytes, body: bytes) -> bytes:
    """The line, newline included. `body` is the record's JSON without its outer braces."""
    if b"\n" in body:  # possible between values of embedded raw JSON only: inside a string it is escaped
        body = body.replace(b"\n", b" ")
    raw = b'{"n":%d,"b":%d,"p":"%b",%b' % (n, b, p, body)
    return b'%b,"crc":"%08x"}\n' % (raw, crc32(raw))


def checksum(line: bytes) -> bytes:
    """The checksum a line ends with, newline included: what the next line's `p` must be."""
    return line[-11:-3]


def body(line: bytes) -> bytes:
    """What `frame` was given, of a valid line without its newline."""
    head = HEAD.match(line)
    if head is None:
        raise ValueError("not a journal line")
    return line[head.end() : -_TAIL_SIZE]


@dataclass(slots=True)
class Cursor:
    """A place in a journal: what the line at `offset` must carry. `flaw` says why `walk` stopped there, if it did."""

    n: int = 0
    b: int = 0
    p: bytes = ORIGIN
    offset: int = 0
    flaw: str = ""

    def accept(self, line: bytes) -> bool:
        """Move past a line (given without its newline) if it is the next one; else set `flaw` and stay."""
        n, b = self.n, self.b
        if not line.endswith(b',"crc":"%08x"}' % crc32(line[:-_TAIL_SIZE])):
            self.flaw = "the checksum does not match"
            return False
        if not line.startswith(b'{"n":%d,"b":%d,"p":"%b","' % (n, b, self.p)):
            # After a sync `b` is the line's own number. Anything between is lawful too: a line written while a
            # sync is under way keeps the old `b`, and the next one names it.
            head = HEAD.match(line)
            if head is None or int(head[1]) != n:
                self.flaw = f"line {n} is not where it belongs"
                return False
            if head[3] != self.p:
                self.flaw = "it does not continue the line before it"
                return False
            if not b <= int(head[2]) <= n:
                self.flaw = f"it claims that {head[2].decode()} lines were synced"
                return False
            b = int(head[2])
        self.n, self.b, self.p = n + 1, b, line[-10:-2]
        self.offset += len(line) + 1
        return True


def cursor_at(line: bytes, offset: int) -> Cursor | None:
    """The cursor that expects exactly this line, for reading from the middle; None if it has no head."""
    head = HEAD.match(line)
    return Cursor(int(head[1]), int(head[2]), bytes(head[3]), offset) if head else None


def walk(blocks: Iterable[bytes], cursor: Cursor) -> Iterator[bytes]:
    """Each valid line from the cursor on, without its newline, until the data ends or a line is bad.

    The longest valid prefix ends at `cursor.offset`. If anything lies behind it, `cursor.flaw` says what is
    wrong with it; a last line that is whole but for its newline is bad: the next line would be fused to it.
    """
    carry: list[bytes] = []
    carried = 0
    for block in blocks:
        lines = block.split(b"\n")
        rest = lines.pop()
        if lines:
            if carried:
                lines[0] = b"".join((*carry, lines[0]))
                carry, carried = [], 0
            for line in lines:
                if not cursor.accept(line):
                    return
                yield line
        carry.append(rest)
        carried += len(rest)
        if carried > MAX_LINE:
            cursor.flaw = f"it is longer than MAX_LINE, {MAX_LINE} bytes"
            return
    if carried:
        cursor.flaw = "it has no newline"


@dataclass(frozen=True, slots=True)
class Later:
    """A valid line behind a bad one, `offset` bytes behind its start. `n` is -1 where the search gave up."""

    n: int
    b: int
    offset: int


def find_acknowledged(blocks: Iterable[bytes], n: int) -> Later | None:
    """Proof that line `n`, which is bad, was acknowledged; None where there is no proof: the tail is torn.

    The blocks begin at the bad line. The proof is a valid line Y behind it with `Y.b > n`:

    - `b` is written as "the first number that no returned sync covers". So `Y.b > n` says that a sync that
      covered line `n` had returned before Y was written: line `n` was promised, and is damaged.
    - `Y.b == n` says only that everything before `n` was covered. Line `n` was written in the same unsynced
      stretch as Y, and a power cut may keep Y's sectors and lose those of line `n`: a torn tail.
    - `Y.b < n` says less.
    - No such Y: line `n` is in the last stretch. Whether its sync returned cannot be told from the file.

    Damage may have hit the newline before Y, and then Y begins in the middle of what looks like a line. So
    heads are looked for at any offset; a line's end is always its newline, since no record contains one.
    A head inside a record (nested JSON) does not count: its checksum would have to equal the whole line's.
    Work is bounded: where MAX_RESYNC is used up the answer is a `Later` with `n` of -1, so that doubt refuses.
    """
    spent = 0
    for offset, segment in segments(blocks):
        tail = _TAIL.search(segment, max(0, len(segment) - _TAIL_SIZE))
        if tail is None:
            continue
        for head in HEAD.finditer(segment):
            later_n, later_b = int(head[1]), int(head[2])
            if not n < later_b <= later_n:
                continue
            raw = segment[head.start() : tail.start()]
            if tail[1] == b"%08x" % crc32(raw):
                return Later(later_n, later_b, offset + head.start())
            spent += len(raw)
            if spent > MAX_RESYNC:
                return Later(-1, -1, offset + head.start())
    return None


def segments(blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """What lies between newlines, with its offset. What follows the last newline is left out, and so is what
    lies further than MAX_LINE before a newline: no line is longer."""
    carry: list[bytes] = []
    carried = offset = 0
    for block in blocks:
        pieces = block.split(b"\n")
        rest = pieces.pop()
        if pieces:
            if carried:
                pieces[0] = b"".join((*carry, pieces[0]))
                carry, carried = [], 0
            for piece in pieces:
                yield offset, piece
                offset += len(piece) + 1
        carry.append(rest)
        carried += len(rest)
        if carried > 2 * MAX_LINE:
            kept = b"".join(carry)[-MAX_LINE:]
            offset += carried - len(kept)
            carry, carried = [kept], len(kept)
