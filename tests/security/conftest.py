"""Grounds to attack, one per identity and level, made when first used and shared within a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .ground import Ground, python_for

Grounds = Callable[[str, str], Ground]


@pytest.fixture(scope="module")
def ground_of() -> Iterator[Grounds]:
    """The ground of an identity and a level. Skips, and says why, where that does not work here."""
    made: dict[tuple[str, str], Ground | str] = {}

    def find(identity: str, level: str) -> Ground:
        key = (identity, level)
        if key not in made:
            made[key] = make(identity, level)
        found = made[key]
        if isinstance(found, str):
            pytest.skip(f"level {level} as {identity}: {found}")
        return found

    yield find
    for ground in made.values():
        if isinstance(ground, Ground):
            ground.close()


def make(identity: str, level: str) -> Ground | str:
    if python_for(identity) is None:
        return f"there is no Python here that a {identity} could run"
    ground = Ground(identity, level)
    problem = ground.ask(do="trial")["problem"] if level != "none" else ""
    if problem:
        ground.close()
    return problem or ground
