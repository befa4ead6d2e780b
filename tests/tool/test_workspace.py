"""The workspace: what leads out is refused, in both ways to open; writes are whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from latchstep.errors import DefinitionError, ToolError
from latchstep.tool import beneath
from latchstep.tool.opened import File, is_missing
from latchstep.tool.path import is_protected, relative_path
from latchstep.tool.workspace import Workspace

WAYS = [beneath.PORTABLE, beneath.best_ways()][: 1 if beneath.best_ways() is beneath.PORTABLE else 2]
IDS = ["portable", "kernel"][: len(WAYS)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The layout of B69: a workspace with links out of it, and neighbours that must stay as they are."""
    for name in ("ws", "ws-evil", "out"):
        (tmp_path / name).mkdir()
    ws = tmp_path / "ws"
    (ws / "l").symlink_to("../out")
    (ws / "dangling").symlink_to("../out/new")
    (ws / "inner-dangling").symlink_to("nothing")
    (ws / "root").symlink_to("/")
    (ws / "a b").mkdir()
    (ws / "ünï").mkdir()
    (ws / "x").write_text("inside")
    (tmp_path / "out" / "x").write_text("outside")
    (tmp_path / "ws-evil" / "x").write_text("evil")
    return ws


@pytest.fixture
def workspace(root: Path, ways: beneath.Ways) -> Iterator[Workspace]:
    with Workspace(root, ways=ways) as opened:
        yield opened


@pytest.fixture(params=WAYS, ids=IDS)
def ways(request: pytest.FixtureRequest) -> beneath.Ways:
    ways: beneath.Ways = request.param
    return ways


def put(workspace: Workspace, path: str, data: bytes = b"new") -> File:
    return workspace.update(path, lambda real, present: data)[0]


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


ESCAPES = [
    "l/x",
    "dangling",
    "../ws-evil/x",
    "root/etc/passwd",
    "a b/../../out/x",
    "~/x",
    "a\0b",
    "./l/../x",
    "..",
    "/etc/passwd",
    "/",
    "",
    "x" * 5000,
    "\ud800",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_b69_escapes_are_refused_for_reading_and_writing(workspace: Workspace, root: Path, path: str) -> None:
    before = tree(root.parent)
    with pytest.raises(ToolError):
        workspace.read(path)
    with pytest.raises(ToolError):
        put(workspace, path)
    with pytest.raises(ToolError):
        workspace.current(path)
    assert tree(root.parent) == before
    assert (root.parent / "out" / "x").read_text() == "outside"


def test_b69_a_neighbour_with_the_same_prefix_is_outside(workspace: Workspace, root: Path) -> None:
    with pytest.raises(ToolError, match="outside of the workspace"):
        workspace.read(f"{root}-evil/x")
    assert workspace.read(f"{root}/x").data == b"inside"
    with pytest.raises(ToolError, match="leads out"):
        workspace.read(f"{root}/../ws-evil/x")


def test_b69_names_with_blanks_and_in_another_normal_form_are_found(workspace: Workspace, root: Path) -> None:
    put(workspace, "a b/file one", b"1")
    assert workspace.read("a b/file one").data == b"1"
    put(workspace, unicodedata.normalize("NFD", "ünï/ö.txt"), b"2")
    assert [path.name for path in root.iterdir() if path.name.startswith(("u", "ü"))] == ["ünï"]
    assert workspace.read(unicodedata.normalize("NFC", "ünï/ö.txt")).data == b"2"
    put(workspace, unicodedata.normalize("NFC", "ünï/ö.txt"), b"3")
    assert len(list((root / "ünï").iterdir())) == 1


@pytest.mark.parametrize("path", ["dangling", "inner-dangling", "inner-dangling/x", "dangling/deep/x"])
def test_b69_nothing_is_made_through_a_dangling_link(workspace: Workspace, root: Path, path: str) -> None:
    with pytest.raises(ToolError):
        put(workspace, path)
    assert not (root.parent / "out" / "new").exists()
    assert not (root / "nothing").exists()


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("l/x", errno.EXDEV),
        ("l", errno.EXDEV),
        ("root/etc/passwd", errno.EXDEV),
        ("../out/x", errno.EXDEV),
        ("a b/../../out/x", errno.EXDEV),
        ("./l/../x", errno.EXDEV),
        ("/etc/passwd", errno.EXDEV),
        ("loop/x", errno.ELOOP),
        ("self", errno.ELOOP),
        ("x/y", errno.ENOTDIR),
        ("missing/x", errno.ENOENT),
        ("absolute", errno.EXDEV),
    ],
)
def test_both_ways_to_open_refuse_alike(root: Path, ways: beneath.Ways, path: str, number: int) -> None:
    (root / "loop").symlink_to("loop2")
    (root / "loop2").symlink_to("loop")
    (root / "self").symlink_to("self")
    (root / "absolute").symlink_to(root / "x")
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    open_before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    try:
        with pytest.raises(OSError, match=r".") as caught:
            ways.open(folder, path, os.O_RDONLY | os.O_CLOEXEC)
        assert caught.value.errno == number
        if open_before:
            assert len(os.listdir("/proc/self/fd")) == open_before
    finally:
        os.close(folder)


@pytest.mark.parametrize(
    "path", ["x", "to-x", "deep/back", "deep/../x", "deep/up/x", "./deep/./back", "deep/up/deep/back"]
)
def test_both_ways_to_open_follow_links_that_stay_inside(root: Path, ways: beneath.Ways, path: str) -> None:
    (root / "to-x").symlink_to("x")
    (root / "deep").mkdir()
    (root / "deep" / "back").symlink_to("../x")
    (root / "deep" / "up").symlink_to("..")
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = ways.open(folder, path, os.O_RDONLY | os.O_CLOEXEC)
        assert os.read(fd, 100) == b"inside"
        assert beneath.name_of(fd, folder) == "x"
        os.close(fd)
    finally:
        os.close(folder)


def test_the_real_path_is_the_one_without_links(workspace: Workspace, root: Path) -> None:
    (root / "alias").symlink_to("a b")
    (root / "a b" / "f").write_text("1")
    assert workspace.read("alias/f").path == "a b/f"
    assert workspace.place("alias/new/deeper") == "a b/new/deeper"
    assert put(workspace, "alias/f").path == "a b/f"
    with pytest.raises(ToolError, match="does not exist"):
        workspace.place("nowhere/../f")


def test_attacks_1_to_4_write_nothing_outside(workspace: Workspace, root: Path) -> None:
    (root / "file-link").symlink_to("../out/x")
    outside = root.parent / "out"
    for path in ("../outside", str(outside / "x"), "file-link", "l/y"):
        with pytest.raises(ToolError):
            put(workspace, path)
    assert (outside / "x").read_text() == "outside"
    assert not (root.parent / "outside").exists()
    assert tree(outside) == {"x"}


def test_attack_5_a_hard_linked_file_is_not_written(workspace: Workspace, root: Path) -> None:
    os.link(root.parent / "out" / "x", root / "hard")
    assert workspace.read("hard").data == b"outside"
    with pytest.raises(ToolError, match="hard-linked"):
        put(workspace, "hard")
    assert (root.parent / "out" / "x").read_text() == "outside"


def test_attack_9_magic_links_are_not_followed(tmp_path: Path) -> None:
    if not Path("/proc/self/root").exists():
        pytest.skip("no /proc here")
    with Workspace("/proc/self") as proc, pytest.raises(ToolError):
        proc.read("root/etc/passwd")
    with Workspace("/proc/self") as proc, pytest.raises(ToolError):
        proc.read("cwd/pyproject.toml")


def test_attack_34_only_regular_files_and_never_a_wait(workspace: Workspace, root: Path) -> None:
    import socket

    os.mkfifo(root / "fifo")
    (root / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(root)
        try:
            server.bind("sock")
        finally:
            os.chdir(here)
        for name in ("fifo", "zero", "sock", "a b", "."):
            with pytest.raises(ToolError):
                workspace.read(name)
            with pytest.raises(ToolError):
                put(workspace, name)
    if os.geteuid() == 0:
        os.mknod(root / "dev", stat.S_IFCHR | 0o600, os.makedev(1, 5))
        with pytest.raises(ToolError, match="not a regular file"):
            workspace.read("dev")


def test_attack_34_a_file_over_the_limit_is_named_and_not_read(workspace: Workspace, root: Path) -> None:
    with (root / "huge").open("wb") as file:
        file.truncate(10 * 1024**3)
    with pytest.raises(ToolError, match=r"10240\.0 MiB is more than the limit of 64\.0 MiB .*MAX_FILE_BYTES"):
        workspace.read("huge")
    with pytest.raises(ToolError, match="limit"):
        workspace.read("x", limit=5)


_SWAPPER = """
import os, shutil, sys
os.chdir(sys.argv[1])
what = sys.argv[2]
print(flush=True)
while True:
    if what == "link":
        for target in ("../out", "real"):
            os.symlink(target, "tmp")
            os.rename("tmp", "swap")
    else:
        path, target = ("swap", "../out") if what == "folder" else ("swap/x", "../../out/x")
        steps = ((os.rename, path, "hold"), (os.symlink, target, path), (os.unlink, path), (os.rename, "hold", path))
        for step, *arguments in steps:
            try:
                step(*arguments)
            except OSError:
                pass  # the other process came between
        if os.path.lexists("hold"):  # by making a folder of its own at the name, which would stand there for ever
            shutil.rmtree(path, ignore_errors=True)
"""


@contextlib.contextmanager
def swapping(root: Path, what: str) -> Iterator[None]:
    """Another process swaps a link, a folder or a file for a link to the outside, as fast as it can."""
    (root / "real").mkdir()
    (root / "real" / "x").write_text("inside")
    if what == "link":
        (root / "swap").symlink_to("real")
    else:
        (root / "swap").mkdir()
        (root / "swap" / "x").write_text("inside")
    with subprocess.Popen([sys.executable, "-c", _SWAPPER, str(root), what], stdout=subprocess.PIPE) as swapper:
        try:
            assert swapper.stdout is not None
            swapper.stdout.readline()
            yield
        finally:
            swapper.kill()


@pytest.mark.parametrize("what", ["link", "folder", "file"])
def test_attack_46_what_is_swapped_in_is_never_followed_out(root: Path, ways: beneath.Ways, what: str) -> None:
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    contents: set[bytes] = set()
    counts = {"inside": 0, "refused": 0}
    try:
        with swapping(root, what):
            until = time.monotonic() + 20
            while (min(counts.values()) < 50 or sum(counts.values()) < 5000) and time.monotonic() < until:
                try:
                    fd = ways.open(folder, "swap/x", os.O_RDONLY | os.O_CLOEXEC)
                except OSError:
                    counts["refused"] += 1
                    continue
                contents.add(os.read(fd, 100))
                os.close(fd)
                counts["inside"] += 1
    finally:
        os.close(folder)
    assert contents == {b"inside"}
    assert min(counts.values()) >= 50, counts


@pytest.mark.parametrize("what", ["link", "folder", "file"])
def test_attack_46_writes_stay_inside_while_something_is_swapped(root: Path, ways: beneath.Ways, what: str) -> None:
    written = refused = 0
    with Workspace(root, ways=ways) as workspace, swapping(root, what):
        until = time.monotonic() + 20
        while min(written, refused) < 5 and time.monotonic() < until:
            try:
                put(workspace, "swap/x", str(written).encode())
                written += 1
            except ToolError:
                refused += 1
    assert min(written, refused) >= 5, (written, refused)
    assert tree(root.parent / "out") == {"x"}
    assert (root.parent / "out" / "x").read_text() == "outside"


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".git",
        ".GIT/hooks/pre-commit",
        "sub/.git/config",
        "sub/.Git/new/deep",
        "alias/config",
        ".latchstep/config.toml",
        ".latchstep",
        ".LatchStep/x",
        ".g\u200cit/config",
        "git~1/config",
        ".git ./config",
        ".git::$INDEX_ALLOCATION/x",
        "sub/../.git/config",
    ],
)
def test_git_and_our_own_folder_are_never_written(workspace: Workspace, root: Path, path: str) -> None:
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("[core]")
    (root / "sub" / ".git").mkdir(parents=True)
    (root / "alias").symlink_to(".git")
    before = tree(root)
    with pytest.raises(ToolError, match=r"never written|names a folder"):
        put(workspace, path)
    assert tree(root) == before
    assert (root / ".git" / "config").read_text() == "[core]"


def test_files_that_only_look_like_git_are_written(workspace: Workspace) -> None:
    for path in (".gitignore", ".github/workflows/ci.yml", "git/config", "a.git/x"):
        put(workspace, path)
        assert workspace.read(path).data == b"new"


def test_further_protected_paths_are_refused(root: Path) -> None:
    with Workspace(root, protected=[root / "store"]) as workspace:
        for path in ("store/sessions/1", "store", "a b/../store/x"):
            with pytest.raises(ToolError, match=r"never written|does not exist|names a folder"):
                put(workspace, path)
        put(workspace, "storehouse/x")
    assert not (root / "store").exists()


def test_a_root_that_is_no_folder_is_a_wrong_declaration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "missing", tmp_path / "file" / "below"):
        with pytest.raises(DefinitionError, match="not a folder"):
            Workspace(path)


def test_a_root_that_goes_away_is_noticed(root: Path) -> None:
    with Workspace(root) as workspace:
        root.rename(root.parent / "moved")
        acts: list[Callable[[], object]] = [
            lambda: workspace.read("x"),
            lambda: workspace.scan("."),
            lambda: workspace.current("x"),
            lambda: put(workspace, "y"),
            lambda: put(workspace, "new/y"),
        ]
        for act in acts:
            with pytest.raises(ToolError, match="no longer exists"):
                act()
        root.mkdir()
        for act in acts:
            with pytest.raises(ToolError, match="another folder took its place"):
                act()
    assert tree(root) == set()
    assert "y" not in tree(root.parent / "moved")


def test_a_closed_workspace_says_so(root: Path) -> None:
    workspace = Workspace(root)
    workspace.close()
    workspace.close()
    with pytest.raises(ToolError, match="closed"):
        workspace.read("x")


def test_a_missing_file_can_be_told_from_a_refusal(workspace: Workspace) -> None:
    with pytest.raises(ToolError) as caught:
        workspace.read("missing")
    assert is_missing(caught.value)
    with pytest.raises(ToolError) as caught:
        workspace.read("l/x")
    assert not is_missing(caught.value)
    assert workspace.current("missing/too") is None
    assert workspace.kind("missing") is None
    assert workspace.kind("x") == "file"
    assert workspace.kind("a b") == "folder"


def test_scan_gives_entries_in_order_and_does_not_follow_links(workspace: Workspace, root: Path) -> None:
    os.mkfifo(root / "fifo")
    real, entries, more = workspace.scan(".")
    kinds = {entry.name: entry.kind for entry in entries}
    assert (real, more) == ("", False)
    assert list(kinds) == sorted(kinds)
    assert kinds["l"] == "link"
    assert kinds["x"] == "file"
    assert kinds["a b"] == "folder"
    assert kinds["fifo"] == "other"
    assert {entry.target for entry in entries if entry.name == "l"} == {"../out"}


# Writing


def test_b67_mode_and_link_are_kept(workspace: Workspace, root: Path) -> None:
    (root / "tool.sh").write_text("old")
    (root / "tool.sh").chmod(0o755)
    (root / "link").symlink_to("a b/../tool.sh")
    file = put(workspace, "link", b"#!/bin/sh\n")
    assert file.path == "tool.sh"
    assert (root / "link").is_symlink()
    assert (root / "tool.sh").read_bytes() == b"#!/bin/sh\n"
    assert stat.S_IMODE((root / "tool.sh").stat().st_mode) == 0o755
    assert (root / "tool.sh").stat().st_nlink == 1
    assert not [name for name in os.listdir(root) if "tmp" in name]


def test_the_right_to_run_as_another_does_not_pass_to_new_bytes(workspace: Workspace, root: Path) -> None:
    (root / "x").chmod(0o6755)
    put(workspace, "x")
    assert stat.S_IMODE((root / "x").stat().st_mode) == 0o755


def test_b67_access_list_and_attributes_are_kept(workspace: Workspace, root: Path) -> None:
    path = root / "f"
    path.write_text("old\n")
    path.chmod(0o640)
    everyone = 0xFFFFFFFF
    entries = [(1, 6, everyone), (2, 6, 65534), (4, 0, everyone), (16, 6, everyone), (32, 0, everyone)]
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "user.note", b"kept")
        os.setxattr(path, "system.posix_acl_access", access)
    except (OSError, AttributeError):
        pytest.skip("this file system has no access lists or attributes")
    workspace.update("f", lambda real, present: b"new\n")
    assert path.read_text() == "new\n"
    assert os.getxattr(path, "user.note") == b"kept"
    assert os.getxattr(path, "system.posix_acl_access") == access
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_b67_a_new_file_has_the_mode_of_the_process(workspace: Workspace, root: Path) -> None:
    (root / "plain").write_text("")
    put(workspace, "one/two/new", b"1")
    assert (root / "one" / "two" / "new").stat().st_mode == (root / "plain").stat().st_mode
    assert os.listdir(root / "one" / "two") == ["new"]


def test_b67_owner_is_kept(workspace: Workspace, root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(root / "x", 1234, 1234)
    put(workspace, "x")
    assert ((root / "x").stat().st_uid, (root / "x").stat().st_gid) == (1234, 1234)


_KILLED = """
import os, sys, threading
from latchstep.tool import beneath
from latchstep.tool.workspace import Workspace
ways = beneath.PORTABLE if sys.argv[2] == "portable" else beneath.best_ways()
with Workspace(sys.argv[1], ways=ways) as workspace:
    data = b"n" * 60_000_000
    print(flush=True)
    while True:
        workspace.update("big", lambda real, present: data)
        data = data[::-1]
"""


@pytest.mark.parametrize("way", IDS)
def test_b67_kill_during_a_large_write_leaves_old_or_new(root: Path, way: str) -> None:
    (root / "big").write_bytes(b"old")
    for wait in (0.0, 0.02, 0.05):
        child = subprocess.Popen([sys.executable, "-c", _KILLED, str(root), way], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        threading.Event().wait(wait)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert (root / "big").read_bytes() in (b"old", b"n" * 60_000_000)
        if way == "kernel":
            assert not [name for name in os.listdir(root) if name.endswith(".tmp")]


_FULL = """
import resource, signal, sys
from latchstep.errors import ToolError
from latchstep.tool import beneath
from latchstep.tool.workspace import Workspace
ways = beneath.PORTABLE if sys.argv[2] == "portable" else beneath.best_ways()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with Workspace(sys.argv[1], ways=ways) as workspace:
    for path in ("old", "new"):
        try:
            workspace.update(path, lambda real, present: b"x" * 1_000_000)
        except ToolError as error:
            print(error)
"""


@pytest.mark.parametrize("way", IDS)
def test_b67_a_full_disk_leaves_the_old_bytes_and_no_temporary_file(root: Path, way: str) -> None:
    (root / "old").write_bytes(b"old")
    before = tree(root)
    done = subprocess.run([sys.executable, "-c", _FULL, str(root), way], capture_output=True, text=True, check=True)
    assert done.stdout.count("nothing was changed") == 2, done
    assert (root / "old").read_bytes() == b"old"
    assert tree(root) == before


def test_a_read_only_file_is_not_replaced(workspace: Workspace, root: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write any file")
    (root / "x").chmod(0o444)
    with pytest.raises(ToolError, match="read-only"):
        put(workspace, "x")


@pytest.mark.parametrize("other", ["changed", "gone", "made"])
def test_a_change_between_the_look_and_the_rename_is_not_lost(workspace: Workspace, root: Path, other: str) -> None:
    path = root / ("new" if other == "made" else "x")

    def make(real: str, present: File | None) -> bytes:
        if other == "gone":
            path.unlink()
        else:
            path.write_text("theirs")
        return b"ours"

    with pytest.raises(ToolError, match="someone else"):
        workspace.update(path.name, make)
    assert (path.read_text() if path.exists() else None) == (None if other == "gone" else "theirs")
    assert not [name for name in os.listdir(root) if name.endswith(".tmp")]


def test_no_folder_is_made_for_a_refused_write(workspace: Workspace, root: Path) -> None:
    def make(real: str, present: File | None) -> bytes:
        raise ToolError("no")

    with pytest.raises(ToolError, match=r"^no$"):
        workspace.update("one/two/three", make)
    assert not (root / "one").exists()


def test_a_write_that_fails_leaves_no_folder_that_was_made_for_it(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (root / "one").mkdir()
    before = tree(root)
    monkeypatch.setattr(beneath, "replace", full)
    with pytest.raises(ToolError, match="No space left"):
        workspace.update("one/two/three/four", lambda real, present: b"x")
    assert tree(root) == before


def test_updates_of_one_path_wait_for_each_other(workspace: Workspace, root: Path) -> None:
    (root / "count").write_bytes(b"0")
    (root / "same").symlink_to("count")

    def add(path: str) -> None:
        for _ in range(20):
            workspace.update(path, lambda real, present: str(int(present.data) + 1).encode() if present else b"")

    threads = [threading.Thread(target=add, args=(path,)) for path in ("count", "same", "./a b/../count")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (root / "count").read_bytes() == b"60"


def test_no_descriptor_is_left_open(workspace: Workspace, root: Path) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc here")
    before = len(os.listdir("/proc/self/fd"))
    for path in ["x", "missing", "new/file", "dangling", "root/etc/passwd", ".git/x", "a b", "ünï/ö", *ESCAPES]:
        for act in (workspace.read, workspace.scan, workspace.kind, workspace.current, lambda p: put(workspace, p)):
            try:
                act(path)
            except ToolError:
                pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_is_protected_and_relative_path_are_pure() -> None:
    assert is_protected(".git")
    assert is_protected(".GIT. .")
    assert not is_protected(".gitmodules")
    roots = (Path("/w/s"),)
    assert relative_path("/w/s", roots) == "."
    assert relative_path("/w/s//a/./b/", roots) == "a/b"
    assert relative_path("a//b/../c", roots) == "a/b/../c"
    with pytest.raises(ValueError, match="outside"):
        relative_path("/w/security", roots)
