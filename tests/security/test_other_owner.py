"""Root in somebody else's folder: commands run as its owner, and what file tools make is the owner's."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from latchstep.errors import DefinitionError
from latchstep.tool import sandbox as sandboxes
from latchstep.tool.outcome import Finished
from latchstep.tool.probe import trial
from latchstep.tool.sandbox import Level, Sandbox, profile
from latchstep.tool.spawner import Spawner
from latchstep.tool.workspace import Workspace

from .ground import STRANGER
from .test_sandbox import CONFINING

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can work in another's name")


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A folder of somebody else's, where they can get at it."""
    base = Path(os.path.realpath(tempfile.mkdtemp(prefix="theirs-", dir="/var/tmp")))
    base.chmod(0o755)
    folder = base / "work"
    folder.mkdir(mode=0o755)
    os.chown(folder, STRANGER, STRANGER)
    yield folder
    shutil.rmtree(base)


def run(sandbox: Sandbox, command: str, lock: Path | None = None) -> Finished:
    async def main() -> Finished:
        spawner = Spawner(sandbox=sandbox, lock_path=lock)
        try:
            return await spawner.run(command, cwd=sandbox.root, timeout=20)
        finally:
            await spawner.close()

    return asyncio.run(main())


@pytest.mark.parametrize("level", CONFINING)
def test_commands_run_as_the_owner_of_the_workspace(level: Level, theirs: Path, tmp_path: Path) -> None:
    sandbox = Sandbox(level, str(theirs), hidden=(str(tmp_path),))
    try:
        problem = asyncio.run(trial(sandbox))
    except DefinitionError as error:
        problem = str(error)
    if problem:
        pytest.skip(f"level {level}: {problem}")
    ended = run(sandbox, "id -u; id -G; echo x > made; cat /proc/self/uid_map | head -1; echo $HOME", tmp_path / "lock")
    uid, groups, *_ = ended.head.decode().split("\n")
    assert (uid, groups.split()) == (str(STRANGER), [str(STRANGER)])
    assert (theirs / "made").stat().st_uid == STRANGER
    ended = run(
        sandbox, "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m m && git log"
    )
    assert ended.exit_status == 0, ended
    ended = run(sandbox, "echo x > .git/hooks/pre-commit; git status && git -c user.name=a -c user.email=a@b "
                "commit -q --allow-empty -m more && echo done")  # fmt: skip
    assert ended.head.endswith(b"done\n"), ended


def test_what_file_tools_make_there_is_the_owners(theirs: Path) -> None:
    with Workspace(theirs) as workspace:
        workspace.update("deep/new.txt", lambda place, present: b"x")
    assert (theirs / "deep/new.txt").stat().st_uid == STRANGER
    assert (theirs / "deep").stat().st_uid == STRANGER


def test_where_the_owner_reaches_no_python_it_is_said(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes, "PYTHONS", ())
    monkeypatch.setattr(sandboxes.sys, "_base_executable", "/nowhere/python")
    with pytest.raises(DefinitionError, match="reaches no Python"):
        profile(Sandbox("bubblewrap", str(theirs)))
