"""Landlock, the filter and fewer rights, by system calls: what a process takes upon itself and all that it starts.

Runs in the spawner program. Nothing here can be taken back.
"""

from __future__ import annotations

import ctypes
import os

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
TRUNCATE, IOCTL_DEV = 0x4000, 0x8000
READ = EXECUTE | READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | 0x7FF0  # remove, make, refer, truncate
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
NO_DEVICES = 0x40 | 0x800  # MAKE_CHAR, MAKE_BLOCK

CREATE, ADD_RULE, RESTRICT = 444, 445, 446
LEAST_ABI = 3
"""The first that holds `truncate`."""
SCOPES = 3  # abstract sockets, signals

_libc = ctypes.CDLL(None, use_errno=True)


def _call(*arguments: object) -> int:
    result = int(_libc.syscall(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def abi() -> int:
    """The version of Landlock that the kernel has; 0 where it has none."""
    try:
        return _call(CREATE, None, ctypes.c_size_t(0), 1)
    except OSError:
        return 0


def _prctl(option: int, second: int = 0, third: object = 0) -> None:
    if _libc.prctl(option, ctypes.c_ulong(second), third, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def drop_rights() -> None:
    """No capability now, and none by whatever is executed."""
    if os.geteuid() == 0:
        for capability in range(64):
            try:
                _prctl(24, capability)  # PR_CAPBSET_DROP
            except OSError:  # past the last one
                break
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if _libc.capset(header, nothing):
        raise OSError(ctypes.get_errno(), "rights could not be dropped")
    _prctl(38, 1)  # PR_SET_NO_NEW_PRIVS


def restrict(rules: list[tuple[str, int]], net: bool) -> None:
    """From here on only these paths (each with what may be done beneath), and TCP only with `net`. Raises OSError."""
    version = abi()
    if version < LEAST_ABI:
        raise OSError(38, f"Landlock has ABI {version} here, and {LEAST_ABI} is the least that will do")
    handled = (1 << (16 if version >= 5 else 15)) - 1
    fields = [handled]
    if version >= 4:
        fields.append(0 if net else 3)  # bind, connect
    if version >= 6:
        fields.append(SCOPES)
    attributes = (ctypes.c_uint64 * len(fields))(*fields)
    ruleset = _call(CREATE, attributes, ctypes.c_size_t(ctypes.sizeof(attributes)), 0)
    for path, access in rules:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            access &= ON_FILES
        rule = (ctypes.c_uint8 * 12).from_buffer_copy(
            (access & handled).to_bytes(8, "little") + fd.to_bytes(4, "little")
        )
        _call(ADD_RULE, ruleset, 1, rule, 0)
        os.close(fd)
    _call(RESTRICT, ruleset, 0)
    os.close(ruleset)


def hide_abstract_sockets() -> None:
    """Those of the host's processes, which its network brings with it. Where the kernel cannot, they stay."""
    attributes = (ctypes.c_uint64 * 3)(0, 0, 1)
    try:
        ruleset = _call(CREATE, attributes, ctypes.c_size_t(24), 0)
        _call(RESTRICT, ruleset, 0)
        os.close(ruleset)
    except OSError:
        pass


def filter_calls(program: bytes) -> None:
    """Load a seccomp filter. Raises OSError."""
    lines = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_void_p))

    given = Program(len(program) // 8, ctypes.addressof(lines))
    _prctl(22, 2, ctypes.byref(given))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
