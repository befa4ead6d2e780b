"""Two processes make their first sessions at once: neither fails for what the other has made meanwhile."""

from __future__ import annotations

from pathlib import Path

from latchstep.journal.disk import OsDisk, ensure_directory


class Busy(OsDisk):
    """A disk on which another process makes each directory between our finding it missing and our making it."""

    def __init__(self) -> None:
        self.missing: set[Path] = set()

    def make_directory(self, path: Path) -> None:
        if path in self.missing:
            path.mkdir()
        try:
            super().make_directory(path)
        except FileNotFoundError:
            self.missing.add(path)
            raise


def test_a_directory_that_another_process_makes_in_between_is_taken(tmp_path: Path) -> None:
    disk = Busy()
    ensure_directory(disk, tmp_path / "state" / "sessions" / "one")
    assert (tmp_path / "state" / "sessions" / "one").is_dir()
    assert len(disk.missing) == 2
