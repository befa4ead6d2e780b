"""`SimDisk`: a disk in memory with a cache that can be lost, for crash tests of whatever uses the `Disk` seam.

After a power cut any subset of the 512-byte sectors written since the last sync may have arrived, each in any of
its versions since then; the file may have any size between; an entry may be gone unless its directory was synced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from latchstep.journal.disk import Mode

SECTOR = 512

How = Literal["short", "full", "eio", "die"]
"""`short`: part of a write is taken, without an error. `full`: part of it, then ENOSPC. `eio`: part of it, then
EIO; a sync that fails so counts as clean afterwards, though nothing arrived (as on Linux: the next one succeeds).
`die`: part of it, and the process is gone: every further operation raises `Died` until `kill` or `power_cut`."""


class Died(Exception):
    """The simulated process is dead. Let it pass, then `kill` or `power_cut` the disk and open again."""


@dataclass(slots=True)
class _File:
    data: bytearray = field(default_factory=bytearray)
    durable: dict[int, bytes] = field(default_factory=dict)
    durable_size: int = 0
    dirty: set[int] = field(default_factory=set)
    size_dirty: bool = False
    versions: dict[int, list[bytes]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)

    def touch(self, start: int, end: int) -> None:
        """Note what bytes start..end look like now as one more version that may arrive."""
        for sector in range(start // SECTOR, (end + SECTOR - 1) // SECTOR):
            self.versions.setdefault(sector, []).append(self.sector(sector))
            self.dirty.add(sector)
        self.sizes.append(len(self.data))
        self.size_dirty = True

    def sector(self, number: int) -> bytes:
        return bytes(self.data[number * SECTOR : (number + 1) * SECTOR]).ljust(SECTOR, b"\0")

    def sync(self) -> None:
        for sector in self.dirty:
            self.durable[sector] = self.sector(sector)
            self.versions.pop(sector, None)
        self.dirty.clear()
        if self.size_dirty:
            self.durable_size, self.sizes, self.size_dirty = len(self.data), [], False

    def cut(self, choose: Callable[[int], int]) -> None:
        sizes = [self.durable_size, *self.sizes]
        size = self.durable_size
        if self.sizes:
            size = (self.durable_size, self.sizes[-1], min(sizes) + choose(max(sizes) - min(sizes) + 1))[choose(3)]
        sectors = {}
        for sector in range((size + SECTOR - 1) // SECTOR):
            may_be = [self.durable.get(sector, bytes(SECTOR)), *self.versions.get(sector, ())]
            sectors[sector] = may_be[choose(len(may_be))] if len(may_be) > 1 else may_be[0]
        self.data = bytearray(b"".join(sectors.values())[:size])
        # What a file ends in reads as zeros when it grows again: the sector's rest beyond its end is gone.
        self.durable, self.durable_size, self.size_dirty = {n: self.sector(n) for n in sectors}, size, False
        self.dirty, self.versions, self.sizes = set(), {}, []


@dataclass(slots=True)
class _Directory:
    entries: dict[str, _File | _Directory] = field(default_factory=dict)
    durable: dict[str, _File | _Directory] = field(default_factory=dict)

    def cut(self, choose: Callable[[int], int], seen: set[int]) -> None:
        """Each entry that differs from the synced one is either; what was renamed is not in both places."""
        after: dict[str, _File | _Directory] = {}
        for name in sorted({*self.entries, *self.durable}):
            new, old = self.entries.get(name), self.durable.get(name)
            node = old if new is old or choose(2) == 0 else new
            if node is not None and id(node) not in seen:
                seen.add(id(node))
                after[name] = node
                if isinstance(node, _File):
                    node.cut(choose)
                else:
                    node.cut(choose, seen)
        self.entries, self.durable = after, dict(after)


class SimDisk:
    """A `Disk`. `operations` counts everything that changes something, `barriers` the syncs among it. `dead`: the
    process is, until `kill` or `power_cut`. `lossy`: the power was cut, or an operation failed with an error, so that
    what no sync covered may be gone."""

    def __init__(self, root: Path = Path("/sim")) -> None:
        self.operations = self.barriers = 0
        self.dead = self.lossy = False
        self.log: list[str] = []
        self._faults: dict[int, tuple[How, int]] = {}
        self._root_path, self._root = root, _Directory()
        self._handles: dict[int, tuple[_File, Mode]] = {}
        self._locks: dict[int, int] = {}
        self._next = 3

    def fail(self, how: How, *, after: int = 0, part: int = -1) -> None:
        """Let the operation fail that follows `after` others. `part`: bytes a write takes first; -1 is half."""
        self._faults[self.operations + after] = (how, part)

    def kill(self) -> None:
        """The process ends: its handles and locks are gone, the cache is not."""
        self.dead = False
        self._faults.clear()
        self._handles.clear()
        self._locks.clear()

    def power_cut(self, choose: Callable[[int], int]) -> None:
        """The machine ends. `choose(n)` picks what happened, from 0 to n - 1: `random.Random(7).randrange` will do."""
        self.kill()
        self.lossy = True
        self._root.cut(choose, set())

    def content(self, path: Path) -> bytes:
        """What a reader sees in a file now."""
        return bytes(self._file(path).data)

    def replace(self, path: Path, data: bytes) -> None:
        """Put other bytes on the medium, as rot does."""
        file = self._file(path)
        file.data = bytearray(data)
        file.touch(0, len(data))
        file.sync()

    def open(self, path: Path, mode: Mode) -> int:
        folder = self._directory(path.parent)
        there = path.name in folder.entries
        if mode == "create" and there:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        if not there and mode in {"create", "lock"}:
            self._step(f"create {path.name}")
            folder.entries[path.name] = _File()
        self._next += 1
        self._handles[self._next] = (self._file(path), mode)
        return self._next

    def write(self, handle: int, data: bytes) -> int:
        file = self._of(handle, writing=True)
        fault, part = self._fault("write")
        taken = len(data) if fault is None else len(data) // 2 if part < 0 else min(part, len(data))
        if fault == "short":
            taken = max(1, taken)
        start = len(file.data)
        file.data += data[:taken]
        file.touch(start, len(file.data))
        if fault in {"full", "eio", "die"}:
            self._raise(fault)
        return taken

    def read(self, handle: int, size: int, offset: int) -> bytes:
        return bytes(self._of(handle).data[offset : offset + size])

    def size(self, handle: int) -> int:
        return len(self._of(handle).data)

    def truncate(self, handle: int, size: int) -> None:
        file = self._of(handle, writing=True)
        self._step("truncate")
        old = len(file.data)
        del file.data[size:]
        file.touch(size, old)

    def sync(self, handle: int) -> None:
        file = self._of(handle)
        self.barriers += 1
        fault, _ = self._fault("sync")
        if fault in {"full", "eio"}:
            file.dirty.clear()
            file.size_dirty = False
        if fault not in {None, "short"}:
            self._raise(fault)
        file.sync()

    def lock(self, handle: int) -> bool:
        file = self._of(handle)
        if id(file) in self._locks:
            return False
        self._locks[id(file)] = handle
        return True

    def close(self, handle: int) -> None:
        if self._handles.pop(handle, None) is not None:
            self._locks = {file: holder for file, holder in self._locks.items() if holder != handle}

    def make_directory(self, path: Path) -> None:
        folder = self._directory(path.parent)
        if path.name in folder.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        self._step(f"mkdir {path.name}")
        folder.entries[path.name] = _Directory()

    def sync_directory(self, path: Path) -> None:
        folder = self._directory(path)
        self.barriers += 1
        self._step(f"sync {path.name}/")
        folder.durable = dict(folder.entries)

    def names(self, path: Path) -> list[str]:
        return list(self._directory(path).entries)

    def rename(self, old: Path, new: Path) -> None:
        node = self._node(old)
        target = self._directory(new.parent)
        self._step(f"rename {old.name}")
        del self._directory(old.parent).entries[old.name]
        target.entries[new.name] = node

    def unlink(self, path: Path) -> None:
        self._file(path)
        self._step(f"unlink {path.name}")
        del self._directory(path.parent).entries[path.name]

    def remove_directory(self, path: Path) -> None:
        if self._directory(path).entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        self._step(f"rmdir {path.name}")
        del self._directory(path.parent).entries[path.name]

    def _alive(self) -> None:
        if self.dead:
            raise Died

    def _fault(self, name: str) -> tuple[How | None, int]:
        self._alive()
        self.log.append(name)
        self.operations += 1
        return self._faults.get(self.operations - 1, (None, 0))

    def _step(self, name: str) -> None:
        fault, _ = self._fault(name)
        if fault not in {None, "short"}:
            self._raise(fault)

    def _raise(self, fault: How | None) -> None:
        if fault == "die":
            self.dead = True
            raise Died
        self.lossy = True
        code = errno.ENOSPC if fault == "full" else errno.EIO
        raise OSError(code, os.strerror(code))

    def _node(self, path: Path) -> _File | _Directory:
        self._alive()
        node: _File | _Directory = self._root
        for name in path.relative_to(self._root_path).parts:
            if not isinstance(node, _Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            if name not in node.entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            node = node.entries[name]
        return node

    def _file(self, path: Path) -> _File:
        node = self._node(path)
        if not isinstance(node, _File):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return node

    def _directory(self, path: Path) -> _Directory:
        node = self._node(path)
        if not isinstance(node, _Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return node

    def _of(self, handle: int, writing: bool = False) -> _File:
        self._alive()
        if handle not in self._handles:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        file, mode = self._handles[handle]
        if writing and mode == "read":
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return file
