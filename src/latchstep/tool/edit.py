"""`edit`: texts in a file replaced by others, exactly, all of them or none."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from latchstep.errors import ToolError

from .base import Context, Output, Tool
from .change import details, findings, noting, refuse_changed, refuse_stale, settle_by_hash
from .define import tool
from .encoding import Decoded, decode
from .opened import File
from .replace import Change, Replaced, replace_texts
from .seen import Seen
from .text import shown, size_of
from .tree import missing
from .workspace import Workspace

MAX_EDITS = 100
"""Replacements of one call."""


def edit_tool(workspace: Workspace, seen: Seen) -> Tool:
    """The `edit` tool. `seen` says which bytes the model knows."""

    def prepare(arguments: dict[str, Any], context: Context) -> Any:
        path = arguments["path"]
        present = workspace.current(path)
        replaced = _replaced(workspace, path, present, seen, wanted(**arguments))
        return findings(present.path if present else path, present, replaced.data)

    @tool(effect="write", prepare=prepare, settle=settle_by_hash(workspace))
    def edit(  # noqa: PLR0917 (called by name)
        path: Annotated[str, "File, relative to the workspace"],
        context: Context,
        old: Annotated[str, "Text to replace, exactly as in the file; it must occur once unless all is true"] = "",
        new: Annotated[str, "Text to put in its place; without it old is removed"] = "",
        all: Annotated[bool, "Replace every occurrence"] = False,
        edits: Annotated[
            list[Change], Meta(max_length=MAX_EDITS, description="In place of old and new: many, all made or none")
        ] = [],  # noqa: B006 (never changed)
    ) -> Output:
        """Replace texts in a file. Each must match exactly, blanks and indentation included.

        With `edits` each is matched against the file as it was before the call, and no two may overlap.
        """
        done: list[Replaced] = []

        def make(real: str, present: File | None) -> bytes:
            refuse_stale(real, present, context.found, seen)
            done[:] = [_replaced(workspace, path, present, seen, wanted(path, old, new, all, edits))]
            return done[0].data

        file, present = workspace.update(path, make, noting(seen))
        lines = done[0].lines
        where = ", ".join(map(str, lines[:10])) + (", …" if len(lines) > 10 else "")
        words = (
            f"Replaced {len(lines)} occurrence{'' if len(lines) == 1 else 's'} in {shown(file.path)} (line {where})."
        )
        return Output(" ".join([words, *(f"Note: {note}." for note in done[0].notes)]), details(file, present))

    return edit


def wanted(
    path: str = "", old: str = "", new: str = "", all: bool = False, edits: list[Change] | None = None
) -> list[Change]:
    """The replacements that were asked for, in either form. Raises ToolError where they are in both."""
    if edits and (old or new or all):
        raise ToolError("give old, new and all, or edits, each with its own, not both. Nothing was changed")
    return edits or [Change(old, new, all)]


def _replaced(workspace: Workspace, path: str, present: File | None, seen: Seen, changes: list[Change]) -> Replaced:
    """The file after the changes. Raises ToolError where they cannot be made."""
    _, decoded = text_of(workspace, path, present, seen)
    return replace_texts(shown(path), decoded, changes)


def text_of(workspace: Workspace, path: str, present: File | None, seen: Seen) -> tuple[File, Decoded]:
    """The present file and its text, fit to be changed in part. Raises ToolError."""
    file = known(workspace, path, present, seen)
    decoded = decode(file.data)
    if decoded is None:
        raise ToolError(f"{shown(path)} is binary ({size_of(len(file.data))}); it cannot be changed as text")
    return file, decoded


def known(workspace: Workspace, path: str, present: File | None, seen: Seen) -> File:
    """The present file, if there is one and the model's knowledge of it is no older. Raises ToolError."""
    if present is None:
        try:
            workspace.read(path)
        except ToolError as error:
            raise missing(workspace, path, error) from None
        raise ToolError(f"{shown(path)} was changed by someone else just now; read it again")
    refuse_changed(present, seen)
    return present
