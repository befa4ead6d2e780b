"""The line to one spawner program: what it says is checked, and when it is gone, what it ran is buried.

A job is answered exactly once. If its spawner is lost, the answer waits until nothing of that spawner lives.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from . import proctable, spawnd
from .capture import Capture
from .outcome import Report, parse_report
from .text import clean_output

PATIENCE = proctable.KILL_LIMIT + 1.0
"""Seconds beyond its own deadlines after which a silent spawner is killed, with everything it started."""
BURY_LIMIT = 2.0
"""Seconds in which guard and worker end everything by themselves, before we kill what we find."""


@dataclass(slots=True, eq=False)
class Job:
    """A command under way: where its output comes from and goes to, and the promise of its report."""

    id: str
    done: asyncio.Future[Report]
    capture: Capture
    on_output: Callable[[bytes], None] | None = None
    timeout: float = 0.0
    grace: float = 0.0
    fd: int = -1


@dataclass(slots=True, eq=False)
class Link:
    """One spawner: a guard that is our child, and a worker at the other end of `connection`.

    life: the pipe whose end tells them that we are gone. log: what they wrote to stderr. gone: why it is lost.
    buried: done when nothing of it lives.
    """

    token: str
    connection: socket.socket
    life: int
    log: int
    guard: int
    loop: asyncio.AbstractEventLoop
    buried: asyncio.Future[None] = field(init=False)
    owner: int = field(default_factory=os.getpid)
    jobs: dict[str, Job] = field(default_factory=dict)
    ready: bool = False
    retiring: bool = False
    gone: str = ""

    def __post_init__(self) -> None:
        self.attach(self.loop)

    @property
    def usable(self) -> bool:
        return not self.gone and not self.retiring

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen on this event loop; the one before has ended."""
        self.loop, self.buried = loop, loop.create_future()
        if self.gone:
            self._bury(time.monotonic() + BURY_LIMIT)
        else:
            loop.add_reader(self.connection, self._listen)

    def send(self, message: str) -> None:
        if self.gone:
            return
        try:
            self.connection.send(message.encode())
        except OSError as error:
            self.lose(f"it takes no request ({error.strerror})")

    async def insist(
        self, future: asyncio.Future[Report] | asyncio.Future[None], grace: float, again: str = ""
    ) -> None:
        """Wait for an answer though we are cancelled, which sends `again`. A spawner that is late is lost.

        Raises CancelledError at the end when one came.
        """
        until = time.monotonic() + grace + PATIENCE
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future], timeout=max(0.0, until - time.monotonic()))
            except asyncio.CancelledError as error:
                cancelled = error
                if again:
                    self.send(again)
            if not future.done() and time.monotonic() >= until:
                self.lose("it did not answer")
                until += 2 * BURY_LIMIT
        if cancelled is not None:
            raise cancelled

    def _listen(self) -> None:
        try:
            data = self.connection.recv(spawnd.MESSAGE_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.lose("it ended" if self.retiring else "it was killed or failed")
            return
        try:
            self._accept(data)
        except (ValueError, KeyError):
            self.lose("it answered nonsense")

    def _accept(self, data: bytes) -> None:
        kind, _, rest = data.partition(b"\0")
        if kind == b"ready":
            self.ready = True
        elif kind == b"busy":
            self.retiring = False
        else:
            id, _, fields = rest.partition(b"\0")
            if kind == b"ended":
                report = parse_report(fields)
            elif kind == b"failed":
                report = Report(failed=clean_output(fields[:200]))
            elif kind == b"stale":
                report = Report(stale=clean_output(fields[:1000]))
            else:
                raise ValueError("no such message")
            job = self.jobs.pop(id.decode("ascii"))
            if not job.done.done():
                job.done.set_result(report)

    def lose(self, why: str) -> None:
        """Stop using this spawner. What it ran is answered when all of it is dead, not before."""
        if self.gone:
            return
        self.loop.remove_reader(self.connection)
        log = clean_output(os.pread(self.log, 4096, max(0, os.fstat(self.log).st_size - 4096))).strip()
        self.gone = f"{why}: {log.splitlines()[-1]}" if log else why
        self.connection.close()
        os.close(self.life)
        os.close(self.log)
        self._bury(time.monotonic() + BURY_LIMIT)

    def _bury(self, until: float) -> None:
        """Wait for the guard, which ends everything before itself; kill by what /proc says when that takes long."""
        try:
            ended = os.waitpid(self.guard, os.WNOHANG)[0] != 0
        except ChildProcessError:
            ended = True
        late = time.monotonic() - until
        if not ended and late > 0:
            table = proctable.walk()
            victims = [*proctable.descendants(table, self.guard), *([self.guard] if self.guard in table else [])]
            proctable.send_signal(table, victims, signal.SIGKILL)
        if late < BURY_LIMIT and (not ended or proctable.kill_marked(self.token.encode())):
            self.loop.call_later(0.003, self._bury, until)
            return
        failed = "" if self.ready else f"the spawner did not start: {self.gone}"
        lost = f"the spawner that ran it is gone: {self.gone}"
        for job in self.jobs.values():
            if not job.done.done():
                job.done.set_result(Report(failed=failed, lost=lost))
        self.jobs.clear()
        if not self.buried.done():
            self.buried.set_result(None)
