"""Pictures that models take: their type and their size, by their own bytes. Pure.

One that a provider cannot read is refused with the whole request, and with every later one that holds it again.
"""

from __future__ import annotations

from typing import Literal

MAX_SIDE = 8000
"""Pixels of the longer side of a picture."""

_END_OF_PNG = b"IEND\xaeB`\x82"
_NO_FRAME = frozenset({0xC4, 0xC8, 0xCC})
"""Markers of a JPEG between those that begin a frame, and begin none."""


def media_type_of(data: bytes) -> str | None:
    """The type of a picture that models take, by its first bytes."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def pixels_of(data: bytes, media_type: str) -> tuple[int, int] | None:
    """Width and height; None where the picture is broken or its end is missing."""
    match media_type:
        case "image/png":
            found = _two(data, 16, 4, "big") if data[12:16] == b"IHDR" and _END_OF_PNG in data else None
        case "image/gif":
            found = _two(data, 6, 2, "little") if data.rstrip(b"\0").endswith(b";") else None
        case "image/jpeg":
            found = _jpeg(data)
        case _:
            found = _webp(data) if int.from_bytes(data[4:8], "little") + 8 <= len(data) else None
    return found if found and min(found) > 0 else None


def _two(data: bytes, at: int, width: int, order: Literal["big", "little"]) -> tuple[int, int]:
    """The two numbers of so many bytes that stand there."""
    first, second = (int.from_bytes(data[start : start + width], order) for start in (at, at + width))
    return first, second


def _jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = _two(data, at + 5, 2, "big")
            return (width, height) if b"\xff\xd9" in data[at:] else None
        at += 1 if marker == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _webp(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8X":
            width, height = _two(data, 24, 3, "little")
            return width + 1, height + 1
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            width, height = _two(data, 26, 2, "little")
            return width & 0x3FFF, height & 0x3FFF
    return None
