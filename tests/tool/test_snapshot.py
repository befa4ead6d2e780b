"""A snapshot holds every file of a workspace but what a rule leaves out, and reads only what may have changed."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from latchstep.errors import SessionError
from latchstep.tool import snapindex, snapshot
from latchstep.tool.gitstore import Objects, object_id
from latchstep.tool.snapshot import Shadow

from .snapshot_kit import fill, git

HAS_GIT = shutil.which("git") is not None
needs_git = pytest.mark.skipif(not HAS_GIT, reason="git is the judge of the format")


@pytest.fixture
def shadow(tmp_path: Path) -> Iterator[Shadow]:
    (tmp_path / "ws").mkdir()
    made = Shadow(tmp_path / "ws", tmp_path / "home")
    yield made
    made.leave()


def listed(shadow: Shadow, tree: str) -> list[str]:
    """Paths in a snapshot, as git lists them."""
    raw = git(shadow, "ls-tree", "-r", "-t", "-z", "--name-only", f"{tree}:files")
    return [os.fsdecode(name) for name in raw.split(b"\0")[:-1]]


def beside(shadow: Shadow, tree: str, name: str) -> list[str]:
    return [os.fsdecode(line) for line in git(shadow, "cat-file", "blob", f"{tree}:{name}").split(b"\0")[:-1]]


def age(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the files had last been changed long before they were read."""
    later = time.time_ns() + 10 * snapshot.RACY
    monkeypatch.setattr(time, "time_ns", lambda: later)


@needs_git
def test_git_reads_what_was_stored(shadow: Shadow) -> None:
    fill(shadow.root, a_dot_py="print(1)\n", src__deep__b="two", src__c="")
    (shadow.root / "run.sh").write_text("#!/bin/sh\n")
    (shadow.root / "run.sh").chmod(0o755)
    (shadow.root / "link").symlink_to("/etc/passwd")
    (shadow.root / "big").write_bytes(os.urandom(300_000))
    (shadow.root / "empty").mkdir()
    taken = shadow.take()
    git(shadow, "fsck", "--full", "--strict")
    assert git(shadow, "ls-tree", "-r", f"{taken.tree}:files").count(b"\n") == taken.files == 6
    modes = {
        line.split(b"\t")[1]: line.split(b" ")[0]
        for line in git(shadow, "ls-tree", "-t", "-r", f"{taken.tree}:files").splitlines()
    }
    assert modes[b"run.sh"] == b"100755"
    assert modes[b"link"] == b"120000"
    assert modes[b"a.py"] == b"100644"
    assert modes[b"empty"] == modes[b"src/deep"] == b"040000"
    assert git(shadow, "cat-file", "blob", f"{taken.tree}:files/link") == b"/etc/passwd"
    assert git(shadow, "cat-file", "blob", f"{taken.tree}:files/big") == (shadow.root / "big").read_bytes()


@needs_git
def test_a_clean_up_by_git_removes_nothing(shadow: Shadow) -> None:
    import subprocess

    fill(shadow.root, a="1")
    taken = shadow.take()
    for command in (["gc", "--prune=now"], ["prune", "--expire=now"], ["repack", "-a", "-d"]):
        subprocess.run(["git", f"--git-dir={shadow.objects.folder}", *command], capture_output=True, check=False)
    assert Objects(shadow.objects.folder).read(bytes.fromhex(taken.tree))[0] == "tree"


def test_the_store_is_ours_alone(shadow: Shadow) -> None:
    fill(shadow.root, secret="x")
    old = os.umask(0)
    try:
        shadow.take()
    finally:
        os.umask(old)
    for path in (shadow.objects.folder.parent, *shadow.objects.folder.parent.rglob("*")):
        if path.is_dir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
        elif path.suffix in (".pack", ".idx") or path.name == snapindex.INDEX:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_store_says_whose_files_it_keeps(shadow: Shadow) -> None:
    fill(shadow.root, a="1")
    shadow.take()
    assert (shadow.objects.folder / "description").read_bytes() == os.fsencode(shadow.root) + b"\n"


def test_the_same_files_are_the_same_tree_and_nothing_is_written(shadow: Shadow) -> None:
    fill(shadow.root, a="1", b__c="2")
    first = shadow.take()
    there = sorted(shadow.objects.folder.rglob("*"))
    assert shadow.take() == first
    assert Shadow(shadow.root, shadow.objects.folder.parent.parent).take() == first
    assert sorted(shadow.objects.folder.rglob("*")) == there


@pytest.mark.parametrize("reopened", [False, True])
def test_only_what_may_have_changed_is_read(shadow: Shadow, monkeypatch: pytest.MonkeyPatch, reopened: bool) -> None:
    fill(shadow.root, a="1", b__c="2", b__d="3")
    age(shadow.root, monkeypatch)
    shadow.take()
    read: list[str] = []
    real = snapshot.read_file

    def spy(folder: int, name: str, *more: Any) -> Any:
        read.append(name)
        return real(folder, name, *more)

    monkeypatch.setattr(snapshot, "read_file", spy)
    again = Shadow(shadow.root, shadow.objects.folder.parent.parent) if reopened else shadow
    again.take()
    assert set(read) == {".gitignore"}
    fill(shadow.root, b__c="other")
    again.take()
    assert set(read) == {".gitignore", "c"}


def test_a_change_within_the_same_tick_is_seen(shadow: Shadow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same size, same inode, same times: the file was read too shortly after it was changed to be believed."""
    fill(shadow.root, a="old")
    first = shadow.take()
    path = shadow.root / "a"
    real = os.fstat(os.open(path, os.O_RDONLY)), os.scandir

    class Entry:
        """The entry as it was: a file system whose clock has not ticked."""

        def __init__(self, item: os.DirEntry[str]) -> None:
            self.name, self._item = item.name, item

        def is_dir(self, *, follow_symlinks: bool) -> bool:
            return self._item.is_dir(follow_symlinks=follow_symlinks)

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            return real[0] if self.name == "a" else self._item.stat(follow_symlinks=follow_symlinks)

    class Scan:
        def __init__(self, fd: int) -> None:
            self._it = real[1](fd)

        def __enter__(self) -> Iterator[Any]:
            return (Entry(item) for item in self._it.__enter__())

        def __exit__(self, *given: object) -> None:
            self._it.__exit__(*given)

    path.write_text("new")
    monkeypatch.setattr(snapshot.os, "scandir", lambda fd: Scan(fd) if isinstance(fd, int) else real[1](fd))
    assert shadow.take().tree != first.tree


@needs_git
def test_what_a_rule_leaves_out(shadow: Shadow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_FILE", 1000)
    root = shadow.root
    fill(root, _dot_gitignore="*.log\nbuild/\n!keep.log\n", a_dot_log="x", keep_dot_log="y", build__out="z", src__a="1")
    fill(root, src___dot_gitignore="local\n", src__local="no", other__local="yes")
    fill(root, _dot_git__config="theirs", nested___dot_git__HEAD="theirs", nested__file="in it")
    (root / "sub").mkdir()
    (root / "sub" / ".git").write_text("gitdir: ../.git/modules/sub\n")
    (root / "sub" / "code").write_text("of a submodule")
    (root / "GIT~1").mkdir()
    (root / "GIT~1" / "x").write_text("no")
    (root / "large").write_bytes(bytes(1001))
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        here = Path.cwd()
        os.chdir(root)
        try:
            sock.bind("socket")
        finally:
            os.chdir(here)
        taken = shadow.take()
    held = [".gitignore", "keep.log", "nested", "nested/file", "other", "other/local", "src", "src/.gitignore", "src/a"]
    assert listed(shadow, taken.tree) == [*held, "sub", "sub/code"]
    assert [path for path, _ in taken.left_out] == ["large", "pipe", "socket"]
    assert "MAX_FILE" in dict(taken.left_out)["large"]
    assert beside(shadow, taken.tree, "left-out")[::2] == ["large", "pipe", "socket"]


@needs_git
def test_a_new_rule_takes_effect_and_is_taken_back(shadow: Shadow, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(shadow.root, a__x="1", a__y="2")
    age(shadow.root, monkeypatch)
    first = shadow.take()
    fill(shadow.root, _dot_gitignore="x\n")
    assert listed(shadow, shadow.take().tree) == [".gitignore", "a", "a/y"]
    (shadow.root / ".gitignore").unlink()
    assert shadow.take().tree == first.tree


def test_a_folder_that_was_closed_to_others_is_another_tree(shadow: Shadow, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(shadow.root, folder__f="1")
    age(shadow.root, monkeypatch)
    first = shadow.take()
    (shadow.root / "folder").chmod(0o700)
    assert shadow.take().tree != first.tree
    (shadow.root / "folder").chmod(0o755)
    assert shadow.take().tree == first.tree


@needs_git
def test_names_of_any_bytes(shadow: Shadow) -> None:
    names = [
        b"\xff\xfe",
        b"new\nline",
        b"tab\t",
        "\u202e".encode(),
        b" ",
        b"-rf",
        b"~home",
        b"a:b",
        "é".encode(),
        b"$(x)",
    ]
    for name in names:
        with open(os.fsencode(shadow.root) + b"/" + name, "wb") as file:
            file.write(name)
    taken = shadow.take()
    assert git(shadow, "ls-tree", "-z", "--name-only", f"{taken.tree}:files").split(b"\0")[:-1] == sorted(names)
    assert Shadow(shadow.root, shadow.objects.folder.parent.parent).take() == taken


def test_no_link_is_followed_out(shadow: Shadow, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("SECRET")
    (shadow.root / "folder").symlink_to(tmp_path / "outside")
    (shadow.root / "file").symlink_to(tmp_path / "outside" / "secret")
    (shadow.root / ".gitignore").symlink_to(tmp_path / "outside" / "secret")
    assert shadow.take().files == 3
    assert not Objects(shadow.objects.folder).has(object_id("blob", b"SECRET"))


def test_a_folder_exchanged_for_a_link_while_it_is_taken(
    shadow: Shadow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the reading: what is read lies in the workspace or is left out."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("SECRET")
    fill(shadow.root, d__f="mine", e__f="too")
    real = snapshot._Scan.read

    def swapped(self: Any, *given: Any) -> None:
        shutil.rmtree(shadow.root / "d")
        (shadow.root / "d").symlink_to(tmp_path / "outside")
        (shadow.root / "e" / "f").unlink()
        (shadow.root / "e" / "f").symlink_to(tmp_path / "outside" / "f")
        real(self, *given)

    monkeypatch.setattr(snapshot._Scan, "read", swapped)
    taken = shadow.take()
    assert {path for path, _ in taken.left_out} == {"d", "e/f"}
    assert not Objects(shadow.objects.folder).has(object_id("blob", b"SECRET"))


def test_what_cannot_be_read_is_said(shadow: Shadow, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(shadow.root, a="1", b__c="2")
    real = os.open

    def refusing(path: Any, flags: int, *more: Any, **given: Any) -> int:
        if path in ("a", "b") and "dir_fd" in given:
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, *more, **given)

    monkeypatch.setattr(snapshot.os, "open", refusing)
    assert {path for path, why in shadow.take().left_out if "Permission denied" in why} == {"a", "b"}


@needs_git
def test_our_own_folder_is_no_part_of_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("1")
    shadow = Shadow(tmp_path, tmp_path / "state")
    shadow.take()
    assert listed(shadow, shadow.take().tree) == ["f"]


@pytest.mark.parametrize(("bound", "words"), [("MAX_FILES", "more than 3 files"), ("MAX_NEW", "are in no snapshot")])
def test_a_workspace_beyond_a_bound(shadow: Shadow, monkeypatch: pytest.MonkeyPatch, bound: str, words: str) -> None:
    fill(shadow.root, a="12", b="34", c="56", d="78")
    monkeypatch.setattr(snapshot, bound, 3)
    with pytest.raises(SessionError, match=f"{words}.*{bound}"):
        shadow.take()
    assert list(shadow.objects.folder.rglob("*.pack")) == []


def test_it_can_be_stopped_at_any_moment(shadow: Shadow) -> None:
    fill(shadow.root, a="1", b__c="2", b__d="3")
    asked = 0
    while True:
        asks = iter([False] * asked)
        try:
            shadow.take(lambda asks=asks: next(asks, True))  # type: ignore[misc]
            break
        except SessionError:
            asked += 1
    assert asked == 9  # each folder, each name, each file
    assert [path.name for path in shadow.objects.folder.rglob("tmp_*")] == []


def test_a_lost_pack_or_a_damaged_index_means_reading_again(shadow: Shadow, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(shadow.root, a="1", b__c="2")
    age(shadow.root, monkeypatch)
    home = shadow.objects.folder.parent.parent
    first = shadow.take()
    for path in shadow.objects.folder.rglob("*.pack"):
        path.unlink()
        path.with_suffix(".idx").unlink()
    assert Shadow(shadow.root, home).take() == first
    assert Objects(shadow.objects.folder).read(object_id("blob", b"2"))[1] == b"2"
    index = shadow.objects.folder / snapindex.INDEX
    data = index.read_bytes()
    for damaged in (b"", data[:50], data[:-1] + bytes([data[-1] ^ 1]), os.urandom(200)):
        index.write_bytes(damaged)
        assert Shadow(shadow.root, home).take() == first


def test_a_damaged_object_is_never_given_out(shadow: Shadow) -> None:
    fill(shadow.root, a="1" * 1000)
    shadow.take()
    (pack,) = shadow.objects.folder.rglob("*.pack")
    data = pack.read_bytes()
    oid = object_id("blob", b"1" * 1000)
    said = 0
    for at in range(12, len(data) - 32):
        pack.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            assert Objects(shadow.objects.folder).read(oid) == ("blob", b"1" * 1000)
        except SessionError:
            said += 1
    assert said > 10


def test_sessions_share_a_workspace_and_a_restore_has_it_alone(shadow: Shadow) -> None:
    home = shadow.objects.folder.parent.parent
    one, two, restorer = (Shadow(shadow.root, home) for _ in range(3))
    one.join()
    two.join()
    assert not restorer.alone()
    one.leave()
    assert not restorer.alone()
    two.leave()
    assert restorer.alone()
    with pytest.raises(SessionError, match="being restored"):
        one.join()
    restorer.leave()
    one.join()
    one.leave()
