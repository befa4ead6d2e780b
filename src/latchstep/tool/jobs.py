"""Jobs: commands of `bash` that go on in the background, and the tools that read, await and stop them.

A job is one command of the spawner, in a task that belongs to the session and not to the call that started it. It
ends with the session at the latest; one of a process that died is gone, and whoever asks for it is told so.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from latchstep.core.secrets import Masker
from latchstep.core.wording import of_error
from latchstep.errors import ToolError

from .base import Context, Output, Tool
from .bash import Progress, left_behind, status_of
from .capture import Capture
from .define import tool
from .explain import explain
from .link import PATIENCE
from .show import OUTPUT_LIMIT, show_pieces
from .spawner import Finished, Spawner
from .text import clean_output

MAX_JOBS = 8
"""Jobs that run at once."""
MAX_KEPT = 32
"""Ended jobs that can still be read; the one that ended longest ago goes first."""
MAX_WAIT = 300.0
"""Seconds that one `job_read` waits at most."""
FIRST_LOOK = 0.5
"""Seconds in which a job that cannot even start is seen to end by the call that started it."""
STOP_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL where a job is stopped."""
OVERLAP = 4096
"""Bytes looked at once more, so that a text which comes in two pieces is found."""
MAX_NAMED = 80
"""Characters of a command by which its job is recalled."""

READ = f"""\
Read a background job: its state, and what it has written since you last read it (at most {OUTPUT_LIMIT:,} bytes, \
beginning and end). With `wait` it first waits: until the job ends, or until new output holds the text `until`. Do not \
poll; wait. Without `job` it lists all jobs."""

STOP = "Stop a background job: it and all it started get SIGTERM, and SIGKILL where that is not enough."

Name = Annotated[str, Meta(max_length=100, description="The job, such as job-1.")]


@dataclass(slots=True, eq=False)
class Job:
    """A command in the background. `read`, `lines`: how much of its output was handed out. `ended`: how it ended, once
    it has; `gone`: why nobody can say how."""

    id: str
    command: str
    timeout: float
    capture: Capture
    since: float = field(default_factory=time.monotonic)
    read: int = 0
    lines: int = 0
    seconds: float = 0.0
    ended: Finished | None = None
    gone: str = ""
    task: asyncio.Task[None] | None = None
    listeners: list[Callable[[bytes], None]] = field(default_factory=list)

    @property
    def running(self) -> bool:
        return self.ended is None and not self.gone

    def came(self, data: bytes) -> None:
        for listener in list(self.listeners):
            listener(data)

    def state(self) -> str:
        """In words that cannot be taken for another state."""
        if self.running:
            return f"running for {time.monotonic() - self.since:.0f} s"
        if self.ended is None:
            return self.gone
        return f"ended after {self.seconds:.1f} s: {status_of(self.ended, self.timeout)}"


class Jobs:
    """The jobs of one session. `close` ends them; so does closing the spawner. masker: see `Capture`."""

    def __init__(self, spawner: Spawner, masker: Masker | None = None) -> None:
        self.spawner, self.masker = spawner, masker
        self._jobs: dict[str, Job] = {}
        self._count = 0
        self._explained: set[str] = set()

    async def start(self, command: str, folder: Path, timeout: float, context: Context) -> Output:
        """Start a command, and say what it has written at once. Cancelled meanwhile, it is ended. Raises ToolError."""
        running = [job.id for job in self._jobs.values() if job.running]
        if len(running) >= MAX_JOBS:
            raise ToolError(f"{len(running)} jobs are running (MAX_JOBS): {', '.join(running)}. Stop one first")
        job = self._new(command, timeout, context.outputs)
        job.listeners.append(progress := Progress(context.progress, job.capture))
        job.task = asyncio.get_running_loop().create_task(self._run(job, folder))
        try:
            await asyncio.wait([job.task], timeout=FIRST_LOOK)
        except asyncio.CancelledError:
            await self._end([job])
            raise
        finally:
            job.listeners.remove(progress)
        if job.gone:
            raise ToolError(job.gone)
        return self._told(job)

    async def _run(self, job: Job, folder: Path) -> None:
        """The whole life of a job. What becomes of it is kept in the job: nobody may be waiting."""
        try:
            job.ended = await self.spawner.run(
                job.command,
                cwd=folder,
                timeout=job.timeout,
                grace=STOP_GRACE,
                capture=job.capture,
                on_output=job.came,
            )
            job.seconds = job.ended.duration
        except asyncio.CancelledError:
            job.seconds = time.monotonic() - job.since
            job.gone = f"stopped after {job.seconds:.1f} s: it and all it had started were ended"
        except Exception as error:
            job.gone = of_error(error)
        finally:
            job.capture.flush()
            job.capture.close()

    async def kill_all(self) -> None:
        """End them all, and whatever else the spawner runs; return when they are dead and their ends are known."""
        await self.spawner.kill_all()
        if tasks := [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]:
            await asyncio.wait(tasks, timeout=PATIENCE)

    async def close(self) -> None:
        """End them all; return when they are dead."""
        await self._end([job for job in self._jobs.values() if job.running])

    async def _end(self, jobs: list[Job]) -> None:
        tasks = [job.task for job in jobs if job.task is not None and not job.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _new(self, command: str, timeout: float, outputs: Path | None) -> Job:
        """A job under a name that no job of this session has had, in an earlier process either."""
        self._count += 1
        while outputs is not None and (outputs / f"job-{self._count}.txt").exists():
            self._count += 1
        name = f"job-{self._count}"
        job = Job(name, command, timeout, Capture(outputs / f"{name}.txt" if outputs else None, self.masker))
        job.capture.save()  # at once: its file is what keeps the name, and can be read while the job runs
        ended = [known for known in self._jobs.values() if not known.running]
        for known in ended[: max(0, len(ended) - MAX_KEPT + 1)]:
            del self._jobs[known.id]
        self._jobs[name] = job
        return job

    def _find(self, name: str, context: Context) -> Job:
        if (job := self._jobs.get(name)) is not None:
            return job
        kept = context.outputs / f"{name}.txt" if context.outputs and re.fullmatch(r"job-\d{1,9}", name) else None
        where = f" What it wrote is in {kept}." if kept is not None and kept.exists() else ""
        known = ", ".join(self._jobs) or "none"
        raise ToolError(
            f"There is no job {name!r} in this process (there are: {known}). A job ends with the process that started "
            f"it: one from before a restart was ended then, and may have had any part of its effects.{where}"
        )

    def tools(self) -> tuple[Tool, Tool]:
        """`job_read` and `job_stop`."""

        @tool(effect="read", description=READ, timeout=MAX_WAIT + 30)
        async def job_read(
            job: Name = "",
            wait: Annotated[float, Meta(ge=0, le=MAX_WAIT, description="Seconds to wait at most.")] = 0,
            until: Annotated[str, Meta(max_length=200, description="Literal text to wait for.")] = "",
            *,
            context: Context,
        ) -> Output:
            if not job:
                return self._listed()
            known = self._find(job, context)
            found = await _waited(known, wait, until, context) if known.running and wait else None
            return self._told(known, f"{until!r} did not come within {wait:g} s" if until and found is False else "")

        @tool(effect="write", description=STOP)
        async def job_stop(job: Name, *, context: Context) -> Output:
            known = self._find(job, context)
            await self._end([known])
            if known.ended is None or not known.ended.left_count:
                return self._told(known)
            await self.spawner.kill_all(STOP_GRACE, known.ended.id)
            known.ended = replace(known.ended, left=(), left_count=0)
            return self._told(known, "what it had left running was ended")

        return job_read, job_stop

    def _told(self, job: Job, remark: str = "") -> Output:
        """What it has written since it was last read, and its state."""
        capture = job.capture
        total, lines = capture.total - job.read, capture.lines - job.lines
        place = f"its whole output is in {capture.path}" if capture.path and not capture.problem else capture.problem
        pieces = capture.since(job.read)
        text = show_pieces(*pieces, total, lines, lambda: place or "the whole is not kept")
        job.read, job.lines = capture.total, capture.lines
        notes = [f"{job.id} ({_named(job)}): {job.state()}", remark, place]
        if job.running:
            if capture.held:
                notes.append(f"{capture.held} bytes of a line that is not ended wait for its end")
            notes.append("job_read shows what comes next, job_stop ends it; else it ends with the session")
        content = [text if total else "(no new output)"]
        if meaning := explain(b"".join(pieces), self.spawner.sandbox, self._explained):
            content.append(f"[{meaning}]")
        if job.ended is not None:
            content += left_behind(job.ended)
        details: dict[str, Any] = {"job": job.id, "running": job.running, "state": job.state()}
        if job.ended is not None:
            details |= {"exit": job.ended.exit_status, "signal": job.ended.signal, "timed_out": job.ended.timed_out}
        output = capture.path.name if capture.path is not None and capture.kept else ""
        return Output("\n".join([*content, f"[{'; '.join(filter(None, notes))}]"]), details, output=output)

    def _listed(self) -> Output:
        lines = [f"{job.id} ({_named(job)}): {job.state()}" for job in self._jobs.values()]
        return Output("\n".join(lines) or "There are no jobs in this process.")


async def _waited(job: Job, seconds: float, until: str, context: Context) -> bool | None:
    """Whether the text came; None where the job ended first. Without a text: until it ends."""
    assert job.task is not None
    found: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    looked = job.read

    def look(data: bytes) -> None:
        nonlocal looked
        text = clean_output(b"".join(job.capture.since(max(job.read, looked - OVERLAP))))
        looked = job.capture.total
        if until in text and not found.done():
            found.set_result(None)

    listeners: list[Callable[[bytes], None]] = [Progress(context.progress, job.capture)]
    if until:
        look(b"")
        listeners.append(look)
    job.listeners += listeners
    try:
        await asyncio.wait([job.task, found], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for listener in listeners:
            job.listeners.remove(listener)
    return True if found.done() else None if job.task.done() else False


def _named(job: Job) -> str:
    text = " ".join(job.command.split())
    return text if len(text) <= MAX_NAMED else text[:MAX_NAMED] + "…"
