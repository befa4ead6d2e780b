"""The modes, and that a rule grants what was shown and no more."""

from __future__ import annotations

import pytest

from latchstep.core.message import ToolCall
from latchstep.core.rules import Traits
from latchstep.errors import DefinitionError
from latchstep.policy.preset import preset

READ, WRITE = Traits("read", "safe"), Traits()


def bash(command: str) -> ToolCall:
    return ToolCall("c", "bash", {"command": command})


@pytest.mark.parametrize(
    ("mode", "read", "edit", "command"),
    [
        ("plan", "run", "refuse", "refuse"),
        ("ask", "run", "ask", "ask"),
        ("edits", "run", "run", "ask"),
        ("unconfined", "run", "run", "run"),
    ],
)
def test_each_mode(mode: str, read: str, edit: str, command: str) -> None:
    policy = preset(mode)  # type: ignore[arg-type]
    assert policy(ToolCall("c", "read", {"path": "x"}), READ).kind == read
    assert policy(ToolCall("c", "edit", {"path": "x"}), WRITE).kind == edit
    assert policy(bash("ls"), WRITE).kind == command


def test_auto_refuses_to_start_without_a_sandbox() -> None:
    with pytest.raises(DefinitionError, match="sandbox"):
        preset("auto")


def test_an_unknown_mode_is_named() -> None:
    with pytest.raises(DefinitionError, match="yolo"):
        preset("yolo")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "command",
    [
        "git status && rm -rf x",
        "git status; rm x",
        "git status\nrm x",
        "git statusfoo",
        " git status",
        "git  status",
        "git status ",
    ],
)
def test_b70_an_allowed_command_is_that_string_and_nothing_else(command: str) -> None:
    policy = preset("ask", ["git status"])
    assert policy(bash("git status"), WRITE).kind == "run"
    assert policy(bash(command), WRITE).kind == "ask"


def test_plan_mode_runs_not_even_an_allowed_command() -> None:
    assert preset("plan", ["ls"])(bash("ls"), WRITE).kind == "refuse"


def test_where_nobody_can_be_asked_the_refusal_says_what_would_have_allowed_it() -> None:
    policy = preset("ask", asks=False)
    refused = policy(bash("make test"), WRITE)
    assert refused.kind == "refuse"
    assert "--allow 'make test'" in refused.text
    assert "--mode edits" in policy(ToolCall("c", "write", {}), WRITE).text
    assert "unconfined" in policy(ToolCall("c", "other", {}), WRITE).text
