"""Processes as the system shows them: who lives, what descends from whom, what carries our mark, how to end it.

Nothing is believed for longer than one look: every kill starts from a fresh walk. Standard library alone, and
little of it, since the spawner program starts with this.
"""

from __future__ import annotations

import os
import sys
import time

try:  # the C module beneath `signal`, which costs 4 ms of a start of 12
    import _signal as signal  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # pragma: no cover
    import signal

MARK = b"LATCHSTEP_SPAWN"
"""The variable that everything spawned carries: `TOKEN.ID`, of the spawner and of the command."""

KILL_LIMIT = 3.0
"""Seconds of repeated SIGKILL after which what still lives is given up."""
TICK = 0.005

Table = dict[int, tuple[int, int, int, int]]
"""Living processes: pid → parent, group, session, start time."""


def read_file(path: str, limit: int = 1 << 22) -> bytes:
    """At most `limit` bytes of a file, b"" when it cannot be read (the process is gone, or not ours)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    pieces = []
    try:
        while limit > 0 and (piece := os.read(fd, min(limit, 65_536))):
            pieces.append(piece)
            limit -= len(piece)
    except OSError:
        pass
    finally:
        os.close(fd)
    return b"".join(pieces)


def walk() -> Table:
    """All processes that run code. A zombie does not, unless other threads of it go on."""
    table: Table = {}
    if not os.path.exists("/proc/self/stat"):
        return _walk_ps()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        raw = read_file(f"/proc/{name}/stat", 4096)
        fields = raw[raw.rfind(b")") + 1 :].split()  # a command name may hold blanks and brackets
        if len(fields) < 20 or (fields[0] in b"ZX" and int(fields[17]) <= 1):
            continue
        table[int(name)] = (int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))
    return table


def _walk_ps() -> Table:
    """The same where there is no /proc (macOS). Sessions are not shown there: the group stands for them."""
    read, write = os.pipe()
    listing = ["/bin/ps", "-A", "-o", "pid=,ppid=,pgid=,stat="]
    pid = os.posix_spawn(listing[0], listing, {}, file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)])
    os.close(write)
    table: Table = {}
    with os.fdopen(read, "rb") as lines:
        for line in lines:
            own, parent, group, state = line.split()[:4]
            if not state.startswith(b"Z") and int(own) != pid:
                table[int(own)] = (int(parent), int(group), int(group), 0)
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass
    return table


def descendants(table: Table, root: int) -> list[int]:
    """All processes below `root`, parents before their children."""
    children: dict[int, list[int]] = {}
    for pid, entry in table.items():
        children.setdefault(entry[0], []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def mark_of(pid: int, token: bytes) -> str:
    """The id of the command in whose environment `pid` was started, "" for strangers and other spawners."""
    start = b"\0" + MARK + b"=" + token + b"."
    environment = b"\0" + read_file(f"/proc/{pid}/environ")
    at = environment.find(start)
    if at < 0:
        return ""
    return environment[at + len(start) :].split(b"\0", 1)[0].decode("ascii", "replace") or "?"


def marked(table: Table, token: bytes) -> list[int]:
    own = os.getpid()
    return [pid for pid in table if pid != own and mark_of(pid, token)]


def name_of(pid: int) -> bytes:
    return read_file(f"/proc/{pid}/comm", 64).strip().replace(b"\0", b"?") or b"?"


def send_signal(table: Table, pids: list[int], number: int) -> None:
    """Signal each process once; SIGKILL goes to whole groups before that.

    The kernel kills a group at one moment, members that are forking included. Other signals must not come twice: to
    some programs a second SIGTERM means "now, without tidying up".
    """
    targets = [(os.kill, pid) for pid in pids]
    if number == signal.SIGKILL:
        targets = [(os.killpg, group) for group in {table[pid][1] for pid in pids} - {0, 1, os.getpgrp()}] + targets
    for kill, target in targets:
        try:
            kill(target, number)
        except OSError:  # gone already, or another user's: the next look tells
            pass


def kill_marked(token: bytes) -> int:
    """SIGKILL everything that carries the token's mark; the number of processes that were found."""
    table = walk()
    pids = marked(table, token)
    send_signal(table, pids, signal.SIGKILL)
    return len(pids)


def reap() -> tuple[dict[int, int], bool]:
    """Statuses of children that ended, and whether there is no child at all now, living or dead."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, True
        if pid == 0:
            return ended, False
        ended[pid] = status


def end_everything(token: bytes, grace: float, spare: int = 0) -> None:
    """Ask (SIGTERM, for `grace` seconds), then SIGKILL all below this process and all that is marked.

    Two empty looks in a row, since a look at /proc is no snapshot. Gives up after `KILL_LIMIT` more seconds.
    """
    begun, empty, asked = time.monotonic(), 0, False
    while empty < 2:
        reap()
        table = walk()
        pids = sorted({*descendants(table, os.getpid()), *marked(table, token)} - {spare})
        passed = time.monotonic() - begun
        empty = 0 if pids else empty + 1
        if passed >= grace:
            send_signal(table, pids, signal.SIGKILL)
        elif not asked:
            asked = True
            send_signal(table, pids, signal.SIGTERM)
            send_signal(table, pids, signal.SIGCONT)
        if passed > grace + KILL_LIMIT:
            return
        if pids:
            time.sleep(TICK if passed < grace else 0.001)
    reap()


def prctl(option: int, value: int) -> bool:
    try:
        import _ctypes  # `ctypes` itself costs 3 ms more

        function = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
        return bool(_ctypes.call_function(function, (option, value, 0, 0, 0)) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def take_role(name: str) -> bool:
    """Name this process, become a subreaper, hide its memory. Whether orphans come to us from now on."""
    if sys.platform != "linux":
        return False
    try:
        with open("/proc/self/comm", "w") as file:  # so that `pkill python` means others
            file.write(name)
    except OSError:
        pass
    reaper = prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    prctl(4, 0)  # PR_SET_DUMPABLE: no child of the same user reads this memory or takes these descriptors
    return reaper
