"""Why a call's arguments were refused, in words that let a model send the right ones.

Pure. Names the field, what it got and what is expected, and lists the allowed fields where one is unknown
or missing; every part is bounded, since the arguments are not ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from .schema import (
    MAX_FIELDS_SHOWN,
    MAX_PROBLEMS,
    MAX_SHOWN_VALUE,
    REQUIRED,
    Parameter,
    refusal,
    unknown_field,
)
from .text import clean_output, cut

_JSON_NAMES = {
    "int": "integer",
    "str": "string",
    "float": "number",
    "bool": "boolean",
    "None": "null",
    "null": "null",
    "array": "array",
    "object": "object",
}
_TYPE = re.compile(r"`([^`]*)`")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def explain(
    tool: str, schema: dict[str, Any], parameters: Sequence[Parameter], arguments: Any, error: Exception
) -> str:
    """The text of a rejection. `error` is what the fast check said, for the case that nothing finer is found."""
    if not isinstance(arguments, dict):
        return f"Invalid arguments for `{tool}`: expected one JSON object, got {_value(arguments)}."
    known = {parameter.name: parameter for parameter in parameters}
    problems, about_fields = [], False
    for name in arguments:
        if name not in known:
            problems.append(unknown_field(str(name), list(known)))
            about_fields = True
    for name, parameter in known.items():
        if name not in arguments:
            if parameter.default is REQUIRED:
                problems.append(f"missing required field `{name}`.")
                about_fields = True
        elif found := refusal(parameter, arguments[name]):
            problems.append(_problem(name, *found, schema, arguments[name]))
    if not problems:
        problems.append(cut(str(error), 200))
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [f"… and {len(problems) - MAX_PROBLEMS} more."]
    head = f"Invalid arguments for `{tool}`"
    text = f"{head}: {problems[0]}" if len(problems) == 1 else "\n- ".join([f"{head}:", *problems])
    if about_fields:
        text += "\n" + cut(f"Fields: {_listed(schema)}.", MAX_FIELDS_SHOWN)
    return clean_output(text)


def _problem(name: str, path: str, reason: str, schema: dict[str, Any], value: Any) -> str:
    place = schema["properties"][name]
    steps = [match[1] or int(match[2]) for match in _STEP.finditer(path[1:])]
    exact = "[...]" not in path and "".join(m.group() for m in _STEP.finditer(path[1:])) == path[1:]
    if exact:
        for step in steps:
            place = _inside(place, step, schema)
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                exact = False
                break
    wanted = _TYPE.sub(_json_name, reason)
    wanted = cut(wanted[:1].lower() + wanted[1:], 200)
    place = _resolved(place, schema)
    text = f"`{name}{path[1:]}`: {wanted.removesuffix('.')}"
    if exact and "field" not in wanted:
        text = re.sub(r", got [\w |]+$", "", text) + f", got {_value(value)}"
    if "enum" in place and exact:
        text = f"`{name}{path[1:]}`: expected one of {_json(place['enum'], 400)}, got {_value(value)}"
    elif "properties" in place and "missing required" in wanted:
        text += f" (fields: {_listed(place)})"
    return text + "."


def _json_name(match: re.Match[str]) -> str:
    names = match[1].split(" | ")
    return " or ".join(_JSON_NAMES[name] for name in names) if _JSON_NAMES.keys() >= set(names) else match[0]


def _resolved(place: Any, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema part itself: references followed; of a union, its one member that is not null."""
    for _ in range(8):
        if not isinstance(place, dict):
            return {}
        if "$ref" in place:
            place = schema.get("$defs", {}).get(place["$ref"].removeprefix("#/$defs/"))
        elif len(members := [m for m in place.get("anyOf", ()) if m != {"type": "null"}]) == 1:
            place = members[0]
        else:
            return place
    return {}


def _inside(place: Any, step: str | int, schema: dict[str, Any]) -> Any:
    part = _resolved(place, schema)
    if isinstance(step, str):
        return part.get("properties", {}).get(step, part.get("additionalProperties"))
    prefix = part.get("prefixItems", [])
    return prefix[step] if step < len(prefix) else part.get("items")


def _listed(place: dict[str, Any]) -> str:
    required = place.get("required", [])
    fields = place.get("properties", {})
    return (
        ", ".join(f"{name} ({_kind(part)}{', required' if name in required else ''})" for name, part in fields.items())
        or "none"
    )


def _kind(part: dict[str, Any]) -> str:
    if "enum" in part:
        return "one of " + _json(part["enum"], 200)
    if "anyOf" in part:
        return " or ".join(_kind(member) for member in part["anyOf"])
    if "$ref" in part:
        return str(part["$ref"]).rsplit("/", 1)[-1]
    return str(part.get("type", "any"))


def _value(value: Any) -> str:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    if value is None:
        return "null"
    return f"{kinds.get(type(value), type(value).__name__)} {_json(value, MAX_SHOWN_VALUE)}"


def _json(value: Any, limit: int) -> str:
    try:
        return cut(msgspec.json.encode(value).decode(), limit)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return cut(repr(value) if isinstance(value, str | int | float) else type(value).__name__, limit)
