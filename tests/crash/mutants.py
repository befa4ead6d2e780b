"""Deliberate faults in the journal and the loop, each of which the tests must notice: a test of the tests.

    python -m tests.crash.mutants [NAME …]

copies the package aside, changes one place, and runs the tests of the part until one fails. Exits with 1 if any fault
goes unnoticed, or is noticed by nothing but a time limit. `test_mutants.py` checks that every fault still names a
place that exists.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.crash.loop_mutants import LOOP

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "latchstep"

_JOURNAL: dict[str, tuple[str, str, str]] = {
    "no fsync at all": ("barrier.py", "            disk.sync(handle)\n", "            pass\n"),
    "no fsync on open": ("file.py", "            disk.sync(handle)  #", "            pass  #"),
    "no directory fsync": ("disk.py", "    disk.sync_directory(path.parent)\n", "    pass\n"),
    "no fsync of the new file's entry": ("file.py", "            disk.sync_directory(directory)\n", ""),
    "no fsync of a blob": ("blob.py", "        disk.sync(handle)\n", ""),
    "no fsync of a blob's entry": ("blob.py", "    disk.sync_directory(folder)\n", ""),
    "no fsync of a copy": ("store.py", "            self._disk.sync(writing)\n        finally", "        finally"),
    "skip bad lines": (
        "frame.py",
        "                if not cursor.accept(line):\n                    return\n",
        "                if not cursor.accept(line):\n                    continue\n",
    ),
    "torn tail not cut": ("file.py", "    disk.truncate(handle, cursor.offset)\n", ""),
    "torn tail not kept": ("file.py", "            write_all(disk, copy, block)\n", "            pass\n"),
    "a missing newline is fine": (
        "frame.py",
        '    if carried:\n        cursor.flaw = "it has no newline"',
        '    if carried and not cursor.accept(b"".join(carry)):\n        cursor.flaw = "torn"',
    ),
    "checksum not checked": (
        "frame.py",
        'if not line.endswith(b\',"crc":"%08x"}\' % crc32(line[:-_TAIL_SIZE])):',
        "if len(line) < 30:",
    ),
    "checksum compared as a number": (
        "frame.py",
        'if not line.endswith(b\',"crc":"%08x"}\' % crc32(line[:-_TAIL_SIZE])):',
        'if not line[-10:-2].isalnum() or int(line[-10:-2], 36) != int(b"%08x" % crc32(line[:-_TAIL_SIZE]), 36):',
    ),
    "no chain": ("frame.py", "if head[3] != self.p:", "if False:"),
    "no sequence": ("frame.py", "if head is None or int(head[1]) != n:", "if head is None:"),
    "any b": ("frame.py", "if not b <= int(head[2]) <= n:", "if False:"),
    "short write not continued": ("disk.py", "    while written < len(data):", "    while False:"),
    "sync error swallowed": ("barrier.py", "            self.error = error", "            pass"),
    "sync retried": ("barrier.py", "            self.error = error", "            disk.sync(handle)"),
    "write error not cut back": (
        "file.py",
        "            self._disk.truncate(self._handle, self._size)\n",
        "            pass\n",
    ),
    "a failed write is tried again behind its rest": (
        "file.py",
        "            write_all(self._disk, self._handle, data)\n        except OSError as error:\n",
        "            try:\n                write_all(self._disk, self._handle, data)\n            except OSError:\n"
        "                write_all(self._disk, self._handle, data)\n        except OSError as error:\n",
    ),
    "a torn end is repaired by a newline": (
        "file.py",
        "_set_aside(disk, directory, handle, cursor) if cursor.flaw else None\n            disk.sync",
        "write_all(disk, handle, b'\\n') if cursor.flaw else None\n            disk.sync",
    ),
    "not poisoned": (
        "file.py",
        "        if self._poison is not None:\n            raise",
        "        if False:\n            raise",
    ),
    "a barrier covers what came later": (
        "file.py",
        "self._synced, self._synced_size = barrier.head, barrier.size",
        "self._synced, self._synced_size = self._head, self._size",
    ),
    "waiters are not told of another barrier": (
        "file.py",
        "        while self._synced < target:",
        "        if self._synced < target:",
    ),
    "later lines only at newlines": (
        "frame.py",
        "for head in HEAD.finditer(segment):",
        "for head in filter(None, [HEAD.match(segment)]):",
    ),
    "any later line is proof": ("frame.py", "if not n < later_b <= later_n:", "if later_n <= n:"),
    "equal b is proof": ("frame.py", "if not n < later_b <= later_n:", "if not n <= later_b <= later_n:"),
    "later lines are not looked for": ("reader.py", "    if later is None:\n", "    if True:\n"),
    "later lines are not verified": ("frame.py", 'if tail[1] == b"%08x" % crc32(raw):', "if True:"),
    "verification begins at the snapshot only": (
        "reader.py",
        "        if snapshot.b == snapshot.n:\n",
        "        if True:\n",
    ),
    "a snapshot is not verified": (
        "reader.py",
        "        for line in walk(blocks(disk, handle, start), cursor):\n            return before, line\n",
        '        return before, next(blocks(disk, handle, start)).split(b"\\n")[0]\n',
    ),
    "no lock": ("disk.py", "            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n", "            pass\n"),
    "newer formats are read": ("reader.py", "and claims.format > FORMAT", "and False"),
    "b is not kept while syncing": (
        "file.py",
        "self._head, self._synced + 1, self._crc",
        "self._head, self._head + 1, self._crc",
    ),
    "a fork re-encodes": (
        "store.py",
        "body(line) if n else",
        "msgspec.json.encode(msgspec.json.decode(line))[1:-1] if n else",
    ),
    "a fork is not verified first": (
        "store.py",
        "        for _ in self._lines(source, cursor):\n            pass\n        if not 0",
        "        for _ in self._lines(source, cursor):\n            if cursor.n > seq:\n                break\n"
        "        if not 0",
    ),
}

MUTANTS = {name: (f"journal/{file}", old, new) for name, (file, old, new) in _JOURNAL.items()} | LOOP

LAST = ["tests/crash/test_real_kills.py", "tests/crash/test_cli_kills.py"]
LEFT_OUT = ["test_mutants.py", "test_promises.py", "test_block_device.py", "test_large.py"]
CRASH = [
    name
    for path in sorted((ROOT / "tests" / "crash").glob("test_*.py"))
    if (name := f"tests/crash/{path.name}") not in LAST and path.name not in LEFT_OUT
]
LOOP_FIRST = ["tests/crash/test_loop_power.py", "tests/crash/test_stuck_disk.py", "tests/crash/test_pure_core.py"]
TESTS = {
    "journal": ["tests/journal", *CRASH, *LAST],
    "session": [*LOOP_FIRST, "tests/session", *CRASH, *LAST],
    "core": [*LOOP_FIRST, "tests/core", "tests/session", *CRASH, *LAST],
}
"""Where a fault of each part is looked for, the quick tests first."""

NONE = "no fault at all"
LIMIT = "nothing but the time limit"

HANG = 120
"""Seconds after which one test counts as hanging: a fault that makes it hang is noticed by it."""


def mutate(name: str, package: Path) -> None:
    """Put the fault into a copy of the package. Raises LookupError if its place is gone."""
    file, old, new = MUTANTS[name]
    path = package / file
    text = path.read_text(encoding="utf-8")
    if old not in text:
        raise LookupError(f"{name}: {file} has no {old!r} any more")
    path.write_text(text.replace(old, new), encoding="utf-8")


def noticed(name: str) -> str:
    """The test that noticed the fault; "" where none did."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src" / "latchstep"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if name != NONE:
            mutate(name, copy)
        environment = {**os.environ, "PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=1"]
        command += ["--basetemp", f"{folder}/tests"]
        command += ["-o", f"faulthandler_timeout={HANG}", "-o", "faulthandler_exit_on_timeout=true"]
        command += TESTS[MUTANTS[name][0].partition("/")[0]] if name != NONE else ["tests/journal", *TESTS["core"]]
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=600, check=False)
        except subprocess.TimeoutExpired:
            return LIMIT
    said = done.stdout.decode()
    end = done.stderr.decode() + said
    if "Timeout (" in end and (hung := re.search(r"tests/(\S+)\", line \d+ in (test_\w+)", end)):
        return f"tests/{hung[1]}::{hung[2]} hangs"
    if done.returncode not in {0, 1} or "ERROR collecting" in said:
        raise RuntimeError(end)
    found = re.search(r"^(?:FAILED|ERROR) (tests\S+)", said, re.MULTILINE)
    return found[1] if found else ""


if __name__ == "__main__":
    wanted = sys.argv[1:] or list(MUTANTS)
    if by := noticed(NONE):
        sys.exit(f"without any fault the tests fail: {by}")
    missed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, by in zip(wanted, pool.map(noticed, wanted), strict=True):
            missed += by in ("", LIMIT)
            print(f"{'MISSED ' if by in ('', LIMIT) else 'noticed'}  {mutant}: {by}", flush=True)
    sys.exit(1 if missed else 0)
