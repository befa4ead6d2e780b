"""How much the crash tests try: the reduced set by default, the full one with `CRASH=full` (`make crash`).

A test that tries many cases counts them with `case`; `conftest.py` sums them up by row, with the CPU they took.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TypeVar

T = TypeVar("T")

FULL = os.environ.get("CRASH") == "full"

ROWS = {
    "truncation": 8500,
    "SIGKILL": 1300,
    "the program killed": 100,
    "power cut": 4400,
    "errors": 650,
    "rot": 4300,
    "state machine": 1000,
    "pure core": 10_000,
    "block device": 1,
    "large journals": 1,
}
"""The rows, and how many cases the full set has at least."""

MODULES = {
    "test_crash_truncation": "truncation",
    "test_crash_process": "SIGKILL",
    "test_real_kills": "SIGKILL",
    "test_cli_kills": "the program killed",
    "test_crash_power": "power cut",
    "test_loop_power": "power cut",
    "test_crash_errors": "errors",
    "test_stuck_disk": "errors",
    "test_crash_rot": "rot",
    "test_crash_machine": "state machine",
    "test_pure_core": "pure core",
    "test_output": "pure core",
    "test_own": "power cut",
    "test_block_device": "block device",
    "test_large": "large journals",
}

cases: Counter[str] = Counter()
cpu: Counter[str] = Counter()
now = ""
"""The row of the test that runs."""


def many(reduced: T, full: T) -> T:
    """One or the other, by what was asked for."""
    return full if FULL else reduced


def case(number: int = 1, row: str = "") -> None:
    """So many cases were tried, of this row or of the module's."""
    cases[row or now] += number
