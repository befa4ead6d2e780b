"""Limits say what would be right; the careful answers are the defaults."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from latchstep.core.message import ToolCall
from latchstep.core.rules import RUN, Limits, Rules, Traits
from latchstep.errors import DefinitionError

OPTIONAL = (
    *(
        "max_tokens",
        "max_cost",
        "max_seconds",
        "max_tool_calls",
        "max_results",
        "max_output",
        "max_context",
        "approval_timeout",
    ),
    "warn_at",
)


@pytest.mark.parametrize("name", Limits.__struct_fields__)
def test_each_limit_refuses_what_it_cannot_be(name: str) -> None:
    bad: list[Any] = [-1, "1", True, float("nan"), [], *([] if name in OPTIONAL else [None])]
    for value in bad:
        with pytest.raises(DefinitionError) as raised:
            Limits(**{name: value})
        assert f"Limits.{name}" in str(raised.value)
        assert repr(value) in str(raised.value)
    if name in OPTIONAL:
        assert getattr(Limits(**{name: None}), name) is None


def test_limits_are_json_and_frozen() -> None:
    limits = Limits(max_steps=3, max_seconds=1.5)
    assert msgspec.convert(msgspec.to_builtins(limits), Limits) == limits
    with pytest.raises(AttributeError):
        limits.max_steps = 4  # type: ignore[misc]


def test_the_careful_answers_are_the_defaults() -> None:
    assert Traits() == Traits("write", "never", settles=False, alone=False)
    rules = Rules(judge=lambda call: RUN, traits=lambda name: Traits())
    assert (rules.on_doubt, rules.on_stale_approval, rules.checks) == ("report", "ask", ())
    assert rules.judge(ToolCall("c", "t")).kind == "run"
    assert not rules.known("t")
