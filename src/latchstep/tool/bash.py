"""The `bash` tool: one shell command, waited for, with head and tail of its output and the whole on disk.

A non-zero exit is data, not an error. What the model reads is at most `OUTPUT_LIMIT` bytes of output, and says in
exact counts what it leaves out. A cancelled call leaves what came so far in `context.captured`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from latchstep.core.secrets import Masker
from latchstep.errors import ToolError

from .base import Context, Output, Tool
from .capture import Capture, output_path
from .explain import explain
from .link import PATIENCE
from .outcome import signal_name
from .show import OUTPUT_LIMIT, show
from .spawner import DEFAULT_TIMEOUT, MAX_TIMEOUT, Finished, Spawner
from .text import clean_output, is_binary

if TYPE_CHECKING:
    from .jobs import Jobs

LEFT_NAMED = 10
"""Of the processes that a command left running, those that are named."""

PROGRESS_BYTES = 2_000
"""Bytes of the newest output that one progress text is made of."""
PROGRESS_EAGER = 100
"""Progress texts that go out at once; after these, each waits for a tenth more output than there was."""

HINT = "; to read and stop such a command later, run it with `background`, without &"

JOB = """ \
Better: with `background` the command becomes a job (servers, watchers, long builds): you get its first output and its \
name at once, and read it by job_read."""

DESCRIPTION = """\
Run a command with bash in the workspace and wait for it.
stdout and stderr come back together in the order they were written, with the exit status. There is no stdin and no \
terminal: editors, pagers and prompts do not work. Of long output you see the beginning and the end \
({limit:,} bytes), and where the whole is kept. Each call starts anew: `cd` and variables do not last. \
A process started with `&` goes on in the background until the session ends or the run is stopped; redirect its \
output to a file to read it.{job} Without `pipefail` the status of a pipeline is that of its last command."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "minLength": 1, "description": "What bash runs; it may have many lines."},
        "timeout": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": MAX_TIMEOUT,
            "default": DEFAULT_TIMEOUT,
            "description": "Seconds after which the command and all it started are ended.",
        },
        "cwd": {
            "type": "string",
            "default": ".",
            "description": "The folder to run in, relative to the workspace and beneath it.",
        },
    },
    "required": ["command"],
    "additionalProperties": False,
}


BACKGROUND: dict[str, Any] = {
    "type": "boolean",
    "default": False,
    "description": "Do not wait: it goes on as a job, for an hour at most unless `timeout` says less.",
}


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    command: Annotated[str, msgspec.Meta(min_length=1)]
    timeout: Annotated[float, msgspec.Meta(gt=0, le=MAX_TIMEOUT)] = DEFAULT_TIMEOUT
    cwd: str = "."


def validate(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name. Raises ValueError that says what would be valid."""
    return msgspec.structs.asdict(msgspec.convert(arguments, _Arguments))


def _validate_job(arguments: dict[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in arguments.items() if name != "background"}
    background = msgspec.convert(arguments.get("background", False), bool)
    if background:
        others.setdefault("timeout", MAX_TIMEOUT)
    return {**validate(others), "background": background}


def bash_tool(
    spawner: Spawner,
    workspace_root: Path,
    masker: Masker | None = None,
    refuse_gone: Callable[[], None] = lambda: None,
    *,
    jobs: Jobs | None = None,
) -> Tool:
    """The tool for one workspace. Its commands run in `spawner`, which the caller closes. masker: see `Capture`.

    refuse_gone: raises ToolError where the workspace is no longer the folder it was.
    jobs: where commands in the background belong, which the caller closes too; without it there are none.
    """
    explained: set[str] = set()

    async def bash(
        command: str, timeout: float = DEFAULT_TIMEOUT, cwd: str = ".", background: bool = False, *, context: Context
    ) -> Output:
        refuse_gone()
        folder = _beneath(workspace_root, cwd)
        if background and jobs is not None:
            return await jobs.start(command, folder, timeout, context)
        capture = Capture(output_path(context.outputs, context.call_id), masker)
        progress = Progress(context.progress, capture)
        try:
            ended = await spawner.run(command, cwd=folder, timeout=timeout, capture=capture, on_output=progress)
        except asyncio.CancelledError:
            context.captured = show(capture)
            raise
        except ValueError as error:
            raise ToolError(str(error)) from None
        meaning = explain(ended.head + ended.tail, spawner.sandbox, explained)
        return _result(ended, capture, timeout, meaning, HINT if jobs is not None else "")

    return Tool(
        name="bash",
        description=DESCRIPTION.format(limit=OUTPUT_LIMIT, job=JOB if jobs is not None else ""),
        schema=SCHEMA if jobs is None else {**SCHEMA, "properties": {**SCHEMA["properties"], "background": BACKGROUND}},
        function=bash,
        validate=validate if jobs is None else _validate_job,
        effect="write",
        replay="never",
        context="context",
        timeout=MAX_TIMEOUT + 2 * PATIENCE,  # its own deadline comes first
    )


def _beneath(root: Path, cwd: str) -> Path:
    """The folder, links followed. Raises ToolError unless it is one beneath the workspace."""
    if "\0" in cwd:
        raise ToolError("cwd contains a NUL character")
    top = root.resolve()
    try:
        folder = (top / cwd).resolve()
        is_folder = folder.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise ToolError(f"cwd {cwd!r} cannot be followed: {error}") from None
    if not folder.is_relative_to(top):
        raise ToolError(f"cwd {cwd!r} is outside the workspace; give a folder beneath it, such as '.'")
    if not is_folder:
        raise ToolError(f"cwd {cwd!r} is not a folder in the workspace")
    return folder


class Progress:
    """Passes on the newest lines, often at first, then ever more seldom: never more than some 300 texts a command."""

    def __init__(self, tell: Callable[[str], None], capture: Capture) -> None:
        self.tell, self.capture = tell, capture
        self.told = self.due = 0

    def __call__(self, data: bytes) -> None:
        if self.capture.total < self.due:
            return
        piece = data[-PROGRESS_BYTES:]
        text = "" if is_binary(piece) else clean_output(piece).strip("\n\ufffd")  # a character may be cut at either end
        if text:
            self.told += 1
            if self.told >= PROGRESS_EAGER:
                self.due = self.capture.total + max(PROGRESS_BYTES, self.capture.total // 10)
            self.tell(text)


def _result(ended: Finished, capture: Capture, timeout: float, meaning: str, hint: str) -> Output:
    status = status_of(ended, timeout)
    notes = [f"[{meaning}]"] if meaning else []
    if ended.restarted:
        notes.append(f"[{ended.restarted}; what earlier commands had left in the background was ended, /tmp is empty]")
    content = "\n".join([show(capture), *left_behind(ended, hint), *notes, f"[{status}]"])
    details = {
        "exit": ended.exit_status,
        "signal": ended.signal,
        "timed_out": ended.timed_out,
        "duration": ended.duration,
        "bytes": ended.total,
        "lines": ended.lines,
    }
    output = capture.path.name if capture.path is not None and capture.kept else ""
    if ended.unknown:
        return Output(content, details, outcome="interrupted", is_error=True, output=output)
    if ended.timed_out:
        return Output(content, details, outcome="timed_out", is_error=True, output=output)
    return Output(content, details, output=output)


def status_of(ended: Finished, timeout: float) -> str:
    """How it ended, in words that cannot be taken for another ending."""
    if ended.unknown:
        return f"outcome unknown: {ended.unknown}; the command may have had any part of its effects"
    if ended.timed_out:
        return f"timed out after {timeout:g} s: the command and all it had started were ended; effects so far remain"
    if ended.signal:
        return f"ended by signal {ended.signal}"
    status = ended.exit_status or 0
    if status == 126:
        return "exit status 126 (as when the shell cannot execute a file)"
    if status == 127:
        return "exit status 127 (as when a command is not found)"
    if 128 < status <= 192:
        return f"exit status {status} (as when a process in it ends by signal {signal_name(status - 128)})"
    return f"exit status {status}"


def left_behind(ended: Finished, hint: str = "") -> Iterable[str]:
    """What a command left running, in words. hint: what would be better."""
    if not ended.left_count:
        return
    named = ", ".join(f"{left.name} (pid {left.pid})" for left in ended.left[:LEFT_NAMED])
    more = ended.left_count - len(ended.left[:LEFT_NAMED])
    yield (
        f"[still running in the background: {named}{f' and {more} more' if more > 0 else ''}; "
        f"further output of it is not kept; it is ended with the session, or when the run is stopped{hint}]"
    )
