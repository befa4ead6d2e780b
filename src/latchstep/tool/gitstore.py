"""Git objects in a folder of our own, in packs: `git --git-dir=FOLDER cat-file -p ID` reads them, and no git writes.

Ids are SHA-256, so that nobody can craft two files of one id. A pack has its name, and is durable, before anyone is
told an id that lies in it; what is read is checked against its id.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from latchstep.errors import SessionError

Kind = Literal["tree", "blob"]

LEVEL = 1
"""Of zlib: a snapshot is waited for, and disks are large."""

CONFIG = """\
[core]
\trepositoryformatversion = 1
\tbare = true
[gc]
\tauto = 0
[extensions]
\tobjectFormat = sha256
\tpreciousObjects = true
"""
"""No branch names what lies here: a clean-up by git would find nothing worth keeping, and is forbidden."""

STALE = 24 * 3600
"""Seconds after which a pack that was never finished is removed."""

_CODES: dict[Kind, int] = {"tree": 2, "blob": 3}
_KINDS: dict[int, Kind] = {code: kind for kind, code in _CODES.items()}
_HASH = 32
_HEADER = b"PACK" + struct.pack(">I", 2)
_INDEX = b"\xfftOc" + struct.pack(">I", 2)


def object_id(kind: Kind, data: bytes) -> bytes:
    return hashlib.sha256(b"%s %d\0" % (kind.encode(), len(data)) + data).digest()


class Objects:
    """The objects under a folder, which is made, 0700, where it is missing. `about` is its description, for whoever
    looks for what may be deleted. Raises OSError."""

    def __init__(self, folder: Path, about: bytes = b"") -> None:
        self.folder, self._about = folder, about
        self._packs = folder / "objects" / "pack"
        self._loaded: dict[str, bytes] = {}

    def names(self) -> list[str]:
        """The packs there are."""
        try:
            return sorted(name[:-4] for name in os.listdir(self._packs) if name.endswith(".idx"))
        except FileNotFoundError:
            return []

    def has(self, oid: bytes) -> bool:
        return any(_place(index, oid) is not None for _, index in self._indexes())

    def read(self, oid: bytes) -> tuple[Kind, bytes]:
        """Kind and bytes. SessionError where the object is missing or is not what its id says."""
        for name, index in self._indexes():
            if (at := _place(index, oid)) is not None:
                with contextlib.suppress(OSError, ValueError, KeyError, IndexError, zlib.error):
                    kind, data = _unpacked(self._packs / f"{name}.pack", _offset(index, at))
                    if object_id(kind, data) == oid:
                        return kind, data
                raise SessionError(f"object {oid.hex()[:12]} of the snapshots in {self.folder} is damaged")
        raise SessionError(f"object {oid.hex()[:12]} is missing from the snapshots in {self.folder}")

    def _indexes(self) -> Iterator[tuple[str, bytes]]:
        """Known packs first; those that came since only where they did not suffice."""
        yield from tuple(self._loaded.items())
        for name in self.names():
            if name not in self._loaded:
                data = (self._packs / f"{name}.idx").read_bytes()
                if data[:8] == _INDEX and hashlib.sha256(data[:-_HASH]).digest() == data[-_HASH:]:
                    self._loaded[name] = data
                    yield name, data

    @contextlib.contextmanager
    def pack(self) -> Iterator[Pack]:
        """A pack to add to; whole and durable when the block ends, and never there where it raises."""
        self.make()
        self._sweep()
        pack = Pack(self, self._packs / f"tmp_{os.urandom(8).hex()}")
        try:
            yield pack
            pack.finish()
        finally:
            pack.discard()

    def place(self) -> None:
        """The folder, with nothing in it."""
        self.folder.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self.folder.parent, self.folder):
            path.mkdir(mode=0o700, exist_ok=True)

    def make(self) -> None:
        """An empty repository, where there is none yet."""
        head = self.folder / "HEAD"
        if head.is_file() and head.stat().st_size and self._packs.is_dir():
            return
        self.place()
        description = self.folder / "description"
        description.touch(0o600)
        description.write_bytes(self._about + b"\n")
        for path in (self._packs.parent, self._packs, self.folder / "refs"):
            path.mkdir(mode=0o700, exist_ok=True)
        for path, text in ((self.folder / "config", CONFIG), (head, "ref: refs/heads/none\n")):
            path.touch(0o600)
            path.write_text(text)
        for path in (self._packs.parent, self.folder, self.folder.parent, self.folder.parent.parent):
            _sync(path)

    def _sweep(self) -> None:
        """What a kill left behind."""
        with os.scandir(self._packs) as found:
            for item in found:
                if item.name.startswith("tmp_"):
                    with contextlib.suppress(OSError):
                        if item.stat().st_mtime < os.stat(self._packs).st_mtime - STALE:
                            os.unlink(item.path)


class Pack:
    """A pack under way: objects stream into a temporary file, the header's count is put in at the end."""

    def __init__(self, objects: Objects, path: Path) -> None:
        self._objects, self._path = objects, path
        self._entries: dict[bytes, tuple[int, int]] = {}
        self._file = open(path, "xb+", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600))  # noqa: SIM115
        self._file.write(_HEADER + bytes(4))
        self._at = 12

    def add(self, kind: Kind, data: bytes) -> bytes:
        """The object's id. It is written where it is not stored yet."""
        oid = object_id(kind, data)
        if oid not in self._entries and not self._objects.has(oid):
            raw = _entry_head(_CODES[kind], len(data)) + zlib.compress(data, LEVEL)
            self._file.write(raw)
            self._entries[oid] = (self._at, zlib.crc32(raw))
            self._at += len(raw)
        return oid

    def finish(self) -> None:
        if not self._entries:
            return
        self._file.seek(8)
        self._file.write(struct.pack(">I", len(self._entries)))
        self._file.seek(0)
        digest = hashlib.sha256()
        while piece := self._file.read(1 << 20):
            digest.update(piece)
        self._file.write(digest.digest())
        _durable(self._file)
        name = f"pack-{digest.hexdigest()}"
        index = self._path.with_name(self._path.name + "i")
        with open(index, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(_index_of(self._entries, digest.digest()))
            _durable(file)
        os.rename(self._path, self._path.with_name(f"{name}.pack"))
        os.rename(index, self._path.with_name(f"{name}.idx"))
        _sync(self._path.parent)

    def discard(self) -> None:
        for path in (self._path, self._path.with_name(self._path.name + "i")):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full disk takes the rest of the buffer no better than the first
            self._file.close()


def _durable(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# -- the formats: gitformat-pack(5) ----------------------------------------------------------------------


def _entry_head(code: int, size: int) -> bytes:
    head, byte, size = bytearray(), code << 4 | size & 15, size >> 4
    while size:
        head.append(byte | 128)
        byte, size = size & 127, size >> 7
    head.append(byte)
    return bytes(head)


def _unpacked(path: Path, offset: int) -> tuple[Kind, bytes]:
    with open(path, "rb") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        code, size, shift = byte >> 4 & 7, byte & 15, 4
        while byte & 128:
            byte = file.read(1)[0]
            size |= (byte & 127) << shift
            shift += 7
        inflate, pieces = zlib.decompressobj(), []
        while not inflate.eof and (piece := file.read(1 << 16)):
            pieces.append(inflate.decompress(piece, size + 1))
            if sum(map(len, pieces)) > size:
                break
    data = b"".join(pieces)
    if len(data) != size:
        raise ValueError("cut")
    return _KINDS[code], data


def _index_of(entries: dict[bytes, tuple[int, int]], pack: bytes) -> bytes:
    oids = sorted(entries)
    counts = [0] * 256
    for oid in oids:
        counts[oid[0]] += 1
    fanout, total = [], 0
    for count in counts:
        total += count
        fanout.append(total)
    small: list[int] = []
    large: list[int] = []
    for oid in oids:
        at = entries[oid][0]
        if at >= 1 << 31:
            small.append(1 << 31 | len(large))
            large.append(at)
        else:
            small.append(at)
    crcs = [entries[oid][1] for oid in oids]
    many = f">{len(oids)}I"
    data = _INDEX + struct.pack(">256I", *fanout) + b"".join(oids) + struct.pack(many, *crcs)
    data += struct.pack(many, *small) + struct.pack(f">{len(large)}Q", *large) + pack
    return data + hashlib.sha256(data).digest()


_OIDS = 8 + 256 * 4


def _count(index: bytes) -> int:
    return int.from_bytes(index[_OIDS - 4 : _OIDS], "big")


def _place(index: bytes, oid: bytes) -> int | None:
    """Which of the sorted ids of an index this is."""
    at = 8 + oid[0] * 4
    low = int.from_bytes(index[at - 4 : at], "big") if oid[0] else 0
    high = int.from_bytes(index[at : at + 4], "big")
    start = _OIDS + low * _HASH
    end = _OIDS + high * _HASH
    found = index.find(oid, start, end)
    while found >= 0 and (found - _OIDS) % _HASH:
        found = index.find(oid, found + 1, end)
    return (found - _OIDS) // _HASH if found >= 0 else None


def _offset(index: bytes, place: int) -> int:
    count = _count(index)
    table = _OIDS + count * (_HASH + 4)
    at = int.from_bytes(index[table + place * 4 : table + place * 4 + 4], "big")
    if at >> 31:
        wide = table + count * 4 + (at & (1 << 31) - 1) * 8
        return int.from_bytes(index[wide : wide + 8], "big")
    return at


# -- trees -----------------------------------------------------------------------------------------------

TREE, LINK, FILE, PROGRAM = "40000", "120000", "100644", "100755"


def tree_bytes(entries: Iterable[tuple[str, bytes, bytes]]) -> bytes:
    """A tree of (mode, name, id), in git's order: folders as if their name ended in `/`."""
    ordered = sorted(entries, key=lambda entry: entry[1] + b"/" if entry[0] == TREE else entry[1])
    return b"".join(b"%s %s\0%s" % (mode.encode(), name, oid) for mode, name, oid in ordered)


def tree_entries(data: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    """(mode, name, id). Raises SessionError for a name that must not stand in one."""
    at = 0
    while at < len(data):
        space, end = data.find(b" ", at), data.find(b"\0", at)
        name, oid = data[space + 1 : end], data[end + 1 : end + 1 + _HASH]
        if not at < space < end or len(oid) != _HASH or name in (b"", b".", b"..") or b"/" in name:
            raise SessionError("a tree of the snapshots is damaged")
        yield data[at:space].decode("ascii", "replace"), name, oid
        at = end + 1 + _HASH
