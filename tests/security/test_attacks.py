"""Every attack at every level, as root and as a user: the goal is not reached, and honest work still works.

At level `none` the same attacks are run to see that they would reach their goal: a test that cannot fail proves
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from latchstep.tool.sandbox import NOT_COVERED
from latchstep.tool.traces import new_or_changed, traces

from .attacks import ATTACKS, NEVER, Attack
from .ground import IDENTITIES, LEVELS, Ground, python_for

WEAK_AS_USER = {"open by handle", "/etc/shadow", "knobs of the kernel", "rights",
                "the spawner's memory", "the spawner's descriptors"}  # fmt: skip
"""Attacks that need to be root, which a user fails at without any sandbox."""
MAY_BE_ABSENT = {"ptrace", "user namespace", "odd socket families", "io_uring", "calls of the x32 table", "TCP",
                 "environment of the parent", "environment of everybody", "clone with CLONE_NEWUSER"}  # fmt: skip
"""What the machine itself may forbid."""


@pytest.fixture(scope="module")
def grounds() -> Iterator[dict[tuple[str, str], Ground | str]]:
    made: dict[tuple[str, str], Ground | str] = {}
    yield made
    for ground in made.values():
        if isinstance(ground, Ground):
            ground.close()


def ground_of(grounds: dict[tuple[str, str], Ground | str], identity: str, level: str) -> Ground:
    """The ground, made when it is first used. Skips, and says why, where this level does not work here."""
    key = (identity, level)
    if key not in grounds:
        if python_for(identity) is None:
            grounds[key] = f"no Python here that a {identity} could run"
        else:
            ground = Ground(identity, level)
            problem = ground.ask(do="trial").get("problem", "") if level != "none" else ""
            grounds[key] = problem or ground
            if problem:
                ground.close()
    found = grounds[key]
    if isinstance(found, str):
        pytest.skip(f"level {level} as {identity}: {found}")
    return found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda it: "-".join([*map(str, it.rows), it.name.replace(" ", "_")]))
def test_an_attack_does_not_reach_its_goal(
    attack: Attack, identity: str, level: str, grounds: dict[tuple[str, str], Ground | str]
) -> None:
    ground = ground_of(grounds, identity, level)
    ground.restore()
    before = traces(str(ground.root))
    try:
        ended = ground.run(attack.script)
        if attack.after:
            ground.git(*attack.after.split())
        reached = attack.reached(ground, ended)
        after = traces(str(ground.root))
        honest = ground.run("echo fine > honest && cat honest && python3 -c 'print(40 + 2)'")
    finally:
        _put_back(ground, attack)
    assert (honest.status, honest.out) == (0, "fine\n42\n"), "honest work still works"
    if level == "none" and attack.escapes is not NEVER:
        weak = identity == "user" and attack.name in WEAK_AS_USER
        assert reached or weak or attack.name in MAY_BE_ABSENT, f"the attack itself does not work: {ended}"
    elif level not in attack.escapes:
        assert not reached, ended
    elif reached and attack.after:
        assert new_or_changed(before, after), "what the level lets through is listed at the end of the run"


def _put_back(ground: Ground, attack: Attack) -> None:
    (ground.base / "ran").unlink(missing_ok=True)
    ground.restore()
    if ".git" in attack.script or "git " in attack.script or ".latchstep" in attack.script:
        ground.end_sandbox()
        ground.run_outside("rm -rf .git .latchstep x forged && git init -q . && git config core.hooksPath .git/hooks")
        ground.git("commit", "-q", "--allow-empty", "-m", "first")
    ground.clean()


def test_every_row_of_the_list_is_tried() -> None:
    elsewhere = {20, 29, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 48, 51}
    assert {row for attack in ATTACKS for row in attack.rows} | elsewhere == set(range(1, 52))


def test_what_landlock_lets_through_is_said() -> None:
    for word in ("hooks", "mode and times", "arguments of other processes"):
        assert word in NOT_COVERED["landlock"]
    assert os.geteuid() >= 0
