"""What a function says of itself: parameters with types and defaults, descriptions, the one for the context.

Names in annotations are looked up where the function was written, enclosing functions and classes included.
What has no schema raises `DefinitionError` naming the tool, the parameter and what is supported.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from latchstep.core.message import clean
from latchstep.errors import DefinitionError

from . import docstring
from .base import Context
from .schema import REQUIRED, SUPPORTED, Parameter, Validate, compile_parameters

_CONTEXT_BY_NAME = re.compile(r"(?:Optional\[)?(?:\w+\.)*Context\]?(?: *\| *None)?")

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Signature:
    """What a tool needs to know of its function. `context`: the parameter that receives the context, or ""."""

    description: str
    schema: dict[str, Any]
    validate: Validate
    context: str


def read_signature(label: str, function: Function) -> Signature:
    """Read a function as a tool called `label`. Raises DefinitionError."""
    said = getattr(function, "func", function)  # a partial's own docstring is about partials
    description, about = docstring.parse(getattr(said, "__doc__", None))
    parameters, context = _parameters(label, function, about)
    return Signature(description, *compile_parameters(label, parameters), context)


def _parameters(label: str, function: Function, about: dict[str, str]) -> tuple[list[Parameter], str]:
    """The parameters that the model fills, and the name of the one that receives the context, or ""."""
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
