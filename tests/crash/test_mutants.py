"""The faults in `mutants.py` each name a place that exists. To run them: `python -m tests.crash.mutants`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.crash.mutants import MUTANTS, PACKAGE, mutate


@pytest.mark.parametrize("name", MUTANTS)
def test_the_fault_has_its_place(name: str, tmp_path: Path) -> None:
    file = MUTANTS[name][0]
    (tmp_path / file).parent.mkdir()
    shutil.copy(PACKAGE / file, tmp_path / file)
    mutate(name, tmp_path)
