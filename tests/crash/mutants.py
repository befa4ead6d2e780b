"""Deliberate faults in the journal and the loop, each of which the tests must notice: a test of the tests.

    python -m tests.crash.mutants [NAME …]

copies the package aside, changes one place, and runs the test that must fail then. Exits with 1 if any fault goes
unnoticed there. `test_mutants.py` checks that every fault names a place and a test that exist.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.crash.loop_mutants import LOOP

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "latchstep"

_JOURNAL: dict[str, tuple[str, str, str, str]] = {
    "no fsync at all": (
        "barrier.py",
        "            disk.sync(handle)\n",
        "            pass\n",
        "crash/test_crash_power.py::test_what_was_acknowledged_survives_every_power_cut",
    ),
    "no fsync on open": (
        "file.py",
        "            disk.sync(handle)  #",
        "            pass  #",
        "crash/test_crash_power.py::test_what_an_opening_acted_on_survives_the_next_power_cut",
    ),
    "no directory fsync": (
        "disk.py",
        "    disk.sync_directory(path.parent)\n",
        "    pass\n",
        "crash/test_crash_power.py::test_a_session_whose_first_sync_returned_is_there",
    ),
    "no fsync of the new file's entry": (
        "file.py",
        "            disk.sync_directory(directory)\n",
        "",
        "crash/test_crash_power.py::test_a_session_whose_first_sync_returned_is_there",
    ),
    "no fsync of a blob": (
        "blob.py",
        "        disk.sync(handle)\n",
        "",
        "crash/test_crash_power.py::test_a_session_whose_first_sync_returned_is_there",
    ),
    "no fsync of a blob's entry": (
        "blob.py",
        "    disk.sync_directory(folder)\n",
        "",
        "crash/test_crash_power.py::test_a_session_whose_first_sync_returned_is_there",
    ),
    "no fsync of a copy": (
        "store.py",
        "            self._disk.sync(writing)\n        finally",
        "        finally",
        "journal/test_store.py::TestFork::test_a_fork_is_there_whole_or_not_at_all",
    ),
    "skip bad lines": (
        "frame.py",
        "                if not cursor.accept(line):\n                    return\n",
        "                if not cursor.accept(line):\n                    continue\n",
        "crash/test_crash_rot.py::test_each_line_duplicated_deleted_or_swapped",
    ),
    "torn tail not cut": (
        "file.py",
        "    disk.truncate(handle, cursor.offset)\n",
        "",
        "journal/test_file_journal.py::TestOpen::test_a_torn_end_is_kept_cut_and_said",
    ),
    "torn tail not kept": (
        "file.py",
        "            write_all(disk, copy, block)\n",
        "            pass\n",
        "journal/test_file_journal.py::TestOpen::test_a_torn_end_is_kept_cut_and_said",
    ),
    "a missing newline is fine": (
        "frame.py",
        '    if carried:\n        cursor.flaw = "it has no newline"',
        '    if carried and not cursor.accept(b"".join(carry)):\n        cursor.flaw = "torn"',
        "journal/test_frame.py::test_what_is_wrong_with_a_line_is_said",
    ),
    "checksum not checked": (
        "frame.py",
        'if not line.endswith(b\',"crc":"%08x"}\' % crc32(line[:-_TAIL_SIZE])):',
        "if len(line) < 30:",
        "journal/test_frame.py::test_what_is_wrong_with_a_line_is_said",
    ),
    "checksum compared as a number": (
        "frame.py",
        'if not line.endswith(b\',"crc":"%08x"}\' % crc32(line[:-_TAIL_SIZE])):',
        'if not line[-10:-2].isalnum() or int(line[-10:-2], 36) != int(b"%08x" % crc32(line[:-_TAIL_SIZE]), 36):',
        "journal/test_frame.py::test_what_is_wrong_with_a_line_is_said",
    ),
    "no chain": (
        "frame.py",
        "if head[3] != self.p:",
        "if False:",
        "journal/test_frame.py::test_what_is_wrong_with_a_line_is_said",
    ),
    "no sequence": (
        "frame.py",
        "if head is None or int(head[1]) != n:",
        "if head is None:",
        "journal/test_frame.py::test_what_is_wrong_with_a_line_is_said",
    ),
    "any b": (
        "frame.py",
        "if not b <= int(head[2]) <= n:",
        "if False:",
        "journal/test_frame.py::test_what_is_wrong_with_a_line_is_said",
    ),
    "short write not continued": (
        "disk.py",
        "    while written < len(data):",
        "    while False:",
        "crash/test_crash_errors.py::test_short_writes_are_continued_at_every_length",
    ),
    "sync error swallowed": (
        "barrier.py",
        "            self.error = error",
        "            pass",
        "crash/test_crash_errors.py::test_a_failed_sync_cuts_back_to_the_last_synced_byte_and_is_never_retried",
    ),
    "sync retried": (
        "barrier.py",
        "            self.error = error",
        "            disk.sync(handle)",
        "crash/test_crash_errors.py::test_a_failed_sync_cuts_back_to_the_last_synced_byte_and_is_never_retried",
    ),
    "write error not cut back": (
        "file.py",
        "            self._disk.truncate(self._handle, self._size)\n",
        "            pass\n",
        "crash/test_crash_errors.py::test_a_failed_write_leaves_nothing_at_every_length",
    ),
    "a failed write is tried again behind its rest": (
        "file.py",
        "            write_all(self._disk, self._handle, data)\n        except OSError as error:\n",
        "            try:\n                write_all(self._disk, self._handle, data)\n            except OSError:\n"
        "                write_all(self._disk, self._handle, data)\n        except OSError as error:\n",
        "crash/test_crash_errors.py::test_a_failed_write_leaves_nothing_at_every_length",
    ),
    "a torn end is repaired by a newline": (
        "file.py",
        "_set_aside(disk, directory, handle, cursor) if cursor.flaw else None\n            disk.sync",
        "write_all(disk, handle, b'\\n') if cursor.flaw else None\n            disk.sync",
        "crash/test_crash_truncation.py::test_b50_exactly_the_complete_prefix_comes_back",
    ),
    "not poisoned": (
        "file.py",
        "        if self._poison is not None:\n            raise",
        "        if False:\n            raise",
        "crash/test_crash_errors.py::test_a_failed_write_leaves_nothing_at_every_length",
    ),
    "a barrier covers what came later": (
        "file.py",
        "self._synced, self._synced_size = barrier.head, barrier.size",
        "self._synced, self._synced_size = self._head, self._size",
        "journal/test_file_journal.py::TestSync::test_callers_share_a_barrier_only_if_it_covers_them",
    ),
    "waiters are not told of another barrier": (
        "file.py",
        "        while self._synced < target:",
        "        if self._synced < target:",
        "journal/test_file_journal.py::TestSync::test_callers_share_a_barrier_only_if_it_covers_them",
    ),
    "a file that another program changed is written on": (
        "file.py",
        "        if barrier.error is None and barrier.size <= barrier.found <= self._size:\n",
        "        if barrier.error is None:\n",
        "journal/test_file_journal.py::TestSync::test_a_file_that_another_program_changed_takes_nothing_more",
    ),
    "later lines only at newlines": (
        "frame.py",
        "for head in HEAD.finditer(segment):",
        "for head in filter(None, [HEAD.match(segment)]):",
        "journal/test_frame.py::TestFindAcknowledged::test_each_line_bad",
    ),
    "any later line is proof": (
        "frame.py",
        "if not n < later_b <= later_n:",
        "if later_n <= n:",
        "journal/test_frame.py::TestFindAcknowledged::test_each_line_bad",
    ),
    "equal b is proof": (
        "frame.py",
        "if not n < later_b <= later_n:",
        "if not n <= later_b <= later_n:",
        "journal/test_frame.py::TestFindAcknowledged::test_each_line_bad",
    ),
    "later lines are not looked for": (
        "reader.py",
        "    if later is None:\n",
        "    if True:\n",
        "crash/test_crash_rot.py::test_two_bits_of_every_byte",
    ),
    "later lines are not verified": (
        "frame.py",
        'if tail[1] == b"%08x" % crc32(raw):',
        "if True:",
        "journal/test_frame.py::TestFindAcknowledged::test_a_bad_line_proves_nothing",
    ),
    "verification begins at the snapshot only": (
        "reader.py",
        "        if snapshot.b == snapshot.n:\n",
        "        if True:\n",
        "crash/test_crash_truncation.py::test_a_lazy_group_is_cut_where_it_tore_even_behind_a_snapshot_that_arrived",
    ),
    "a snapshot is not verified": (
        "reader.py",
        "        for line in walk(blocks(disk, handle, start), cursor):\n            return before, line\n",
        '        return before, b"".join(blocks(disk, handle, start)).split(b"\\n")[0]\n',
        "crash/test_crash_rot.py::test_a_snapshot_that_claims_another_place_hides_nothing",
    ),
    "no lock": (
        "disk.py",
        "            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "            pass\n",
        "crash/test_crash_process.py::test_a_second_writer_is_refused_and_told_who_holds_it",
    ),
    "newer formats are read": (
        "reader.py",
        "and claims.format > FORMAT",
        "and False",
        "journal/test_file_journal.py::TestOpen::test_a_newer_format_is_refused_and_not_touched",
    ),
    "b is not kept while syncing": (
        "file.py",
        "self._head, self._synced + 1, self._crc",
        "self._head, self._head + 1, self._crc",
        "journal/test_file_journal.py::TestSync::test_a_barrier_covers_no_line_written_after_it_began",
    ),
    "a fork re-encodes": (
        "store.py",
        "body(line) if n else",
        "msgspec.json.encode(msgspec.json.decode(line))[1:-1] if n else",
        "journal/test_store.py::TestFork::test_bytes_are_copied_not_understood",
    ),
    "a fork is not verified first": (
        "store.py",
        "        for _ in self._lines(source, cursor):\n            pass\n        if not 0",
        "        for _ in self._lines(source, cursor):\n            if cursor.n > seq:\n                break\n"
        "        if not 0",
        "journal/test_store.py::TestFork::test_the_whole_source_is_verified_first",
    ),
}

MUTANTS = {name: (f"journal/{file}", *rest) for name, (file, *rest) in _JOURNAL.items()} | LOOP
"""By name: the file, what stands there, the fault, and the test (under `tests/`) that must notice it."""

LIMIT = 300
"""Seconds after which a test is ended; what only that ends was not noticed."""


def mutate(name: str, package: Path) -> None:
    """Put the fault into a copy of the package. Raises LookupError if its place is gone."""
    file, old, new, _ = MUTANTS[name]
    path = package / file
    text = path.read_text(encoding="utf-8")
    if old not in text:
        raise LookupError(f"{name}: {file} has no {old!r} any more")
    path.write_text(text.replace(old, new), encoding="utf-8")


def passed(tests: Collection[str], fault: str = "") -> bool:
    """Whether these tests pass on a copy of the package with this fault. One that does not end counts as passed."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src" / "latchstep"
        shutil.copytree(PACKAGE, copy)
        if fault:
            mutate(fault, copy)
        environment = {**os.environ, "PYTHONPATH": str(copy.parent), "HYPOTHESIS_STORAGE_DIRECTORY": folder}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=1"]
        command += ["--basetemp", f"{folder}/tests", *(f"tests/{test}" for test in sorted(tests))]
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT, check=False)
        except subprocess.TimeoutExpired:
            return True
    if done.returncode not in {0, 1} or b"ERROR collecting" in done.stdout:
        raise RuntimeError(f"{fault}:\n{(done.stdout + done.stderr).decode()}")
    return done.returncode == 0


def noticed(name: str) -> bool:
    return not passed([MUTANTS[name][3]], name)


if __name__ == "__main__":
    wanted = sys.argv[1:] or list(MUTANTS)
    if not passed({MUTANTS[name][3] for name in wanted}):
        sys.exit("the tests fail without any fault")
    missed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, found in zip(wanted, pool.map(noticed, wanted), strict=True):
            missed += not found
            print(f"{'noticed' if found else 'MISSED '}  {mutant}: {MUTANTS[mutant][3]}", flush=True)
    print(f"{len(wanted) - missed} of {len(wanted)} faults were noticed")
    sys.exit(1 if missed else 0)
