"""What of the accepted messages the next request delivers, in their order.

Part of `decide`, and pure like it. Nothing is ever delivered out of order among messages of one kind.
"""

from __future__ import annotations

from .parts import Queued
from .rules import Limits
from .state import State


def due(state: State, limits: Limits) -> list[Queued]:
    """While the run has more to do. Its opening delivers all that was left over, with what it was begun with."""
    if not state.turn and state.request is None and state.answered is None:
        return state.queue
    said = [item for item in state.queue if item.source != "follow_up"]
    return said if limits.steering == "all" else _first(said, "steer")


def due_at_end(state: State, limits: Limits) -> list[Queued]:
    """Where the run would otherwise end: follow-ups too, when nothing else waits."""
    if urgent := due(state, limits):
        return urgent
    return state.queue if limits.follow_ups == "all" else state.queue[:1]


def _first(items: list[Queued], source: str) -> list[Queued]:
    """All of them, but of this source the first only."""
    first = next((item for item in items if item.source == source), None)
    return [item for item in items if item.source != source or item is first]
