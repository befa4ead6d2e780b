"""The assembler and the argument parser, by rule and by fuzz."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core.arguments import parse_arguments
from latchstep.core.assemble import MAX_ANSWER, MAX_CALLS, Assembler, OpenCall, resolve_name
from latchstep.core.message import Provider, Text, Thinking, ToolCall
from latchstep.errors import ModelError

Fragment = dict[str, Any]


def assemble(fragments: Sequence[Fragment], known: Sequence[str] = (), stop: Any = "tool_calls") -> Any:
    assembler = Assembler(known)
    for fragment in fragments:
        fragment = dict(fragment)
        assembler.call(fragment.pop("piece", ""), **fragment)
    return assembler.finish(stop)


def calls(fragments: Sequence[Fragment], known: Sequence[str] = ()) -> list[tuple[str, str, dict[str, Any]]]:
    completed = assemble(fragments, known)
    assert all(not call.flaw for call in completed.blocks), completed
    return [(call.id, call.name, call.arguments) for call in completed.blocks]


@pytest.mark.parametrize(
    ("fragments", "known", "expected"),
    [
        # a new id opens a call, an index that is always 0 does not join two
        (
            [
                {"id": "a", "index": 0, "name": "read", "piece": '{"path":"a"}'},
                {"id": "b", "index": 0, "name": "read", "piece": '{"path":'},
                {"index": 0, "piece": '"b"}'},
            ],
            ["read"],
            [("a", "read", {"path": "a"}), ("b", "read", {"path": "b"})],
        ),
        # no ids at all: a name after a complete object opens a call
        (
            [
                {"index": 0, "name": "read", "piece": '{"path":"a"}'},
                {"index": 0, "name": "read", "piece": '{"path":"b"}'},
            ],
            ["read"],
            [("", "read", {"path": "a"}), ("", "read", {"path": "b"})],
        ),
        # neither ids nor indexes, arguments in pieces
        (
            [
                {"name": "read", "piece": '{"pa'},
                {"piece": 'th":"a"}'},
                {"name": "list", "piece": ""},
                {"piece": '{"path":"b"}'},
            ],
            ["read", "list"],
            [("", "read", {"path": "a"}), ("", "list", {"path": "b"})],
        ),
        # no ids: a new name opens a call though the first had no arguments
        (
            [{"index": 0, "name": "count"}, {"index": 0, "name": "echo", "piece": '{"text":"x"}'}],
            ["count", "echo"],
            [("", "count", {}), ("", "echo", {"text": "x"})],
        ),
        # no ids: the second half of a known name continues
        (
            [{"index": 0, "name": "ec"}, {"index": 0, "name": "ho", "piece": '{"text":"x"}'}],
            ["count", "echo"],
            [("", "echo", {"text": "x"})],
        ),
        # a name that grows
        (
            [{"id": "c", "name": "re"}, {"id": "c", "name": "read"}, {"id": "c", "piece": "{}"}],
            ["read"],
            [("c", "read", {})],
        ),
        (
            [{"index": 0, "name": "re"}, {"index": 0, "name": "read"}, {"index": 0, "piece": '{"path":"a"}'}],
            ["read"],
            [("", "read", {"path": "a"})],
        ),
        # parallel calls whose fragments alternate
        (
            [
                {"id": "a", "index": 0, "name": "read", "piece": '{"path"'},
                {"id": "b", "index": 1, "name": "read", "piece": '{"path"'},
                {"index": 0, "piece": ':"a"}'},
                {"index": 1, "piece": ':"b"}'},
            ],
            ["read"],
            [("a", "read", {"path": "a"}), ("b", "read", {"path": "b"})],
        ),
        # two calls under one id, told apart by index and name
        (
            [
                {"id": "call_0", "index": 0, "name": "count", "piece": "{}"},
                {"id": "call_0", "index": 1, "name": "echo", "piece": '{"te'},
                {"id": "call_0", "index": 1, "piece": 'xt":"x"}'},
            ],
            ["count", "echo"],
            [("call_0", "count", {}), ("call_0", "echo", {"text": "x"})],
        ),
        (
            [
                {"id": "call_0", "index": 0, "name": "count", "piece": "{}"},
                {"id": "call_0", "index": 1, "name": "count", "piece": "{}"},
            ],
            ["count"],
            [("call_0", "count", {})] * 2,
        ),
        # metadata repeated at the end is no call
        (
            [
                {"id": "c", "index": 0, "name": "echo", "piece": '{"text":"x"}'},
                {"id": "c", "index": 0, "name": "echo", "piece": ""},
            ],
            ["echo"],
            [("c", "echo", {"text": "x"})],
        ),
        (
            [{"index": 0, "name": "echo", "piece": '{"text":"x"}'}, {"index": 0, "name": "echo"}, {}],
            ["echo"],
            [("", "echo", {"text": "x"})],
        ),
        # ... unless arguments follow
        (
            [
                {"index": 0, "name": "echo", "piece": '{"text":"x"}'},
                {"index": 0, "name": "echo"},
                {"index": 0, "piece": '{"text":"y"}'},
            ],
            ["echo"],
            [("", "echo", {"text": "x"}), ("", "echo", {"text": "y"})],
        ),
        # the id comes late; the label comes late
        (
            [{"name": "echo", "index": 0}, {"id": "c", "index": 0, "piece": '{"text":"x"}'}],
            ["echo"],
            [("c", "echo", {"text": "x"})],
        ),
        (
            [{"id": "c", "name": "echo", "piece": '{"text"'}, {"index": 0, "piece": ':"x"}'}],
            ["echo"],
            [("c", "echo", {"text": "x"})],
        ),
        # an id made up for each fragment
        (
            [
                {"id": "x1", "index": 0, "name": "echo", "piece": '{"text"'},
                {"id": "x2", "index": 0, "piece": ":"},
                {"id": "x3", "index": 0, "piece": '"x"}'},
            ],
            ["echo"],
            [("x1", "echo", {"text": "x"})],
        ),
        # all that came so far, each time; the whole once more at the end
        (
            [
                {"id": "c", "index": 0, "name": "echo", "piece": piece}
                for piece in ("", '{"te', '{"text":"x', '{"text":"x"}')
            ],
            ["echo"],
            [("c", "echo", {"text": "x"})],
        ),
        (
            [{"id": "c", "name": "echo", "piece": piece} for piece in ('{"text":', '"x"}', '{"text": "x"}')],
            ["echo"],
            [("c", "echo", {"text": "x"})],
        ),
        # nothing yet, as an object
        (
            [{"id": "c", "index": 0, "name": "echo", "piece": "{}"}, {"index": 0, "piece": '{"text":"x"}'}],
            ["echo"],
            [("c", "echo", {"text": "x"})],
        ),
        # names with blanks around; names unknown
        ([{"id": "c", "name": "echo ", "piece": "{}"}], ["echo"], [("c", "echo", {})]),
        ([{"id": "c", "name": "nope", "piece": "{}"}], ["echo"], [("c", "nope", {})]),
        ([{"id": "c", "name": "", "piece": "{}"}], ["echo"], [("c", "", {})]),
    ],
)
def test_fragments_become_calls(fragments: Any, known: Any, expected: Any) -> None:
    assert calls(fragments, known) == expected


def test_a_text_that_holds_its_own_beginning_is_no_repetition() -> None:
    pieces = ['{"text":"', '{\\"text\\":\\"', '"}']
    assert calls([{"id": "c", "name": "echo", "piece": piece} for piece in pieces], ["echo"]) == [
        ("c", "echo", {"text": '{"text":"'})
    ]


def test_arguments_never_move_to_a_call_without_any() -> None:
    # an unnamed fragment with a label of its own must not become the arguments of `count`
    completed = assemble([{"index": 0, "name": "count"}, {"index": 1, "piece": '{"path":"/"}'}], ["count"])
    assert completed.blocks[0] == ToolCall("", "count", {})


@pytest.mark.parametrize(
    ("pieces", "known", "expected"),
    [
        (["echo", "echo"], {"echo"}, "echo"),
        (["echo", "echo"], {"echoecho"}, "echoecho"),
        (["ec", "ho"], {"echo"}, "echo"),
        (["ec", "ec", "ho", "ho"], {"echo"}, "echo"),
        (["re", "read"], {"read"}, "read"),
        (["read_file"] * 3, set(), "read_file"),
        (["a", "b"], set(), "ab"),
        ([" echo\n"], {"echo"}, "echo"),
        (["Echo"], {"echo"}, "Echo"),
        ([], {"echo"}, ""),
    ],
)
def test_names(pieces: list[str], known: set[str], expected: str) -> None:
    assert resolve_name(pieces, frozenset(known)) == expected


@pytest.mark.parametrize("text", ["", "null", '""', " \n", "{}", "\t{ }\r\n", '"{}"', "\ufeff{}"])
def test_no_arguments(text: str) -> None:
    assert parse_arguments(text) == ({}, "", False)


@pytest.mark.parametrize("text", ["", " \n", "null"])
def test_no_arguments_in_a_cut_answer_are_missing(text: str) -> None:
    arguments, flaw, cut = parse_arguments(text, whole=False)
    assert (arguments, cut) == ({}, True)
    assert "cut off" in flaw


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"text":"x"}}', {"text": "x"}),
        ('{"text":"x"}]}', {"text": "x"}),
        ('{"text":"x"}\n\nNow I will look.', {"text": "x"}),
        ('{"text":"x"}</tool_call>', {"text": "x"}),
        ('"{\\"text\\": \\"x\\"}"', {"text": "x"}),
        ('{"text":"a\nb\tc"}', {"text": "a\nb\tc"}),
        ('{"text":"\\ud83e\\udd80 \\ud83e"}', {"text": "🦀 �"}),
        ('{"text":"a\\u0000b"}', {"text": "a␀b"}),
        ('{"n":18446744073709551615}', {"n": 2**64 - 1}),
        ('{} {"text":"x"}', {"text": "x"}),
        ("{}{}", {}),
        ('{"text":"x"}{"text": "x"}', {"text": "x"}),
    ],
)
def test_arguments_read_in_one_way(text: str, expected: Any) -> None:
    assert parse_arguments(text) == (expected, "", False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"text":"x"}{"text":"y"}', "more than one"),
        ('{"text":"x"}{}', "more than one"),
        ('{"n":1}{"n":true}', "more than one"),
        ('{}{"text":"x"}{"text":"y"}', "more than one"),
        ('{"text":"x"} , {"text":"y"}', "more than one"),
        ('{"text":"x"}\nand {"text":"y"}', "more than one"),
        ('{"text":"x"}[1]', "more than one"),
        ("[" * 200_000, "too deeply"),
        ('{"a":' * 200_000, "too deeply"),
        ('{"a":' * 70 + "1" + "}" * 70, "deeper than 64"),
        ('{"n":' + "1" * 5_000 + "}", "5000 digits"),
        ('{"n":18446744073709551616}', "64 bits"),
        ('{"a":NaN}', "NaN"),
        ('{"a":-Infinity}', "Infinity"),
        ('{"a":1e999}', "Infinity"),
        ('{"a":1,"a":2}', "twice"),
        ('{"a":{"b":1,"b":1}}', "twice"),
        ("[1]", "an array"),
        ("1", "a number"),
        ("true", "true or false"),
        ('"text"', "JSON string"),
        ('"{\\"a\\":"', "JSON string"),
        ("hello", "not valid JSON"),
        ("{'a': 'it\"s'}", "not valid JSON"),
        ('{"a":}', "not valid JSON"),
        ('{"a":1]', "not valid JSON"),
    ],
)
def test_flaws_are_said_in_words(text: str, reason: str) -> None:
    arguments, flaw, cut = parse_arguments(text)
    assert (arguments, cut) == ({}, False)
    assert reason in flaw


small = st.recursive(
    st.none() | st.booleans() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=3), max_leaves=4
)


@given(st.dictionaries(st.text(max_size=3), small, max_size=3))
@settings(max_examples=25, deadline=None)
def test_every_cut_of_an_object_is_seen_as_cut(value: dict[str, Any]) -> None:
    for text in (json.dumps({"é🦀": value}), json.dumps({"n": -1.5e-7, "t": True, "v": value}, ensure_ascii=False)):
        for end in range(1, len(text)):
            assert parse_arguments(text[:end])[2], text[:end]


@given(st.text() | st.text(alphabet='{}[]":,\\ u0a1.-e+tn\ud83d'))
@settings(max_examples=300, deadline=None)
def test_no_text_raises(text: str) -> None:
    arguments, flaw, cut = parse_arguments(text)
    assert isinstance(arguments, dict)
    assert not (cut and not flaw)
    assert not (arguments and flaw)
    json.dumps(arguments, allow_nan=False).encode()


def test_a_cut_call_makes_the_answer_cut() -> None:
    completed = assemble([{"id": "a", "name": "count", "piece": "{}"}, {"id": "b", "name": "w", "piece": '{"p":"l'}])
    assert completed.stop_reason == "length"
    assert [bool(call.flaw) for call in completed.blocks] == [False, True]
    assert completed.blocks[1].arguments == {}


@pytest.mark.parametrize("stop", ["length", "filtered", "refused"])
def test_a_veto_stays(stop: Any) -> None:
    completed = assemble([{"id": "b", "name": "w", "piece": '{"p":"l'}], stop=stop)
    assert completed.stop_reason == stop
    assert completed.blocks[0].flaw


def test_blocks_keep_the_order_of_arrival() -> None:
    assembler = Assembler(["echo"])
    seal = {"field": "reasoning"}
    assembler.thinking("hm", seal)
    assembler.thinking("m", seal)
    assembler.text("a")
    assembler.text("")
    assembler.text("b\ud83e")
    assembler.text("\udd80\0")
    assembler.call("{}", id="c", name="echo")
    assembler.provider("x", {"k": 1})
    assembler.text("after")
    assert assembler.finish("stop").blocks == (
        Thinking("hmm", {"field": "reasoning"}),
        Text("ab🦀␀"),
        ToolCall("c", "echo", {}),
        Provider("x", {"k": 1}),
        Text("after"),
    )


fragment = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["", "a", "b", "\ud83d"]),
        "index": st.sampled_from([None, 0, 1, -5]),
        "name": st.sampled_from(["", "echo", "ec", "ho", "count", "x y"]),
        "piece": st.sampled_from(["", " ", "{", "}", '{"a":1}', '"', "\\", '{"a":"', "null", "[", "x", "\ud83d"]),
        "new": st.booleans(),
    },
)


@given(st.lists(fragment, max_size=12), st.sampled_from(["stop", "tool_calls", "length", "filtered"]))
@settings(max_examples=400, deadline=None)
def test_no_fragments_raise(fragments: list[Fragment], stop: str) -> None:
    completed = assemble(fragments, ["echo", "count"], stop)
    for call in completed.blocks:
        assert isinstance(call, ToolCall)
        assert not (call.flaw and call.arguments)
        json.dumps([call.id, call.name, call.arguments], ensure_ascii=False, allow_nan=False).encode()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_splitting_arguments_changes_nothing(data: st.DataObject) -> None:
    texts = ['{"path":"a\\"}{"}', '{"path": "\\\\", "n": [1, {"x": null}]}', "{}"]
    with_id = data.draw(st.booleans())
    fragments: list[Fragment] = []
    for at, text in enumerate(texts):
        cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=6)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        fragments.append({"id": f"c{at}" if with_id else "", "name": "read", "piece": pieces[0]})
        fragments += [{"piece": piece} for piece in pieces[1:]]
    assert [call[2] for call in calls(fragments, ["read"])] == [json.loads(text) for text in texts]


def test_a_long_argument_is_read_once() -> None:
    """A name on each of many fragments asks for the state each time; the work must not grow with what is there."""
    scanned = 0

    class Counting(OpenCall):
        __slots__ = ()

        def _scan(self, piece: str) -> None:
            nonlocal scanned
            scanned += len(piece)
            super()._scan(piece)

    call = Counting("", 0)
    call.pieces.append('{"content":"')
    for _ in range(50_000):
        call.pieces.append('some code\\n\\"x\\" ')
        assert call.state == "open"
    call.pieces.append('"}')
    assert call.state == "done"
    assert scanned == sum(map(len, call.pieces))


def test_bounds_are_named() -> None:
    assembler = Assembler()
    for at in range(MAX_CALLS):
        assembler.call("{}", id=f"c{at}", name="x")
    with pytest.raises(ModelError, match="MAX_CALLS"):
        assembler.call("{}", id="one more", name="x")
    for _ in range(4):
        assembler.text("x" * (MAX_ANSWER // 5))
    with pytest.raises(ModelError, match="MAX_ANSWER"):
        assembler.text("x" * (MAX_ANSWER // 5))
