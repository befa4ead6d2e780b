"""Each test that the pages of promises name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "least"), [("crash-safety.md", 20), ("compaction.md", 10), ("rewind.md", 10), ("security.md", 10)]
)
def test_the_page_names_tests_that_exist(name: str, least: int) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    current, named = "", 0
    for file, names in re.findall(r"`(test_\w+\.py)?((?:::\w+)*)`", page):
        current = file or current
        if file:
            assert file in files
        for test in names.split("::")[1:]:
            assert re.search(rf"^\s*(?:def|class) {test}\b", files[current], re.MULTILINE), f"{current} has no {test}"
            named += 1
    assert named > least
