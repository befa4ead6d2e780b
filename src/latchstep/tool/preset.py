"""Sets of built-in tools, put together from their parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .apply_patch import apply_patch_tool
from .ask_user import ask_user_tool
from .base import Tool
from .bash import bash_tool
from .edit import edit_tool
from .find import find_tool
from .grep import grep_tool
from .jobs import Jobs
from .list import list_tool
from .read import read_tool
from .ripgrep import ripgrep, ripgrep_tool
from .seen import Seen
from .spawner import Spawner
from .todo import todo_tool
from .workspace import Workspace
from .write import write_tool


def file_tools(workspace: Workspace, seen: Seen, spawner: Spawner | None = None) -> tuple[Tool, ...]:
    """`read`, `list`, `find`, `grep`, `write`, `edit` and `apply_patch` of one workspace. Refill `seen` after a resume
    (`Seen.restore`). With a spawner, `grep` is done by ripgrep where there is one."""
    program = ripgrep(*workspace.written) if spawner is not None else ""
    return (
        read_tool(workspace, seen),
        list_tool(workspace),
        find_tool(workspace),
        ripgrep_tool(workspace, spawner, program) if spawner is not None and program else grep_tool(workspace),
        write_tool(workspace, seen),
        edit_tool(workspace, seen),
        apply_patch_tool(workspace, seen),
    )


def session_tools(jobs: Jobs, root: Path, refuse_gone: Callable[[], None] = lambda: None) -> tuple[Tool, ...]:
    """`bash` in a folder with its jobs, `job_read`, `job_stop`, `todo` and `ask_user`. The caller closes `jobs` and
    their spawner. refuse_gone: see `bash_tool`."""
    return (
        bash_tool(jobs.spawner, root, jobs.masker, refuse_gone, jobs=jobs),
        *jobs.tools(),
        todo_tool(),
        ask_user_tool(),
    )
