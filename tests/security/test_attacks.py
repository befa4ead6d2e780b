"""Every attack at every level, as root and as a user: the goal is not reached, and honest work still works.

At level `none` the same attacks are run to see that they would reach their goal: a test that cannot fail proves
nothing.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from latchstep.tool.sandbox import NOT_COVERED
from latchstep.tool.startfiles import changed_start_files

from .attacks import ATTACKS, NEVER, Attack
from .conftest import Grounds
from .ground import IDENTITIES, LEVELS, Ground

ONLY_ROOT = {"open by handle", "/etc/shadow", "knobs of the kernel", "rights", "the spawner's memory",
             "the spawner's descriptors"}  # fmt: skip
"""Attacks that a user fails at without any sandbox."""
MAY_BE_ABSENT = {"ptrace", "user namespace", "odd socket families", "io_uring", "calls of the x32 table", "TCP",
                 "environment of the parent", "environment of everybody", "clone with CLONE_NEWUSER",
                 "knobs of the kernel", "open by handle", "memory filled by files"}  # fmt: skip
"""What the machine itself may forbid."""


def name_of(attack: Attack) -> str:
    return "-".join([*map(str, attack.rows), attack.name.replace(" ", "_")])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("attack", ATTACKS, ids=name_of)
def test_an_attack_does_not_reach_its_goal(attack: Attack, identity: str, level: str, ground_of: Grounds) -> None:
    ground = ground_of(identity, level)
    ground.restore()
    since = time.time() - 0.01  # the clock of files is a little behind
    try:
        ended = ground.run(attack.script)
        if attack.after:
            ground.git(*attack.after.split())
        reached = attack.reached(ground, ended)
        listed, _ = changed_start_files(ground.root, since)
        honest = ground.run("echo fine > honest && cat honest && python3 -c 'print(40 + 2)'")
    finally:
        put_back(ground, attack)
    assert (honest.status, honest.out) == (0, "fine\n42\n"), "honest work still works"
    if level == "none" and attack.escapes is not NEVER:
        weak = identity == "user" and attack.name in ONLY_ROOT
        assert reached or weak or attack.name in MAY_BE_ABSENT, f"the attack itself does not work: {ended}"
    elif level not in attack.escapes:
        assert not reached, ended
    elif reached and attack.after:
        assert listed, "what the level lets through is listed at the end of the run"


def put_back(ground: Ground, attack: Attack) -> None:
    (ground.base / "ran").unlink(missing_ok=True)
    ground.restore()
    if "git" in attack.script or ".latchstep" in attack.script:
        ground.end_sandbox()
        ground.run_outside("rm -rf .git .latchstep x forged && git init -q .")
        ground.git("commit", "-q", "--allow-empty", "-m", "first")
    ground.clean()


ELSEWHERE = {
    20: "test_new_repositories_hooks_and_settings_are_listed_at_the_end",
    29: "test_a_daemon_ends_with_the_sandbox",
    34: "test_attack_34_only_regular_files_and_never_a_wait",
    35: "test_processes_files_and_dumps_are_bounded",
    36: "test_a_look_at_a_hostile_repository_runs_nothing",
    **dict.fromkeys((37, 38, 39, 40), "test_no_command_is_allowed_by_its_name_or_its_beginning"),
    **dict.fromkeys((41, 42, 43, 44), "test_b73_every_spoof_is_visible"),
    45: "test_a_grant_is_bound_to_what_was_shown",
    46: "test_attack_46_writes_stay_inside_while_something_is_swapped",
    48: "test_a_guard_that_the_host_detached_is_set_up_again_before_the_next_command",
    51: "test_output_that_a_command_forges_or_truncates_stays_on_record",
}
"""Rows that no script with a goal tells, and the tests of them."""


def test_every_row_of_the_list_is_tried() -> None:
    assert {row for attack in ATTACKS for row in attack.rows} | set(ELSEWHERE) == set(range(1, 52))
    text = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    defined = set(re.findall(r"^(?:async )?def (test_\w+)", text, re.M))
    assert set(ELSEWHERE.values()) <= defined


def test_what_landlock_lets_through_is_said() -> None:
    for word in ("hooks", "mode and times", "arguments and priorities of other processes"):
        assert word in NOT_COVERED["landlock"]
