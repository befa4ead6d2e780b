"""Server-sent events, read incrementally from bytes.

Rule: the same stream gives the same events however its bytes were split over reads. Lines end at LF, CR or CRLF
and nowhere else (https://html.spec.whatwg.org/multipage/server-sent-events.html, "Parsing an event stream").
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from latchstep.core.message import clean
from latchstep.errors import ModelError

MAX_EVENT = 16 * 1024 * 1024
"""Bytes of one event; more is refused."""

_BOM = b"\xef\xbb\xbf"
_decoder = msgspec.json.Decoder()


class SSEParser:
    """Feed it bytes, get the (event, data) pairs that are complete; `event` is "message" where none is named."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of the line that is not over yet
        self._data: list[bytes] = []
        self._event = b""
        self._line_size = self._event_size = 0
        self._first = True
        self._skip_lf = False

    def feed(self, chunk: bytes) -> list[tuple[str, str]]:
        """Raises ModelError("protocol") for an event larger than `MAX_EVENT`."""
        if not chunk:
            return []
        if self._skip_lf and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._skip_lf = False
            if not chunk:
                return []
        self._skip_lf = chunk[-1:] == b"\r"
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[tuple[str, str]] = []
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            if self._line:
                line = b"".join((*self._line, line))
                self._line.clear()
                self._line_size = 0
            self._take(line, events)
        if rest:
            self._line.append(rest)
            self._line_size += len(rest)
            self._bound(self._line_size)
        return events

    def flush(self) -> list[tuple[str, str]]:
        """The event that the end of the stream left open.

        The standard drops it; servers of model APIs end without a blank line, so it is given out here.
        """
        events: list[tuple[str, str]] = []
        if self._line:
            self._take(b"".join(self._line), events)
            self._line.clear()
        self._take(b"", events)
        return events

    def _take(self, line: bytes, events: list[tuple[str, str]]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                event = self._event.decode("utf-8", "replace") or "message"
                events.append((event, b"\n".join(self._data).decode("utf-8", "replace")))
                self._data.clear()
            self._event = b""
            self._event_size = 0
            return
        self._bound(len(line))
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._event_size += len(line)
        elif field == b"event":
            self._event = value

    def _bound(self, line_size: int) -> None:
        size = self._event_size + line_size
        if size > MAX_EVENT:
            raise ModelError("protocol", f"an event is larger than MAX_EVENT ({size} of {MAX_EVENT} bytes)")


def load_values(data: str) -> list[Any]:
    """The JSON values in one event: one, or several where a server ends its events with a single line break."""
    try:
        value = _decoder.decode(data)
    except (ValueError, RecursionError):
        value = _load_odd(data)
    return value if isinstance(value, list) else [value]


def _load_odd(data: str) -> Any:
    try:
        try:
            return json.loads(data)  # takes lone surrogates and NaN
        except ValueError:
            lines = [line for line in data.split("\n") if line.strip() not in ("", "[DONE]")]
            return [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        shown = clean(" ".join(data[:400].split()))[:80]
        raise ModelError("protocol", f"the server sent an event that is not JSON: {shown}") from None
