"""Lines and records, as bytes."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from latchstep.core.codec import decode_event, encode_event
from latchstep.core.event import MessageAccepted
from latchstep.core.message import clean, user
from latchstep.journal.frame import (
    HEAD,
    HEAD_ROOM,
    MAX_LINE,
    ORIGIN,
    Cursor,
    body,
    checksum,
    cursor_at,
    find_acknowledged,
    frame,
    walk,
)

BODY = b'"type":"cancel.requested","by":"me"'


def chain(spec: list[tuple[int, bytes]]) -> list[bytes]:
    lines, p = [], ORIGIN
    for n, (b, content) in enumerate(spec):
        lines.append(frame(n, b, p, content))
        p = checksum(lines[-1])
    return lines


def in_blocks(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def test_the_form_of_a_line() -> None:
    line = frame(12, 11, b"9f02c1aa", BODY)
    assert line.startswith(b'{"n":12,"b":11,"p":"9f02c1aa","type":"cancel.requested",')
    raw, _, tail = line.rpartition(b',"crc":"')
    assert tail == b'%08x"}\n' % zlib.crc32(raw)
    assert checksum(line) == tail[:8]
    assert json.loads(line)["by"] == "me"
    assert body(line[:-1]) == BODY


def test_no_head_is_longer_than_its_room() -> None:
    longest = frame(10**15 - 1, 10**15 - 1, ORIGIN, BODY)
    head = HEAD.match(longest)
    assert head is not None
    assert head.end() <= HEAD_ROOM


def test_line_breaks_of_embedded_raw_json_do_not_break_the_line() -> None:
    line = frame(0, 0, ORIGIN, b'"type":"t","state":{\n "a": "b\\n"\n}')
    assert line.count(b"\n") == 1
    assert json.loads(line)["state"] == {"a": "b\n"}


@given(st.text().map(clean), st.integers(0, 10**15 - 1))
@example('"}\n,"crc":"00000000"}\n{"n":1', 7)
@example("\u2028\x85\x00", 0)
def test_any_text_comes_back_and_reframing_keeps_the_bytes(text: str, n: int) -> None:
    event = MessageAccepted(message_id="m", source="start", message=user(text))
    line = frame(n, n, ORIGIN, encode_event(event)[1:-1])
    assert line.count(b"\n") == 1
    assert decode_event(line[:-1]) == event
    again = frame(1, 0, b"12345678", body(line[:-1]))
    assert body(again[:-1]) == body(line[:-1])


@given(st.integers(1, 300), st.integers(0, 6))
def test_walking_does_not_depend_on_blocks(block: int, stop: int) -> None:
    lines = chain([(0, BODY), (1, BODY), (1, BODY + b',"x":1'), (1, BODY), (4, BODY), (5, BODY)])
    cursor = Cursor()
    found = list(walk(in_blocks(b"".join(lines[:stop]), block), cursor))
    assert [line + b"\n" for line in found] == lines[:stop]
    assert (cursor.n, cursor.offset, cursor.flaw) == (stop, sum(map(len, lines[:stop])), "")


def test_walking_may_begin_at_any_line() -> None:
    lines = chain([(0, BODY), (1, BODY), (1, BODY), (3, BODY)])
    for start in range(4):
        offset = sum(map(len, lines[:start]))
        cursor = cursor_at(lines[start][:-1], offset)
        assert cursor is not None
        assert len(list(walk([b"".join(lines[start:])], cursor))) == 4 - start
        assert cursor.offset == sum(map(len, lines))
    assert cursor_at(b"x" + lines[0], 0) is None


def test_what_is_wrong_with_a_line_is_said() -> None:
    lines = chain([(0, BODY), (1, BODY)])
    p = checksum(lines[-1])
    good = frame(2, 1, p, BODY)
    cases = [
        (frame(2, 1, b"00000000", BODY), "does not continue"),
        (frame(3, 1, p, BODY), "not where it belongs"),
        (frame(1, 1, p, BODY), "not where it belongs"),
        (frame(2, 0, p, BODY), "claims that 0 lines"),
        (frame(2, 3, p, BODY), "claims that 3 lines"),
        (good[:-1], "no newline"),
        (good.replace(b"me", b"ME"), "checksum"),
        (good.replace(b',"crc":"', b',"crc";"'), "checksum"),
        (good.replace(b'"}\n', b"'}\n"), "checksum"),
        (b"\n", "checksum"),
        (bytes(100), "no newline"),
    ]
    for line, flaw in [*cases, (good, "")]:
        cursor = Cursor()
        accepted = 2 if flaw else 3
        assert len(list(walk([b"".join(lines) + line], cursor))) == accepted
        assert flaw in cursor.flaw
        assert (cursor.n, cursor.offset) == (accepted, sum(map(len, [*lines, good][:accepted])))


def test_upper_case_checksums_are_not_ours() -> None:
    made = (frame(0, 0, ORIGIN, BODY + b',"i":%d' % i) for i in range(100))
    line = next(line for line in made if not checksum(line).isdigit())
    assert Cursor().accept(line[:-1])
    assert not Cursor().accept((line[:-11] + checksum(line).upper() + line[-3:])[:-1])


class TestFindAcknowledged:
    """The exact comparison: only `b` beyond the bad line's number proves anything."""

    LINES = chain([(0, BODY), (1, BODY), (1, BODY), (3, BODY), (3, BODY), (5, BODY)])

    @pytest.mark.parametrize(("bad", "proof"), [(0, 1), (1, 3), (2, 3), (3, 5), (4, 5), (5, None)])
    def test_each_line_bad(self, bad: int, proof: int | None) -> None:
        spoiled = b"#" * (len(self.LINES[bad]) - 1)
        for newline in (b"\n", b"\v"):  # a flipped newline hides where the next one begins
            tail = spoiled + newline + b"".join(self.LINES[bad + 1 :])
            for block in (7, 64, 10_000):
                later = find_acknowledged(in_blocks(tail, block), bad)
                assert (later.n if later else None) == proof
                if later:
                    assert tail[later.offset :].startswith(self.LINES[later.n])

    def test_the_same_unsynced_stretch_proves_nothing(self) -> None:
        assert find_acknowledged([b"#" + b"".join(self.LINES[4:5])], 3) is None
        assert find_acknowledged([b"#" + b"".join(self.LINES[3:5])], 2) is not None

    def test_a_bad_line_proves_nothing(self) -> None:
        assert find_acknowledged([b"#\n" + self.LINES[5].replace(b"me", b"ME")], 3) is None
        assert find_acknowledged([b"#\n" + self.LINES[5][:-1]], 3) is None

    def test_what_looks_like_a_line_inside_a_record_proves_nothing(self) -> None:
        inner = b'{"n":90,"b":80,"p":"00000000","type":"x","crc":"12345678"}'
        line = frame(3, 3, ORIGIN, b'"type":"t","found":' + inner)
        assert find_acknowledged([line[1:]], 2) is None
        assert find_acknowledged([line[1:]], 3) is None

    def test_content_made_to_cost_time_is_bounded_and_refuses(self) -> None:
        inner = b'{"n":999999,"b":999999,"p":"00000000","x":0},' * 10_000
        lines = (b"[" + inner + b'0],"crc":"12345678"}\n' for _ in range(500))
        later = find_acknowledged(lines, 3)
        assert later is not None
        assert later.n == -1

    def test_a_huge_tail_without_newlines_is_not_kept(self) -> None:
        blocks = [bytes(MAX_LINE // 4)] * 10
        later = find_acknowledged([*blocks, b"\n" + self.LINES[5]], 3)
        assert later is not None
        assert (later.n, later.offset) == (5, 10 * (MAX_LINE // 4) + 1)


def test_a_line_without_end_is_bounded() -> None:
    cursor = Cursor()
    assert list(walk((bytes(MAX_LINE // 4) for _ in range(1000)), cursor)) == []
    assert f"MAX_LINE, {MAX_LINE}" in cursor.flaw
