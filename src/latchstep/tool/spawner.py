"""The only file that starts processes: the client of one spawner program per session (see `spawnd`).

A command's coroutine ends when its process has, whoever still holds its output; cancelled, it ends when the whole
tree is dead. Whatever the spawner says is checked, since a child might have taken it over.
"""

from __future__ import annotations

import asyncio
import fcntl
import marshal
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from latchstep.errors import DefinitionError, ToolError

from . import guard as guard_program
from . import spawnd
from .capture import Capture
from .environment import child_environment
from .link import PATIENCE, Job, Link
from .outcome import Finished, Left, Report, finished
from .sandbox import Sandbox, plan
from .toolslock import still_running, wait_until_quiet

__all__ = ["Capture", "Finished", "Left", "Spawner", "child_environment", "still_running", "wait_until_quiet"]

DEFAULT_TIMEOUT = 120.0
"""Seconds that a command may take where nothing else is said."""
MAX_TIMEOUT = 3600.0
"""The most that may be said."""
GRACE = 0.5
"""Seconds between SIGTERM and SIGKILL."""
MAX_COMMAND = 1 << 20
"""Bytes of a command."""
IDLE = 60.0
"""Seconds without a command after which a spawner that has no process left ends."""
ARGUMENT_LIMIT = 100_000
"""Bytes of a command that go as one argument: Linux takes 131,072, more travels as a file."""
INLINE_LIMIT = spawnd.MESSAGE_LIMIT - 4096
READ_BYTES = 1 << 18
PIPE_BYTES = 1 << 20
"""A pipe holds no more, so that reading on at the end of a command is bounded."""

RESTARTS = 3
"""Times that a command is tried while the sandbox has to be set up anew."""

CANNOT = "the sandbox cannot be set up: "
SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh")


class Spawner:
    """Runs shell commands. Its program starts with the first one, and again when it died; one event loop at a time.

    lock_path: the file that tells later processes whether anything still lives (see `toolslock`).
    keep: names of further variables to inherit. extra: variables to set in every command.
    sandbox: how commands are confined; None leaves them all our rights.
    """

    def __init__(
        self,
        *,
        lock_path: Path | None = None,
        keep: Iterable[str] = (),
        extra: Mapping[str, str] | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        self.sandbox = sandbox
        self._lock_path = lock_path
        self._keep, self._extra = tuple(keep), dict(extra or {})
        self._links: list[Link] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._count = 0

    @property
    def guards(self) -> tuple[int, ...]:
        """Process ids of the living guards; each one's worker is its child."""
        return tuple(link.guard for link in self._living())

    async def run(
        self,
        command: str,
        *,
        cwd: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        grace: float = GRACE,
        stdin: bytes = b"",
        capture: Capture | None = None,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Finished:
        """Run one shell command to its end, or for `timeout` seconds, without a terminal. stdin: all it can read.

        capture: give your own to keep all of it in a file, and to have what came when this coroutine is cancelled.
        on_output(bytes): called as output comes. env: variables to set on top of the configured ones.
        Timed out or cancelled, the whole tree gets SIGTERM and, `grace` seconds later, SIGKILL (after a second
        cancel at once); CancelledError is raised when it is dead. Raises ToolError when the command did not start,
        ValueError for what cannot be a command or a deadline.
        """
        if not 0 < timeout <= MAX_TIMEOUT:
            raise ValueError(f"timeout is {timeout:g} s; it must be over 0 and at most {MAX_TIMEOUT:g} (MAX_TIMEOUT)")
        body, script = self._body(command, os.fspath(cwd), env, stdin)
        loop = self._attach()
        begun = time.monotonic()
        capture, stale = capture or Capture(), ""
        try:
            for _ in range(RESTARTS):
                job = self._job(loop, capture, on_output)
                job.timeout, job.grace = timeout, grace
                report = await self._attempt(job, loop, body, script)
                if not report.stale:
                    break
                stale = report.stale
                await self.close(grace)
            if report.stale or report.failed:
                raise ToolError(f"the command was not started: {report.failed or _detached(stale)}")
            restarted = _detached(stale) if stale else ""
            return finished(report, capture, time.monotonic() - begun, restarted=restarted, id=job.id)
        finally:
            capture.close()
            self._rest(loop)

    async def _attempt(self, job: Job, loop: asyncio.AbstractEventLoop, body: bytes, script: bytes) -> Report:
        """Run it once; what the spawner says of it."""
        grace = job.grace
        try:
            link = await self._submit(job, body, script)
            loop.add_reader(job.fd, self._read, job, loop, READ_BYTES)
            try:
                await asyncio.wait([job.done], timeout=job.timeout + grace + PATIENCE)
                if not job.done.done():
                    link.lose("it did not answer")
                    await link.insist(job.done, 0.0)
            except asyncio.CancelledError:
                link.send(f"end\0{job.id}\0{job.id}\0{grace}")
                await link.insist(job.done, grace, f"end\0{job.id}\0{job.id}\0{0.0}")
                raise
            finally:
                self._hand_over(job, link, loop)
            return job.done.result()
        finally:
            if job.fd >= 0:
                os.close(job.fd)
                job.fd = -1

    async def kill_all(self, grace: float = GRACE, only: str = "*") -> None:
        """End every command and everything that earlier ones left; return when all of it is dead. only: the `id` of an
        ended command, for what that one left."""
        loop = self._attach()
        for link in self._living():
            job = self._job(loop, Capture(), None)
            link.jobs[job.id] = job
            link.send(f"end\0{job.id}\0{only}\0{grace}")
            await link.insist(job.done, grace)

    async def close(self, grace: float = GRACE) -> None:
        """End everything, the spawner too. A later `run` starts a new one."""
        self._attach()
        if self._idle is not None:
            self._idle.cancel()
        for link in self._living():
            link.retiring = True
            link.send(f"quit\0{grace}")
        for link in self._living():
            await link.insist(link.buried, grace)

    # -------------------------------- starting

    def _attach(self) -> asyncio.AbstractEventLoop:
        """Listen on the running event loop, where an earlier one has ended."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return loop
        if self._loop is not None and not self._loop.is_closed() and any(link.jobs for link in self._links):
            raise RuntimeError("a Spawner serves one event loop at a time")
        self._loop = loop
        self._links = [link for link in self._living() if link.owner == os.getpid()]  # a fork owns none
        for link in self._links:
            link.attach(loop)
        return loop

    def _living(self) -> list[Link]:
        return [link for link in self._links if not link.buried.done()]

    def _start(self, loop: asyncio.AbstractEventLoop) -> Link:
        try:
            told_bytes = marshal.dumps(plan(self.sandbox) if self.sandbox is not None else {"level": "none"})
        except DefinitionError as error:
            raise ToolError(f"{CANNOT}{error}") from error
        program = getattr(sys, "_base_executable", "") or sys.executable
        token = os.urandom(12).hex()
        root = str(Path(__file__).resolve().parents[2])
        lock_path = os.path.abspath(self._lock_path) if self._lock_path else ""
        kind = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        ours.setblocking(False)
        alive, life = os.pipe()
        log, told = _file(b""), _file(told_bytes)
        given = {spawnd.CONNECTION: theirs.fileno(), spawnd.LIFE: alive, spawnd.PLAN: told, 2: log}
        if hasattr(os, "pidfd_open"):  # the pipe alone would stay open in a fork of this process
            with suppress(OSError):
                given[spawnd.OWNER] = os.pidfd_open(os.getpid())
        high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for number, fd in given.items()}
        try:
            guard = os.posix_spawn(
                program,
                [program, "-I", "-S", "-B", "-c", guard_program.BOOT, root, "main", token, lock_path],
                {},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    *((os.POSIX_SPAWN_DUP2, fd, number) for number, fd in high.items()),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=spawnd.SIGNALS,
            )
        except OSError as error:
            ours.close()
            os.close(life)
            os.close(log)
            raise ToolError(f"the spawner could not be started: {program}: {error.strerror}") from error
        finally:
            theirs.close()
            for fd in (*high.values(), alive, told, *(given[number] for number in given if number == spawnd.OWNER)):
                os.close(fd)
        link = Link(token, ours, life, log, guard, loop)
        self._links = [*self._living(), link]
        return link

    # -------------------------------- commands

    def _job(self, loop: asyncio.AbstractEventLoop, capture: Capture, on_output: Callable[[bytes], None] | None) -> Job:
        self._count += 1
        return Job(str(self._count), loop.create_future(), capture, on_output)

    def _body(self, command: str, cwd: str, env: Mapping[str, str] | None, stdin: bytes) -> tuple[bytes, bytes]:
        """What a request says of the command, and what comes apart: the command where it is too long for an argument,
        or what it reads."""
        if "\0" in command:
            raise ValueError("the command contains a NUL character, which no shell can take")
        try:
            text = command.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ValueError("the command contains half of a surrogate pair") from None
        if len(text) > MAX_COMMAND:
            raise ValueError(f"the command has {len(text):,} bytes; at most {MAX_COMMAND:,} are taken (MAX_COMMAND)")
        shell = os.fsencode(next((path for path in SHELLS if os.access(path, os.X_OK)), SHELLS[-1]))
        apart = len(text) > ARGUMENT_LIMIT
        if stdin and apart:
            raise ValueError(f"a command with input has {len(text):,} bytes; at most {ARGUMENT_LIMIT:,} are taken")
        text = b"exec </dev/fd/%d\n%b" % (spawnd.SCRIPT_FD, text) if stdin else text
        arguments = [shell, b"/dev/fd/%d" % spawnd.SCRIPT_FD] if apart else [shell, b"-c", b"--", text]
        confined = self.sandbox.variables() if self.sandbox is not None else {}
        environment = child_environment(os.environ, self._keep, {**self._extra, **confined, **(env or {})})
        variables = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
        fields = [os.fsencode(os.path.abspath(cwd)), b"%d" % len(arguments), *arguments, *variables]
        return b"\0".join(fields), text if apart else stdin

    async def _submit(self, job: Job, body: bytes, script: bytes) -> Link:
        """Hand a command to a living spawner. Waits, bounded, while that has too much to read."""
        loop = self._attach()
        job.fd, write = os.pipe()
        fds = [write]
        try:
            os.set_blocking(job.fd, False)
            apart = len(body) > INLINE_LIMIT
            head = f"spawn\0{job.id}\0{job.timeout}\0{job.grace}\0{int(apart)}\0{int(bool(script))}".encode()
            fds += [_file(data) for data in (body if apart else b"", script) if data]
            message = head if apart else head + b"\0" + body
            until = loop.time() + PATIENCE
            while True:
                usable = (link for link in reversed(self._links) if link.usable)
                link = next(usable, None) or self._start(loop)
                try:
                    socket.send_fds(link.connection, [message], fds)
                except (BlockingIOError, InterruptedError):
                    if loop.time() > until:
                        link.lose("it took no request")
                        raise ToolError("the command was not started: the spawner took no request") from None
                    await asyncio.sleep(0.002)
                except OSError:  # it died while idle, and took nothing: another one will do
                    link.lose("it ended")
                    if loop.time() > until:
                        raise ToolError("the command was not started: no spawner stays alive") from None
                else:
                    link.jobs[job.id] = job
                    return link
        finally:
            for fd in fds:
                os.close(fd)

    def _read(self, job: Job, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        """Take what has come, at most about `limit` bytes, so that a flood does not starve the loop."""
        while limit > 0 and job.fd >= 0:
            try:
                data = os.read(job.fd, 65_536)
            except BlockingIOError:
                return
            if not data:
                loop.remove_reader(job.fd)
                os.close(job.fd)
                job.fd = -1
                return
            limit -= len(data)
            job.capture.feed(data)
            if job.on_output is not None:
                try:
                    job.on_output(data)
                except Exception as error:
                    job.on_output = None  # a watcher that raises is detached, and said
                    loop.call_exception_handler({"message": "on_output raised", "exception": error})

    def _hand_over(self, job: Job, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        """Read what is there; where the pipe is still held the worker reads on, so that no writer blocks or dies."""
        self._read(job, loop, PIPE_BYTES)
        if job.fd >= 0:
            loop.remove_reader(job.fd)
            if not link.gone:
                with suppress(OSError):
                    socket.send_fds(link.connection, [b"drain"], [job.fd])

    def _rest(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the spawner end when it is idle for long and nothing of it lives."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = loop.call_later(IDLE, self._retire)

    def _retire(self) -> None:
        for link in self._links:
            if link.usable and not link.jobs:
                link.retiring = True
                link.send("retire")


def _detached(path: str) -> str:
    return f"{path} was replaced from outside, so the sandbox was started anew"


def _file(data: bytes) -> int:
    """A descriptor of an unnamed file with this content, at its beginning."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("latchstep", os.MFD_CLOEXEC)
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
