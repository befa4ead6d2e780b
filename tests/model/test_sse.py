"""The event parser: the same events however the bytes were split."""

from __future__ import annotations

import json
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.errors import ModelError
from latchstep.model.sse import MAX_EVENT, SSEParser

TEXT = "é🦀\u2028\u0085"
EVENT = json.dumps({"choices": [{"index": 0, "delta": {"content": TEXT}}]}, ensure_ascii=False)
HEAD, TAIL = EVENT.split(", ", 1)


def read(stream: bytes, *cuts: int) -> list[tuple[str, str]]:
    parser = SSEParser()
    events: list[tuple[str, str]] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        events += parser.feed(stream[start:end])
    return events + parser.flush()


STREAMS = {
    f"{name}{'-bom' if bom else ''}{'-open' if open_end else ''}": (
        (b"\xef\xbb\xbf" if bom else b"")
        + "\n".join(
            [
                ": keepalive",
                f"data: {EVENT}",
                "",
                ":",
                f"data:{EVENT}",
                "",
                "",
                "event: named",
                "id: 7",
                "retry: 10",
                f"data: {HEAD}, ",
                f"data:{TAIL}",
                "nonsense",
                *([] if open_end else ["", ""]),
            ]
        )
        .replace("\n", line_end)
        .encode()
    )
    for name, line_end in (("lf", "\n"), ("crlf", "\r\n"), ("cr", "\r"))
    for bom in (False, True)
    for open_end in (False, True)
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_b37_every_split_gives_the_same_events(stream: bytes) -> None:
    expected = [("message", EVENT), ("message", EVENT), ("named", f"{HEAD}, \n{TAIL}")]
    assert read(stream) == expected
    assert read(stream, *range(1, len(stream))) == expected
    for cut in range(len(stream) + 1):
        assert read(stream, cut) == expected, cut


def test_a_byte_order_mark_before_data_is_dropped() -> None:
    stream = b"\xef\xbb\xbfdata: x\n\ndata: \xef\xbb\xbfy\n\n"
    expected = [("message", "x"), ("message", "\ufeffy")]
    assert read(stream) == read(stream, *range(1, len(stream))) == expected


@given(st.lists(st.sampled_from([b"\r", b"\n", b"data", b":", b" ", b"x", b"event", "é".encode(), b"\xff", b"\xef"])))
@settings(max_examples=300, deadline=None)
def test_any_bytes_read_alike_in_one_piece_and_in_single_bytes(pieces: list[bytes]) -> None:
    stream = b"".join(pieces)
    assert read(stream) == read(stream, *range(1, len(stream)))


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: " + b"x" * MAX_EVENT + b"\n\n"],
        [b"x" * 65536] * 300,
        [b"data: " + b"x" * 65536 + b"\n"] * 300,
    ],
    ids=["at once", "one line", "many lines"],
)
def test_an_event_has_a_bound_however_it_comes(pieces: list[bytes]) -> None:
    parser = SSEParser()
    with pytest.raises(ModelError, match="MAX_EVENT"):
        deque(map(parser.feed, pieces), maxlen=0)


def test_many_comments_and_events_are_no_large_event() -> None:
    parser = SSEParser()
    for _ in range(300):
        parser.feed(b": " + b"x" * 65536 + b"\n")
        assert len(parser.feed(b"data: " + b"x" * 65536 + b"\n\n")) == 1
