"""The faults in `mutants.py` each name a place and a test that exist. To run them: `python -m tests.crash.mutants`."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.crash.mutants import MUTANTS, PACKAGE, ROOT, mutate


@pytest.mark.parametrize("name", MUTANTS)
def test_the_fault_has_its_place(name: str, tmp_path: Path) -> None:
    file = MUTANTS[name][0]
    (tmp_path / file).parent.mkdir()
    shutil.copy(PACKAGE / file, tmp_path / file)
    mutate(name, tmp_path)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_test_that_must_notice_it_exists(name: str) -> None:
    file, *names = MUTANTS[name][3].partition("[")[0].split("::")
    here: Any = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    for part in names:
        here = next(node for node in here.body if getattr(node, "name", "") == part)
    assert isinstance(here, ast.FunctionDef)
