"""The store of objects: what has a pack's name is whole and durable, and only then is anyone told an id."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.errors import SessionError
from latchstep.tool import gitstore
from latchstep.tool.gitstore import FILE, TREE, Objects, object_id, tree_bytes, tree_entries

OPERATIONS = ("fsync", "rename")


def watch(monkeypatch: pytest.MonkeyPatch, act: Callable[[str, tuple[Any, ...]], None]) -> None:
    """`act` is told of each operation that makes things durable, before it is done."""

    class Watched:
        def __getattr__(self, name: str) -> Any:
            real = getattr(os, name)
            if name not in OPERATIONS:
                return real

            def wrapper(*args: Any, **given: Any) -> Any:
                act(name, args)
                return real(*args, **given)

            return wrapper

    monkeypatch.setattr(gitstore, "os", Watched())


def stored(folder: Path, *texts: bytes) -> list[bytes]:
    with Objects(folder).pack() as pack:
        return [pack.add("blob", text) for text in texts]


def test_a_pack_is_synced_and_named_before_its_ids_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "snapshots" / "x"
    stored(store, b"made before")
    log: list[str] = []

    def note(name: str, args: tuple[Any, ...]) -> None:
        what = os.readlink(f"/proc/self/fd/{args[0]}") if name == "fsync" else str(args[1])
        log.append(
            f"{name} {'index' if what.endswith(('i', '.idx')) else 'folder' if what.endswith('/pack') else 'pack'}"
        )

    watch(monkeypatch, note)
    stored(store, b"one", b"two")
    assert log == ["fsync pack", "fsync index", "rename pack", "rename index", "fsync folder"]


def test_a_kill_at_any_operation_leaves_whole_packs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    for last in range(30):
        store, done = tmp_path / str(last) / "snapshots" / "x", 0
        with monkeypatch.context() as patch:

            def die(name: str, args: tuple[Any, ...], last: int = last) -> None:
                nonlocal done
                done += 1
                if done > last:
                    raise Killed

            watch(patch, die)
            patch.setattr(gitstore.Pack, "discard", lambda self: self._file.close())  # a kill tidies nothing up
            try:
                stored(store, b"one", b"two")
                killed = False
            except Killed:
                killed = True
        found = [Objects(store).has(object_id("blob", text)) for text in (b"one", b"two")]
        assert found in ([True, True], [False, False])
        if not killed:
            assert found == [True, True]
            assert last > 5
            return
        again = stored(store, b"one", b"two")
        assert [Objects(store).read(oid)[1] for oid in again] == [b"one", b"two"]
    raise AssertionError("it was always killed")


def test_what_a_kill_left_behind_is_removed_a_day_later(tmp_path: Path) -> None:
    store = tmp_path / "snapshots" / "x"
    stored(store, b"one")
    packs = store / "objects" / "pack"
    for name, age in (("tmp_old", 2 * gitstore.STALE), ("tmp_new", 60)):
        (packs / name).write_bytes(b"half")
        when = packs.stat().st_mtime - age
        os.utime(packs / name, (when, when))
    stored(store, b"two")
    assert sorted(path.name for path in packs.glob("tmp_*")) == ["tmp_new"]


def test_what_is_stored_is_not_stored_again(tmp_path: Path) -> None:
    store = tmp_path / "snapshots" / "x"
    stored(store, b"one", b"one", b"two")
    size = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    stored(store, b"one", b"two")
    assert sum(path.stat().st_size for path in store.rglob("*") if path.is_file()) == size


def test_two_writers_at_once(tmp_path: Path) -> None:
    store = tmp_path / "snapshots" / "x"
    one, two = Objects(store), Objects(store)
    with one.pack() as first, two.pack() as second:
        a, b = first.add("blob", b"a"), second.add("blob", b"b")
        assert first.add("blob", b"both") == second.add("blob", b"both")
    for objects in (one, two, Objects(store)):
        assert (objects.read(a)[1], objects.read(b)[1]) == (b"a", b"b")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=400), max_size=40))
def test_any_bytes_come_back(texts: list[bytes]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "snapshots" / "x"
        ids = stored(store, *texts)
        objects = Objects(store)
        assert [objects.read(oid) for oid in ids] == [("blob", text) for text in texts]
        assert not objects.has(object_id("blob", b"x" * 500))
        with pytest.raises(SessionError, match="missing"):
            objects.read(object_id("tree", b"?"))
        if texts and shutil.which("git"):
            for path in store.rglob("*.idx"):
                subprocess.run(["git", f"--git-dir={store}", "verify-pack", str(path)], check=True, capture_output=True)


@given(
    st.dictionaries(st.binary(min_size=1, max_size=5).filter(lambda name: not set(name) & set(b"/\0")), st.booleans())
)
def test_a_tree_is_read_as_it_was_written(names: dict[bytes, bool]) -> None:
    oid = object_id("blob", b"")
    entries = [(TREE if folder else FILE, name, oid) for name, folder in names.items() if name not in (b".", b"..")]
    assert sorted(tree_entries(tree_bytes(entries))) == sorted(entries)


@pytest.mark.parametrize(
    "data", [b"x", b"100644 a", b"100644 a\0short", b"100644 ..\0" + bytes(32), b"100644 \0" + bytes(32)]
)
def test_a_tree_that_is_none(data: bytes) -> None:
    with pytest.raises(SessionError, match="damaged"):
        list(tree_entries(data))
