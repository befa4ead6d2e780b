"""`write`: a file whole.

Never over bytes the model has not seen; in the encoding and with the line ends the file has; whole or not at all.
"""

from __future__ import annotations

from typing import Annotated, Any

from latchstep.errors import ToolError

from .base import Context, Output, Tool
from .change import details, findings, noting, reader_marks, refuse_changed, refuse_stale, settle_by_hash
from .define import tool
from .encoding import decode, line_end, to_lf
from .opened import File
from .seen import Seen
from .text import shown, size_of
from .workspace import Workspace


def write_tool(workspace: Workspace, seen: Seen) -> Tool:
    """The `write` tool. `seen` says which files the model knows."""

    def prepare(arguments: dict[str, Any], context: Context) -> Any:
        path = arguments["path"]
        present = workspace.current(path)
        data = _new_bytes(path, arguments["content"], bool(arguments.get("verbatim", False)), present, seen)
        return findings(workspace.place(path), present, data)

    @tool(effect="write", prepare=prepare, settle=settle_by_hash(workspace))
    def write(
        path: Annotated[str, "File, relative to the workspace; missing folders are made"],
        content: Annotated[str, "The whole text of the file"],
        context: Context,
        verbatim: Annotated[bool, "Allow text that looks like copied reader output (line numbers, notices)"] = False,
    ) -> Output:
        """Make a file, or replace one that was read before, to its end. To change a part of a file, use edit."""

        def make(real: str, present: File | None) -> bytes:
            refuse_stale(real, present, context.found, seen)
            return _new_bytes(path, content, verbatim, present, seen)

        file, present = workspace.update(path, make, noting(seen))
        lines = content.count("\n") + (not content.endswith("\n") and content != "")
        verb = "Created" if present is None else "Replaced" if present.data != file.data else "Unchanged:"
        words = f"{verb} {shown(file.path)} ({lines} line{'' if lines == 1 else 's'}, {size_of(len(file.data))})."
        return Output(words, details(file, present))

    return write


def _new_bytes(path: str, content: str, verbatim: bool, present: File | None, seen: Seen) -> bytes:
    """The bytes to write, in the form the present file has. Raises ToolError where it must not be written."""
    if present is not None:
        if seen.get(present.path) is None:
            raise ToolError(f"{shown(path)} exists and was not read yet; read it first, or use edit")
        refuse_changed(present, seen)
    if not verbatim and (marks := reader_marks(content)):
        raise ToolError(
            f"the content holds {marks}, which a reader adds and no file has. Nothing was written. "
            "Send the text itself, all of it; if this is really meant, set verbatim to true"
        )
    if present is not None and (upto := seen.partly(present.path)) is not None:
        raise ToolError(
            f"only a part of {shown(path)} was read, and all of it would be replaced; "
            f"read it from offset={upto + 1} on first, or use edit"
        )
    decoded = decode(present.data) if present is not None else None
    try:
        if decoded is None or not present or not present.data:
            return content.encode()
        text = content.removeprefix("\ufeff") if decoded.mark else content
        end = line_end(decoded.raw)
        return decoded.encode(to_lf(text).replace("\n", end) if end != "\n" else text)
    except ValueError as error:
        raise ToolError(f"{shown(path)} {error}; nothing was written") from error
