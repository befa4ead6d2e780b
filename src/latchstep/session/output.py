"""Typed output: from a type to the schema a model is shown, and from its answer to an object of the type.

A text that is the JSON object and a call of `FINAL` are judged alike, by the validator of tool arguments. What is
not an object with named fields is wrapped in one, as its field `value`: providers take nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from latchstep.core import wording
from latchstep.core.arguments import parse_arguments
from latchstep.core.message import Message, ToolCall, clean
from latchstep.core.rules import FINAL, Answer
from latchstep.errors import DefinitionError
from latchstep.model.base import OutputSpec

MAX_SCHEMA_SHOWN = 4_000
"""Characters of the schema that a correction repeats."""

FIELD = "value"
_FENCED = re.compile(r"\s*```(?:json)?[ \t]*\n(.*)\n[ \t]*```\s*", re.DOTALL)

Load = Callable[[dict[str, Any]], Any]
"""From an object with the one field `FIELD` to what that holds, as the type. Raises ValueError in words for a model."""


@dataclass(frozen=True, slots=True)
class OutputType:
    """What is asked for. `wrapped`: the model sends the value as the field `FIELD`."""

    spec: OutputSpec
    load: Load
    wrapped: bool

    def typed(self, value: Any) -> Any:
        """The object of a value that was judged before. A validator that has changed its mind leaves the JSON form."""
        try:
            return self.load({FIELD: value})
        except Exception:
            return value

    def judge(self, said: Message | ToolCall) -> Answer:
        """What an answer is worth. Pure, as far as the type's own validators are."""
        try:
            given = _object(said)
            given = given if self.wrapped else {FIELD: given}
            self.load(given)
        except Exception as error:  # a type's own validators may raise anything
            text = msgspec.json.encode(said.arguments).decode() if isinstance(said, ToolCall) else said.text
            return Answer(text, problem=self._problem(error), wanted=self._wanted())
        return Answer(msgspec.json.encode(given[FIELD]).decode(), given[FIELD])

    def _problem(self, error: Exception) -> str:
        problem = clean(str(error) if isinstance(error, ValueError) else wording.of_error(error))
        problem = problem.removeprefix(f"Invalid arguments for `{FINAL}`:").strip()
        if self.wrapped:
            return problem
        whole = f"`{FIELD}`: "
        return problem.removeprefix(whole) if problem.startswith(whole) else problem.replace(f"`{FIELD}.", "`")

    def _wanted(self) -> str:
        schema = msgspec.json.encode(self.spec.schema).decode()
        if len(schema) > MAX_SCHEMA_SHOWN:
            schema = f"{schema[:MAX_SCHEMA_SHOWN]}… (+{len(schema) - MAX_SCHEMA_SHOWN} characters)"
        return (
            f"Give one JSON object that fits the schema below: as the arguments of one call of `{FINAL}`, or, if there "
            f"is no such tool, as your whole text.\n{schema}"
        )


def output_type(kind: Any) -> OutputType:
    """Raises DefinitionError for a type that no JSON value can be checked against."""
    schema, load = _pydantic(kind) if _is_pydantic(kind) else _plain(kind)
    definitions = schema.get("$defs", {})
    inner = schema["properties"][FIELD]
    name = inner.get("$ref", "").removeprefix("#/$defs/")
    inner = definitions.get(name, inner)
    if inner.get("type") != "object" or "properties" not in inner:
        return OutputType(OutputSpec(FINAL, schema), load, True)
    others = {key: part for key, part in definitions.items() if key != name}
    if f'"#/$defs/{name}"'.encode() in msgspec.json.encode((inner, others)):
        others = definitions  # it contains itself
    return OutputType(OutputSpec(FINAL, {**inner, "$defs": others} if others else inner), load, False)


def _plain(kind: Any) -> tuple[dict[str, Any], Load]:
    """(schema of an object with the field `FIELD`, loader) of a type that msgspec knows."""
    from latchstep.tool.schema import Parameter, compile_parameters

    try:
        schema, validate = compile_parameters(FINAL, [Parameter(FIELD, kind)])
    except DefinitionError as error:
        why = str(error).removeprefix(f"tool {FINAL!r}: ").removeprefix(f"parameter {FIELD!r} is annotated ")
        raise DefinitionError(f"output is {why.removesuffix('.')}, or a pydantic model.") from error

    return schema, lambda given: validate(given)[FIELD]


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate_json")


def _pydantic(kind: Any) -> tuple[dict[str, Any], Load]:
    """The same of a pydantic model, whose own validators decide, in strict mode."""
    from latchstep.tool.schema import close
    from latchstep.tool.text import cut

    try:
        inner = dict(kind.model_json_schema())
    except Exception as error:
        raise DefinitionError(f"output is {kind.__name__}, which has no JSON Schema: {error}") from error
    definitions = inner.pop("$defs", None)
    schema = {"type": "object", "properties": {FIELD: inner}, "required": [FIELD]}
    if definitions:
        schema["$defs"] = definitions
    close(schema)

    def load(given: dict[str, Any]) -> Any:
        if given.keys() != {FIELD}:
            raise ValueError(f"expected an object with the one field `{FIELD}`")
        try:
            return kind.model_validate_json(msgspec.json.encode(given[FIELD]), strict=True)
        except ValueError as error:
            problems = error.errors(include_url=False) if hasattr(error, "errors") else []
            said = [f"`{'.'.join(map(str, (FIELD, *found['loc'])))}`: {found['msg']}" for found in problems]
            raise ValueError(cut("; ".join(said), MAX_SCHEMA_SHOWN) or str(error)) from None

    return schema, load


def _object(said: Message | ToolCall) -> dict[str, Any]:
    """The JSON object in an answer. A text may have one fence around it, and nothing else."""
    if isinstance(said, ToolCall):
        if said.flaw:
            raise ValueError(said.flaw)
        return said.arguments
    fenced = _FENCED.fullmatch(said.text)
    text = fenced[1] if fenced else said.text
    try:
        alone = isinstance(msgspec.json.decode(text), dict)
    except ValueError:
        alone = False
    if not alone:
        raise ValueError("the text is not one JSON object and nothing else")
    given, flaw, _ = parse_arguments(text)
    if flaw:
        raise ValueError(flaw.replace("the arguments are", "the text is", 1))
    return given
