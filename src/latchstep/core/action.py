"""What must happen next, in the imperative: the answers of `decide`."""

from __future__ import annotations

from typing import Literal

import msgspec

from .event import Because, CompactBecause, Event


class CallModel(msgspec.Struct, frozen=True):
    """Ask the model, delivering the queued messages named in `carries`."""

    request_id: str
    attempt: int
    because: Because
    carries: tuple[str, ...] = ()


class Compact(msgspec.Struct, frozen=True):
    """Have the first `replaced` messages summarised, and put the summary in their place."""

    request_id: str
    attempt: int
    because: CompactBecause
    replaced: int


class Consult(msgspec.Struct, frozen=True):
    """Let the hooks before these calls look at them: each changes, refuses or keeps its call."""

    calls: tuple[str, ...]


class Ask(msgspec.Struct, frozen=True):
    """Prepare these calls and put the question to a person: may they run, or (`doubt`) run again?"""

    calls: tuple[str, ...]
    reasons: tuple[str, ...]
    about: Literal["run", "doubt"] = "run"


class RunTools(msgspec.Struct, frozen=True):
    """Record the intents, make them durable if any has effects, run them together."""

    calls: tuple[str, ...]


class Settle(msgspec.Struct, frozen=True):
    """Look up whether the effect of a lost call happened."""

    call: str


class Check(msgspec.Struct, frozen=True):
    index: int
    command: str


class Note(msgspec.Struct, frozen=True):
    """Nothing to do but to record what follows from what is known."""

    events: tuple[Event, ...]


class Wait(msgspec.Struct, frozen=True):
    """Nothing can happen by itself: no run is active, or a person must answer."""

    why: Literal["idle", "answer"]


Action = CallModel | Compact | Consult | Ask | RunTools | Settle | Check | Note | Wait
