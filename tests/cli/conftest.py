"""A bare machine for each test of the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cli_kit import Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    machine = Home(tmp_path)
    yield machine
    machine.close()
