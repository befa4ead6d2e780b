"""What holds for a run from outside: its limits, what each tool declares, and who may do what.

`decide` reads these and nothing else. `judge` is injected and pure: the same call gets the same verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from latchstep.errors import DefinitionError

from .event import Effect, Replay
from .message import Message, ToolCall

OnDoubt = Literal["report", "ask", "fail"]
OnStaleApproval = Literal["ask", "abandon"]
Questions = Literal["together", "in_turn"]
Delivery = Literal["all", "one"]

_MAY_BE_NONE = frozenset(
    {
        "max_tokens",
        "max_cost",
        "max_seconds",
        "max_tool_calls",
        "max_results",
        "max_output",
        "max_context",
        "warn_at",
        "approval_timeout",
    }
)
_FRACTIONS = frozenset(
    {"max_cost", "max_seconds", "warn_at", "tool_timeout", "approval_timeout", "stream_timeout", "grace", "compact_at"}
)
"""Bounds that need not be whole numbers."""
_FROM_ZERO = frozenset(
    {"max_ahead", "max_continuations", "max_empty", "max_check_rounds", "max_truncations", "max_corrections"}
)


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every bound of a run. None means no bound; seconds are monotonic and add up over resumes.

    max_steps: model turns. max_tokens: input and output together, as the provider counts them.
    max_cost: US dollars. max_seconds: wall time. max_tool_calls: calls started.
    max_results: characters of all results together, as they reach the model.
    warn_at: the share of these bounds at which the model is told once, before it is stopped; None never tells it.
    steering, follow_ups: how many waiting messages of the kind one request delivers, `all` or `one`.
    max_repeats: identical turns (calls and results) before the model is told; two more end the run.
    max_truncations: answers with calls cut by the token limit. max_continuations: how often a text cut by
    the token limit is asked to go on. max_empty: how often in a row an empty answer is asked again.
    max_check_rounds: how often failed checks go back to the model. max_corrections: how often an answer that is
    not the output asked for does.
    max_output: tokens of one answer, None for the provider's own.
    max_parallel: read-only calls at once. tool_timeout: seconds a tool may take unless it says otherwise.
    approval_timeout: seconds the questions of a turn may stay open; after that the calls are declined.
    stream_timeout: seconds a model may stay silent. grace: seconds a cancelled tool or model may take to stop.
    max_ahead: pieces of an answer that may be under way to the caller's iterator; 0: it is waited for.
    max_result: characters of one result that reach the model. max_prompt: characters of one user message.
    max_waiting: accepted messages that may wait to be delivered.
    max_context: tokens that the model takes, None for what is known of it. compact_at: share of them at which what was
    said is summarised. keep_recent: tokens of the latest messages that then stay as they are, a quarter of
    `max_context` at most.
    """

    max_steps: int = 100
    max_tokens: int | None = None
    max_cost: float | None = None
    max_seconds: float | None = None
    max_tool_calls: int | None = None
    max_results: int | None = None
    warn_at: float | None = 0.8
    steering: Delivery = "all"
    follow_ups: Delivery = "all"
    max_repeats: int = 3
    max_truncations: int = 3
    max_continuations: int = 0
    max_empty: int = 1
    max_check_rounds: int = 3
    max_corrections: int = 2
    max_output: int | None = None
    max_parallel: int = 8
    tool_timeout: float = 600.0
    approval_timeout: float | None = None
    stream_timeout: float = 600.0
    grace: float = 2.0
    max_ahead: int = 32
    max_result: int = 100_000
    max_prompt: int = 4_000_000
    max_waiting: int = 10_000
    max_context: int | None = None
    compact_at: float = 0.8
    keep_recent: int = 20_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name in ("steering", "follow_ups"):
                if value not in ("all", "one"):
                    raise DefinitionError(f"Limits.{name} must be 'all' or 'one', not {value!r}")
                continue
            whole = name not in _FRACTIONS
            least = 0 if name in _FROM_ZERO else 1 if whole else 0.0
            if value is None and name in _MAY_BE_NONE:
                continue
            right = isinstance(value, int) if whole else isinstance(value, int | float)
            if isinstance(value, bool) or not right or not value >= least:
                kind = "a whole number" if whole else "a number"
                raise DefinitionError(f"Limits.{name} must be {kind} of at least {least}, not {value!r}")
        if not 0 < self.compact_at <= 1:
            raise DefinitionError(f"Limits.compact_at must be a share, over 0 and up to 1, not {self.compact_at!r}")


class Traits(msgspec.Struct, frozen=True):
    """What the loop must know of a tool. The careful answers are the defaults. `hooked`: hooks look before a call.
    `asks`: a call is a question, and a person's answer is what it runs with."""

    effect: Effect = "write"
    replay: Replay = "never"
    settles: bool = False
    alone: bool = False
    hooked: bool = False
    asks: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """May this call run? `text` is the reason: for `reject`, it tells the model what would have been valid."""

    kind: Literal["run", "ask", "refuse", "reject"]
    text: str = ""
    rule: str = ""


RUN = Verdict("run")

FINAL = "final_answer"
"""The tool by which a model gives the typed output, where one is asked for."""


class Answer(msgspec.Struct, frozen=True):
    """What the model's last word is worth as the run's output.

    text: its JSON text, or what was said instead. value: its JSON form. problem: why it is no output, "" if it is
    one. wanted: what would be right, in words for the model.
    """

    text: str
    value: Any = None
    problem: str = ""
    wanted: str = ""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """All that `decide` knows beside the state.

    known: is there a tool of this name?
    output: judges a text or a call of `FINAL` as the run's output; None where any text will do. Pure.
    questions: all of a turn before any call of it runs, or each immediately before its call would.
    strict_protocol: a stop reason that contradicts the calls fails the run instead of being distrusted.
    overhead: tokens of system prompt and tools, roughly; used until a provider has counted.
    """

    judge: Callable[[ToolCall], Verdict]
    traits: Callable[[str], Traits]
    known: Callable[[str], bool] = lambda name: False
    output: Callable[[Message | ToolCall], Answer] | None = None
    limits: Limits = Limits()
    checks: tuple[str, ...] = ()
    on_doubt: OnDoubt = "report"
    on_stale_approval: OnStaleApproval = "ask"
    questions: Questions = "together"
    strict_protocol: bool = False
    overhead: int = 0

    def chosen(self) -> dict[str, Any]:
        """The choices that are not the default, as `run.started` records them."""
        names = ("on_doubt", "on_stale_approval", "questions", "strict_protocol")
        made = {name: getattr(self, name) for name in names}
        return {name: value for name, value in made.items() if value != getattr(_USUAL, name)}


_USUAL = Rules(judge=lambda call: RUN, traits=lambda name: Traits())
