"""`@tool`: from a plain function to a `Tool`, and from what it returns to what the model reads.

Everything is checked where the tool is declared: a wrong declaration raises `DefinitionError` saying what would
be right. Undeclared effects are `write`, and writes are never repeated. Cheap to import: the rest is `signature`.
"""

from __future__ import annotations

import inspect
import math
import re
import typing
from collections.abc import Callable
from typing import Any, overload

import msgspec

from latchstep.core.event import Effect, Replay
from latchstep.core.message import Image, Text, clean, clean_json
from latchstep.errors import DefinitionError, ToolError

from .base import Context, Output, Settled, Tool
from .text import clean_output

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Function = Callable[..., Any]
Prepare = Callable[[dict[str, Any], Context], Any]
Settle = Callable[[dict[str, Any], Any, Context], Settled]


@overload
def tool(function: Function, /) -> Tool: ...
@overload
def tool(
    function: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "write",
    replay: Replay | None = None,
    prepare: Prepare | None = None,
    settle: Settle | None = None,
    asks: bool = False,
    alone: bool = False,
    timeout: float | None = None,
    thread: bool = True,
) -> Callable[[Function], Tool]: ...
@overload
def tool(
    function: Function,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "write",
    replay: Replay | None = None,
    prepare: Prepare | None = None,
    settle: Settle | None = None,
    asks: bool = False,
    alone: bool = False,
    timeout: float | None = None,
    thread: bool = True,
) -> Tool: ...
def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "write",
    replay: Replay | None = None,
    prepare: Prepare | None = None,
    settle: Settle | None = None,
    asks: bool = False,
    alone: bool = False,
    timeout: float | None = None,
    thread: bool = True,
) -> Tool | Callable[[Function], Tool]:
    """Make a function a tool: `@tool`, `@tool(effect="read")`, or `tool(object.method)`.

    name: what the model calls it; the function's own by default. description: the docstring by default.
    effect: `read` or `write`. replay: `safe` if running it twice is the same as once; reads are, writes are not
    unless said. prepare, settle, asks, alone, timeout (seconds), thread: see `Tool`.

    The schema comes from the annotations. A parameter annotated `Context` receives the call's context and is
    not in the schema. Raises DefinitionError.
    """

    def define(function: Function) -> Tool:
        label = _label(function, name)
        _check_options(label, effect, replay, timeout, prepare=prepare, settle=settle)
        from .signature import read_signature

        signature = read_signature(label, function)
        return Tool(
            name=label,
            description=clean(signature.description if description is None else description),
            schema=signature.schema,
            function=function,
            validate=signature.validate,
            effect=effect,
            replay=replay or ("safe" if effect == "read" else "never"),
            context=signature.context,
            prepare=prepare,
            settle=settle,
            asks=asks,
            alone=alone,
            timeout=timeout,
            thread=thread,
        )

    return define if function is None else define(function)


def _label(function: Any, name: str | None) -> str:
    if isinstance(function, Tool):
        raise DefinitionError(f"{function.name!r} is a tool already")
    if not callable(function):
        raise DefinitionError(f"a tool is made of a function, not of {type(function).__name__}")
    label = name if name is not None else getattr(function, "__name__", "")
    if not isinstance(label, str) or not _NAME.fullmatch(label):
        raise DefinitionError(
            f"{label!r} cannot name a tool: it takes 1 to 64 of A-Z a-z 0-9 _ -"
            + ("" if name is not None else '; give one with tool(name="...")')
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(f"tool {label!r} is a generator; a tool returns its result, progress goes to Context")
    return label


def _check_options(label: str, effect: Any, replay: Any, timeout: Any, **functions: Any) -> None:
    if effect not in typing.get_args(Effect):
        raise DefinitionError(f'tool {label!r}: effect is {effect!r}; it must be "read" or "write"')
    if replay is not None and replay not in typing.get_args(Replay):
        raise DefinitionError(f'tool {label!r}: replay is {replay!r}; it must be "safe" or "never"')
    for option, value in functions.items():
        if value is not None and not callable(value):
            raise DefinitionError(f"tool {label!r}: {option} is {type(value).__name__}; it must be a function")
    if timeout is not None and (
        isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf
    ):
        raise DefinitionError(f"tool {label!r}: timeout is {timeout!r}; it must be a positive number of seconds")


MAX_DETAILS = 1 << 20
"""Bytes of JSON of a result's details that go on record."""

OUTCOMES = ("ok", "error", "timed_out", "interrupted")
"""What a tool may say of itself. That a call was denied, rejected, cut or never started is not its to say."""


def render(value: Any, text_of: Callable[[str], str] = clean_output) -> Output:
    """What a tool returned, as the model reads it: text as it is, data as compact JSON, nothing as a word.

    `text_of` gets all text, and takes at least control characters and escape sequences out. Raises ToolError for what
    has no text, and whatever the parts of a strange object raise when they are read.
    """
    match value:
        case Output() if value.outcome not in OUTCOMES:
            raise ToolError(f"the tool claimed outcome {value.outcome!r}; a tool may say {', '.join(OUTCOMES)}")
        case Output():
            content, details = _content(value.content, text_of), _details(value.details)
            return Output(content, details, value.outcome, value.is_error, value.output)
        case str():
            return Output(text_of(value))
        case None:
            return Output("(no output)")
        case int() if abs(value) < 2**63:
            return Output("true" if value is True else "false" if value is False else str(value))
        case bytes() | bytearray() | memoryview():
            return Output(f"(binary, {memoryview(value).nbytes} bytes)")
        case Text() | Image():
            return Output(_content((value,), text_of))
        case list() | tuple() if type(value) in (list, tuple) and _is_content(value):
            return Output(_content(tuple(value), text_of))
    return Output(text_of(_json(value)))


def _is_content(value: list[Any] | tuple[Any, ...]) -> bool:
    return bool(value) and all(isinstance(part, Text | Image) for part in value)


def _content(content: Any, text_of: Callable[[str], str]) -> str | tuple[Text | Image, ...]:
    if isinstance(content, str):
        return text_of(content)
    if not isinstance(content, list | tuple) or not all(isinstance(part, Text | Image) for part in content):
        raise ToolError(f"the tool returned an Output of {type(content).__name__}; content is text or Text and Image")
    return tuple(Text(text_of(part.text)) if isinstance(part, Text) else part for part in content)


def _details(details: Any) -> Any:
    if details is None:
        return None
    try:
        plain = clean_json(msgspec.to_builtins(details, str_keys=True))
        size = len(msgspec.json.encode(plain))
        return plain if size <= MAX_DETAILS else {"left_out": f"{size:,} bytes (at most {MAX_DETAILS:,} are kept)"}
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"the tool returned details that are not JSON: {error}") from error


def _json(value: Any) -> str:
    """Compact JSON. The standard encoder writes it, since msgspec's turns NaN into null and refuses big integers."""
    import json

    try:
        plain = msgspec.to_builtins(value, str_keys=True)
        return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(
            f"the tool returned {type(value).__name__}, which cannot be shown to the model ({error}); "
            "return text, JSON-like data, a msgspec.Struct, a dataclass or an Output"
        ) from error
