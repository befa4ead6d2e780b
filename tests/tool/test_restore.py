"""A restore makes the files those of the snapshot, and touches nothing that no snapshot holds."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.errors import SessionError
from latchstep.tool import restore as module
from latchstep.tool import snapshot
from latchstep.tool.restore import Plan, plan, restore
from latchstep.tool.snapshot import Shadow

from .snapshot_kit import fill, go_back, picture

Tree = dict[str, object]
"""Name -> a folder's content, a link's target (bytes) or a file's (bytes, whether it runs)."""


@pytest.fixture
def shadow(tmp_path: Path) -> Iterator[Shadow]:
    (tmp_path / "ws").mkdir()
    made = Shadow(tmp_path / "ws", tmp_path / "home")
    yield made
    made.leave()


names = st.sampled_from(["a", "b", "a.b", "a-b", "é", "\udcff", "new\nline", "README"])
leaves = st.one_of(
    st.tuples(st.sampled_from([b"", b"one\n", b"two\r\n", bytes(range(256))]), st.booleans()),
    st.sampled_from([b"a", b"../x", b"/etc/passwd"]),
)
trees: st.SearchStrategy[Tree] = st.recursive(
    st.dictionaries(names, leaves, max_size=4),
    lambda inner: st.dictionaries(names, leaves | inner, max_size=4),
    max_leaves=12,
)


def grow(root: Path, tree: Tree) -> None:
    for name, what in tree.items():
        path = root / name
        match what:
            case dict():
                path.mkdir()
                grow(path, what)
            case bytes():
                path.symlink_to(os.fsdecode(what))
            case (bytes() as data, bool() as runs):
                path.write_bytes(data)
                path.chmod(0o755 if runs else 0o644)


def clear(root: Path) -> None:
    for path in root.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@settings(max_examples=150, deadline=None)
@given(trees, trees)
def test_any_tree_comes_back_whatever_became_of_it(first: Tree, second: Tree) -> None:
    with tempfile.TemporaryDirectory() as base:
        root = Path(base) / "ws"
        root.mkdir()
        shadow = Shadow(root, Path(base) / "home")
        grow(root, first)
        before, taken = picture(root), shadow.take()
        clear(root)
        grow(root, second)
        after, later = picture(root), shadow.take()
        go_back(shadow, taken.tree)
        assert picture(root) == before
        assert shadow.take().tree == taken.tree
        go_back(shadow, later.tree)
        assert picture(root) == after
        assert plan(shadow, shadow.take(), later.tree).steps == ()


@settings(max_examples=40, deadline=None)
@given(trees, trees, st.integers(0, 30))
def test_a_restore_that_died_is_completed_by_another(first: Tree, second: Tree, at: int) -> None:
    with tempfile.TemporaryDirectory() as base:
        root = Path(base) / "ws"
        root.mkdir()
        shadow = Shadow(root, Path(base) / "home")
        grow(root, first)
        before, taken = picture(root), shadow.take()
        clear(root)
        grow(root, second)
        made = plan(shadow, shadow.take(), taken.tree)
        assert restore(shadow, Plan(made.tree, made.steps[:at], (), made.private)) == []
        go_back(shadow, taken.tree)
        assert picture(root) == before


def test_what_no_snapshot_holds_stays(shadow: Shadow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_FILE", 100)
    root = shadow.root
    fill(root, _dot_gitignore="*.log\nout/\n", a_dot_log="mine", out__x="built", src__a="1", grows="small")
    fill(root, _dot_git__config="user's", sub___dot_git__HEAD="user's", sub__code="1")
    (root / "large").write_bytes(bytes(101))
    (root / "in").mkdir()
    (root / "in" / "vanishes").write_bytes(bytes(101))
    (root / "shrinks").write_bytes(bytes(101))
    os.mkfifo(root / "pipe")
    taken = shadow.take()
    fill(root, a_dot_log="changed", out__x="changed", out__y="new", src__a="2", _dot_git__config="other")
    fill(root, sub___dot_git__HEAD="other", new_dot_log="new", new__made="by the agent", new__made_dot_log="and this")
    (root / "large").write_bytes(bytes(102))
    (root / "shrinks").write_bytes(b"small now")
    (root / "grows").write_bytes(bytes(102))
    (root / "sub" / "code").unlink()
    (root / "pipe").unlink()
    (root / "pipe").write_bytes(b"a file now")
    (root / "in" / "vanishes").unlink()
    (root / "in").rmdir()
    made = go_back(shadow, taken.tree)
    assert {path for path, _ in made.left_alone} == {"shrinks", "grows", "pipe", "in/vanishes"}
    assert dict(made.left_alone)["in/vanishes"].startswith("it is gone, and was not kept: 101 B")
    assert all("MAX_FILE" in why for path, why in made.left_alone if path != "pipe")
    assert (root / "src" / "a").read_text() == "1"
    assert (root / "sub" / "code").read_text() == "1"
    assert not (root / "new" / "made").exists()
    kept = {"a.log": "changed", "out/x": "changed", "out/y": "new", ".git/config": "other", "sub/.git/HEAD": "other"}
    for name, text in {**kept, "new.log": "new", "new/made.log": "and this", "pipe": "a file now"}.items():
        assert (root / name).read_text() == text, name
    assert len((root / "large").read_bytes()) == len((root / "grows").read_bytes()) == 102


def test_what_was_ignored_then_is_not_removed_and_what_is_ignored_now_is_not_overwritten(shadow: Shadow) -> None:
    root = shadow.root
    fill(root, _dot_gitignore="notes\nd/\n", plain="1", gone="2")
    taken = shadow.take()
    fill(root, _dot_gitignore="plain\ngone\n", notes="made while it was ignored", d__e="too", plain="a person's")
    (root / "gone").unlink()
    made = go_back(shadow, taken.tree)
    assert dict(made.left_alone) == {
        "notes": "ignored",
        "d/e": "ignored",
        "d": "ignored",
        "plain": "ignored, and something is there",
    }
    assert (root / "notes").read_text() == "made while it was ignored"
    assert (root / "d" / "e").read_text() == "too"
    assert (root / "plain").read_text() == "a person's"
    assert (root / "gone").read_text() == "2"


def test_a_private_file_stays_private(shadow: Shadow) -> None:
    fill(shadow.root, key="secret", folder__inner="x", open_="y")
    (shadow.root / "key").chmod(0o600)
    (shadow.root / "folder").chmod(0o700)
    taken = shadow.take()
    clear(shadow.root)
    old = os.umask(0o022)
    try:
        go_back(shadow, taken.tree)
    finally:
        os.umask(old)
    modes = {name: stat.S_IMODE((shadow.root / name).stat().st_mode) for name in ("key", "folder", "open_")}
    assert modes == {"key": 0o600, "folder": 0o700, "open_": 0o644}
    (shadow.root / "key").write_text("changed")
    (shadow.root / "open_").write_text("changed")
    (shadow.root / "open_").chmod(0o664)
    go_back(shadow, taken.tree)
    assert stat.S_IMODE((shadow.root / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE((shadow.root / "open_").stat().st_mode) == 0o664, "a mode that a person gave is kept"


def test_the_umask_of_whoever_restores_is_honoured(shadow: Shadow) -> None:
    fill(shadow.root, program="x", file="y")
    (shadow.root / "program").chmod(0o755)
    taken = shadow.take()
    clear(shadow.root)
    old = os.umask(0o027)
    try:
        go_back(shadow, taken.tree)
    finally:
        os.umask(old)
    modes = {name: stat.S_IMODE((shadow.root / name).stat().st_mode) for name in ("program", "file")}
    assert modes == {"program": 0o750, "file": 0o640}


def test_a_missing_or_damaged_object_is_said_before_anything_is_done(shadow: Shadow) -> None:
    fill(shadow.root, a="1", b="2")
    taken = shadow.take()
    there = set(shadow.objects.folder.rglob("*.pack"))
    fill(shadow.root, a="other", b="another")
    present = shadow.take()
    before = picture(shadow.root)
    (old,) = there
    data = old.read_bytes()
    for damaged in (data[:-40], data[:20] + b"\0" * 30 + data[50:], b""):
        old.write_bytes(damaged)
        with pytest.raises(SessionError, match=r"missing|damaged"):
            plan(Shadow(shadow.root, shadow.objects.folder.parent.parent), present, taken.tree)
    old.unlink()
    old.with_suffix(".idx").unlink()
    with pytest.raises(SessionError, match="missing"):
        plan(Shadow(shadow.root, shadow.objects.folder.parent.parent), present, taken.tree)
    with pytest.raises(SessionError, match="missing"):
        plan(shadow, present, "00" * 32)
    assert picture(shadow.root) == before


def test_a_single_missing_file_is_said_before_anything_is_done(shadow: Shadow) -> None:
    with shadow.objects.pack() as pack:
        pack.add("blob", b"1")
    (alone,) = shadow.objects.folder.rglob("*.pack")
    fill(shadow.root, a="1", b="2")
    taken = shadow.take()
    fill(shadow.root, a="other", b="another")
    present = shadow.take()
    before = picture(shadow.root)
    alone.unlink()
    alone.with_suffix(".idx").unlink()
    with pytest.raises(SessionError, match="missing"):
        plan(Shadow(shadow.root, shadow.objects.folder.parent.parent), present, taken.tree)
    assert picture(shadow.root) == before


def test_a_file_that_a_person_changed_after_the_plan_is_not_touched(shadow: Shadow) -> None:
    fill(shadow.root, changed="1", removed="1", kept="1")
    taken = shadow.take()
    fill(shadow.root, changed="2", kept="2", made="2")
    (shadow.root / "removed").unlink()
    made = plan(shadow, shadow.take(), taken.tree)
    fill(shadow.root, changed="a person's", made="a person's", removed="a person's")
    assert {path for path, _ in restore(shadow, made)} == {"changed", "made", "removed"}
    for name in ("changed", "made", "removed"):
        assert (shadow.root / name).read_text() == "a person's"
    assert (shadow.root / "kept").read_text() == "1"


def test_a_folder_exchanged_for_a_link_is_not_written_through(shadow: Shadow, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    fill(shadow.root, d__f="1", d__g="1")
    taken = shadow.take()
    fill(shadow.root, d__f="2")
    (shadow.root / "d" / "g").unlink()
    made = plan(shadow, shadow.take(), taken.tree)
    shutil.rmtree(shadow.root / "d")
    (shadow.root / "d").symlink_to(tmp_path / "outside")
    (tmp_path / "outside" / "f").write_text("2")
    assert len(restore(shadow, made)) == 2
    assert [(path.name, path.read_text()) for path in (tmp_path / "outside").iterdir()] == [("f", "2")]


def test_a_hard_linked_file_elsewhere_is_not_written(shadow: Shadow, tmp_path: Path) -> None:
    fill(shadow.root, f="1")
    taken = shadow.take()
    (shadow.root / "f").write_text("2")
    os.link(shadow.root / "f", tmp_path / "elsewhere")
    go_back(shadow, taken.tree)
    assert (tmp_path / "elsewhere").read_text() == "2"
    assert (shadow.root / "f").read_text() == "1"


def test_what_cannot_be_done_is_said_and_the_rest_is_done(shadow: Shadow, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(shadow.root, a="1", b="1", c="1")
    taken = shadow.take()
    fill(shadow.root, a="2", b="2", c="2")
    real = module.beneath.replace

    def failing(folder: int, name: str, *more: object, **given: object) -> None:
        if name == "b":
            raise OSError(28, "No space left on device")
        real(folder, name, *more, **given)  # type: ignore[arg-type]

    made = plan(shadow, shadow.take(), taken.tree)
    monkeypatch.setattr(module.beneath, "replace", failing)
    assert restore(shadow, made) == [("b", "No space left on device")]
    assert [(shadow.root / name).read_text() for name in "abc"] == ["1", "2", "1"]


def test_a_forged_tree_cannot_reach_git_or_the_outside(shadow: Shadow) -> None:
    from latchstep.tool.gitstore import FILE, LINK, TREE, tree_bytes

    for name, words in ((b".git", "damaged"), (b"..", "damaged"), (b".GIT", "damaged"), (b"a/b", "damaged")):
        with shadow.objects.pack() as pack:
            inner = pack.add("tree", tree_bytes([(FILE, b"config", pack.add("blob", b"x"))]))
            files = pack.add("tree", tree_bytes([(TREE, name, inner)]))
            tree = pack.add("tree", tree_bytes([(TREE, b"files", files)]))
        with pytest.raises(SessionError, match=words):
            plan(shadow, shadow.take(), tree.hex())
    with shadow.objects.pack() as pack:
        files = pack.add(
            "tree", tree_bytes([("160000", b"sub", pack.add("blob", b"")), (LINK, b"x", pack.add("blob", b"y"))])
        )
        tree = pack.add("tree", tree_bytes([(TREE, b"files", files)]))
    with pytest.raises(SessionError, match="damaged"):
        plan(shadow, shadow.take(), tree.hex())


def test_a_folder_with_ignored_files_in_place_of_a_file_stays_and_is_named(shadow: Shadow) -> None:
    root = shadow.root
    fill(root, _dot_gitignore="*.log\n", a="1", b="1")
    taken = shadow.take()
    (root / "a").unlink()
    fill(root, a__x_dot_log="not held", a__y="made", b="2")
    made = plan(shadow, shadow.take(), taken.tree)
    assert restore(shadow, made) == [("a", "something is there that no snapshot holds, or that was changed meanwhile")]
    assert (root / "a" / "x.log").read_text() == "not held"
    assert (root / "b").read_text() == "1"
