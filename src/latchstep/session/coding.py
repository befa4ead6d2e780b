"""The coding agent: a workspace, its file tools, a shell, a prompt, put together for one session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latchstep.core.secrets import Masker, secret_values

from .build import build_kit
from .check import checker
from .kit import Kit
from .prompt import coding_prompt

if TYPE_CHECKING:
    from latchstep.tool.base import Tool
    from latchstep.tool.command_hooks import CommandHook, Place
    from latchstep.tool.roots import Extra
    from latchstep.tool.sandbox import Sandbox
    from latchstep.tool.snapshot import Shadow
    from latchstep.tool.spawner import Spawner
    from latchstep.tool.workspace import Workspace


def _never_written(root: Path, directory: Path | None, also: Sequence[Extra], path: str | None) -> list[Path]:
    """What no file tool writes: what makes git run programs, the folders in which commands are looked up, the sessions,
    and what was granted, trusted and entrusted, which lies beside them."""
    from latchstep.tool.gitguard import guards_of

    roots = [str(root.resolve()), *(extra.path for extra in also if extra.writable)]
    guarded = [Path(path) for top in roots for path in guards_of(top).readonly]
    searched = (os.environ.get("PATH", "") if path is None else path).split(os.pathsep)
    programs = [Path(os.path.realpath(folder)) for folder in searched if folder.startswith("/")]
    guarded += [folder for folder in programs if not any(Path(top).is_relative_to(folder) for top in roots)]
    if directory is None:
        return guarded
    home = directory.parent.parent
    names = ("sessions", "snapshots", "grants", "trust.json", "keys", "config.toml")
    return [*guarded, directory.parent, *(home / name for name in names)]


def _shadow(root: Path, directory: Path | None) -> Shadow | None:
    """The snapshots of a workspace, at work in it."""
    from latchstep.tool.snapshot import Shadow

    if directory is None:
        return None
    shadow = Shadow(root, directory.parent.parent)
    with suppress(OSError):  # each snapshot will fail, and say so
        shadow.join()
    return shadow


def _spawner(directory: Path | None, path: str | None = None, sandbox: Sandbox | None = None) -> Spawner:
    """One whose processes a later resume finds."""
    from latchstep.tool.spawner import Spawner

    return Spawner(
        lock_path=directory / "tools.lock" if directory is not None else None,
        extra={"PATH": path} if path is not None else None,
        sandbox=sandbox,
    )


def _place(workspace: Workspace, directory: Path | None, masker: Masker) -> Place:
    """Where hooks run: in no sandbox."""
    from latchstep.tool.command_hooks import Place

    session = directory.name if directory is not None else ""
    return Place(_spawner(directory), workspace.root, session, workspace.refuse_gone, masker)


def coding_kit(
    model: Any,
    root: Path,
    *,
    directory: Path | None = None,
    approve: Callable[..., Any] | None = None,
    setup: dict[str, Any] | None = None,
    path: str | None = None,
    notes: str = "",
    trusted: bool = False,
    sandbox: Sandbox | None = None,
    more: Iterable[Tool] = (),
    hooks: Sequence[CommandHook] = (),
    snapshots: bool = True,
    also: Sequence[Extra] = (),
) -> Kit:
    """A kit for work in `root`. Raises DefinitionError where that is not a folder.

    directory: the session's own, for outputs and `tools.lock`; file tools write neither it nor its neighbours.
    path: PATH of the commands, by default ours. notes: the folder's own instructions, see `coding_prompt`.
    sandbox: what holds commands, None for nothing. more: further tools. hooks: commands around calls, held by nothing.
    snapshots: whether the files are kept for rewinds. also: folders beside `root` that file tools reach too, as the
    sandbox. The session's `close` ends whatever it started.
    """
    from latchstep.tool.command_hooks import hooked
    from latchstep.tool.jobs import Jobs
    from latchstep.tool.preset import file_tools, session_tools
    from latchstep.tool.seen import Seen
    from latchstep.tool.workspace import Workspace

    workspace = Workspace(root, protected=_never_written(root, directory, also, path), also=also)
    masker = Masker(secret_values(os.environ))
    seen = Seen()
    spawner = _spawner(directory, path, sandbox)
    place = _place(workspace, directory, masker)
    shadow = _shadow(workspace.root, directory) if snapshots else None
    jobs = Jobs(spawner, masker)
    tools = (*file_tools(workspace, seen, spawner), *session_tools(jobs, workspace.root, workspace.refuse_gone), *more)

    async def on_close() -> None:
        for it in (jobs, spawner, place.spawner):
            await it.close()
        workspace.close()
        if shadow is not None:
            shadow.leave()

    return build_kit(
        model,
        [hooked(it, hooks, place) for it in tools],
        coding_prompt(workspace.root, notes, trusted=trusted, also=[(it.path, it.writable) for it in also]),
        workspace=workspace.root,
        check=checker(workspace.root, spawner, masker, workspace.refuse_gone),
        approve=approve,
        setup=setup or {},
        masker=masker,
        on_open=seen.know,
        on_stop=jobs.kill_all,
        on_close=on_close,
        snapshot=shadow.take if shadow is not None else None,
    )
