"""What is taken for a script that only reads and prints is one to sed itself."""

from __future__ import annotations

import random
import shutil
import subprocess

import pytest

from latchstep.policy.scripts import only_prints
from latchstep.policy.words import Word

PIECES = ["a", "\\", "[", "]", "^", "e", "w", "[^]", "\n", ";", "[:a:]", "&", "/", "\\/", "]/", "[/"]
ENDS = ["", "g", "e", "2g", "w", "I", ";p", ";e", "\ne x"]


def made(seed: int) -> str:
    """A substitution that may hide more than it seems."""
    dice = random.Random(seed)
    mark = dice.choice("/|,#")
    sought, put = ("".join(dice.choices([*PIECES, mark], k=dice.randint(0, 4))) for _ in range(2))
    return f"{dice.choice(['', '1', '$!', f'/{put}/'])}s{mark}{sought}{mark}{put}{mark}{dice.choice(ENDS)}"


@pytest.mark.skipif(shutil.which("sed") is None, reason="no sed")
def test_sed_finds_nothing_that_runs_or_writes_in_what_is_covered() -> None:
    scripts = [made(seed) for seed in range(4000)]
    covered = [script for script in scripts if only_prints((Word("sed"), Word(script)))]
    assert len(covered) > 300
    for script in [script for script in covered if "e" in script or "w" in script][:150]:
        done = subprocess.run(
            ["sed", "--sandbox", "-n", script, "/dev/null"], capture_output=True, text=True, check=False, timeout=60
        )
        assert "sandbox" not in done.stderr, script
    assert "sandbox" in subprocess.run(["sed", "--sandbox", "1e x"], capture_output=True, text=True).stderr  # noqa: PLW1510
