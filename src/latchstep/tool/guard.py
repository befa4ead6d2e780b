"""The spawner program: a guard that only waits, and below it the worker, in a sandbox where there is to be one.

Whoever of owner, guard and worker is left ends everything as soon as another is gone; in a process namespace the
kernel does. The guard makes what the sandbox needs on the disk, and removes it when nothing lives any more.

Descriptors: 3 requests, 4 a pipe the owner holds open, 5 a pidfd of the owner (where there is such a thing), 6 what
is to be done (see `sandbox.plan`).
"""

from __future__ import annotations

import fcntl
import marshal
import os
import select
import sys

from latchstep.tool import proctable, toolslock
from latchstep.tool.proctable import MARK
from latchstep.tool.spawnd import CONNECTION, IGNORED, LIFE, OWNER, PLAN, SIGNALS, Worker, read_all

try:
    import _signal as signal  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # pragma: no cover
    import signal

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` costs 3 ms of the start
    from typing import Any

FILTER, ARGUMENTS, LOCK, CHANNEL, FILES = 5, 6, 7, 8, 9
"""Descriptors that bubblewrap is given, beside requests and the end of a pipe that tells of the worker's end. From the
last one on: what it is to write (see `sandbox.bubblewrap`)."""

OURS = 1
"""Time of last change (seconds) of what a sandbox put somewhere, by which another one knows it."""

WORKER_ENDS = 1.0
"""Seconds in which the worker ends everything where the owner is gone, before it is killed itself."""

LAST_WATCH = """
read -r _
before=once
for round in 1 2 3 4 5 6 7 8 9 10; do
  found=$(grep -lzs "^$1" /proc/[0-9]*/environ)
  [ -n "$found$before" ] || exit 0
  before=$found
  for file in $found; do pid=${file#/proc/}; kill -9 "${pid%/environ}"; done
done
"""
"""Ends what is marked when guard and worker are killed in one blow, as `pkill -9 -f python` does. A process that
is just being replaced by another program shows no environment, so it looks once more when nothing is left."""

BOOT = """
import os, sys
for name in ("latchstep", "latchstep.tool"):
    sys.modules[name] = package = type(sys)(name)
    package.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
from latchstep.tool import guard
getattr(guard, sys.argv[2])(*map(os.fsencode, sys.argv[3:]))
"""
"""Runs a function of this module, in a Python that has not loaded what the packages themselves load (a half of it)."""


def start_last_watch(token: bytes, stdin: int) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, stdin, 0)]
    arguments = [b"sh", b"-c", LAST_WATCH.encode(), b"latchstep-watch", MARK + b"=" + token + b"[.]"]
    try:
        return os.posix_spawn("/bin/sh", arguments, {"PATH": "/usr/bin:/bin"}, file_actions=actions, setsid=True)
    except OSError:
        return 0


def ends_of(other: int) -> frozenset[int]:
    """An event on any of these means that the owner, or the other one of guard and worker, is gone."""
    try:
        os.fstat(OWNER)
    except OSError:
        return frozenset({other, LIFE})
    return frozenset({other, LIFE, OWNER})


def main(token: bytes, lock_path: bytes) -> None:
    keep_descriptors(PLAN)
    plan: dict[str, Any] = marshal.loads(read_all(PLAN))
    os.close(PLAN)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    worker_reads, guard_holds = os.pipe()
    guard_reads, worker_holds = os.pipe()
    watch_reads, _both_hold = os.pipe()
    proctable.take_role(b"latchstep-guard")
    placed = place(plan)
    channel = start_proxy(plan) if plan.get("hosts") else -1
    worker = os.fork()
    if worker == 0:
        for fd in (guard_holds, guard_reads, watch_reads):
            os.close(fd)
        held = toolslock.hold(lock_path)
        become(plan)
        if plan["level"] == "bubblewrap":
            enter_bubblewrap(plan, token, {LIFE: worker_holds, LOCK: held, CHANNEL: channel})
        reaper = proctable.take_role(b"latchstep-spawn")
        if plan["level"] == "landlock":
            lock_path = confine(plan, lock_path)
        grace = Worker(token, lock_path, ends_of(worker_reads), reaper, variables=plan.get("variables")).serve()
        proctable.end_everything(token, grace)
        os.kill(os.getppid(), signal.SIGCONT)  # a stopped guard shall see that we end
        os._exit(0)
    for fd in (worker_reads, worker_holds, CONNECTION, *([channel] if channel >= 0 else [])):
        os.close(fd)
    toolslock.hold(lock_path)
    watch = start_last_watch(token, watch_reads) if plan["level"] != "bubblewrap" else 0
    os.close(watch_reads)
    poll = select.poll()
    for fd in ends_of(guard_reads):
        poll.register(fd, select.POLLIN)
    poll.poll()
    let_end(worker, guard_reads)
    proctable.end_everything(token, 0.0, watch)
    if watch:
        os.kill(watch, signal.SIGKILL)
        proctable.end_everything(token, 0.0)  # without the watch, no child left is proof that nothing is
    remove(plan, placed)
    os._exit(0)


def let_end(worker: int, end: int) -> None:
    """Return when the worker is gone. It ends everything where the owner is gone, as we do: killed at once, and we in
    the same blow, nobody would. One that was stopped goes on; one that does not end is killed."""
    os.kill(worker, signal.SIGCONT)
    poll = select.poll()
    poll.register(end, select.POLLIN)
    if not poll.poll(int(WORKER_ENDS * 1000)):
        os.kill(worker, signal.SIGKILL)


def keep_descriptors(last: int) -> None:
    """Close what is above, and let nobody inherit the rest."""
    for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
        try:
            if int(name) > last:
                os.close(int(name))
            elif int(name) >= CONNECTION:
                os.set_inheritable(int(name), False)
        except OSError:
            pass


# -- what a sandbox needs on the disk ----------------------------------------------------------------------


def place(plan: dict[str, Any]) -> list[tuple[int, str, bytes | None]]:
    """Make what is to be held read-only where nothing is, and a private folder where there is no mount for it.

    What was made, each with a descriptor whose lock says that a sandbox uses it. Whoever the workspace belongs to may
    put links there meanwhile: none is followed.
    """
    if plan["level"] == "landlock":
        folder = f"/tmp/latchstep-{os.urandom(8).hex()}"
        for path in (folder, home := f"{folder}/home"):
            os.mkdir(path, 0o700)
        with open(config := f"{home}/.gitconfig", "wb") as file:
            file.write(plan["identity"])
        for path in (config, home, folder) if plan["user"] else ():  # whose folder it is puts links into it
            os.chown(path, *plan["user"])
        plan["private"] = folder
        plan["variables"] = {b"TMPDIR": os.fsencode(folder), b"HOME": os.fsencode(home)}
    placed = []
    for path, content in plan.get("made", ()):
        above, name = os.path.split(path)
        os.makedirs(above, exist_ok=True)
        at = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if os.readlink(f"/proc/self/fd/{at}") != above:
            sys.exit(f"{above} was replaced while the sandbox was set up")
        try:
            if content is None:
                os.mkdir(name, 0o755, dir_fd=at)
            else:
                fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=at)
                os.write(fd, content)
                os.close(fd)
            if plan["user"]:
                os.chown(name, *plan["user"], dir_fd=at, follow_symlinks=False)
            os.utime(name, (OURS, OURS), dir_fd=at, follow_symlinks=False)
        except FileExistsError:  # another session's, which is to live as long as ours
            pass
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # it may be a FIFO
        fd = os.open(name, flags, dir_fd=at)
        os.close(at)
        fcntl.flock(fd, fcntl.LOCK_SH)
        placed.append((fd, path, content))
    return placed


def remove(plan: dict[str, Any], placed: list[tuple[int, str, bytes | None]]) -> None:
    """Remove what was made, unless another sandbox uses it or somebody has put something there."""
    if "private" in plan:
        import shutil

        for folder, folders, _ in os.walk(plan["private"]) if not plan["user"] else ():
            for path in (f"{folder}/{name}" for name in folders):
                if not os.path.islink(path):
                    os.chmod(path, 0o700)  # a user cannot remove what is in one without these rights
        shutil.rmtree(plan["private"], ignore_errors=True)
    for fd, path, content in placed:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.lstat(path)
            if not os.path.samestat(os.fstat(fd), status) or int(status.st_mtime) != OURS:
                continue
            if content is None:
                os.rmdir(path)
            elif os.read(fd, 16) == content:
                os.unlink(path)
        except OSError:
            continue


# -- the worker --------------------------------------------------------------------------------------------


def become(plan: dict[str, Any]) -> None:
    """Take the user and the bounds that commands have."""
    if plan["level"] == "none":
        return
    import resource  # while we can reach it: the user may not

    if plan["level"] == "landlock":
        from latchstep.tool import landlock  # noqa: F401
    if user := plan.get("user"):
        os.setgroups([])
        os.setresgid(user[1], user[1], user[1])
        os.setresuid(user[0], user[0], user[0])
    for name, most in plan["limits"].items():
        if name == "NPROC" and plan["level"] != "bubblewrap":  # everything that the user has running is counted
            most += int(proctable.read_file("/proc/loadavg").split()[3].split(b"/")[1])
        number = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(number)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (most, most))
    proctable.prctl(4, 1)  # PR_SET_DUMPABLE, without which the next file is not ours; nothing runs beside us yet
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # memory that runs out is taken from commands first
            file.write("800")
    except OSError:
        pass


def confine(plan: dict[str, Any], lock_path: bytes) -> bytes:
    """Enter Landlock and the filter. The lock that commands are to inherit, if they can reach it. Exits in words."""
    from latchstep.tool import landlock

    granted = [*plan["rules"], (plan["private"], landlock.WRITE)]
    if plan["user"]:
        lock_path = b""
    elif lock_path:
        granted.append((os.fsdecode(lock_path), landlock.READ_FILE | landlock.WRITE_FILE))
        os.close(toolslock.hold(lock_path))  # it exists
    try:
        landlock.drop_rights()
        landlock.restrict(granted, plan["net"])
        landlock.filter_calls(plan["calls"])
    except OSError as error:
        sys.stderr.write(f"Landlock and seccomp do not work here: {error.strerror or error}\n")
        sys.stderr.flush()
        os._exit(1)
    return lock_path


def start_proxy(plan: dict[str, Any]) -> int:
    """A process that serves the sandbox's way out (see `proxy`), and the descriptor by which it is given a listener."""
    import socket

    ours, theirs = socket.socketpair()
    guard = os.getpid()
    if os.fork() == 0:
        os.dup2(theirs.detach(), CONNECTION)
        os.closerange(CONNECTION + 1, 256)
        proctable.take_role(b"latchstep-proxy")
        proctable.prctl(1, 9)  # PR_SET_PDEATHSIG
        if os.getppid() == guard:
            from latchstep.tool import proxy

            proxy.serve(socket.socket(fileno=CONNECTION), plan["hosts"])
        os._exit(0)
    theirs.close()
    return ours.detach()


def offer_listener(channel: int) -> None:
    """From inside: a port on our own loopback, where somebody outside accepts."""
    import socket

    from latchstep.tool.proxy import PORT

    with socket.socket(fileno=channel) as line, socket.create_server(("127.0.0.1", PORT), backlog=64) as listener:
        socket.send_fds(line, [b"l"], [listener.fileno()])


def enter_bubblewrap(plan: dict[str, Any], token: bytes, given: dict[int, int]) -> None:
    """Become bubblewrap, whose first process is the worker. Never returns. given: descriptors for it, by number."""
    command = [plan["python"], "-I", "-S", "-B", "-c", BOOT, plan["source"], "serve_inside"]
    command += [os.fsdecode(token), "host" if plan["net"] else "none"]
    for path in (*plan["pins"], *plan["readonly"]):
        command += [path, identity(path), "readonly" if path in plan["readonly"] else "pin"]
    arguments = [*plan["arguments"], "--seccomp", str(FILTER)]
    given |= {
        FILTER: _file(plan["calls"]),
        ARGUMENTS: _file(b"".join(os.fsencode(argument) + b"\0" for argument in arguments)),
        **{number: _file(data) for number, data in enumerate(plan["files"], FILES)},
    }
    high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for number, fd in given.items() if fd >= 0}
    for number, fd in high.items():
        os.dup2(fd, number)
    os.set_inheritable(CONNECTION, True)
    for number in SIGNALS:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            pass
    try:
        os.execv(plan["program"], [plan["program"], "--args", str(ARGUMENTS), "--", *command])
    except OSError as error:
        sys.stderr.write(f"{plan['program']} could not be started: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(1)


def identity(path: str | bytes) -> str:
    """Which file or folder this is; a link is none that can be held."""
    status = os.lstat(path)
    return "a link" if status.st_mode & 0o170000 == 0o120000 else f"{status.st_dev}:{status.st_ino}"


def _file(data: bytes) -> int:
    fd = os.memfd_create("latchstep")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def serve_inside(token: bytes, net: bytes, *held: bytes) -> None:
    """The worker as the first process of a namespace: when it ends, everything does. Its end closes the pipe.

    held: path, identity and kind of each mount. Whoever else writes in the workspace could have put a link there
    between the look and the mount, so each is looked at once more, from inside.
    """
    for path, known in zip(held[::3], held[1::3], strict=True):
        if identity(path).encode() != known:
            sys.exit(f"{os.fsdecode(path)} was replaced while the sandbox was set up")
    readonly = tuple(path for path, kind in zip(held[::3], held[2::3], strict=True) if kind == b"readonly")
    if net == b"host":
        from latchstep.tool import landlock

        landlock.hide_abstract_sockets()
    keep_descriptors(CHANNEL)
    try:
        os.fstat(CHANNEL)
        offer_listener(CHANNEL)
    except OSError as error:
        if error.errno != 9:  # EBADF: there is none
            raise
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    proctable.take_role(b"latchstep-spawn")
    grace = Worker(token, b"", frozenset(), True, readonly=readonly).serve()
    proctable.end_everything(token, grace)
    os._exit(0)
