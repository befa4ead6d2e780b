"""`apply_patch`: many files changed by one patch, all of it or nothing.

Every file's new bytes are made before the first is written. Where a write then fails, what was written before it is
put back; what could not be is said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from latchstep.core.message import clean
from latchstep.errors import ToolError

from .base import Context, Output, Tool
from .change import difference, reader_notice, refuse_stale, settle_by_hash, sha256
from .define import tool
from .edit import known, text_of
from .opened import File
from .patch import MAX_PATCH, FilePatch, parse_patch, patched
from .seen import Seen
from .text import shown
from .workspace import Workspace


class Step(msgspec.Struct, frozen=True):
    """One file: its real path, what stands there (None: nothing), and its new bytes (None: none). came: the real
    path it has before, where it moves."""

    path: str
    present: File | None
    data: bytes | None
    came: str = ""


Undo = tuple[str, Callable[[], object]]
"""A path, and how a change of it is taken back."""


def apply_patch_tool(workspace: Workspace, seen: Seen) -> Tool:
    """The `apply_patch` tool. `seen` says which bytes the model knows."""

    def prepare(arguments: dict[str, Any], context: Context) -> Any:
        steps = plan(workspace, seen, parse_patch(arguments["patch"]))
        files = [
            {
                "path": clean(step.path),
                "old_sha256": step.present.sha256 if step.present and not step.came else None,
                "new_sha256": sha256(step.data) if step.data is not None else None,
            }
            for step in steps
        ]
        diffs = [difference(step.path, step.present.data if step.present else b"", step.data or b"") for step in steps]
        notes = [f"({shown(s.came)} is moved to {shown(s.path)})\n" if s.came else "" for s in steps]
        deleted = [f"({shown(s.path)} is deleted)\n" if s.data is None and not s.came else "" for s in steps]
        diff = "\n".join(a + b + c for a, b, c in zip(notes, deleted, diffs, strict=True))
        return {"files": [*files, *_left(steps)], "diff": diff}

    @tool(effect="write", prepare=prepare, settle=settle_by_hash(workspace))
    def apply_patch(
        patch: Annotated[str, Meta(max_length=MAX_PATCH, description="From '*** Begin Patch' to '*** End Patch'")],
        context: Context,
    ) -> Output:
        """Change several files at once, by a patch in the '*** Begin Patch' form. All of it is done, or nothing.

        Sections: '*** Update File: PATH' (then '*** Move to: PATH' if it moves) with hunks: '@@' and a line to
        start from, then lines that begin with ' ' (context), '-' or '+'; '*** Add File: PATH' with '+' before
        each line; '*** Delete File: PATH'. Hunks come in the order of the file, and each must fit at one place only:
        give three lines of context.
        """
        steps = plan(workspace, seen, parse_patch(patch))
        if isinstance(context.found, dict):
            known = {file["path"]: file for file in context.found.get("files", [])}
            for step in steps:
                there = None if step.came else step.present
                refuse_stale(step.path, there, known.get(clean(step.path), {}), seen)
        undo: list[Undo] = []
        try:
            for step in steps:
                _make(workspace, seen, step, undo)
        except ToolError as error:
            raise ToolError(f"{error}. {_put_back(undo)}") from error
        return Output("\n".join(map(_row, steps)), {"files": [_details(step) for step in steps]})

    return apply_patch


def plan(workspace: Workspace, seen: Seen, files: list[FilePatch]) -> list[Step]:
    """What becomes of each file. Raises ToolError where any part cannot be done, and then nothing is."""
    steps = [_step(workspace, seen, file) for file in files]
    places = [place for step in steps for place in (step.path, step.came) if place]
    for place in places:
        if places.count(place) > 1 or any(other.startswith(f"{place}/") for other in places):
            raise ToolError(f"{shown(place)} is named twice, by another spelling or as a folder. Nothing was changed")
    return sorted(steps, key=lambda step: step.data is None)  # what is deleted is hardest to put back, so it goes last


def _step(workspace: Workspace, seen: Seen, file: FilePatch) -> Step:
    present = workspace.current(file.path)
    if file.kind == "Add":
        if present is not None:
            raise ToolError(f"{shown(file.path)} exists already; use an Update section. Nothing was changed")
        if notice := reader_notice(file.text):
            raise ToolError(f"the patch holds the notice {notice!r}, which a reader adds. Nothing was changed")
        return Step(workspace.place(file.path), None, file.text.encode())
    present = known(workspace, file.path, present, seen)
    if (file.kind == "Delete" or file.move) and _is_link(workspace, file.path):
        raise ToolError(f"{shown(file.path)} is a link to {shown(present.path)}; name that file. Nothing was changed")
    if file.kind == "Delete":
        return Step(present.path, present, None)
    data = _updated(workspace, seen, file, present) if file.hunks else present.data
    if not file.move:
        return Step(present.path, present, data)
    if workspace.current(file.move) is not None:
        raise ToolError(f"{shown(file.move)} exists already; nothing is moved over it. Nothing was changed")
    return Step(workspace.place(file.move), present, data, came=present.path)


def _is_link(workspace: Workspace, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return any(entry.name == name and entry.kind == "link" for entry in workspace.scan(folder or ".")[1])


def _updated(workspace: Workspace, seen: Seen, file: FilePatch, present: File) -> bytes:
    """The file's bytes after its hunks. Raises ToolError."""
    _, decoded = text_of(workspace, file.path, present, seen)
    for row in (line for hunk in file.hunks for sign, line in hunk.rows if sign == "+"):
        if (notice := reader_notice(row)) and notice not in decoded.text:
            raise ToolError(f"the patch holds the notice {notice!r}, which a reader adds. Nothing was changed")
    return patched(shown(file.path), decoded, file.hunks)


def _left(steps: list[Step]) -> list[dict[str, Any]]:
    """Of files that move: their old paths, which will be empty."""
    return [
        {"path": clean(step.came), "old_sha256": step.present.sha256, "new_sha256": None}
        for step in steps
        if step.came and step.present is not None
    ]


def _make(workspace: Workspace, seen: Seen, step: Step, undo: list[Undo]) -> None:
    """Do one step, if what stands there is still what it was planned over. How each part is undone is put to `undo`."""
    present, path = step.present, step.path
    if step.data is None:
        assert present is not None
        workspace.remove(path, present.sha256)
        undo.append((path, lambda: workspace.update(path, lambda real, there: present.data, mode=present.mode)))
        return
    data, wanted, lacking = step.data, present.sha256 if present else None, workspace.lacking(path)
    undo.append((path, lambda: workspace.remove_empty(lacking)))
    if step.came and present is not None:
        workspace.rename(step.came, path, present.sha256)
        seen.moved(step.came, path)
        undo.append((path, lambda: seen.moved(path, step.came)))
        undo.append((path, lambda: workspace.rename(path, step.came, present.sha256)))

    def make(real: str, there: File | None) -> bytes:
        if (there.sha256 if there else None) != wanted:
            raise ToolError(f"{shown(real)} was changed by someone else just now; read it again")
        return data

    def note(file: File, there: File | None) -> None:
        seen.wrote(file.path, there.sha256 if there else None, file.sha256)

    workspace.update(path, make, note)
    if present is None:
        undo.append((path, lambda: workspace.remove(path, sha256(data))))
    else:
        undo.append((path, lambda: workspace.update(path, lambda real, there: present.data, note)))


def _put_back(undo: list[Undo]) -> str:
    """Undo what was done, the last first. What is true afterwards, in words."""
    failed = []
    for path, back in reversed(undo):
        try:
            back()
        except ToolError as error:
            failed.append(f"{shown(path)} stays changed ({error})")
    if failed:
        return "Files written before that were put back, but " + "; ".join(failed)
    return "Nothing was changed" + (" in the end: what was written before that was put back" if undo else "")


def _row(step: Step) -> str:
    if step.data is None:
        return f"Deleted {shown(step.path)}."
    if step.came:
        return f"Moved {shown(step.came)} to {shown(step.path)}."
    return f"{'Changed' if step.present else 'Created'} {shown(step.path)}."


def _details(step: Step) -> dict[str, Any]:
    """As `change.details`. A file that is gone has no bytes to know."""
    return {
        "path": step.path,
        "sha256": sha256(step.data) if step.data is not None else None,
        "replaced": step.present.sha256 if step.present else None,
    }
