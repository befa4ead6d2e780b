"""From parameters to a JSON Schema and a validator that never coerces with loss.

msgspec checks types; what it lets pass with a loss (unknown fields of dataclasses, doubled set members,
integers no float can hold) is checked after it. A rejection is written for the model that has to mend it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NotRequired, Required, TypedDict

import msgspec
from msgspec import inspect as kinds

from latchstep.errors import DefinitionError

from .text import cut

MAX_SHOWN_VALUE = 80
"""Characters of a refused value that a rejection repeats."""
MAX_PROBLEMS = 10
"""Problems that one rejection names."""
MAX_FIELDS_SHOWN = 1500
MAX_DEFAULT_BYTES = 200
"""A default longer than this, as JSON, is left out of the schema."""

SUPPORTED = (
    "str, int, float, bool, None, Literal, Enum (all str or all int), X | None and other unions, list, dict, tuple, "
    "set, msgspec.Struct, dataclass, TypedDict, NamedTuple, datetime types, UUID, Decimal, bytes (base64), Any, "
    "and Annotated[T, 'description'] or Annotated[T, msgspec.Meta(...)]"
)

REQUIRED: Any = object()
"""Stands for the default of a parameter that has none."""

Validate = Callable[[dict[str, Any]], dict[str, Any]]
_Check = Callable[[Any, str], None]


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    hint: Any
    description: str = ""
    default: Any = REQUIRED


class _Refused(Exception):
    """A value that msgspec takes and we do not; `path` as msgspec writes it (`$.a[0]`)."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path, self.reason = path, reason


def compile_parameters(tool: str, parameters: Sequence[Parameter]) -> tuple[dict[str, Any], Validate]:
    """The schema of an object with these fields, and its validator.

    Raises DefinitionError naming the tool, the parameter and its annotation where msgspec cannot do it.
    """
    for parameter in parameters:
        _supported(tool, parameter)
    fields = {p.name: Required[p.hint] if p.default is REQUIRED else NotRequired[p.hint] for p in parameters}
    make: Any = TypedDict
    arguments: Any = make("Arguments", fields)
    try:
        schema = _schema(arguments, parameters)
        info = kinds.type_info(arguments)
        decoder: Any = msgspec.json.Decoder(arguments)
    except Exception as error:
        raise DefinitionError(f"tool {tool!r}: its parameters do not go together: {_first_line(error)}") from error
    return schema, _validator(tool, schema, decoder.decode, _strict(info, {}), parameters)


def _supported(tool: str, parameter: Parameter) -> None:
    from typing import TypeVar

    try:
        if isinstance(parameter.hint, TypeVar):
            raise TypeError("a type variable says nothing about the value")
        msgspec.json.schema(parameter.hint)
        msgspec.json.Decoder(parameter.hint)
    except Exception as error:
        raise DefinitionError(
            f"tool {tool!r}: parameter {parameter.name!r} is annotated {_named(parameter.hint)}, which no JSON value "
            f"can be checked against ({_first_line(error)}). Supported: {SUPPORTED}."
        ) from error


def _named(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).split("\n") if line]
    return cut(lines[-1] if len(lines) > 1 and "custom types" in lines[0] else next(iter(lines), repr(error)), 300)


# The schema


def _schema(arguments: Any, parameters: Sequence[Parameter]) -> dict[str, Any]:
    (top,), definitions = msgspec.json.schema_components((arguments,), ref_template="#/$defs/{name}")
    body = definitions.pop(top["$ref"].removeprefix("#/$defs/"))
    properties: dict[str, Any] = {}
    for parameter in parameters:
        part = dict(body["properties"][parameter.name])
        if parameter.description and "description" not in part:
            part["description"] = parameter.description
        if parameter.default is not REQUIRED:
            part |= _default(parameter)
        properties[parameter.name] = part
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    required = [p.name for p in parameters if p.default is REQUIRED]
    if required:
        schema["required"] = required
    if definitions:
        schema["$defs"] = {name: _untitled(part) for name, part in definitions.items()}
    close(schema)
    return schema


def _default(parameter: Parameter) -> dict[str, Any]:
    """The default as the schema may say it; nothing where it is long or not itself a valid value."""
    try:
        encoded = msgspec.json.encode(parameter.default)
        if len(encoded) > MAX_DEFAULT_BYTES or msgspec.json.decode(encoded, type=parameter.hint) != parameter.default:
            return {}
        return {"default": msgspec.json.decode(encoded)}
    except Exception:
        return {}


def _untitled(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "title"}


def close(part: Any) -> None:
    """Say of every object with known fields that it has no others, as validation does, unless it says otherwise."""
    if not isinstance(part, dict):
        return
    if "properties" in part:
        part.setdefault("additionalProperties", False)
    for key in ("properties", "$defs"):
        for inner in part.get(key, {}).values():
            close(inner)
    for key in ("items", "additionalProperties"):
        close(part.get(key))
    for key in ("anyOf", "allOf", "oneOf", "prefixItems"):
        for inner in part.get(key, ()):
            close(inner)


# What msgspec lets pass


def _strict(info: Any, known: dict[int, list[_Check]]) -> _Check | None:
    """A check for values that msgspec has accepted, or None where nothing can be lost."""
    match info:
        case kinds.Metadata():
            return _strict(info.type, known)
        case kinds.FloatType():
            return _exact_float
        case kinds.StructType() | kinds.DataclassType() | kinds.TypedDictType() | kinds.NamedTupleType():
            if id(info) not in known:
                known[id(info)] = []
                known[id(info)].append(_fields(info, known))
            return partial(_later, known[id(info)])
        case kinds.SetType() | kinds.FrozenSetType():
            return _members(_strict(info.item_type, known), unique=True)
        case kinds.ListType() | kinds.VarTupleType() | kinds.CollectionType():
            inner = _strict(info.item_type, known)
            return _members(inner, unique=False) if inner else None
        case kinds.TupleType():
            return _positions([_strict(item, known) for item in info.item_types])
        case kinds.DictType():
            inner = _strict(info.value_type, known)
            return _values(inner) if inner else None
        case kinds.UnionType():
            return _either(info, known)
    return None


def _later(found: list[_Check], value: Any, path: str) -> None:
    """The check of a type that may contain itself, so that it is not made yet where it is first asked for."""
    found[0](value, path)


def _exact_float(value: Any, path: str) -> None:
    if isinstance(value, int):
        try:
            exact = int(float(value)) == value
        except OverflowError:
            exact = False
        if not exact:
            raise _Refused(path, "the integer is too large to be a number without loss")
    elif isinstance(value, float) and not math.isfinite(value):
        raise _Refused(path, "expected a finite number")


def _finite(value: Any, path: str) -> None:
    if isinstance(value, float):
        _exact_float(value, path)


def _fields(info: Any, known: dict[int, list[_Check]]) -> _Check:
    checks = {field.encode_name: _strict(field.type, known) for field in info.fields}
    if isinstance(info, kinds.NamedTupleType) or getattr(info, "array_like", False):
        tagged = [None] if getattr(info, "tag", None) is not None else []
        return _positions([*tagged, *checks.values()])
    allowed = {*checks, getattr(info, "tag_field", None)}

    def check(value: Any, path: str) -> None:
        for name, inner in value.items():
            if name not in allowed:
                raise _Refused(path, unknown_field(name, list(checks)) + f" Allowed: {', '.join(checks)}.")
            if (inner_check := checks.get(name)) is not None:
                inner_check(inner, f"{path}.{name}")

    return check


def _members(inner: _Check | None, unique: bool) -> _Check:
    def check(value: Any, path: str) -> None:
        if unique and len({msgspec.json.encode(item) for item in value}) != len(value):
            raise _Refused(path, "expected distinct members, got the same one twice")
        if inner is not None:
            for index, item in enumerate(value):
                inner(item, f"{path}[{index}]")

    return check


def _positions(checks: list[_Check | None]) -> _Check:
    def check(value: Any, path: str) -> None:
        if len(value) > len(checks):
            raise _Refused(path, f"expected at most {len(checks)} items, got {len(value)}")
        for index, (item, inner) in enumerate(zip(value, checks, strict=False)):
            if inner is not None:
                inner(item, f"{path}[{index}]")

    return check


def _values(inner: _Check) -> _Check:
    def check(value: Any, path: str) -> None:
        for name, item in value.items():
            inner(item, f"{path}.{name}")

    return check


def _either(info: Any, known: dict[int, list[_Check]]) -> _Check | None:
    """In a union msgspec allows one member per JSON type, but for tagged structs: the value says which it is."""
    objects, arrays, number = [], [], None
    for member in info.types:
        bare = member.type if isinstance(member, kinds.Metadata) else member
        check = _strict(member, known)
        if isinstance(bare, kinds.FloatType) and not any(
            isinstance(m.type if isinstance(m, kinds.Metadata) else m, kinds.IntType) for m in info.types
        ):
            number = check
        elif isinstance(bare, kinds.FloatType):
            number = _finite
        elif isinstance(bare, kinds.StructType) and not bare.array_like:
            objects.append((bare.tag_field, bare.tag, check))
        elif isinstance(bare, kinds.DictType | kinds.DataclassType | kinds.TypedDictType):
            objects.append((None, None, check))
        elif check is not None:
            arrays.append((bare.tag if isinstance(bare, kinds.StructType) else None, check))
    if not (objects or arrays or number):
        return None

    def choose(value: Any, path: str) -> None:
        chosen: _Check | None = None
        if isinstance(value, dict):
            chosen = next((c for key, tag, c in objects if len(objects) == 1 or value.get(key) == tag), None)
        elif isinstance(value, list):
            chosen = next((c for tag, c in arrays if len(arrays) == 1 or value[0] == tag), None)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            chosen = number
        if chosen is not None:
            chosen(value, path)

    return choose


# The validator and its rejections


def _validator(
    tool: str,
    schema: dict[str, Any],
    decode: Callable[[bytes], dict[str, Any]],
    check: _Check | None,
    parameters: Sequence[Parameter],
) -> Validate:
    encode = msgspec.json.encode

    def validate(arguments: dict[str, Any]) -> dict[str, Any]:
        """Through JSON and back: the function gets objects of its own, so it cannot change what is on record."""
        try:
            kwargs = decode(encode(arguments))
            if check is not None:
                check(arguments, "$")
        except (_Refused, ValueError, TypeError, OverflowError, RecursionError) as error:
            from .rejection import explain

            raise ValueError(explain(tool, schema, parameters, arguments, error)) from None
        return kwargs

    return validate


def refusal(parameter: Parameter, value: Any) -> tuple[str, str] | None:
    """Why one field's value is refused, as (path, reason); None where it is not. The slow way, for rejections."""
    try:
        msgspec.json.decode(msgspec.json.encode(value), type=parameter.hint)
        check = _strict(kinds.type_info(parameter.hint), {})
        if check is not None:
            check(value, "$")
    except _Refused as error:
        return error.path, error.reason
    except UnicodeEncodeError:
        return "$", "a string is not valid Unicode (lone surrogate)"
    except RecursionError:
        return "$", "nested too deeply"
    except (ValueError, TypeError, OverflowError) as error:
        match = re.fullmatch(r"(.*) - at `(?:key in )?(\$.*)`", str(error), re.DOTALL)
        return (match[2], match[1]) if match else ("$", str(error))
    return None


def unknown_field(name: str, allowed: list[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name[:MAX_SHOWN_VALUE], allowed, n=1)
    return f"unknown field `{cut(name, MAX_SHOWN_VALUE)}`." + (f" Did you mean `{close[0]}`?" if close else "")
