"""Power cuts on a real kernel: a file system on a loop device is shut down in the middle of the work, as `godown` does.

Whatever was not on the device is gone then, data and metadata alike. Needs root, loop devices and `mkfs.ext4`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from latchstep.core.event import ClockPassed, SessionCreated
from latchstep.journal.file import FileJournal

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

    def shut_down(self) -> None:
        handle = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, WITHOUT_FLUSH)
        finally:
            os.close(handle)

    def boot(self) -> None:
        self._run("umount", str(self.mounted))
        self._run("mount", self._loop, str(self.mounted))

    def close(self) -> None:
        self._run("umount", str(self.mounted))
        self._run("losetup", "-d", self._loop)


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
    for _ in range(many(4, 60)):
        with child(WRITER, home) as writer:
            assert writer.stdout is not None
            acknowledged = [int(writer.stdout.readline()) for _ in range(random.randrange(1, 12))]
            (device.mounted / "never synced").write_text("a power cut loses this")
            device.shut_down()
            acknowledged += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
            writer.kill()
        device.boot()
        lost = device.mounted / "never synced"
        assert not lost.exists() or not lost.read_text(), "it was no power cut"
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
    for number in range(many(4, 60)):
        (tmp_path / str(number)).mkdir()
        victims = Victims(tmp_path / str(number))
        place = device.mounted / f"home-{number}", victims.place()[1]
        timer = threading.Timer(random.uniform(0.15, 0.5) if number % 4 else 0.3, device.shut_down)
        timer.start()
        victims.live(place, "none", may_fail=True)
        timer.join()
        device.boot()
        victims.live(place, "none")
        judge(place, shown=False)
        victims.close()
        case()
