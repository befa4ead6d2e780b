"""What a run has spent of what it may spend: which bound is reached, and which is so near that the model is told.

Part of `decide`, and pure like it. Bounds are looked at before each request, in the order given here.
"""

from __future__ import annotations

from collections.abc import Iterator

from .calls import held_back
from .parts import RunState
from .rules import Limits
from .state import State

Bound = tuple[str, float, float]
"""Name, value, limit."""

STOPPED = "stop_after_turn"
"""The bound that a person sets: no further request opens."""

FEW = 10
"""A bound on whole steps or calls below this is too near from the start for a warning to help."""


def _spent(run: RunState, limits: Limits) -> Iterator[Bound]:
    yield "max_steps", run.steps, limits.max_steps
    if limits.max_tokens is not None:
        yield "max_tokens", run.usage.total, limits.max_tokens
    if limits.max_cost is not None:
        yield "max_cost", float(run.cost or 0), limits.max_cost
    if limits.max_seconds is not None:
        yield "max_seconds", run.elapsed, limits.max_seconds
    if limits.max_results is not None:
        yield "max_results", run.results, limits.max_results
    if limits.max_tool_calls is not None:
        yield "max_tool_calls", run.tool_calls, limits.max_tool_calls


def over(state: State, run: RunState, limits: Limits) -> Bound | None:
    """The first bound that forbids another request. All calls may be used up, and the model still answers."""
    if run.stopping:
        return STOPPED, 1, 1
    reached = (bound for bound in _spent(run, limits) if bound[1] >= bound[2])
    return next((bound for bound in reached if bound[0] != "max_tool_calls" or held_back(state)), None)


def near(run: RunState, limits: Limits) -> Bound | None:
    """The first bound of which `warn_at` is used, and of which the model was not told in this run."""
    if limits.warn_at is None:
        return None
    for name, value, limit in _spent(run, limits):
        few = name in ("max_steps", "max_tool_calls") and limit < FEW
        if not few and name not in run.warned and limits.warn_at * limit <= value:
            return name, value, limit
    return None


def shown(number: float) -> str:
    """As a person writes it: without the noise of binary fractions, and never rounded to nothing."""
    return f"{number:.12g}"
