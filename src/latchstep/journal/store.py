"""`Store`: the sessions under one root. Make, list, find, fork, verify, salvage.

Listing reads a bounded head and tail of each journal and verifies only what it shows. A copy is made of raw
record bodies, reframed, in a folder that gets its name when all of it is on disk; the source is only read.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from latchstep.core.event import FORMAT, RunResumed, RunStarted, SessionCreated
from latchstep.errors import JournalDamaged, JournalError, SessionError

from .blob import BLOBS, keep_blob, read_blob
from .disk import Disk, OsDisk, ensure_directory, write_all
from .file import FileJournal
from .frame import ORIGIN, Cursor, body, checksum, frame, walk
from .listing import Entry, read_entry
from .reader import JOURNAL, OUTPUTS, blocks, decode, open_journal, read_header, reading, unstarted, verified

SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MAX_CANDIDATES = 10
"""How many sessions the error about an ambiguous prefix names."""

_CHUNK = 256 * 1024
_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_OUTPUT = re.compile(rb'"output":"([^"\\]{1,255})"')


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a full verification found. `lines` and `size` count what is valid.

    torn: what was never acknowledged at the end, in words. damaged: what does not verify though it was
    acknowledged. blobs: blobs whose bytes are not what their names say. missing: system prompts and tools of runs that
    are not there any more: what was sent cannot be compared, and nothing else needs them.
    """

    lines: int
    size: int
    torn: str = ""
    damaged: str = ""
    blobs: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        return not self.damaged and not self.blobs


def default_root() -> Path:
    """`LATCHSTEP_HOME`, or latchstep's part of the platform's folder for state."""
    if home := os.environ.get("LATCHSTEP_HOME"):
        return Path(home).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "latchstep"
    state = os.environ.get("XDG_STATE_HOME", "")  # a relative one is to be ignored: XDG Base Directory 0.8
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "latchstep"


class Store:
    """Sessions lie in `root/sessions/ID/`."""

    def __init__(self, root: Path, *, disk: Disk | None = None) -> None:
        self.root = root
        self.sessions = root / "sessions"
        self._disk = disk or OsDisk()

    def create(
        self, session_id: str, *, time: float, workspace: str = "", program: str = "", parent: str = ""
    ) -> FileJournal:
        """A new session; its writer. `workspace` is kept as its real path; `parent` is the session it works for.
        SessionError if the id is taken or is no name for a folder."""
        self._refuse_taken(session_id)
        real = os.path.realpath(workspace) if workspace else ""
        header = SessionCreated(
            session_id=session_id, format=FORMAT, time=time, workspace=real, program=program, parent=parent
        )
        return FileJournal.create(self.sessions / session_id, header, disk=self._disk)

    def open(self, session_id: str) -> FileJournal:
        """The session's writer. Errors as `FileJournal.open`, and SessionError, also for a folder that was copied or
        renamed: two writers would go on under one id, with the same idempotency keys."""
        directory = self.directory(session_id)
        with reading(self._disk, directory) as handle:
            header = read_header(self._disk, handle, directory / JOURNAL)
        if header is not None and header.session_id != session_id:
            raise SessionError(
                f"the folder is named {session_id}, but its journal belongs to {header.session_id}; rename it back, or "
                f"make a session of its own of it: latchstep fork --session {session_id}"
            )
        return FileJournal.open(directory, disk=self._disk)

    def directory(self, session_id: str) -> Path:
        """Where the session with exactly this id lies. SessionError if there is none."""
        if session_id not in self._ids():
            raise SessionError(f"no session {session_id!r} in {self.sessions}")
        return self.sessions / session_id

    def find(self, prefix: str) -> str:
        """The id that is `prefix`, or the only one that begins so. SessionError names the candidates."""
        ids = sorted(self._ids(), reverse=True)
        found = [prefix] if prefix in ids else [known for known in ids if prefix and known.startswith(prefix)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise SessionError(f"no session begins with {prefix!r} in {self.sessions}")
        shown = ", ".join(found[:MAX_CANDIDATES]) + (", …" if len(found) > MAX_CANDIDATES else "")
        raise SessionError(f"{len(found)} sessions begin with {prefix!r}: {shown}")

    def list(self) -> list[Entry]:
        """All sessions, the one with the latest event first. Damage is said in the entry, never raised."""
        entries = [read_entry(self._disk, self.sessions / session_id) for session_id in self._ids()]
        return sorted(entries, key=lambda entry: (-entry.last, entry.id))

    def last(self, workspace: str) -> str | None:
        """The id of the latest session of a workspace (compared by real path), or None. It may be damaged: opening
        says so, while a silent turn to an older one would not."""
        real = os.path.realpath(workspace)
        return next((entry.id for entry in self.list() if entry.workspace == real), None)

    def fork(self, session_id: str, seq: int, new_id: str, *, time: float) -> Path:
        """A new session that begins as this one up to and with line `seq`. The whole source is verified first.

        Raises JournalDamaged, SessionError where there is no such line, JournalError. Returns its directory.
        """
        source = self.directory(session_id)
        cursor = Cursor()
        self._refuse_taken(new_id)
        for _ in self._lines(source, cursor):
            pass
        if not 0 <= seq < cursor.n:
            raise SessionError(f"session {session_id} has lines 0 to {cursor.n - 1}; there is no line {seq}")
        return self._copy(source, session_id, seq, new_id, time)

    def salvage(self, session_id: str, new_id: str, *, time: float) -> tuple[Path, int]:
        """A new session of the longest valid prefix of a damaged one. Its directory, and its last line.

        Blobs that do not verify are left out. SessionError if not even line 0 is valid.
        """
        source = self.directory(session_id)
        self._refuse_taken(new_id)
        cursor = Cursor()
        try:
            for _ in self._lines(source, cursor):
                pass
        except JournalDamaged:
            pass
        if cursor.n == 0:
            raise SessionError(f"nothing of session {session_id} can be salvaged: its line 0 does not verify")
        return self._copy(source, session_id, cursor.n - 1, new_id, time, skip_bad_blobs=True), cursor.n - 1

    def verify(self, session_id: str) -> Report:
        """Verify and decode every line, and check every blob. Findings are in the report; a newer format raises."""
        source = self.directory(session_id)
        cursor, damaged, blobs, named = Cursor(), "", [], set[str]()
        try:
            for n, offset, line in self._lines(source, cursor):
                event = decode(source / JOURNAL, line, n, offset)
                if isinstance(event, RunStarted | RunResumed):
                    named |= {event.system, event.tools} - {""}
        except JournalDamaged as error:
            damaged = str(error)
        torn = f"line {cursor.n} (byte {cursor.offset}): {cursor.flaw}" if cursor.flaw and not damaged else ""
        kept = self._names(source / BLOBS)
        for name in kept:
            if not name.startswith("."):
                try:
                    read_blob(source, name, disk=self._disk)
                except JournalError:
                    blobs.append(name)
        return Report(
            lines=cursor.n,
            size=cursor.offset,
            torn=torn,
            damaged=damaged,
            blobs=tuple(sorted(blobs)),
            missing=tuple(sorted(named - kept)),
        )

    def _lines(self, source: Path, cursor: Cursor) -> Iterator[tuple[int, int, bytes]]:
        with reading(self._disk, source) as handle:
            if read_header(self._disk, handle, source / JOURNAL) is None:
                raise unstarted(source / JOURNAL)
            yield from verified(self._disk, handle, source / JOURNAL, cursor)

    def _copy(
        self, source: Path, parent: str, last: int, new_id: str, time: float, *, skip_bad_blobs: bool = False
    ) -> Path:
        part = self.sessions / f".{new_id}.part"
        changes = {"session_id": new_id, "parent": parent, "parent_seq": last, "time": time}
        try:
            self._discard(part)  # left by a crash
            self._disk.make_directory(part)
            named = self._copy_lines(source, part, last, changes)
            self._copy_beside(source, part, named, skip_bad_blobs)
            self._disk.sync_directory(part)
            self._disk.rename(part, self.sessions / new_id)
            self._disk.sync_directory(self.sessions)
        except (OSError, JournalError) as error:
            self._discard(part)
            if isinstance(error, JournalError):
                raise
            raise JournalError(f"{self.sessions / new_id} cannot be made: {error.strerror}") from error
        return self.sessions / new_id

    def _discard(self, part: Path) -> None:
        """Remove a copy that was not finished. Where that fails it stays: it has no session's name."""
        for folder in (part / BLOBS, part / OUTPUTS, part):
            try:
                for name in self._names(folder):
                    self._disk.unlink(folder / name)
                self._disk.remove_directory(folder)
            except OSError:
                pass

    def _copy_lines(self, source: Path, part: Path, last: int, changes: dict[str, Any]) -> set[str]:
        """Write lines 0 to `last`, reframed, durably. What they name: blobs and outputs.

        Each `b` is the line's own number: the folder gets its name only when all of it is on disk, so for whoever
        sees it everything before each line is synced.
        """
        reading = open_journal(self._disk, source, "read")
        writing = self._disk.open(part / JOURNAL, "create")
        named: set[str] = set()
        p, cursor, waiting, size = ORIGIN, Cursor(), [], 0
        try:
            for line in walk(blocks(self._disk, reading, 0), cursor):
                n = cursor.n - 1
                made = frame(n, n, p, body(line) if n else _header_body(line, changes))
                p = checksum(made)
                waiting.append(made)
                size += len(made)
                named.update(found.decode() for found in _DIGEST.findall(line))
                named.update(found.decode(errors="replace") for found in _OUTPUT.findall(line))
                if size >= _CHUNK or n == last:
                    write_all(self._disk, writing, b"".join(waiting))
                    waiting, size = [], 0
                if n == last:
                    break
            if cursor.n != last + 1:
                raise JournalError(f"{source} changed while it was copied; nothing was made")
            self._disk.sync(writing)
        finally:
            self._disk.close(reading)
            self._disk.close(writing)
        return named

    def _copy_beside(self, source: Path, part: Path, named: set[str], skip_bad_blobs: bool) -> None:
        for name in sorted(named.intersection(self._names(source / BLOBS))):
            try:
                keep_blob(self._disk, part, read_blob(source, name, disk=self._disk))
            except JournalError:
                if not skip_bad_blobs:
                    raise
        for name in sorted(named.intersection(self._names(source / OUTPUTS))):
            ensure_directory(self._disk, part / OUTPUTS)
            reading = self._disk.open(source / OUTPUTS / name, "read")
            writing = self._disk.open(part / OUTPUTS / name, "create")
            for block in blocks(self._disk, reading, 0):
                write_all(self._disk, writing, block)
            self._disk.sync(writing)
            self._disk.close(reading)
            self._disk.close(writing)
            self._disk.sync_directory(part / OUTPUTS)

    def _refuse_taken(self, session_id: str) -> None:
        if not SESSION_ID.fullmatch(session_id):
            raise SessionError(f"{session_id!r} is no session id: use 1 to 100 letters, digits and . _ -")
        if session_id in self._ids():
            raise SessionError(f"there is a session {session_id} already in {self.sessions}")

    def _ids(self) -> set[str]:
        try:
            return {name for name in self._disk.names(self.sessions) if SESSION_ID.fullmatch(name)}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise JournalError(f"{self.sessions} cannot be read: {error.strerror}") from error

    def _names(self, path: Path) -> set[str]:
        try:
            return set(self._disk.names(path))
        except (FileNotFoundError, NotADirectoryError):
            return set()


def _header_body(line: bytes, changes: dict[str, Any]) -> bytes:
    """Line 0 for a copy. Fields that this version does not know stay."""
    fields: dict[str, Any] = msgspec.json.decode(line)
    for frame_field in ("n", "b", "p", "crc"):
        fields.pop(frame_field, None)
    return msgspec.json.encode({**fields, **changes})[1:-1]
