"""The front: wrong declarations are refused where they are made, and what is left out has its default."""

from __future__ import annotations

import math
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.codec import encode_event
from latchstep.core.message import Message, Provider, Text, ToolCall
from latchstep.journal.base import MemoryJournal
from latchstep.session.build import build_kit, build_rules

from .fakes import Chunks, call, check_requests, done, go


@ls.tool(effect="read")
def add(left: int, right: int) -> int:
    """Add two integers."""
    return left + right


def model() -> ls.ScriptedModel:
    return ls.ScriptedModel([call("add", left=20, right=22), lambda request: request.messages[-1].blocks[0].text])


def test_the_first_example() -> None:
    result = ls.Agent(model(), tools=[add]).run_sync("What is 20 + 22?")
    assert (result.status, result.final_text, result.steps) == ("completed", "42", 2)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": 7}, "int"),
    ({"tools": [add, add]}, "two tools are named 'add'"),
    ({"tools": add.function}, "function"),
    ({"tools": ["add"]}, "str"),
    ({"tools": None}, "NoneType"),
    ({"system": 7}, "int"),
    ({"limits": {"max_steps": 3}}, "dict"),
    ({"policy": "allow"}, "str"),
    ({"approve": True}, "bool"),
    ({"on_doubt": "guess"}, "'report', 'ask' or 'fail'"),
    ({"checks": ["make"]}, "workspace"),
    ({"checks": "make", "workspace": "."}, "list of commands"),
    ({"checks": [" "], "workspace": "."}, "list of commands"),
    ({"output": complex}, "output"),
]


@pytest.mark.parametrize(("given", "words"), WRONG, ids=[f"{n}-{next(iter(w[0]))}" for n, w in enumerate(WRONG)])
def test_wrong_declarations(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ls.DefinitionError) as raised:
        ls.Agent(**{"model": ls.ScriptedModel(["x"]), **given})
    assert words in str(raised.value)


@pytest.mark.parametrize("value", [-1, 0, 1.5, True, "3", None, math.nan])
def test_wrong_limits_name_the_field_and_the_value(value: Any) -> None:
    with pytest.raises(ls.DefinitionError, match=r"max_steps.*whole number of at least 1"):
        ls.Limits(max_steps=value)


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("max_tokens", 0, None),
        ("max_cost", -0.1, 0.0),
        ("max_seconds", math.nan, None),
        ("max_tool_calls", 0, 1),
        ("max_continuations", -1, 0),
        ("tool_timeout", None, 0.5),
        ("grace", "2", 0),
        ("max_result", 0, 1),
        ("max_parallel", 0, 1),
    ],
)
def test_each_limit_is_checked(name: str, bad: Any, good: Any) -> None:
    with pytest.raises(ls.DefinitionError, match=name):
        ls.Limits(**{name: bad})
    assert getattr(ls.Limits(**{name: good}), name) == good


def test_rules_refuse_unknown_choices() -> None:
    kit = build_kit(ls.ScriptedModel(["x"]))
    with pytest.raises(ls.DefinitionError, match="on_stale_approval"):
        build_rules(kit, on_stale_approval="maybe")  # type: ignore[arg-type]


def test_an_agents_journal_takes_one_run_after_the_other() -> None:
    async def main() -> None:
        journal = MemoryJournal()
        journal.append([ev.SessionCreated(session_id="s")])
        agent = ls.Agent(ls.ScriptedModel(["one", "two"]), journal=journal)
        assert (await agent.run("1")).final_text == "one"
        assert (await agent.run("2")).final_text == "two"
        session = agent.session()
        assert session.id == "s"
        assert [m.text for m in session.state.transcript] == ["1", "one", "2", "two"]

    go(main())


def test_a_system_prompt_with_a_lone_surrogate() -> None:
    seen: list[str] = []

    def answer(request: Any) -> str:
        seen.append(request.system)
        return "ok"

    assert ls.Agent(ls.ScriptedModel([answer]), system="a\ud83d").run_sync("go").status == "completed"
    assert seen == ["a�"]


def test_deps_and_workspace_reach_the_tool(tmp_path: Any) -> None:
    got: list[Any] = []

    @ls.tool
    async def use(context: ls.Context) -> str:
        got.append((context.deps, context.workspace))
        return "ok"

    agent = ls.Agent(ls.ScriptedModel([call("use"), "done"]), [use], deps={"db": 1}, workspace=str(tmp_path))
    assert agent.run_sync("go").status == "completed"
    assert got == [({"db": 1}, tmp_path)]


def test_a_plain_function_becomes_a_tool_that_writes() -> None:
    def note(text: str) -> str:
        """Write a note."""
        return text

    kit = build_kit(ls.ScriptedModel(["x"]), [note])
    assert (kit.tools["note"].effect, kit.tools["note"].replay) == ("write", "never")


# -- run_loop ---------------------------------------------------------------------------------------------


def test_run_loop_takes_any_history() -> None:
    async def main() -> None:
        history = [
            Message("user", (Text("go\ud83d"),)),
            Message("assistant", (ToolCall("c1", "add", {"left": 1, "right": float("inf")}), Text(" "))),
            Message("tool", (ls.ToolResult("ghost", "add", "?"),)),
            Message("user", (Text("and?"), ls.ToolResult("c1", "add", "\ud83d"))),
        ]
        answering = Chunks([done("fine")])
        run = ls.run_loop(messages=history, model=answering, tools=[add], system="be brief")
        assert [event.type async for event in run].count("run.finished") == 1
        assert (await run).final_text == "fine"
        check_requests(answering.requests)
        sent = list(answering.requests[0].messages)
        assert [m.role for m in sent] == ["user", "assistant", "tool", "user"]
        assert answering.requests[0].system == "be brief"
        encode_event(ev.MessageAccepted(message_id="x", source="start", message=sent[0]))

    go(main())


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("hello", "message 1 is str"),
        (Message("user", ("hello",)), "str is not a block"),  # type: ignore[arg-type]
        (Message("assistant", (Provider("x", {"a": math.nan}),)), "NaN"),
    ],
)
def test_run_loop_refuses_what_no_record_can_carry(message: Any, words: str) -> None:
    with pytest.raises(ls.DefinitionError, match=words):
        ls.run_loop(messages=[message], model=model())
