"""Validation: nothing is coerced with loss, nothing is dropped, and a rejection says what would be right."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.tool.define import tool


class Node(msgspec.Struct):
    value: int
    children: list[Node] = []


class Circle(msgspec.Struct, tag="circle"):
    radius: float


class Square(msgspec.Struct, tag="square"):
    side: float


@dataclasses.dataclass
class Place:
    city: str
    zip: int = 0


class Extra(TypedDict, total=False):
    deep: float


class Row(NamedTuple):
    x: float
    y: int = 0


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@tool
def work(
    *,
    count: int = 0,
    ratio: float = 0.0,
    text: str = "",
    flag: bool = False,
    mode: Literal["fast", "slow"] = "fast",
    level: Level = Level.LOW,
    either: int | float | str = 0,
    maybe: int | None = None,
    node: Node | None = None,
    shape: Circle | Square | None = None,
    place: Place | None = None,
    extra: Extra | None = None,
    row: Row | None = None,
    many: list[float] | None = None,
    table: dict[str, float] | None = None,
    names: set[str] | None = None,
    pair: tuple[int, float] | None = None,
    bounded: Annotated[int, msgspec.Meta(ge=1)] = 1,
) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"count": "5"}, '`count`: expected integer, got string "5".'),
        ({"count": 1.0}, "`count`: expected integer, got number 1.0."),
        ({"count": True}, "`count`: expected integer, got boolean true."),
        ({"count": None}, "`count`: expected integer, got null."),
        ({"count": [1]}, "`count`: expected integer, got array [1]."),
        ({"text": 5}, "`text`: expected string, got integer 5."),
        ({"ratio": "1.5"}, '`ratio`: expected number, got string "1.5".'),
        ({"ratio": True}, "`ratio`: expected number, got boolean true."),
        ({"ratio": 2**53 + 1}, "`ratio`: the integer is too large to be a number without loss"),
        ({"ratio": 10**400}, "`ratio`: "),
        ({"ratio": float("nan")}, "`ratio`: "),
        ({"ratio": float("inf")}, "`ratio`: "),
        ({"flag": 1}, "`flag`: expected boolean, got integer 1."),
        ({"flag": "true"}, '`flag`: expected boolean, got string "true".'),
        ({"mode": "medium"}, '`mode`: expected one of ["fast","slow"], got string "medium".'),
        ({"mode": 1}, '`mode`: expected one of ["fast","slow"], got integer 1.'),
        ({"level": 1.0}, "`level`: "),
        ({"level": True}, "`level`: "),
        ({"level": 9}, "`level`: expected one of [1,2], got integer 9."),
        ({"either": float("nan")}, "`either`: "),
        ({"maybe": "x"}, '`maybe`: expected integer or null, got string "x".'),
        ({"node": {"value": 1, "children": [{"value": "x"}]}}, "`node.children[0].value`: expected integer"),
        ({"node": {"value": 1, "children": [{"value": 1, "x": 2}]}}, "`node.children[0]`: unknown field `x`."),
        ({"node": {}}, "`node`: object missing required field `value` (fields: value (integer, required)"),
        ({"shape": {"type": "circle", "radius": 1, "side": 2}}, "`shape`: unknown field `side`."),
        ({"shape": {"type": "oval"}}, "`shape"),
        ({"shape": {"type": "square", "side": 2**53 + 1}}, "`shape.side`: the integer is too large"),
        ({"place": {"city": "x", "zpi": 1}}, "`place`: unknown field `zpi`. Did you mean `zip`? Allowed: city, zip."),
        ({"extra": {"deeep": 1}}, "`extra`: unknown field `deeep`. Did you mean `deep`?"),
        ({"extra": {"deep": 2**60 + 1}}, "`extra.deep`: the integer is too large"),
        ({"row": [1, 2, 3]}, "`row`: "),
        ({"row": [2**53 + 1]}, "`row[0]`: the integer is too large"),
        ({"many": [1.5, "x"]}, '`many[1]`: expected number, got string "x".'),
        ({"many": [2**53 + 1]}, "`many[0]`: the integer is too large"),
        ({"table": {"a": "b"}}, "`table[...]`: expected number"),
        ({"table": {"a": 2**53 + 1}}, "`table.a`: the integer is too large"),
        ({"names": ["a", "a"]}, "`names`: expected distinct members"),
        ({"pair": [1]}, "`pair`: expected array of length 2"),
        ({"pair": [1, 2**53 + 1]}, "`pair[1]`: the integer is too large"),
        ({"bounded": 0}, "`bounded`: expected integer >= 1, got integer 0."),
        ({"text": "\ud800"}, "not valid Unicode"),
        ({"cuont": 1}, "unknown field `cuont`. Did you mean `count`?\nFields: count (integer), ratio (number)"),
        ({"count": "x" * 5000}, "… (+"),
    ],
)
def test_lossy_values_are_refused_in_words(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r"^Invalid arguments for `work`") as caught:
        work.validate(arguments)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 2500


@pytest.mark.parametrize(
    "arguments",
    [
        {"ratio": 5},
        {"ratio": -(2**53)},
        {"either": 1},
        {"either": 2**60 + 1},
        {"either": 1.5},
        {"either": "x"},
        {"maybe": None},
        {"node": {"value": 1, "children": [{"value": 2, "children": []}]}},
        {"shape": {"type": "circle", "radius": 1.5}},
        {"row": [1]},
        {"row": [1, 2]},
        {"table": {}},
        {"count": 2**70},
        {"names": ["a", "b"]},
    ],
)
def test_exact_values_pass(arguments: dict[str, Any]) -> None:
    assert set(work.validate(arguments)) == set(arguments)


def test_several_problems_are_named_at_once_and_bounded() -> None:
    with pytest.raises(ValueError, match="count") as caught:
        work.validate({"count": "x", "ratio": "y", "nope": 1})
    assert [line[:10] for line in str(caught.value).split("\n")[1:4]] == ["- unknown ", "- `count`:", "- `ratio`:"]
    with pytest.raises(ValueError, match="and 990 more") as caught:
        work.validate({f"x{number}": 1 for number in range(1000)})
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("arguments", [None, [], "x", 5])
def test_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    with pytest.raises(ValueError, match="expected one JSON object"):
        work.validate(arguments)


def test_x01_deep_nesting_is_a_rejection() -> None:
    @tool
    def anything(value: Any) -> None: ...

    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        anything.validate({"value": deep})
    while deep:
        deep = deep.pop()  # taken apart by hand, since the interpreter would recurse


def test_x06_a_nul_in_a_string_is_a_string() -> None:
    assert work.validate({"text": "a\0b"}) == {"text": "a\0b"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = list(work.schema["properties"])


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*FIELDS, "other", "väluе\n"]), json_values, max_size=4))
def test_validation_either_keeps_every_value_or_says_why_not(arguments: dict[str, Any]) -> None:
    try:
        kwargs = work.validate(arguments)
    except ValueError as error:
        text = str(error)
        assert text.startswith("Invalid arguments for `work`")
        assert len(text) < 5000
        return
    back = json.loads(json.dumps(msgspec.to_builtins(kwargs)))
    for name, value in arguments.items():
        assert _same(value, back[name]), (value, back[name])


def _same(given: Any, back: Any) -> bool:
    """Nothing that was given is missing or different, but for the order of a set."""
    if isinstance(given, dict):
        return isinstance(back, dict) and all(key in back and _same(value, back[key]) for key, value in given.items())
    if isinstance(given, list):
        if given and all(isinstance(item, str) for item in given):
            return sorted(given) == sorted(back)
        return len(back) >= len(given) and all(map(_same, given, back))
    if isinstance(given, bool) or isinstance(back, bool):
        return given is back
    return bool(given == back) and isinstance(given, str) == isinstance(back, str)
