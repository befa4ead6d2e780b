"""Makes the examples importable, as they are when one of them runs as a script; a repository for the governed agent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Any]:
    from .s4 import Ground

    made = Ground(tmp_path)
    yield made
    made.close()
