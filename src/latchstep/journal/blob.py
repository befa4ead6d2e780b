"""Blobs: bytes kept once under their SHA-256, beside the journal whose lines name them.

A blob is written under another name, synced and renamed: what has a blob's name is whole. Readers check anyway.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from latchstep.errors import JournalError

from .disk import Disk, OsDisk, ensure_directory, write_all
from .reader import blocks

BLOBS = "blobs"


def digest_of(data: bytes) -> str:
    return sha256(data).hexdigest()


def keep_blob(disk: Disk, directory: Path, data: bytes) -> str:
    """Keep bytes in a session's `blobs/`; durable when it returns. Their SHA-256 in hex. Raises OSError."""
    digest = digest_of(data)
    folder = directory / BLOBS
    ensure_directory(disk, folder)
    if not _holds(disk, folder / digest, data):
        _write(disk, folder / f".{digest}.part", data)
        disk.rename(folder / f".{digest}.part", folder / digest)
    disk.sync_directory(folder)
    return digest


def _write(disk: Disk, part: Path, data: bytes) -> None:
    try:
        handle = disk.open(part, "create")
    except FileExistsError:  # left by a crash
        disk.unlink(part)
        handle = disk.open(part, "create")
    try:
        write_all(disk, handle, data)
        disk.sync(handle)
    finally:
        disk.close(handle)


def _holds(disk: Disk, path: Path, data: bytes) -> bool:
    try:
        handle = disk.open(path, "read")
    except FileNotFoundError:
        return False
    try:
        return disk.size(handle) == len(data) and b"".join(blocks(disk, handle, 0)) == data
    finally:
        disk.close(handle)


def read_blob(directory: Path, digest: str, *, disk: Disk | None = None) -> bytes:
    """A blob of a session by its SHA-256 (hex). JournalError if it is missing or is not what its name says."""
    disk = disk or OsDisk()
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise JournalError(f"{digest!r} is no SHA-256")
    path = directory / BLOBS / digest
    try:
        handle = disk.open(path, "read")
        try:
            data = b"".join(blocks(disk, handle, 0))
        finally:
            disk.close(handle)
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror}") from error
    if digest_of(data) != digest:
        raise JournalError(f"{path} is damaged: its bytes are not what its name says")
    return data
