"""`@tool`: what may be declared, what is refused at once, and what becomes of what a tool returns."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Optional, TypedDict, TypeVar

import msgspec
import pytest

import latchstep.tool.base as ls
from latchstep.core.message import Image, Text
from latchstep.errors import DefinitionError, ToolError
from latchstep.tool.base import Context, Output, Tool
from latchstep.tool.define import render, tool
from latchstep.tool.docstring import parse

if TYPE_CHECKING:
    from nowhere import Context as OnlyForCheckers  # type: ignore[import-not-found]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


@dataclasses.dataclass
class Box:
    corner: Point
    label: str | None = None


class Options(TypedDict, total=False):
    deep: bool


class Pair(NamedTuple):
    left: int
    right: str = ""


def test_a_plain_function_becomes_a_careful_tool() -> None:
    @tool
    def add(left: int, right: int = 2) -> int:
        """Add two integers."""
        return left + right

    assert isinstance(add, Tool)
    assert (add.name, add.description, add.effect, add.replay) == ("add", "Add two integers.", "write", "never")
    assert (add.alone, add.timeout, add.thread, add.context, add.prepare, add.settle) == (
        False,
        None,
        True,
        "",
        None,
        None,
    )
    assert add(20, right=22) == 42
    assert add.validate({"left": 1}) == {"left": 1}
    assert add.schema == {
        "type": "object",
        "properties": {"left": {"type": "integer"}, "right": {"type": "integer", "default": 2}},
        "required": ["left"],
        "additionalProperties": False,
    }


def test_options_are_taken() -> None:
    def prepare(arguments: dict[str, Any], context: Context) -> Any:
        return None

    made = tool(
        lambda: "x",
        name="made-up_1",
        description="Says x.",
        effect="read",
        replay="never",
        prepare=prepare,
        alone=True,
        timeout=1.5,
        thread=False,
    )
    assert (made.name, made.description, made.effect, made.replay) == ("made-up_1", "Says x.", "read", "never")
    assert (made.alone, made.timeout, made.thread, made.prepare) == (True, 1.5, False, prepare)
    assert made.schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert tool(effect="read")(len_of).replay == "safe"


def len_of(text: str) -> int:
    return len(text)


def test_b18_a_tool_without_arguments_takes_an_empty_object_and_echo_names_its_field() -> None:
    @tool
    def count() -> None: ...

    @tool
    def echo(text: str) -> str:
        return text

    assert count.validate({}) == {}
    with pytest.raises(ValueError, match=r"missing required field `text`"):
        echo.validate({})
    with pytest.raises(ValueError, match=r"unknown field `x`"):
        count.validate({"x": 1})


def test_every_supported_annotation_has_a_schema_and_is_converted() -> None:
    @tool
    def everything(
        *,
        text: str,
        number: int,
        ratio: float,
        flag: bool,
        nothing: None,
        mode: Literal["a", "b"],
        level: Literal[1, 2],
        colour: Colour,
        old_optional: Optional[int],  # noqa: UP045
        new_optional: int | None,
        either: int | str,
        items: list[int],
        table: dict[str, float],
        exact: tuple[int, str],
        many: tuple[int, ...],
        distinct: set[str],
        point: Point,
        box: Box,
        options: Options,
        pair: Pair,
        anything: Any,
        said: Annotated[str, "What is said"],
        bounded: Annotated[int, msgspec.Meta(ge=1, le=10, description="One to ten")],
    ) -> None: ...

    arguments = {
        "text": "t",
        "number": 1,
        "ratio": 2,
        "flag": True,
        "nothing": None,
        "mode": "a",
        "level": 2,
        "colour": "red",
        "old_optional": None,
        "new_optional": 3,
        "either": "x",
        "items": [1],
        "table": {"a": 1},
        "exact": [1, "b"],
        "many": [1, 2],
        "distinct": ["a", "b"],
        "point": {"x": 1},
        "box": {"corner": {"x": 1, "y": 2.5}},
        "options": {"deep": False},
        "pair": [1],
        "anything": {"a": [1, None]},
        "said": "s",
        "bounded": 10,
    }
    kwargs = everything.validate(arguments)
    assert kwargs["ratio"] == 2.0
    assert isinstance(kwargs["ratio"], float)
    assert kwargs["colour"] is Colour.RED
    assert kwargs["point"] == Point(1)
    assert kwargs["box"] == Box(Point(1, 2.5))
    assert kwargs["exact"] == (1, "b")
    assert kwargs["distinct"] == {"a", "b"}
    assert kwargs["pair"] == Pair(1)
    assert kwargs["options"] == {"deep": False}
    assert set(kwargs) == set(arguments)
    schema = everything.schema
    assert "$ref" not in schema
    assert "title" not in schema
    assert list(schema["properties"]) == schema["required"] == list(arguments)
    assert schema["properties"]["said"] == {"type": "string", "description": "What is said"}
    assert schema["properties"]["bounded"]["description"] == "One to ten"
    assert schema["properties"]["bounded"]["maximum"] == 10
    assert set(schema["$defs"]) == {"Colour", "Point", "Box", "Options", "Pair"}
    assert all("title" not in part for part in schema["$defs"].values())
    for name in ("Point", "Box", "Options"):
        assert schema["$defs"][name]["additionalProperties"] is False
    msgspec.json.encode(schema)


def test_what_a_tool_does_to_its_arguments_does_not_reach_the_record() -> None:
    @tool
    def greedy(items: list[Any], table: dict[str, Any]) -> None:
        items.clear()
        table["x"].append(1)

    arguments = {"items": [[1]], "table": {"x": [2]}}
    greedy(**greedy.validate(arguments))
    assert arguments == {"items": [[1]], "table": {"x": [2]}}


class Unsupported: ...


T = TypeVar("T")


@pytest.mark.parametrize(
    "annotation", [Unsupported, complex, object, Callable[[], int], T, "nonsense[", "Missing", Point | Box, 5, "int +"]
)
def test_unsupported_annotations_name_function_parameter_and_what_works(annotation: Any) -> None:
    def odd(value: Any) -> None: ...

    odd.__annotations__["value"] = annotation
    with pytest.raises(DefinitionError) as caught:
        tool(odd)
    text = str(caught.value)
    assert "'odd'" in text
    assert "'value'" in text
    assert "Supported: str, int" in text


def test_signatures_without_a_schema_are_refused() -> None:
    def bare(value): ...  # type: ignore[no-untyped-def]
    def stars(*values: int) -> None: ...
    def keywords(**values: int) -> None: ...
    def positional(value: int, /) -> None: ...
    def two(a: Context, b: Context) -> None: ...
    def generator() -> Any:
        yield 1

    async def stream() -> Any:
        yield 1

    for function, words in (
        (bare, "'value' has no annotation"),
        (stars, r"\*values has no schema"),
        (keywords, r"\*\*values has no schema"),
        (positional, "positional-only"),
        (two, "both ask for the Context"),
        (generator, "generator"),
        (stream, "generator"),
        (lambda: 1, "cannot name a tool"),
        (5, "not of int"),
        (tool(len_of), "is a tool already"),
    ):
        with pytest.raises(DefinitionError, match=words):
            tool(function)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "ä", "a.b", "name\n", 5])
def test_b30_names_that_no_wire_takes_are_refused(name: Any) -> None:
    with pytest.raises(DefinitionError, match="cannot name a tool"):
        tool(len_of, name=name)


@pytest.mark.parametrize(
    "options",
    [
        {"effect": "none"},
        {"effect": None},
        {"replay": "always"},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": math.inf},
        {"timeout": math.nan},
        {"timeout": True},
        {"timeout": "5"},
        {"prepare": 1},
        {"settle": "x"},
    ],
)
def test_options_of_the_wrong_kind_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(options))):
        tool(len_of, **options)


def test_the_context_is_found_however_it_is_written_and_not_in_the_schema() -> None:
    def plain(a: int, context: Context) -> None: ...
    def dotted(a: int, c: ls.Context) -> None: ...
    def optional(a: int, c: Context | None = None) -> None: ...
    def quoted(a: int, c: "Context") -> None: ...  # noqa: UP037
    def annotated(a: int, c: Annotated[Context, "x"]) -> None: ...

    for function, name in ((plain, "context"), (dotted, "c"), (optional, "c"), (quoted, "c"), (annotated, "c")):
        made = tool(function)
        assert made.context == name
        assert list(made.schema["properties"]) == ["a"]
        assert made.validate({"a": 1}) == {"a": 1}
        with pytest.raises(ValueError, match="unknown field"):
            made.validate({"a": 1, name: None})


def test_a_context_imported_for_type_checkers_only_is_known_by_its_name() -> None:
    def for_checkers(c: nowhere.Context) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert tool(for_checkers).context == "c"

    def other(c: OnlyForCheckers) -> None: ...

    with pytest.raises(DefinitionError, match="cannot be resolved"):
        tool(other)


def test_types_of_enclosing_functions_and_classes_are_found() -> None:
    class Local(msgspec.Struct):
        a: int

    @tool
    def near(value: Local) -> None: ...

    assert near.validate({"value": {"a": 1}}) == {"value": Local(1)}

    class Holder:
        class Inner(msgspec.Struct):
            b: int

        @tool
        @staticmethod
        def within(value: Inner, other: Local) -> None: ...

    assert Holder.within.validate({"value": {"b": 1}, "other": {"a": 2}})["value"] == Holder.Inner(1)

    def made_elsewhere() -> Any:
        class Hidden(msgspec.Struct):
            a: int

        def inner(value: Hidden) -> None: ...

        return inner

    with pytest.raises(DefinitionError, match="Hidden"):
        tool(made_elsewhere())


def test_a_namesake_in_a_caller_is_not_taken_for_an_enclosing_name() -> None:
    def caller() -> None:
        Missing = int  # noqa: F841
        tool(make_with_a_missing_name())

    with pytest.raises(DefinitionError, match="Missing"):
        caller()


def make_with_a_missing_name() -> Callable[..., None]:
    def inner(value: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
        ...

    return inner


def test_bound_methods_partials_and_wrapped_functions_work() -> None:
    class Counter:
        def __init__(self) -> None:
            self.total = 0

        def add(self, amount: int) -> int:
            """Add to the total."""
            self.total += amount
            return self.total

        def __call__(self, text: str) -> str:
            return text

    counter = Counter()
    add = tool(counter.add)
    assert (add.name, add.description, list(add.schema["properties"])) == ("add", "Add to the total.", ["amount"])
    assert add(2) == 2
    assert counter.total == 2
    with pytest.raises(DefinitionError, match=r"tool\(object\.method\)"):
        tool(Counter.add)
    assert tool(counter, name="said").validate({"text": "x"}) == {"text": "x"}

    partial = tool(functools.partial(len_pair, left="a"), name="pair")
    assert set(partial.schema["properties"]) == {"left", "right"}
    assert partial.schema["required"] == ["right"]
    assert partial.description == "Both together."

    @functools.wraps(len_of)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return len_of(*args, **kwargs) + 1

    wrapped = tool(wrapper)
    assert wrapped.name == "len_of"
    assert wrapped(**wrapped.validate({"text": "ab"})) == 3


def len_pair(left: str, right: str) -> int:
    """Both together."""
    return len(left + right)


def test_async_functions_are_tools() -> None:
    @tool
    async def wait(seconds: float) -> None:
        """Wait."""

    assert wait.validate({"seconds": 1}) == {"seconds": 1.0}


GOOGLE = """Move a file.

    It keeps its mode.

    Args:
        source: Where it is,
            relative to the root.
        target (str): Where it goes: a path.

            Second paragraph.
        *rest: others

    Returns:
        The new path.
    """
NUMPY = """Move a file.

    It keeps its mode.

    Parameters
    ----------
    source : str
        Where it is,
        relative to the root.
    target
        Where it goes: a path.

        Second paragraph.

    Returns
    -------
    str
        The new path.
    """
SPHINX = """Move a file.

    It keeps its mode.

    :param source: Where it is,
        relative to the root.
    :param str target: Where it goes: a path.
        Second paragraph.
    :type target: str
    :returns: The new path.
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_docstrings_describe_parameters(docstring: str) -> None:
    description, parameters = parse(docstring)
    assert parameters["source"] == "Where it is, relative to the root."
    assert parameters["target"] == "Where it goes: a path. Second paragraph."
    assert description.startswith("Move a file.\n\nIt keeps its mode.")
    assert "The new path." in description
    assert "Where it" not in description


def test_docstrings_that_are_no_style_stay_whole() -> None:
    assert parse(None) == ("", {})
    assert parse("One line.") == ("One line.", {})
    text = "Head.\n\nParameters are good.\n\nArgs: none"
    assert parse(text)[0] == text
    assert parse("A.\n\nParameters\n----------\nx : int\n    It.\n\nThat was all of it.") == (
        "A.\n\nThat was all of it.",
        {"x": "It."},
    )


def test_an_annotated_description_goes_before_the_docstring() -> None:
    @tool
    def both(a: Annotated[int, "from the annotation"], b: int) -> None:
        """Do.

        Args:
            a: from the docstring
            b: from the docstring
        """

    assert both.schema["properties"]["a"]["description"] == "from the annotation"
    assert both.schema["properties"]["b"]["description"] == "from the docstring"
    assert both.description == "Do."


def test_defaults_are_in_the_schema_only_where_they_are_valid_and_short() -> None:
    marker: Any = object()

    @tool
    def defaults(
        a: int = None,  # type: ignore[assignment]  # noqa: RUF013
        b: str = "x" * 500,
        c: int = marker,
        d: list[int] = [1, 2],  # noqa: B006
        e: Colour = Colour.BLUE,
    ) -> None: ...

    properties = defaults.schema["properties"]
    assert "required" not in defaults.schema
    assert ["default" in properties[name] for name in "abcde"] == [False, False, False, True, True]
    assert properties["e"]["default"] == "blue"


# What a tool returns


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (None, "(no output)"),
        (b"\0\1", "(binary, 2 bytes)"),
        (bytearray(3), "(binary, 3 bytes)"),
        (42, "42"),
        (True, "true"),
        (1.5, "1.5"),
        (2**100, str(2**100)),
        ([1, "ä"], '[1,"ä"]'),
        ({"a": {"b": None}, 1: 2}, '{"a":{"b":null},"1":2}'),
        (Point(1), '{"x":1,"y":0.0}'),
        (Box(Point(1)), '{"corner":{"x":1,"y":0.0},"label":null}'),
        (Pair(1, "x"), '[1,"x"]'),
        ([], "[]"),
        (Colour.RED, '"red"'),
    ],
)
def test_values_are_rendered_as_text(value: Any, text: str) -> None:
    assert render(value) == Output(text)


@pytest.mark.parametrize("value", [object(), float("nan"), [float("inf")], lambda: 1, {(1, 2): 3}, iter([])])
def test_values_without_text_are_an_error_for_the_model(value: Any) -> None:
    with pytest.raises(ToolError, match=r"the tool returned .*; return text"):
        render(value)


def test_a_cycle_is_an_error_and_not_a_crash() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(ToolError, match="the tool returned list"):
        render(cycle)


def test_text_and_details_of_an_output_are_cleaned() -> None:
    image = Image("image/png", "AA==")
    output = render(Output((Text("a\x1b[31mb\0"), image), details={"k": "\ud800"}, outcome="error", is_error=True))
    assert output == Output((Text("ab"), image), {"k": "\ufffd"}, "error", True)
    assert render("a\ud800b").content == "a\ufffdb"
    assert render([Text("x"), image]).content == (Text("x"), image)
    assert render(image).content == (image,)
    for wrong in (Output(5), Output((1,)), Output("", details=object()), Output("", details=math.nan)):  # type: ignore[arg-type]
        with pytest.raises(ToolError, match="the tool returned"):
            render(wrong)


@pytest.mark.parametrize("outcome", ["denied", "not_started", "rejected", "truncated", "fine"])
def test_a_tool_cannot_say_what_is_not_its_to_say(outcome: str) -> None:
    with pytest.raises(ToolError, match=outcome):
        render(Output("x", outcome=outcome))  # type: ignore[arg-type]
