"""Each test that the pages of promises name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page_name", ["crash-safety.md", "security.md"])
def test_the_page_names_tests_that_exist(page_name: str) -> None:
    page = (ROOT / "docs" / page_name).read_text(encoding="utf-8")
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    current, named = "", 0
    for file, names in re.findall(r"`(test_\w+\.py)?((?:::\w+)*)`", page):
        current = file or current
        if file:
            assert file in files
        for name in names.split("::")[1:]:
            assert re.search(rf"^\s*(?:def|class) {name}\b", files[current], re.MULTILINE), f"{current} has no {name}"
            named += 1
    assert named > 20
