"""`read`: lines of a text file, or a picture.

The text is shown as it is, without line numbers, so that it can be copied into `edit`; what there is to say
about it stands in a notice of its own behind it, which the writing tools refuse to write.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any

from msgspec import Meta

from latchstep.core.message import Image, Text
from latchstep.errors import ToolError

from .base import Output, Tool
from .define import tool
from .encoding import Decoded, decode
from .opened import File
from .picture import MAX_SIDE, media_type_of, pixels_of
from .seen import Seen
from .text import clean_output, shown, size_of
from .tree import missing
from .workspace import Workspace

MAX_LINES = 5000
"""Lines of one result."""
MAX_LINE = 2000
"""Characters shown of one line."""
MAX_CHARACTERS = 50_000
"""Characters of one result; at least one line is shown whatever its length."""
MAX_IMAGE_BYTES = 4 * 1024 * 1024
"""Largest picture that is handed to a model."""


def read_tool(workspace: Workspace, seen: Seen) -> Tool:
    """The `read` tool. What it shows is noted in `seen`, so that writes can tell whether a file has changed."""

    @tool(effect="read")
    def read(
        path: Annotated[str, "File, relative to the workspace"],
        offset: Annotated[int, Meta(ge=1, description="First line, from 1")] = 1,
        limit: Annotated[int, Meta(ge=1, le=MAX_LINES, description="Number of lines")] = 2000,
    ) -> Output:
        """Read a text file, or look at a picture (PNG, JPEG, GIF, WebP).

        Long files are shown in parts; a notice behind the text, which is no part of the file, says how to go on.
        """
        try:
            if workspace.kind(path) == "folder":
                raise ToolError(f"{shown(path)} is a folder; use list")
            file = workspace.read(path)
        except ToolError as error:
            raise missing(workspace, path, error) from None
        output = _picture(file) or _lines(file, offset, limit)
        seen.restore(output.details)
        return output

    return read


def _picture(file: File) -> Output | None:
    media_type = media_type_of(file.data)
    if media_type is None:
        return None
    if len(file.data) > MAX_IMAGE_BYTES:
        raise ToolError(
            f"{shown(file.path)} is a picture of {size_of(len(file.data))}; "
            f"the limit is {size_of(MAX_IMAGE_BYTES)} (MAX_IMAGE_BYTES). Make a smaller one with a command"
        )
    pixels = pixels_of(file.data, media_type)
    if pixels is None:
        raise ToolError(
            f"{shown(file.path)} is a broken picture ({media_type}, {size_of(len(file.data))}), or a part of one"
        )
    width, height = pixels
    if max(pixels) > MAX_SIDE:
        raise ToolError(
            f"{shown(file.path)} is a picture of {width} x {height} pixels; the limit is {MAX_SIDE} (MAX_SIDE). "
            "Make a smaller one with a command"
        )
    notice = Text(f"[{shown(file.path)}: {media_type}, {width} x {height} pixels, {size_of(len(file.data))}]")
    return Output((notice, Image(media_type, base64.b64encode(file.data).decode())), _details(file))


def _lines(file: File, offset: int, limit: int) -> Output:
    decoded = decode(file.data)
    if decoded is None:
        raise ToolError(
            f"{shown(file.path)} is binary ({size_of(len(file.data))}); look at it with a command that knows its format"
        )
    lines = decoded.text.split("\n")
    ended = lines[-1] == ""
    if ended:
        lines.pop()
    if not lines:
        return Output("[The file is empty.]", _details(file, 0))
    if offset > len(lines):
        raise ToolError(f"{shown(file.path)} has {len(lines)} lines; offset {offset} lies behind its end")
    part, cut = _part(lines, offset - 1, limit)
    last = offset + len(part) - 1
    text = "\n".join(part) + ("\n" if ended and last == len(lines) else "")
    notice = "\n".join(_notices(decoded, text, (offset, last, len(lines)), cut))
    details = {**_details(file, len(lines)), "from": offset, "to": last}
    if not notice:
        return Output(text, details)
    if not text.strip():
        return Output(text + notice, details)
    return Output((Text(text), Text(notice)), details)


def _part(lines: list[str], first: int, limit: int) -> tuple[list[str], list[int]]:
    """As many lines as may be shown, each cut to `MAX_LINE`, and the numbers of those that were cut."""
    part: list[str] = []
    cut: list[int] = []
    count = 0
    for number, line in enumerate(lines[first : first + limit], first + 1):
        count += min(len(line), MAX_LINE) + 1
        if part and count > MAX_CHARACTERS:
            break
        if len(line) > MAX_LINE:
            cut.append(number)
        part.append(line[:MAX_LINE])
    return part, cut


def _notices(decoded: Decoded, text: str, span: tuple[int, int, int], cut: list[int]) -> list[str]:
    first, last, total = span
    notices = []
    if last < total:
        notices.append(f"[Showing lines {first}-{last} of {total}. Use offset={last + 1} to read on.]")
    elif first > 1:
        notices.append(f"[Showing lines {first}-{last} of {total}.]")
    if cut:
        numbers = ", ".join(map(str, cut[:10])) + (f" and {len(cut) - 10} more" if len(cut) > 10 else "")
        how = "grep shows what is around its match, a command (cut -c) any part"
        notices.append(f"[Only the first {MAX_LINE} characters are shown of lines {numbers}. Of such a line {how}.]")
    if decoded.damaged:
        notices.append("[Some bytes are not valid UTF-8; they are shown as \ufffd.]")
    elif clean_output(text) != text:
        notices.append("[Control characters in this text are not shown.]")
    if not text.strip():
        count = last - first + 1
        notices.append(f"[The {count} lines shown are blank.]" if count > 1 else "[The 1 line shown is blank.]")
    return notices


def _details(file: File, lines: int | None = None) -> dict[str, Any]:
    details: dict[str, Any] = {"path": file.path, "sha256": file.sha256}
    return details if lines is None else {**details, "lines": lines}
