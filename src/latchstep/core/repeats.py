"""Is the model going round in circles? Turns that made the same calls with the same results, in patterns.

A turn is known by a digest of its calls and what they gave: other arguments or other results are no repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from .parts import OpenCall

MAX_PERIOD = 4
"""Longest pattern of turns in which a repetition is noticed."""

_SORTED = msgspec.json.Encoder(order="sorted")


def noted(turns: list[str], streaks: list[int], turn: Sequence[OpenCall]) -> tuple[list[str], list[int]]:
    """The latest turns, and for each length of a pattern how many of them in a row fit it, with this one."""
    said = [(entry.call.name, entry.call.arguments, entry.result and entry.result.content) for entry in turn]
    mark = blake2b(_SORTED.encode(said), digest_size=8).hexdigest()
    if mark in turns:
        same = [len(turns) >= period and turns[-period] == mark for period in range(1, MAX_PERIOD + 1)]
        streaks = [streak + 1 if again else 0 for streak, again in zip(streaks, same, strict=True)]
    else:
        streaks = [0] * MAX_PERIOD
    return [*turns[1 - MAX_PERIOD :], mark], streaks


def longest(streaks: Sequence[int]) -> int:
    """How often the latest pattern has now been seen in a row."""
    return max(1 + streak // period for period, streak in enumerate(streaks, 1))
