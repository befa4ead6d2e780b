"""`@tool`: from a plain function to a `Tool`, and from what it returns to what the model reads.

Everything is checked where the tool is declared: a wrong declaration raises `DefinitionError` naming the
function, the parameter and what would be right. Undeclared effects are `write`, and writes are never repeated.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, overload

import msgspec

from latchstep.core.event import Effect, Replay
from latchstep.core.message import Image, Text, clean, clean_json
from latchstep.errors import DefinitionError, ToolError

from . import docstring
from .base import Context, Output, Settled, Tool
from .schema import REQUIRED, SUPPORTED, Parameter, compile_parameters
from .text import clean_output

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONTEXT_BY_NAME = re.compile(r"(?:Optional\[)?(?:\w+\.)*Context\]?(?: *\| *None)?")

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
    alone: bool = False,
    timeout: float | None = None,
    thread: bool = True,
) -> Tool | Callable[[Function], Tool]:
    """Make a function a tool: `@tool`, `@tool(effect="read")`, or `tool(object.method)`.

    name: what the model calls it; the function's own by default. description: the docstring by default.
    effect: `read` or `write`. replay: `safe` if running it twice is the same as once; reads are, writes are not
    unless said. prepare, settle, alone, timeout (seconds), thread: see `Tool`.

    The schema comes from the annotations. A parameter annotated `Context` receives the call's context and is
    not in the schema. Raises DefinitionError.
    """

    def define(function: Function) -> Tool:
        label = _label(function, name)
        _check_options(label, effect, replay, timeout, prepare=prepare, settle=settle)
        said, about = docstring.parse(getattr(function, "__doc__", None))
        parameters, context = _parameters(label, function, about)
        schema, validate = compile_parameters(label, parameters)
        return Tool(
            name=label,
            description=clean(said if description is None else description),
            schema=schema,
            function=function,
            validate=validate,
            effect=effect,
            replay=replay or ("safe" if effect == "read" else "never"),
            context=context,
            prepare=prepare,
            settle=settle,
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


def _parameters(label: str, function: Function, about: dict[str, str]) -> tuple[list[Parameter], str]:
    """The parameters that the model fills, and the name of the one that receives the context, if any."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError, NameError) as error:
        raise DefinitionError(f"tool {label!r}: its signature cannot be read: {error}") from error
    parameters: list[Parameter] = []
    context = ""
    for name, parameter in signature.parameters.items():
        _check_kind(label, name, parameter)
        hint = _resolve(label, name, parameter.annotation, function)
        if _is_context(hint):
            if context:
                raise DefinitionError(f"tool {label!r}: {context!r} and {name!r} both ask for the Context; one may")
            context = name
            continue
        hint, description = _described(hint)
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        parameters.append(Parameter(name, hint, clean(description or about.get(name, "")), default))
    return parameters, context


def _check_kind(label: str, name: str, parameter: inspect.Parameter) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        raise DefinitionError(
            f"tool {label!r}: {stars}{name} has no schema; name each parameter, or take a list or dict"
        )
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise DefinitionError(f"tool {label!r}: parameter {name!r} is positional-only; arguments are given by name")
    if parameter.annotation is parameter.empty:
        hint = "; for a method, decorate the bound one: tool(object.method)" if name in ("self", "cls") else ""
        raise DefinitionError(
            f"tool {label!r}: parameter {name!r} has no annotation, so its schema is unknown{hint}. "
            f"Supported: {SUPPORTED}."
        )


def _resolve(label: str, name: str, annotation: Any, function: Function) -> Any:
    """The annotation as a type. Strings are looked up where the function was written, locals included."""
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    names, enclosing = _namespaces(function)
    try:
        return typing.get_type_hints(holder, names, enclosing, include_extras=True)[name]
    except Exception as error:
        if isinstance(annotation, str) and isinstance(error, NameError) and _CONTEXT_BY_NAME.fullmatch(annotation):
            return Context  # imported for type checkers only
        raise DefinitionError(
            f"tool {label!r}: parameter {name!r} is annotated {annotation!r}, which cannot be resolved "
            f"({type(error).__name__}: {error}). Name types that are visible where the function is defined. "
            f"Supported: {SUPPORTED}."
        ) from error


def _namespaces(function: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Global names of a function, and those of the functions and classes it was written in."""
    inner = inspect.unwrap(function)
    inner = getattr(inner, "func", inner)  # functools.partial
    inner = getattr(inner, "__func__", inner)
    if not hasattr(inner, "__globals__"):
        inner = getattr(type(inner).__call__, "__func__", type(inner).__call__)
    names: dict[str, Any] = getattr(inner, "__globals__", {})
    local: dict[str, Any] = {}
    place = getattr(inner, "__qualname__", "")
    frame = sys._getframe(1) if "." in place else None
    while frame is not None:
        within = frame.f_code.co_qualname
        if frame.f_globals is names and place.startswith((f"{within}.<locals>.", f"{within}.")):
            local = {**frame.f_locals, **local}
        frame = frame.f_back
    if getattr(inner, "__closure__", None):
        local |= inspect.getclosurevars(inner).nonlocals
    return names, local


def _is_context(hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        return members == [Context]
    return hint is Context


def _described(hint: Any) -> tuple[Any, str]:
    """The hint, and the description in `Annotated[T, "description"]`."""
    if typing.get_origin(hint) is not typing.Annotated:
        return hint, ""
    return hint, next((part for part in hint.__metadata__ if isinstance(part, str)), "")


def render(value: Any) -> Output:
    """What a tool returned, as the model reads it: text as it is, data as compact JSON, nothing as a word.

    Control characters and escape sequences are taken out of all text. Raises ToolError for what has no text.
    """
    match value:
        case Output():
            return Output(_content(value.content), _details(value.details), value.outcome, value.is_error, value.output)
        case str():
            return Output(clean_output(value))
        case None:
            return Output("(no output)")
        case bytes() | bytearray() | memoryview():
            return Output(f"(binary, {memoryview(value).nbytes} bytes)")
        case Text() | Image():
            return Output(_content((value,)))
        case list() | tuple() if value and all(isinstance(part, Text | Image) for part in value):
            return Output(_content(tuple(value)))
    return Output(clean_output(_json(value)))


def _content(content: Any) -> str | tuple[Text | Image, ...]:
    if isinstance(content, str):
        return clean_output(content)
    if not isinstance(content, list | tuple) or not all(isinstance(part, Text | Image) for part in content):
        raise ToolError(f"the tool returned an Output of {type(content).__name__}; content is text or Text and Image")
    return tuple(Text(clean_output(part.text)) if isinstance(part, Text) else part for part in content)


def _details(details: Any) -> Any:
    try:
        return clean_json(msgspec.to_builtins(details, str_keys=True)) if details is not None else None
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
