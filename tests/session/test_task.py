"""The `task` tool: a session of its own, linked, done once whatever dies, cancelled with its parent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.message import ToolResult
from latchstep.core.rules import Rules
from latchstep.journal.base import restored
from latchstep.journal.store import Store
from latchstep.model.base import Request
from latchstep.session.build import build_kit, build_rules
from latchstep.session.kit import Kit
from latchstep.session.session import Session
from latchstep.session.task import task_tool

from .fakes import go

PROMPT = "count the lines"


def of_task(request: Request) -> bool:
    return request.messages[0].text.startswith("You work on a part")


def answers(parent: list[Any], child: list[Any]) -> ls.ScriptedModel:
    """One model for both: what it says depends on who asks, and on how far they are."""

    def reply(request: Request) -> Any:
        script = child if of_task(request) else parent
        return script[sum(message.role == "assistant" for message in request.messages)]

    return ls.ScriptedModel([reply] * 20)


class World:
    """A parent's session and the store in which its tasks lie."""

    def __init__(self, home: Path, model: Any, tools: list[Any], policy: Any = None) -> None:
        self.store, self.model, self.tools, self.policy = Store(home), model, tools, policy
        self.limits: list[int] = []

    def build(self, folder: Path, max_steps: int) -> tuple[Kit, Rules]:
        self.limits.append(max_steps)
        kit = build_kit(self.model, self.tools)
        return kit, build_rules(kit, limits=ls.Limits(max_steps=max_steps), policy=self.policy)

    def session(self) -> Session:
        known = [entry.id for entry in self.store.list()]
        journal = self.store.open("main") if "main" in known else self.store.create("main", time=0.0)
        kit = build_kit(self.model, [*self.tools, task_tool(self.store, "main", self.build)])
        return Session(journal, kit, build_rules(kit, policy=self.policy), state=restored(journal))

    def child(self) -> tuple[str, list[ev.Event]]:
        (name,) = (entry.id for entry in self.store.list() if entry.id != "main")
        with self.store.open(name) as journal:
            return name, list(journal.read())


TASK = ls.ToolCall(name="task", arguments={"prompt": PROMPT, "max_steps": 7})
LOOK = ls.ToolCall(name="look", arguments={})


@ls.tool(effect="read")
def look() -> str:
    """Look."""
    return "42 lines"


def result_of(result: ls.RunResult) -> ToolResult:
    (block,) = (b for m in result.messages for b in m.blocks if isinstance(b, ToolResult) and b.name == "task")
    return block


def test_a_part_of_the_work_is_done_in_a_session_of_its_own(tmp_path: Path) -> None:
    world = World(tmp_path, answers([TASK, "all done"], [LOOK, "there are 42 lines"]), [look])

    async def main() -> tuple[ls.RunResult, list[str]]:
        session, shown = world.session(), []
        async with session.stream("go") as run:
            async for event in run:
                if isinstance(event, ev.ToolOutput):
                    shown.append(event.text)
            result = await run.result()
        await session.close()
        return result, shown

    result, shown = go(main())
    assert result.status == "completed"
    assert result_of(result).text == "there are 42 lines"
    assert shown == ["look"]
    assert world.limits == [7]
    name, events = world.child()
    assert isinstance(events[0], ev.SessionCreated)
    assert events[0].parent == "main"
    prompts = [event for event in events if isinstance(event, ev.MessageAccepted)]
    assert prompts[0].message.text.endswith(PROMPT)
    with world.store.open("main") as journal:
        finished = [event for event in journal.read() if isinstance(event, ev.ToolFinished)]
    assert finished[0].details["session"] == name
    assert finished[0].details["steps"] == 2


def test_a_task_that_fails_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    world = World(tmp_path, answers([TASK, "sorry"], [LOOK] * 9), [look])

    async def main() -> ls.RunResult:
        session = world.session()
        result = await session.run("go")
        await session.close()
        return result

    result = go(main())
    assert result.status == "completed", "a failed task is a result, and the run goes on"
    block = result_of(result)
    assert block.is_error
    assert "The task ended" in block.text


def test_a_task_may_do_no_more_than_its_parent(tmp_path: Path) -> None:
    effects: list[str] = []

    @ls.tool
    def touch() -> str:
        """Touch."""
        effects.append("touched")
        return "ok"

    def policy(call: ls.ToolCall, traits: Any) -> ls.Verdict:
        return ls.Verdict("refuse", "not here") if call.name == "touch" else ls.Verdict("run")

    script = answers(
        [TASK, "done"], [ls.ToolCall(name="touch"), ls.ToolCall(name="task", arguments={"prompt": "x"}), "no"]
    )
    world = World(tmp_path, script, [touch], policy)

    async def main() -> ls.RunResult:
        session = world.session()
        result = await session.run("go")
        await session.close()
        return result

    go(main())
    _, events = world.child()
    outcomes = [event.outcome for event in events if isinstance(event, ev.ToolFinished)]
    assert outcomes == ["denied", "rejected"], "neither what is refused, nor a task of its own"
    assert effects == []


def test_it_is_cancelled_with_its_parent(tmp_path: Path) -> None:
    begun = asyncio.Event()

    @ls.tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    world = World(tmp_path, answers([TASK], [ls.ToolCall(name="wait")]), [wait])

    async def main() -> ls.RunResult:
        session = world.session()
        async with session.stream("go") as run:
            await begun.wait()
            run.cancel()
            result = await run.result()
        await session.close()
        return result

    assert go(main()).status == "cancelled"
    _, events = world.child()
    ending = events[-1]
    assert isinstance(ending, ev.RunFinished)
    assert ending.status == "cancelled"


LIFE = """
import asyncio, os, sys
from pathlib import Path
import latchstep as ls
from tests.session.test_task import LOOK, PROMPT, TASK, World, answers, look

home, at = Path(sys.argv[1]), sys.argv[2]

def die(where):
    if at == where:
        os._exit(9)

@ls.tool
def touch() -> str:
    "Touch."
    with open(home / "effects", "a") as file:
        file.write("touched\\n")
    die("effect")
    return "ok"

def last(request):
    die("last")
    return "there are 42 lines"

def parents_end(request):
    die("after")
    return "all done"

async def main():
    script = answers([TASK, "all done"], [LOOK, ls.ToolCall(name="touch"), "there are 42 lines"])
    inner = script.replies[0]
    def reply(request):
        said = inner(request)
        if said == "there are 42 lines":
            die("last")
        if said == "all done":
            die("after")
        return said
    world = World(home / "store", ls.ScriptedModel([reply] * 20), [look, touch])
    session = world.session()
    result = await (session.resume() if session.unfinished else session.run("go"))
    await session.close()
    blocks = [b for m in result.messages for b in m.blocks if type(b).__name__ == "ToolResult" and b.name == "task"]
    print(result.status, blocks[0].text)

asyncio.run(main())
"""


def life(home: Path, at: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", LIFE, str(home), at], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )


def test_whatever_dies_a_task_goes_on_where_it_was(tmp_path: Path) -> None:
    """Killed in the task's own tool, before its last answer, and after it: its effect happens once."""
    for at in ("effect", "last", "after"):
        home = tmp_path / at
        home.mkdir()
        first = life(home, at)
        assert first.returncode == 9, first.stderr
        second = life(home, "never")
        assert second.stdout == "completed there are 42 lines\n", second.stderr
        assert (home / "effects").read_text() == "touched\n"
        assert len(Store(home / "store").list()) == 2, "no second task"
