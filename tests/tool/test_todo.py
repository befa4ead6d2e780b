"""The plan: what the model may say, what becomes of it in the state, and that nothing else becomes a plan."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.plan import PLAN, Item, plan_in, plan_text, rows
from latchstep.core.state import State, fold
from latchstep.errors import ToolError
from latchstep.tool.hooks import after_tool
from latchstep.tool.todo import MAX_DOING, MAX_ITEMS, MAX_TEXT, todo_tool
from tests.session.fakes import FakeJournal, call, cut, go, results, session_of

ITEMS = [{"text": "look", "status": "done"}, {"text": "mend\nit", "status": "doing"}, {"text": "test"}]
ROWS = ["[x] look", "[>] mend it", "[ ] test"]


def said(items: list[Any], **more: Any) -> Any:
    return todo_tool()(**todo_tool().validate({"items": items, **more}))


def test_the_plan_is_told_back() -> None:
    assert said(ITEMS).content == "The plan: 1 of 3 done.\n" + "\n".join(ROWS)
    assert said([]).content == "There is no plan any more."
    assert said([]).details == {PLAN: ()}


@pytest.mark.parametrize(
    ("items", "error", "why"),
    [
        ([{"text": ""}], ValueError, "text"),
        ([{"text": "x" * (MAX_TEXT + 1)}], ValueError, "text"),
        ([{"text": "x", "status": "soon"}], ValueError, "status"),
        ([{"text": "x", "done": True}], ValueError, "done"),
        ([{"status": "done"}], ValueError, "text"),
        (["x"], ValueError, "items"),
        ([{"text": "x"}] * (MAX_ITEMS + 1), ValueError, "items"),
        ([{"text": "x"}, {"text": " \n"}], ToolError, "item 2 is blank"),
        ([{"text": "x", "status": "doing"}] * (MAX_DOING + 1), ToolError, f"at most {MAX_DOING}"),
    ],
)
def test_what_is_no_plan_is_refused(items: list[Any], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        said(items)


def test_the_latest_plan_is_kept_over_runs_crashes_and_snapshots() -> None:
    async def main() -> None:
        journal = FakeJournal()
        script = [call("todo", "a", items=ITEMS), call("todo", "b", items=[*ITEMS, {"text": "tell"}]), "done"]
        session = session_of(script, [todo_tool()], journal=journal)
        assert (await session.run("go")).status == "completed"
        plan = session.state.plan
        assert rows(plan) == [*ROWS, "[ ] tell"]
        again = session_of(["more"], [todo_tool()], journal=cut(journal, len(journal.events)))
        assert again.state.plan == plan
        await again.run("go on")
        assert again.state.plan == plan
        snapshot = ev.SessionSnapshot(needed=0, state=msgspec.Raw(again.state.snapshot()))
        assert fold([snapshot]).plan == plan
        first = journal.types().index("tool.finished") + 1
        assert rows(fold(journal.events[:first]).plan) == ROWS
        assert plan_text(again.state).splitlines()[1:] == [*ROWS, "[ ] tell"]
        assert plan_text(State()) == ""

    go(main())


def test_plans_of_one_turn_take_effect_in_order() -> None:
    async def main() -> None:
        async def late(arguments: dict[str, Any], output: ls.Output, context: ls.Context) -> None:
            for _ in range(50 - 5 * int(context.call_id)):
                await asyncio.sleep(0)

        batch = [call("todo", f"{n}", items=[{"text": f"{n}"}]) for n in range(8)]
        session = session_of([batch, "done"], [after_tool(todo_tool(), late)])
        await session.run("go")
        assert [item.text for item in session.state.plan] == ["7"]

    go(main())


def test_only_a_success_that_says_so_is_a_plan() -> None:
    """Details of other tools are theirs, whatever they hold."""

    async def main() -> None:
        details: list[Any] = [{"plan": [{"text": "x"}]}, [PLAN], {PLAN: "x"}, {PLAN: [{"text": 1}]}, {PLAN: None}]
        outputs = [ls.Output("", value) for value in details]
        outputs.append(ls.Output("", {PLAN: [{"text": "x"}]}, outcome="error", is_error=True))

        @ls.tool
        def other(n: int) -> ls.Output:
            return outputs[n]

        calls = [call("other", n=n) for n in range(len(outputs))]
        session = session_of([call("todo", "t", items=ITEMS), *calls, "done"], [todo_tool(), other])
        result = await session.run("go")
        assert len(results(result)) == 1 + len(outputs)
        assert rows(session.state.plan) == ROWS

    go(main())


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda of: st.lists(of) | st.dictionaries(
    st.sampled_from([PLAN, "text", "status"]), of)))  # fmt: skip
def test_details_may_be_anything(details: Any) -> None:
    plan = plan_in(details)
    assert plan is None or all(isinstance(item, Item) for item in plan)


@given(st.lists(st.builds(Item, st.text(), st.sampled_from(["open", "doing", "done"])), max_size=9))
def test_an_item_is_one_row_whatever_it_says(items: list[Item]) -> None:
    assert len("\n".join(rows(tuple(items))).splitlines()) == len(items)
