"""Event ↔ JSON, and the stamps an event gets when it is recorded.

What a newer program wrote is kept: unknown fields are dropped by the reader alone, unknown types are passed on whole.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import force_setattr

from .event import AnyEvent, Event, Unknown

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


class _Envelope(msgspec.Struct):
    type: str
    critical: bool = False


_ENVELOPES = msgspec.json.Decoder(_Envelope)
KNOWN = frozenset(str(cls.__struct_config__.tag) for cls in AnyEvent.__args__)


def encode_event(event: Event) -> bytes:
    """One JSON object without line breaks; `type` first, defaults left out."""
    return _ENCODER.encode(event)


def decode_event(raw: bytes) -> Event:
    """The event in a JSON object. Unknown fields are dropped; an unknown type gives `Unknown`.

    Raises ValueError (msgspec's) for malformed data, and for an unknown type flagged `critical`.
    """
    try:
        return _DECODER.decode(raw)
    except msgspec.ValidationError:
        envelope = _ENVELOPES.decode(raw)
        if envelope.type in KNOWN or envelope.critical:
            raise
        return Unknown(name=envelope.type, raw=bytes(raw))


def stamp(event: Event, seq: int, part: int = 0) -> None:
    """Give an event its place, once, at the moment it is recorded."""
    force_setattr(event, "seq", seq)
    force_setattr(event, "part", part)


def stamp_time(event: Event, time: float, run_id: str, elapsed: float) -> None:
    """Label an event with when it happened, just before it is recorded."""
    force_setattr(event, "time", time)
    force_setattr(event, "run_id", run_id)
    force_setattr(event, "elapsed", elapsed)
