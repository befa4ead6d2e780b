"""The program itself, killed at random and at chosen moments, also while it resumes: see `storm.py` for the judge."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from .storm import LINES, Kill, Storm, drawn
from .tally import case, many


@pytest.mark.parametrize("seed", range(many(2, 40)))
def test_killed_at_random_and_while_it_resumes(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    case(Storm(tmp_path, seed).rage([drawn(random) for _ in range(5)]))


@pytest.mark.parametrize("line", many([16, 40], list(range(1, LINES, 2))))
def test_killed_when_a_line_was_seen_and_again_while_it_resumes(tmp_path: Path, line: int) -> None:
    case(Storm(tmp_path, f"at line {line}").rage([Kill("line", line), Kill("line", line // 4 + 1)]))


@pytest.mark.parametrize("which", many([0.0, 0.9], [0.0, 0.2, 0.4, 0.6, 0.9]))
@pytest.mark.parametrize("line", many([30], [20, 30, 45, 55]))
def test_guard_worker_and_shells_killed_with_and_without_their_owner(tmp_path: Path, line: int, which: float) -> None:
    storm = Storm(tmp_path, f"{which} at {line}")
    case(storm.rage([Kill("tools and owner", line, which), Kill("tools", line // 3, which)]))
    assert storm.kills
