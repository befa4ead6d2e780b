"""What the tests of snapshots and restores share: a workspace, a home, and a picture of all that lies in a folder."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

from latchstep.tool.restore import Plan, plan, restore
from latchstep.tool.snapshot import Shadow

Picture = dict[bytes, tuple[str, object]]


def picture(root: Path, *, but: tuple[bytes, ...] = (b".git",)) -> Picture:
    """Path -> what stands there: a folder, a link and its target, a file's bytes and whether it runs."""
    found: Picture = {}

    def look(folder: bytes, path: bytes) -> None:
        for item in os.scandir(folder):
            name = path + item.name
            if item.name in but:
                continue
            if item.is_symlink():
                found[name] = ("link", os.readlink(item.path))
            elif item.is_dir():
                found[name] = ("folder", None)
                look(item.path, name + b"/")
            elif item.is_file():
                with open(item.path, "rb") as file:
                    found[name] = ("file", (file.read(), bool(item.stat().st_mode & 0o100)))
            else:
                found[name] = ("other", stat.S_IFMT(item.stat(follow_symlinks=False).st_mode))

    look(os.fsencode(root), b"")
    return found


def go_back(shadow: Shadow, tree: str) -> Plan:
    """Restore a snapshot; all of it must succeed."""
    made = plan(shadow, shadow.take(), tree)
    assert restore(shadow, made) == []
    return made


def git(shadow: Shadow, *args: str) -> bytes:
    command = ["git", f"--git-dir={shadow.objects.folder}", *args]
    return subprocess.run(command, check=True, capture_output=True).stdout


def fill(root: Path, **files: str) -> None:
    """Files by path, `__` for `/`."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
