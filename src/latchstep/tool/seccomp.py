"""The system calls that no command of a sandbox gets: a filter for the kernel, assembled here as bytes.

Refused is what reaches other processes or the kernel itself, what makes namespaces or mounts, what types into a
terminal, and what makes a set-user-ID file. Pure; other processors than these two are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16

ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "arm64": (0xC00000B7, 1)}
"""By machine: how the kernel names it, and the column of its numbers in the tables below."""

EPERM, EAFNOSUPPORT, ENOSYS = 1, 97, 38

REFUSED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # the kernel's own means
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "syslog": (103, 116), "acct": (163, 89),
    "lookup_dcookie": (212, 18), "open_by_handle_at": (304, 265), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429),
    "open_tree": (428, 428), "open_tree_attr": (467, 467), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "setns": (308, 268),
    # the machine
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "iopl": (172, None), "ioperm": (173, None), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
    "vhangup": (153, 58),
}  # fmt: skip

SHARED: dict[str, tuple[int | None, int | None]] = {
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187),
}  # fmt: skip
"""What System V shares among all processes: refused where AF_UNIX is, since no namespace holds either."""

ABSENT: dict[str, tuple[int | None, int | None]] = {"clone3": (435, 435), "openat2": (437, 437)}
"""Their arguments lie in memory, where a filter cannot look: said not to exist, so that callers use the older ones."""

NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
SET_ID = 0o6000
"""The mode bits of a file that runs as its owner or group."""

BITS: tuple[tuple[str, int | None, int | None, int, int], ...] = (
    ("clone", 56, 220, 0, NAMESPACES),
    ("unshare", 272, 97, 0, NAMESPACES | 0x80),
    ("chmod", 90, None, 1, SET_ID),
    ("fchmod", 91, 52, 1, SET_ID),
    ("fchmodat", 268, 53, 2, SET_ID),
    ("fchmodat2", 452, 452, 2, SET_ID),
    ("open", 2, None, 2, SET_ID),
    ("creat", 85, None, 1, SET_ID),
    ("openat", 257, 56, 3, SET_ID),
    ("mkdir", 83, None, 1, SET_ID),
    ("mkdirat", 258, 34, 2, SET_ID),
    ("mknod", 133, None, 1, SET_ID),
    ("mknodat", 259, 33, 2, SET_ID),
    ("prlimit64", 302, 261, 0, 0xFFFFFFFF),  # bounds of another process, which is as good as a signal
)
"""Refused where an argument (by its place) has one of these bits."""

VALUES: tuple[tuple[str, int, int, int, tuple[int, ...]], ...] = (
    ("ioctl", 16, 29, 1, (0x5412, 0x541C)),  # TIOCSTI, TIOCLINUX
)
"""Refused where an argument is one of these."""

SOCKET = (41, 198)
DATAGRAM_PAIR = (
    "socketpair",
    53,
    199,
    1,
    tuple(kind | more for kind in (2, 3) for more in (0, 0x800, 0x80000, 0x80800)),
)
"""A pair of datagram sockets: each can also send to any socket that has a path. Refused where AF_UNIX is."""

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000


def _line(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _checks(column: int, families: Collection[int]) -> Iterator[bytes]:
    """Each one compares the loaded number, and where it is the one, ends with a verdict."""
    shared = {} if AF_UNIX in families else SHARED
    for table, error in (({**REFUSED, **shared}, EPERM), (ABSENT, ENOSYS)):
        for numbers in table.values():
            if (number := numbers[column]) is not None:
                yield _line(EQUAL, number, 0, 1) + _line(RETURN, ERROR | error)
    for _, intel, arm, place, mask in BITS:
        if (number := (intel, arm)[column]) is not None:
            yield _when(number, place, [_line(ANY_BIT, mask, 0, 1), _line(RETURN, ERROR | EPERM)])
    for _, intel, arm, place, values in (*VALUES, *([] if AF_UNIX in families else [DATAGRAM_PAIR])):
        lines = [line for value in values for line in (_line(EQUAL, value, 0, 1), _line(RETURN, ERROR | EPERM))]
        yield _when((intel, arm)[column], place, lines)
    known = [line for family in sorted(families) for line in (_line(EQUAL, family, 0, 1), _line(RETURN, ALLOW))]
    yield _when(SOCKET[column], 0, [*known, _line(RETURN, ERROR | EAFNOSUPPORT)])


def _when(number: int, place: int, lines: list[bytes]) -> bytes:
    """For this call, these lines with its argument loaded; they fall through to `allow`."""
    inner = [_line(LOAD, 16 + 8 * place), *lines, _line(RETURN, ALLOW)]
    return _line(EQUAL, number, 0, len(inner)) + b"".join(inner)


def program(machine: str, families: Collection[int]) -> bytes:
    """The filter (an array of `struct sock_filter`) for a processor. families: the kinds of sockets it lets be made.

    Raises ValueError for a processor whose calls we do not know.
    """
    if machine not in ARCHITECTURES:
        raise ValueError(f"system calls of {machine or 'this processor'} are not known here")
    audit, column = ARCHITECTURES[machine]
    head = [_line(LOAD, 4), _line(EQUAL, audit, 1, 0), _line(RETURN, KILL), _line(LOAD, 0)]
    if machine == "x86_64":  # the x32 calls have numbers of their own
        head += [_line(AT_LEAST, 0x40000000, 0, 1), _line(RETURN, ERROR | ENOSYS)]
    return b"".join([*head, *_checks(column, families), _line(RETURN, ALLOW)])
