"""What a command may try, as data: a script, and whether it reached its goal.

`escapes` names the levels at which it is known to: `none` holds nothing, which also proves that the attack is a real
one; what `landlock` lets through is said by `NOT_COVERED` or listed at the end of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .ground import CONTENT, KEY, SECRET, Ended, Ground, whole

P = frozenset({"none"})
PL = frozenset({"none", "landlock"})
NEVER: frozenset[str] = frozenset()

PY = "python3 -c '{}'"


@dataclass(frozen=True)
class Attack:
    """rows: of the list of escapes. reached: whether the goal was, judged from outside after the command."""

    rows: tuple[int, ...]
    name: str
    script: str
    reached: Callable[[Ground, Ended], bool]
    escapes: frozenset[str] = P
    after: str = ""
    """What the person does then, by git outside."""


def outside_changed(ground: Ground, ended: Ended) -> bool:
    return whole(ground.out / "file") != CONTENT


def key_seen(ground: Ground, ended: Ended) -> bool:
    return KEY in ended.out


def says(word: str) -> Callable[[Ground, Ended], bool]:
    return lambda ground, ended: word in ended.out


def ran(ground: Ground, ended: Ended) -> bool:
    """The person's git, run after the attack, started the attacker's program."""
    return (ground.out / "ran").exists() or (ground.base / "ran").exists()


EVIL = "printf '#!/bin/sh\\ntouch @BASE@/ran\\n' > evil; chmod +x evil; "
FORGED = (
    EVIL + "mkdir -p forged/objects forged/refs; printf 'ref: refs/heads/master' > forged/HEAD; "
    "printf '[core]\\nrepositoryformatversion=0\\nfsmonitor=@ROOT@/evil\\n' > forged/config; "
)

ATTACKS = [
    Attack((1,), "dot-dot", "echo pwned > ../outside/file", outside_changed),
    Attack((2,), "absolute path", "echo pwned > @OUT@/file", outside_changed),
    Attack((3,), "through a file symlink", "ln -s @OUT@/file l; echo pwned > l", outside_changed),
    Attack((4,), "through a folder symlink", "ln -s @OUT@ d; echo pwned > d/file", outside_changed),
    Attack((5,), "hard link", "ln @OUT@/file h && echo pwned > h", outside_changed),
    Attack((6,), "move in", "mv @OUT@/file stolen", outside_changed),
    Attack((7,), "find -delete", "find @OUT@ -name file -delete", outside_changed),
    Attack((8,), "find -exec", "find . -maxdepth 0 -exec sh -c 'echo pwned > @OUT@/file' ';'", outside_changed),
    Attack((9,), "/proc/self/root", "echo pwned > /proc/self/root@OUT@/file", outside_changed),
    Attack((10,), "/proc/PARENT/root", "echo pwned > /proc/@PARENT@/root@OUT@/file", outside_changed),
    Attack((11,), "/proc/PARENT/cwd", "echo pwned > /proc/@PARENT@/cwd/outside/file", outside_changed),
    Attack((12,), "environment of the parent", "cat /proc/@PARENT@/environ | tr '\\0' '\\n'", key_seen),
    Attack((12,), "environment of everybody", "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'", key_seen),
    Attack((13,), "own environment", "env; cat /proc/self/environ | tr '\\0' '\\n'", key_seen, NEVER),
    Attack((14,), "ssh key", "cat @HOME_@/.ssh/id", says(SECRET)),
    Attack(
        (15,), "start files", "echo pwned >> @HOME_@/.bashrc", lambda g, e: whole(g.home / ".bashrc") != CONTENT
    ),
    Attack(
        (16,), "journal", "echo pwned >> @STORE@/journal.jsonl",
        lambda g, e: whole(g.store / "journal.jsonl") != CONTENT,
    ),
    Attack(
        (17,), "a hook", EVIL + "cp evil .git/hooks/pre-commit", ran, PL, "commit --allow-empty -m x"
    ),
    Attack(
        (18,), "fsmonitor", EVIL + "git config core.fsmonitor @ROOT@/evil", ran, PL, "status"
    ),
    Attack(
        (19,), "move .git away",
        EVIL + "mv .git x && cp -r x .git; mkdir -p .git/hooks; cp evil .git/hooks/pre-commit; "
        "git config core.fsmonitor @ROOT@/evil", ran, PL, "commit --allow-empty -m x",
    ),
    Attack(
        (21,), "chmod outside", "chmod 777 @HOME_@/.ssh",
        lambda g, e: (g.home / ".ssh").stat().st_mode & 0o777 == 0o777, PL,
    ),
    Attack(
        (22,), "times outside", "touch -c -d 2001-01-01 @HOME_@/.bashrc",
        lambda g, e: (g.home / ".bashrc").stat().st_mtime < 1e9, PL,
    ),
    Attack((23,), "TCP", "exec 3<>/dev/tcp/127.0.0.1/@PORT@ && echo linked", says("linked")),
    Attack((24,), "UDP", "echo x > /dev/udp/127.0.0.1/@UDP@", lambda g, e: g.udp.came.wait(0.2)),
    Attack(
        (25,), "abstract socket",
        PY.format('import socket; socket.socket(socket.AF_UNIX).connect("\\0@ABSTRACT@"); print("linked")'),
        says("linked"),
    ),
    Attack(
        (26,), "socket file (docker, ssh-agent)",
        PY.format('import socket; socket.socket(socket.AF_UNIX).connect("@OUT@/agent.sock"); print("linked")'),
        says("linked"),
    ),
    Attack(
        (27,), "ptrace",
        PY.format('import ctypes; print("held", ctypes.CDLL(None).ptrace(0x4206, @PARENT@, 0, 0))'), says("held 0")
    ),
    Attack((28,), "signal the parent", "kill -USR1 @PARENT@", lambda g, e: e.signals > 0),
    Attack((30,), "shared /tmp", "echo pwned > @SHARED@", lambda g, e: g.shared.exists()),
    Attack((31,), "user namespace", "unshare -Ur sh -c 'echo nested'", says("nested")),
    Attack((32,), "inherited LD_*", "echo got ${LD_PRELOAD_TRIAL-nothing}", says("got x"), NEVER),
    Attack((33,), "terminal", "exec 3<>/dev/tty && echo typed", says("typed"), NEVER),
    Attack((47,), "commondir", FORGED + "printf '@ROOT@/forged' > .git/commondir", ran, PL, "status"),
    Attack(
        (49,), "the spawner's memory", "p=$PPID; " + PY.format(
            'import sys; open(f"/proc/{sys.argv[1]}/mem", "rb").seek(4096); print("got", "it")'
        ) + " $p", says("got it"),
    ),
    Attack(
        (49,), "the spawner's descriptors", "readlink /proc/$PPID/fd/3 && echo got it; p=$PPID; " + PY.format(
            'import os, sys; os.open(f"/proc/{sys.argv[1]}/fd/2", os.O_RDONLY); print("got", "it")'
        ) + " $p", says("got it"),
    ),
    Attack(
        (50,), "clone with CLONE_NEWUSER",
        PY.format(
            'import ctypes, os; n = 56 if os.uname().machine == "x86_64" else 220; '
            'r = ctypes.CDLL(None).syscall(n, 0x10000011, 0, 0, 0, 0); print("nested" if r >= 0 else "refused"); '
            'os._exit(0)'
        ), says("nested"),
    ),
    Attack(
        (50,), "clone3", PY.format(
            'import ctypes; ctypes.CDLL(None, use_errno=True).syscall(435, 0, 0); print("errno", ctypes.get_errno())'
        ), lambda g, e: "errno 38" not in e.out,
    ),
    # not on the list
    Attack(
        (), "a set-user-ID file", "cp /bin/true s; chmod 4755 s; chmod u+s s; "
        "install -m 4755 /bin/true t; python3 -c 'import os; os.open(\"u\", os.O_CREAT | os.O_WRONLY, 0o4755)'",
        lambda g, e: any(path.stat().st_mode & 0o6000 for path in g.root.glob("[stu]")),
    ),
    Attack(
        (), "a set-user-ID file by openat2", PY.format(
            "import ctypes, struct; how = struct.pack(chr(81) * 3, 0o101, 0o4755, 0); "
            'ctypes.CDLL(None).syscall(437, -100, b"v", how, 24)'
        ), lambda g, e: (g.root / "v").exists(),
    ),
    Attack(
        (), "move a folder above a guarded file",
        EVIL + "mv .git/info .git/i2 && mkdir .git/info && echo '* filter=x' > .git/info/attributes",
        lambda g, e: "filter" in whole(g.root / ".git" / "info" / "attributes"), PL,
    ),
    Attack(
        (), "a hard link to git's config", "ln .git/config c && echo evil >> c",
        lambda g, e: "evil" in whole(g.root / ".git" / "config"), PL,
    ),
    Attack(
        (), "unmount the guard", "umount -l .git/hooks; umount .git/config; mount -o remount,rw .git/hooks; "
        "touch .git/hooks/new", lambda g, e: (g.root / ".git" / "hooks" / "new").exists(), PL,
    ),
    Attack(
        (), "odd socket families", PY.format(
            "import socket\nfor family, kind in ((40, 1), (38, 5), (17, 3), (31, 1), (44, 3), (15, 3)):\n"
            " try: socket.socket(family, kind); print(\"made\", family)\n except OSError as e: pass"
        ), says("made"),
    ),
    Attack(
        (), "open by handle", PY.format(
            'import ctypes; l = ctypes.CDLL(None, use_errno=True); '
            'l.syscall(304, -100, b"\\x08\\0\\0\\0\\1\\0\\0\\0\\2\\0\\0\\0\\0\\0\\0\\0", 0); '
            'print("errno", ctypes.get_errno())'
        ), lambda g, e: "errno 1\n" not in e.out and g.identity == "root",
    ),
    Attack(
        (), "io_uring", PY.format(
            'import ctypes; b = ctypes.create_string_buffer(200); print("ring", ctypes.CDLL(None).syscall(425, 1, b))'
        ), lambda g, e: "ring -1" not in e.out,
    ),
    Attack(
        (), "calls of the x32 table", PY.format(
            'import ctypes; l = ctypes.CDLL(None, use_errno=True); l.syscall(0x40000000 + 101, 0, 0, 0, 0); '
            'print("errno", ctypes.get_errno())'
        ), lambda g, e: "errno 38" not in e.out, NEVER,
    ),
    Attack(
        (), "knobs of the kernel",  # opened for writing, and not written
        "for f in kernel/core_pattern kernel/modprobe vm/drop_caches; do (: >> /proc/sys/$f) && "
        "echo set; done; (: >> /proc/sysrq-trigger) && echo set; ls /sys/fs/cgroup && echo set",
        says("set"),
    ),
    Attack(
        (), "a program of ours planted for the next start",
        "mkdir -p bin; for n in bwrap python3 sh; do printf '#!/bin/sh\\ntouch @BASE@/ran\\n' > bin/$n; "
        "chmod +x bin/$n; done; cp bin/sh sitecustomize.py; cp bin/sh latchstep.py", ran, NEVER,
    ),
    Attack(
        (), "our configuration", "mkdir -p .latchstep; echo 'mode = \"unconfined\"' > .latchstep/config.toml",
        lambda g, e: (g.root / ".latchstep" / "config.toml").exists(), PL,
    ),
    Attack(
        (), "descriptors left open", PY.format(
            'import os; print(*("left" for n in os.listdir("/proc/self/fd") if 3 <= int(n) < 90 and '
            'os.path.exists(f"/proc/self/fd/{n}")))'
        ), says("left"), NEVER,
    ),
    Attack((), "the list of processes", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '", says("harness.py"), PL),
    Attack((), "rights", "grep Cap /proc/self/status", lambda g, e: "CapEff:\t0000000000000000" not in e.out),
    Attack(
        (), "shared memory of the system",
        PY.format('import ctypes; print("segment", ctypes.CDLL(None).shmget(0x1a7c4, 4096, 0o1666))'),
        lambda g, e: _segment(),
    ),
    Attack((), "/etc/shadow", "cat /etc/shadow", says("root:")),
    Attack(
        (), "queues and semaphores of the system", PY.format(
            'import ctypes; l = ctypes.CDLL(None); print(*(f"made {f(0x1a7c5, *a)}" for f, a in '
            "((l.msgget, [0o1666]), (l.semget, [1, 0o1666]))), sep=chr(10))"
        ), lambda g, e: _queue(),
    ),
    Attack(
        (), "bounds of the parent, by which it could be ended",
        PY.format("import resource; resource.prlimit(@PARENT@, resource.RLIMIT_MSGQUEUE, (77000, 77000))"),
        lambda g, e: g.process is not None and "77000" in whole(Path(f"/proc/{g.process.pid}/limits")),
    ),
    Attack(
        (), "memory filled by files",
        "for d in /dev /dev/shm /run /var /tmp /var/tmp; do f=$(mktemp -p $d) && df -k --output=size $d | tail -1; "
        "rm -f \"$f\"; done", lambda g, e: any(int(line) > 4 << 20 for line in e.out.split() if line.isdigit()),
    ),
    Attack(
        (), "the host's handler of crashes", "ulimit -Hc; ulimit -Sc unlimited; " + PY.format(
            "import resource; print(*resource.getrlimit(resource.RLIMIT_CORE))"
        ), lambda g, e: "\n1 1\n" not in e.out,
    ),
]  # fmt: skip


def _queue() -> bool:
    """Whether either is there for others; removed, if it is."""
    import ctypes

    libc = ctypes.CDLL(None)
    queue, semaphores = libc.msgget(0x1A7C5, 0), libc.semget(0x1A7C5, 0, 0)
    if queue >= 0:
        libc.msgctl(queue, 0, None)
    if semaphores >= 0:
        libc.semctl(semaphores, 0, 0)
    return bool(queue >= 0 or semaphores >= 0)


def _segment() -> bool:
    """Whether the segment is there for others; removed, if it is."""
    import ctypes

    libc = ctypes.CDLL(None)
    found = libc.shmget(0x1A7C4, 0, 0)
    if found >= 0:
        libc.shmctl(found, 0, None)
    return bool(found >= 0)
