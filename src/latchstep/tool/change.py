"""What `write` and `edit` share: what is found before a change is judged, and what must still hold when it runs.

Found is the file's hash before and after and a diff; after a crash the hash on disk tells what happened.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from latchstep.core.message import clean
from latchstep.errors import ToolError

from .base import Context, Settled
from .diff import unified
from .encoding import decode
from .opened import File
from .seen import Seen
from .text import shown, size_of
from .workspace import Workspace

_NOTICE = re.compile(
    r"^\[(?:Showing lines \d+-\d+ of \d+|Only the first \d+ characters are shown of lines?|The file is empty"
    r"|The \d+ lines? shown|Some bytes are not valid UTF-8; they are shown as|Control characters in this text are not"
    r"|(?:… )?[\d,]+ (?:lines \([\d,]+ bytes\)|characters) left out)\b.*\]$"
    r"|\[…[\d,]+ characters of this line left out…\]|\[masked: [^\]\n]{1,80}\]",
    re.M,
)
"""What `read`, and whatever bounds or masks the output of a tool, puts into a text."""
_NUMBERED = re.compile(r"[ \t]*(\d+)(?:\t|→|\| )|[^\s:]{0,200}[A-Za-z][^\s:]{0,200}:(\d+): ")
MAX_MARKED_LINES = 20_000
"""Lines of new text that are looked at for a reader's marks."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def findings(path: str, present: File | None, data: bytes) -> dict[str, Any]:
    """What `prepare` found: real path, SHA-256 before (None: no file) and after, and the difference."""
    return {
        "path": clean(path),
        "old_sha256": present.sha256 if present else None,
        "new_sha256": sha256(data),
        "diff": difference(path, present.data if present else b"", data),
    }


def difference(path: str, old: bytes, new: bytes) -> str:
    """A bounded diff of two files, or what can be said where there is none to show."""
    if old == new:
        return "(no change)"
    before, after = decode(old), decode(new)
    if before is None or after is None:
        return f"(binary: {size_of(len(old))} before, {size_of(len(new))} after)"
    return (
        clean(unified(shown(path), before.text, after.text)) or "(only line ends, byte order mark or encoding differ)"
    )


def refuse_stale(path: str, present: File | None, found: Any, seen: Seen) -> None:
    """At the run: the file is as it was when the call was judged, but for changes of our own in between."""
    if not isinstance(found, dict):
        return
    current = present.sha256 if present else None
    if clean(path) != found.get("path"):
        raise ToolError(f"{shown(path)} is not the file that was looked at before ({shown(str(found.get('path')))})")
    if not seen.is_own(path, current, found.get("old_sha256")):
        raise ToolError(f"{shown(path)} changed after this change was prepared; read it again")


def refuse_changed(present: File, seen: Seen) -> None:
    known = seen.get(present.path)
    if known is not None and known != present.sha256:
        raise ToolError(f"{shown(present.path)} changed since it was read; read it again")


def settle_by_hash(workspace: Workspace) -> Callable[[dict[str, Any], Any, Context], Settled]:
    """After a crash: the bytes on disk are those after the change, those before it, or others."""

    def settle(arguments: dict[str, Any], found: Any, context: Context) -> Settled:
        if not isinstance(found, dict):
            return "unknown"
        ends = {_settled(workspace, file) for file in found.get("files", [found])}
        return ends.pop() if len(ends) == 1 else "unknown"

    return settle


def _settled(workspace: Workspace, found: dict[str, Any]) -> Settled:
    if "new_sha256" not in found or "old_sha256" not in found:
        return "unknown"
    try:
        present = workspace.current(str(found.get("path")))
    except ToolError:
        return "unknown"
    current = present.sha256 if present else None
    if current == found["new_sha256"]:
        return "done"
    return "not_done" if current == found["old_sha256"] else "unknown"


def reader_marks(text: str) -> str:
    """What of a reader's display stands in some text: its notice row, or numbers on most lines. "" for nothing."""
    if notice := reader_notice(text):
        return f"the notice {notice[:80]!r}"
    lines = [line for line in text.split("\n", MAX_MARKED_LINES)[:MAX_MARKED_LINES] if line.strip()]
    numbers = [int((m[1] or m[2])[:9]) for line in lines if (m := _NUMBERED.match(line))]
    rising = all(a < b for a, b in pairwise(numbers))
    if len(numbers) >= 2 and len(numbers) * 2 > len(lines) and rising:
        return f"line numbers on {len(numbers)} of {len(lines)} lines"
    return ""


def numbered_copy(new: str, text: str) -> str:
    """As `reader_marks`, where most of the numbered lines stand in a file without their numbers; else ""."""
    if not (marks := reader_marks(new)):
        return ""
    there = {line.strip() for line in text.split("\n")}
    bare = [line[m.end() :].strip() for line in new.split("\n") if (m := _NUMBERED.match(line))]
    return marks if sum(line in there for line in bare) * 2 > len(bare) else ""


def reader_notice(text: str) -> str:
    """The first row in some text that is a notice of `read`, or ""."""
    match = _NOTICE.search(text)
    return match[0] if match else ""


def details(file: File, present: File | None) -> dict[str, Any]:
    """What a resume restores `seen` from: the real path, and the SHA-256 after and before (None: no file)."""
    return {"path": file.path, "sha256": file.sha256, "replaced": present.sha256 if present else None}


def noting(seen: Seen) -> Callable[[File, File | None], None]:
    """For `Workspace.update`: note our own write while the path is still locked."""
    return lambda file, present: seen.wrote(file.path, present.sha256 if present else None, file.sha256)
