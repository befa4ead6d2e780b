"""The worker of the spawner program: it starts commands, keeps deadlines, and reaps all that it ever started.

Its descriptors are 3 (requests) and those whose end means that owner or guard is gone (see `guard`). A message is
one datagram of fields joined by NUL, which no command, path or variable contains.
"""

from __future__ import annotations

import os
import select
import sys
import time

from latchstep.tool import proctable, toolslock
from latchstep.tool.proctable import KILL_LIMIT, MARK, TICK, Table

try:  # the C modules beneath these cost 8 ms less
    import _signal as signal  # type: ignore[import-not-found,unused-ignore]
    import _socket as socket
except ImportError:  # pragma: no cover
    import signal
    import socket  # type: ignore[no-redef]

CONNECTION, LIFE, OWNER, PLAN = 3, 4, 5, 6
LOCK_FD, SCRIPT_FD = 97, 98
"""Numbers of the lock and of a long command in a child: far from those that scripts use (3 to 9, 200)."""

SETTLE = 0.1
"""Seconds that processes left behind may take to end before they are reported."""
MESSAGE_LIMIT = 65_536
LEFT_LIMIT = 20
"""Processes that a report names; more are counted."""
DRAIN_LIMIT = 32
"""Pipes of background processes that are read and forgotten; beyond it a writer gets SIGPIPE."""
DRAIN_BYTES, DRAIN_PAUSE = 1 << 20, 0.05
"""A noisy background process is read at no more than this many bytes per pause, in seconds."""

SIGNALS = tuple(int(number) for number in signal.valid_signals())
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""We end when the owner does, and not before."""
CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Command:
    """One command, from its request to its report; or (pid 0) a request to end what earlier ones left.

    stage: `running` → (`ending`, after SIGTERM → `killing`) → reported.
    """

    def __init__(self, id: str, target: str, pid: int, timeout: float, grace: float) -> None:
        self.id, self.target, self.pid, self.grace = id, target, pid, grace
        self.started = self.ended = self.until = time.monotonic()
        self.deadline = self.started + timeout
        self.status: int | None = None if pid else 0
        self.stage = "running"
        self.timed_out = False


class Worker:
    """Serves requests until the owner or the guard is gone.

    ends: descriptors whose end says so. readonly: paths that must lie on read-only mounts before each command.
    variables: what each command gets on top of what its request says.
    """

    def __init__(
        self,
        token: bytes,
        lock_path: bytes,
        ends: frozenset[int],
        reaper: bool,
        *,
        readonly: tuple[bytes, ...] = (),
        variables: dict[bytes, bytes] | None = None,
    ) -> None:
        self.token, self.lock_path, self.reaper = token, lock_path, reaper
        self.readonly, self.variables = readonly, variables or {}
        self.connection = socket.socket(fileno=CONNECTION)
        self.connection.setblocking(False)
        self.null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self.lock = toolslock.hold(lock_path)
        self.wake, wake_end = os.pipe()
        for fd in (self.wake, wake_end):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        self.poll = select.poll()
        for fd in (CONNECTION, self.wake):
            self.poll.register(fd, select.POLLIN)
        self.ends = ends
        for fd in ends:
            self.poll.register(fd, select.POLLIN)
        self.commands: dict[str, Command] = {}
        self.sessions: dict[int, str] = {}
        self.known: dict[tuple[int, int], str] = {}
        self.childless = True
        self.outbox: list[bytes] = [b"ready"]
        self.drains: dict[int, float] = {}

    def serve(self) -> float:
        """Work until told to stop; the grace in seconds that what still runs is to be given."""
        while True:
            self.flush()
            for fd, _ in self.poll.poll(self.patience()):
                if fd in self.ends:
                    return 0.0
                if fd == self.wake:
                    os.read(fd, 4096)
                elif fd == CONNECTION:
                    if (stop := self.receive()) is not None:
                        return stop
                else:
                    self.drain(fd)
            ended, self.childless = proctable.reap()
            now = time.monotonic()
            for command in list(self.commands.values()):
                if command.status is None and command.pid in ended:
                    command.status, command.ended = ended[command.pid], now
                self.advance(command, now)
            self.resume_drains(now)

    def patience(self) -> int | None:
        """Milliseconds until something is due, None when nothing is."""
        now = time.monotonic()
        due = [at for at in self.drains.values() if at]
        if self.outbox:
            due.append(now + TICK)
        for command in self.commands.values():
            if command.stage == "killing":
                due.append(now + TICK)
            elif command.stage == "ending":
                due.append(min(command.until, now + 4 * TICK))
            else:
                due.append(command.deadline if command.status is None else command.ended + SETTLE)
        return max(0, int((min(due) - now) * 1000) + 1) if due else None

    def receive(self) -> float | None:
        """Serve one request. A number when it was the last: the grace for what still runs."""
        try:
            data, ancillary, _, _ = self.connection.recvmsg(MESSAGE_LIMIT, 256, CLOSE_ON_EXEC)
        except BlockingIOError:
            return None
        except OSError:
            return 0.0
        fds = [
            int.from_bytes(item[at : at + 4], sys.byteorder)
            for _, _, item in ancillary
            for at in range(0, len(item) - 3, 4)
        ]
        for fd in () if CLOSE_ON_EXEC else fds:
            os.set_inheritable(fd, False)
        kind, *fields = data.split(b"\0")
        match kind:
            case b"spawn":
                self.spawn(fields, fds)
            case b"end":
                id, target, grace = (field.decode() for field in fields)
                self.end(id, target, float(grace))
            case b"drain":
                self.add_drains(fds)
            case b"retire" if self.commands or not self.childless:
                self.outbox.append(b"busy")
            case b"quit":
                return float(fields[0])
            case _:  # nobody is there, or nothing is left to do
                return 0.0
        return None

    def spawn(self, fields: list[bytes], fds: list[int]) -> None:
        """`id timeout grace body_apart script_apart [body]`; body: `cwd`, number of arguments, arguments, variables.

        Descriptors: the output, then the body and the script where they come apart.
        """
        output, *more = fds
        try:
            if (detached := self.detached()) is not None:
                self.outbox.append(b"\0".join((b"stale", fields[0], detached)))
                return
            body = read_all(more[0]).split(b"\0") if fields[3] == b"1" else fields[5:]
            count = int(body[1])
            arguments, variables = body[2 : 2 + count], body[2 + count :]
            environment = dict(variable.split(b"=", 1) for variable in variables if variable)
            environment |= self.variables
            environment[MARK] = self.token + b"." + fields[0]
            targets = [(self.null, 0), (output, 1), (output, 2)]
            if fields[4] == b"1":
                targets.append((more[-1], SCRIPT_FD))
            if self.lock_path:
                more.append(toolslock.hold(self.lock_path))
                targets.append((more[-1], LOCK_FD))
            os.chdir(body[0])
            pid = os.posix_spawn(
                arguments[0],
                arguments,
                environment,
                file_actions=[(os.POSIX_SPAWN_DUP2, *target) for target in targets],
                setsid=True,
                setsigmask=(),
                setsigdef=SIGNALS,
            )
        except OSError as error:
            self.outbox.append(b"\0".join((b"failed", fields[0], (error.strerror or "failed").encode())))
        else:
            id = fields[0].decode()
            self.commands[id] = Command(id, id, pid, float(fields[1]), float(fields[2]))
            self.sessions[pid], self.childless = id, False
        finally:
            os.chdir("/")
            for fd in (output, *more):
                os.close(fd)

    def detached(self) -> bytes | None:
        """A path that is not read-only any more: somebody outside replaced it, which takes the mount away."""
        for path in self.readonly:
            try:
                if not os.statvfs(path).f_flag & os.ST_RDONLY:
                    return path
            except OSError:
                return path
        return None

    def members(self, target: str) -> tuple[Table, list[int]]:
        """What lives of one command (`*`: of all), strays that belong to no other included.

        Nothing is believed only when seen twice: a process that forks and ends while we look escapes one look.
        """
        table, pids = self.look(target)
        return (table, pids) if pids or not table else self.look(target)

    def look(self, target: str) -> tuple[Table, list[int]]:
        if self.childless and self.reaper:
            return {}, []
        table, own = proctable.walk(), os.getpid()
        pids = proctable.descendants(table, own)
        if not self.reaper:
            pids += [pid for pid in table if pid != own and pid not in pids and self.is_stray(table, pid)]
        owner: dict[int, str] = {}
        for pid in pids:
            parent, _, session, start = table[pid]  # the mark comes last: a process can change its own
            owner[pid] = (
                owner.get(parent)
                or self.sessions.get(session)
                or self.known.get((pid, start))
                or proctable.mark_of(pid, self.token)
            )
        living = {table[pid][2] for pid in pids} | {command.pid for command in self.commands.values()}
        self.sessions = {session: id for session, id in self.sessions.items() if session in living}
        self.known = {(pid, table[pid][3]): id for pid, id in owner.items() if id}
        return table, [pid for pid in pids if target == "*" or owner[pid] in (target, "")]

    def is_stray(self, table: Table, pid: int) -> bool:
        """Ours, though it left our tree: possible only where orphans do not come to us."""
        _, group, session, _ = table[pid]
        return bool(session in self.sessions or group in self.sessions or proctable.mark_of(pid, self.token))

    def signal(self, target: str, number: int) -> list[int]:
        table, pids = self.members(target)
        proctable.send_signal(table, pids, number)
        return pids

    def end(self, id: str, target: str, grace: float) -> None:
        command = self.commands.get(target)
        if command is None and id == target:
            return  # it has ended, and that is on its way
        if command is None:
            command = self.commands[id] = Command(id, target, 0, 0.0, grace)
        if command.stage == "running" or grace == 0:
            command.stage, command.until = "ending", time.monotonic() + grace
            if grace:
                self.signal(target, signal.SIGTERM)
                self.signal(target, signal.SIGCONT)

    def advance(self, command: Command, now: float) -> None:
        if command.stage == "running" and command.status is None:
            if now >= command.deadline:
                command.timed_out = True
                self.end(command.id, command.target, command.grace)
        elif command.stage == "running":
            table, left = self.members(command.target)
            if not left or now >= command.ended + SETTLE:
                # From here on they are known to be its, even without mark, session or parent.
                self.known.update({(pid, table[pid][3]): command.id for pid in left})
                self.report(command, left)
        elif command.stage == "ending" and now < command.until:
            if command.status is not None and not self.members(command.target)[1]:
                self.report(command, [])
        else:
            if command.stage == "ending":
                command.stage, command.until = "killing", now + KILL_LIMIT
            left = self.signal(command.target, signal.SIGKILL)
            if (not left and command.status is not None) or now >= command.until:
                self.report(command, left)

    def report(self, command: Command, left: list[int]) -> None:
        """`ended id status timed_out milliseconds left (pid name)…`; status: negative for a signal, `?` if unknown."""
        del self.commands[command.id]
        status = b"?" if command.status is None else b"%d" % os.waitstatus_to_exitcode(command.status)
        took = max(0.0, command.ended - command.started) * 1000
        fields = [b"ended", command.id.encode(), status, b"%d" % command.timed_out, b"%d" % took, b"%d" % len(left)]
        for pid in left[:LEFT_LIMIT]:
            fields += [b"%d" % pid, proctable.name_of(pid)]
        self.outbox.append(b"\0".join(fields))

    def flush(self) -> None:
        while self.outbox:
            try:
                self.connection.send(self.outbox[0])
            except OSError:  # full: again soon. Closed: the poll says so
                return
            del self.outbox[0]

    def add_drains(self, fds: list[int]) -> None:
        for fd in fds:
            if len(self.drains) >= DRAIN_LIMIT:
                os.close(fd)
                continue
            self.drains[fd] = 0.0
            self.poll.register(fd, select.POLLIN)

    def drain(self, fd: int) -> None:
        """Read and forget what a background process writes, so that it neither blocks nor dies of it."""
        self.poll.unregister(fd)
        try:
            for _ in range(DRAIN_BYTES // 65_536):
                if not os.read(fd, 65_536):
                    raise EOFError
        except BlockingIOError:
            self.poll.register(fd, select.POLLIN)
        except (EOFError, OSError):
            os.close(fd)
            del self.drains[fd]
        else:
            self.drains[fd] = time.monotonic() + DRAIN_PAUSE

    def resume_drains(self, now: float) -> None:
        for fd, at in self.drains.items():
            if at and at <= now:
                self.drains[fd] = 0.0
                self.poll.register(fd, select.POLLIN)


def read_all(fd: int) -> bytes:
    pieces, at = [], 0
    while piece := os.pread(fd, 1 << 20, at):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)
