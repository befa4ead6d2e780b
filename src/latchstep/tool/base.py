"""What a tool is, and what it is given while it runs.

A tool declares its *effect* (`read` or `write`) and its *replay* rule (`safe` or `never`); undeclared is
the careful one of each. Only the driver runs tools, and only with arguments that passed `validate`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from latchstep.core.event import Effect, Replay
from latchstep.core.message import Image, Outcome, Text

Settled = Literal["done", "not_done", "unknown"]
"""What `settle` found after a crash: the effect happened, did not, or cannot be told."""


class Output(msgspec.Struct, frozen=True):
    """What a tool may return when plain text is not enough.

    content: for the model. details: for people and programs, JSON-like, never sent to the model.
    outcome: `ok`, `error`, `timed_out` or `interrupted`; is_error: what the wire's error flag says.
    output: name of a file in the session's `outputs/` that holds the whole of what `content` cuts.
    """

    content: str | tuple[Text | Image, ...]
    details: Any = None
    outcome: Outcome = "ok"
    is_error: bool = False
    output: str = ""


class Context(msgspec.Struct):
    """What a tool knows of the call it serves. Annotate a parameter `ls.Context` to receive it.

    call_id: unique among the calls that the model still sees. idempotency_key: unique in all sessions, and the same
    again if the call is repeated after a crash; hand it to services that accept one. workspace: the folder the agent
    works in, or None. outputs: a folder for full outputs, made on first use. deps: whatever the agent was given.
    found: what `prepare` found when the call was judged. answer: what the person said, for a tool that `asks`.
    progress(text): shows a line while the tool runs.
    captured: what a long tool has got so far, kept up by the tool itself: it is all that remains if the call
    is interrupted or runs out of time.
    """

    call_id: str = ""
    idempotency_key: str = ""
    workspace: Path | None = None
    outputs: Path | None = None
    deps: Any = None
    found: Any = None
    answer: str = ""
    captured: str = ""
    progress: Callable[[str], None] = lambda text: None


Before = Callable[[dict[str, Any], Context], Any]
"""A hook before a call: (its arguments, its context) -> other arguments, a refusal, or None."""


class Tool(msgspec.Struct, frozen=True, eq=False):
    """A function a model may call. Made by `@tool`, or directly where a schema comes from elsewhere.

    validate(arguments) returns keyword arguments for `function`, or raises ValueError with a text that tells
        the model what would have been valid. It never coerces with loss.
    function(**arguments): sync or async; `context` names the parameter that receives the `Context`, if any.
    prepare(arguments, context): no effects; its JSON-like findings go into the question and `tool.started`.
    settle(arguments, found, context): after a crash, did the effect happen? No effects.
    before: hooks that look at a call before it is asked about or run: see `tool.hooks.before_tool`.
    asks: a call is a question to a person. It never runs without an answer, which is then `context.answer`.
    alone: never runs beside other calls, though it only reads. timeout: seconds, None for the run's default.
    thread: a sync function runs in a daemon thread; False runs it on the event loop.
    """

    name: str
    description: str
    schema: dict[str, Any]
    function: Callable[..., Any]
    validate: Callable[[dict[str, Any]], dict[str, Any]]
    effect: Effect = "write"
    replay: Replay = "never"
    context: str = ""
    prepare: Callable[[dict[str, Any], Context], Any] | None = None
    settle: Callable[[dict[str, Any], Any, Context], Settled] | None = None
    before: tuple[Before, ...] = ()
    asks: bool = False
    alone: bool = False
    timeout: float | None = None
    thread: bool = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, so that a decorated function still works as one."""
        return self.function(*args, **kwargs)
