"""Power cuts on a real kernel: a file system on a loop device is shut down in the middle of the work, as `godown` does.

Whatever was not on the device is gone then, data and metadata alike. Needs root, loop devices and `mkfs.ext4`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from latchstep.core.event import ClockPassed, SessionCreated
from latchstep.journal.file import FileJournal
from tests.cli.cli_kit import wait_for

from .storm import beneath
from .tally import case, many
from .test_crash_process import WRITER, child
from .test_real_kills import Victims, judge

SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, `_IOR('X', 125, __u32)`."""
WITHOUT_FLUSH = struct.pack("I", 2)
"""EXT4_GOING_FLAGS_NOLOGFLUSH: nothing more is written, not even what is ready to be."""


class Device:
    """A file system of its own in an image file. `cut` is the power cut, and the boot after it."""

    def __init__(self, folder: Path) -> None:
        self.mounted, image = folder / "mounted", folder / "image"
        self.mounted.mkdir()
        with image.open("wb") as file:
            file.truncate(64 << 20)
        self._run("mkfs.ext4", "-q", "-F", str(image))
        self._loop = self._run("losetup", "-f", "--show", str(image))
        try:
            self._run("mount", self._loop, str(self.mounted))
        except OSError:
            self._run("losetup", "-d", self._loop)
            raise

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def cut(self, pid: int) -> None:
        """The process stops where it is, then nothing more reaches the device, then the process is gone.

        In this order: an `fdatasync` that is under way when ext4 is shut down may return success falsely (a bare
        loop of write and fdatasync shows it); whoever lost power never sees it return.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: all(state in "TDZX" for state in states(pid)), "the end of every step")
        handle = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, WITHOUT_FLUSH)
        finally:
            os.close(handle)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def boot(self) -> None:
        self._run("umount", str(self.mounted))
        wait_for(self._booted, "the end of the old mount")

    def _booted(self) -> bool:
        """Mounted anew; a mount namespace made meanwhile may hold on to the old one, which takes nothing."""
        self._run("mount", self._loop, str(self.mounted))
        try:
            (self.mounted / "probe").write_text("")
        except OSError:
            self._run("umount", str(self.mounted))
            return False
        return True

    def close(self) -> None:
        self._run("umount", str(self.mounted))
        self._run("losetup", "-d", self._loop)


def states(pid: int) -> list[str]:
    """What each thread of a process does, as /proc says it: `T` is stopped, `D` in the kernel."""
    found = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            found.append(stat.read_text().rpartition(")")[2].split()[0])
    return found


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    if os.geteuid() != 0:
        pytest.skip("power cuts on a real kernel need root, to mount a file system")
    if not Path("/dev/loop-control").exists():
        pytest.skip("power cuts on a real kernel need loop devices: there is no /dev/loop-control")
    if shutil.which("mkfs.ext4") is None or shutil.which("losetup") is None:
        pytest.skip("power cuts on a real kernel need mkfs.ext4 and losetup")
    try:
        made = Device(tmp_path)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield made
    made.close()


def test_what_was_acknowledged_survives_a_shutdown_of_the_file_system(device: Device) -> None:
    home, random = device.mounted / "deep" / "s", Random(3)
    FileJournal.create(home, SessionCreated(session_id="s")).close()
    for number in range(many(3, 30)):
        lazy = device.mounted / f"never synced {number}"
        with child(WRITER, home) as writer:
            assert writer.stdout is not None
            acknowledged = [int(writer.stdout.readline()) for _ in range(random.randrange(1, 12))]
            lazy.write_text("a power cut loses this")
            device.cut(writer.pid)
            acknowledged += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
        device.boot()
        assert not lazy.exists() or not lazy.read_text(), "it was no power cut"
        with FileJournal.open(home) as journal:
            assert journal.head >= acknowledged[-1], "an acknowledged record is gone"
            events = list(journal.read())
        assert [event.seq for event in events] == list(range(journal.head + 1))
        for event in events[1:]:
            assert isinstance(event, ClockPassed)
            assert (event.seconds, len(event.limit)) == (event.seq, (event.seq - 1) % 700)
        case()


def test_a_run_cut_off_with_its_file_system_repeats_no_effect(device: Device, tmp_path: Path) -> None:
    """The ledger of effects lies on another file system, which goes on."""
    random = Random(4)
    for number in range(many(3, 30)):
        (tmp_path / str(number)).mkdir()
        victims = Victims(tmp_path / str(number))
        place = device.mounted / f"home-{number}", victims.place()[1]
        cutting = threading.Thread(target=_cut_child, args=(device, victims.pid, random.uniform(0.0, 0.15)))
        cutting.start()
        victims.live(place, "none", may_fail=True)
        cutting.join()
        victims.close()
        device.boot()
        victims = Victims(tmp_path / str(number))
        victims.live(place, "none")
        judge(place, shown=False)
        victims.close()
        case()


def _cut_child(device: Device, pid: int, seconds: float) -> None:
    """So long after the process has one."""
    (child, *_) = wait_for(lambda: beneath(pid))
    time.sleep(seconds)
    device.cut(child)
