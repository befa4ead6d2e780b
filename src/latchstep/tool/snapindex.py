"""What the last snapshot saw of each folder, on disk, so that the next one need not read the files again.

Only a cache: where it is missing, damaged, or counts on a pack that has gone, everything is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

INDEX = "seen"
VERSION = 1

Seen = tuple[int, int, int, int, int, bytes]
"""Of a file: time of its content and of its status, size, inode, mode, id of its blob. Times of -1 fit no file."""


@dataclass(slots=True)
class Folder:
    """One folder as it was seen. passed: names left out by a rule -> whether a folder bore it then. private: files
    that nobody else may read; closed: nobody else may enter it. same: as the time before (not kept)."""

    rules: bytes
    files: dict[str, Seen] = field(default_factory=dict)
    folders: dict[str, None] = field(default_factory=dict)
    passed: dict[str, bool] = field(default_factory=dict)
    private: tuple[str, ...] = ()
    closed: bool = False
    tree: bytes = b""
    same: bool = False


class _Folder(msgspec.Struct, array_like=True):
    """The same with names as bytes: not all of them are text."""

    rules: bytes
    files: dict[bytes, Seen]
    folders: list[bytes]
    passed: dict[bytes, bool]
    private: list[bytes]
    closed: bool
    tree: bytes


class _Kept(msgspec.Struct, array_like=True):
    version: int
    packs: list[str]
    tree: bytes
    folders: dict[bytes, _Folder]


def load(folder: Path, packs: list[str]) -> tuple[dict[str, Folder], bytes]:
    """The folders by path, and the tree of the snapshot that saw them."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        data = (folder / INDEX).read_bytes()
        if hashlib.sha256(data[32:]).digest() == data[:32]:
            kept = msgspec.msgpack.decode(data[32:], type=_Kept)
            if kept.version == VERSION and set(kept.packs) <= set(packs):
                return {os.fsdecode(path): _opened(each) for path, each in kept.folders.items()}, kept.tree
    return {}, b""


def save(folder: Path, packs: list[str], folders: Mapping[str, Folder], tree: bytes) -> None:
    kept = _Kept(VERSION, packs, tree, {os.fsencode(path): _packed(each) for path, each in folders.items()})
    data = msgspec.msgpack.encode(kept)
    part = folder / f"tmp_{os.urandom(8).hex()}"
    try:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(hashlib.sha256(data).digest() + data)
        os.rename(part, folder / INDEX)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _packed(it: Folder) -> _Folder:
    raw = os.fsencode
    return _Folder(
        it.rules,
        {raw(name): seen for name, seen in it.files.items()},
        [raw(name) for name in it.folders],
        {raw(name): was for name, was in it.passed.items()},
        [raw(name) for name in it.private],
        it.closed,
        it.tree,
    )


def _opened(it: _Folder) -> Folder:
    text = os.fsdecode
    return Folder(
        it.rules,
        {text(name): seen for name, seen in it.files.items()},
        dict.fromkeys(text(name) for name in it.folders),
        {text(name): was for name, was in it.passed.items()},
        tuple(text(name) for name in it.private),
        it.closed,
        it.tree,
    )
