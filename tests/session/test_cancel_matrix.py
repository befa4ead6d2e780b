"""Every way to stop a run at every moment it can be stopped at: one ending, nothing left, the next prompt works.

A new moment is one row of `MOMENTS`, a new way one function of `WAYS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.errors import ModelError
from latchstep.journal.reader import read_journal
from latchstep.journal.store import Store
from latchstep.model.retry import retrying
from latchstep.session.build import build_rules, toolbox
from latchstep.session.coding import coding_kit
from latchstep.session.session import Session
from latchstep.tool import proctable
from latchstep.tool.toolslock import still_running

from .fakes import Chunks, call, calling, check_requests, done, forever, go, settled, text

MARK = "LC_LATCHSTEP_TEST"
"""Variables that begin with LC_ reach a command, so that whatever it started can be found by this one."""

NUMBERS = itertools.count(61_000_000 + os.getpid() * 100)

BUSY = """
sleep {n} &
setsid sleep {n} &
nohup sleep {n} >/dev/null 2>&1 &
(setsid sh -c 'sleep {n} & sleep {n}' &)
env -i setsid -f sleep {n}
sh -c 'trap "" TERM INT HUP; sleep {n}; sleep {n}' &
"""
SLEEPERS = 7
"""How many `sleep` `BUSY` leaves: in the background, in sessions of their own, orphaned, unmarked, beneath the deaf."""


# -- what a run may be doing ---------------------------------------------------------------------------------


class Stubborn:
    """Work that hears no cancellation until it is freed."""

    def __init__(self) -> None:
        self.free, self.thread_free = asyncio.Event(), threading.Event()

    async def coroutine(self) -> str:
        while not self.free.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.free.wait()
        return "freed"

    def let_go(self) -> None:
        self.free.set()
        self.thread_free.set()


def tools_of(stubborn: Stubborn) -> list[ls.Tool]:
    async def hold(arguments: Any, context: Any) -> Any:
        return await forever()

    @ls.tool
    async def hang(context: ls.Context) -> str:
        context.captured = "half"
        await forever()
        return "never"

    @ls.tool(prepare=hold)
    async def unprepared() -> str:
        return "never"

    @ls.tool
    async def ready() -> str:
        return "ok"

    @ls.tool
    async def deaf() -> str:
        return await stubborn.coroutine()

    @ls.tool
    def deaf_thread() -> str:
        stubborn.thread_free.wait(60)
        return "freed"

    return [hang, unprepared, ready, deaf, deaf_thread]


class Moment(NamedTuple):
    """answers: the model's. event: the type after which the run is stopped, and of which count. options: the rules'.

    sleepers: processes that live by then. The file `busy` in the workspace is `BUSY`. deaf: what runs hears nothing.
    """

    answers: list[list[Any]]
    event: str
    options: dict[str, Any] = {}  # noqa: RUF012
    sleepers: int = 0
    deaf: bool = False


OVERLOADED = ModelError("overloaded", "busy", retry_after=30.0)
ASK = {"policy": lambda call, traits: ls.Verdict("ask", "?")}
HELD: dict[str, Any] = {"approve": lambda question: forever()}

MOMENTS: dict[str, Moment] = {
    "waiting for the first piece": Moment([[forever]], "model.requested"),
    "in the middle of a stream": Moment([[text("a"), text("b"), forever]], "model.delta"),
    "before the terminal event": Moment([[text("a"), forever, done()]], "model.delta"),
    "in back-off": Moment([[text("a"), OVERLOADED], [done()]], "model.failed"),
    "in prepare": Moment([[calling(call("unprepared"))]], "message.completed"),
    "at a question": Moment([[calling(call("ready"))]], "approval.requested", ASK),
    "at a slow approver": Moment([[calling(call("ready"))]], "approval.requested", {**ASK, **HELD}),
    "in a tool": Moment([[calling(call("hang"), call("ready"))]], "tool.started"),
    "between two calls": Moment([[calling(call("ready"), call("hang"))]], "tool.finished"),
    "in a deaf coroutine": Moment([[calling(call("deaf"), call("ready"))]], "tool.started", deaf=True),
    "in a deaf thread": Moment([[calling(call("deaf_thread"), call("ready"))]], "tool.started", deaf=True),
    "in a command": Moment([[calling(call("bash", command=". ./busy; wait"))]], "tool.started", sleepers=SLEEPERS),
    "with a command in the background": Moment(
        [[calling(call("bash", command=". ./busy"))], [text("a"), forever]], "model.delta", sleepers=SLEEPERS
    ),
    "in a check": Moment(
        [[calling(call("ready"))], [done()]], "check.started", {"checks": [". ./busy; wait"]}, sleepers=SLEEPERS
    ),
}


# -- how it may be stopped -----------------------------------------------------------------------------------

Reached = Callable[[], Awaitable[None]]
KEPT: set[asyncio.Task[Any]] = set()


async def cancel(session: Session, reached: Reached) -> None:
    run = session.stream("go").start()
    await reached()
    run.cancel("enough")
    await run


async def cancel_twice(session: Session, reached: Reached) -> None:
    run = session.stream("go").start()
    await reached()
    run.cancel("enough")
    await asyncio.sleep(0)
    run.cancel("more than enough")
    await run


async def every_task_cancelled(session: Session, reached: Reached) -> None:
    """As a loop that shuts down does it."""
    run = session.stream("go").start()
    await reached()
    for task in asyncio.all_tasks() - KEPT - {asyncio.current_task()}:
        task.cancel()
    await run


async def caller_cancelled(session: Session, reached: Reached) -> None:
    caller = asyncio.create_task(session.run("go"))
    await reached()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def block_left(session: Session, reached: Reached) -> None:
    async with session.stream("go"):
        await reached()


async def block_fails(session: Session, reached: Reached) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with session.stream("go"):
            await reached()
            raise ZeroDivisionError


async def timeout_around(session: Session, reached: Reached) -> None:
    async def within() -> None:
        async with asyncio.timeout(None) as timeout, session.stream("go") as run:
            await reached()
            timeout.reschedule(asyncio.get_running_loop().time())
            await run.result()

    with pytest.raises(TimeoutError):
        await within()


async def deadline(session: Session, reached: Reached) -> None:
    run = session.stream("go").start()
    await reached()
    session.ring()  # what the timer of `max_seconds` calls
    await run


async def session_closed(session: Session, reached: Reached) -> None:
    session.stream("go").start()
    await reached()
    await session.close()


WAYS = [
    cancel,
    cancel_twice,
    every_task_cancelled,
    caller_cancelled,
    block_left,
    block_fails,
    timeout_around,
    deadline,
    session_closed,
]


# -- what may be left ----------------------------------------------------------------------------------------


def living(mark: str, number: str) -> list[int]:
    """Processes of this test's commands: by what they inherited, or, where they shed that, by their arguments."""
    entry, argument = f"\0{MARK}={mark}\0".encode(), number.encode()
    return [
        pid
        for pid in proctable.walk()
        if entry in b"\0" + proctable.read_file(f"/proc/{pid}/environ")
        or argument in proctable.read_file(f"/proc/{pid}/cmdline")
    ]


def sleepers(number: str) -> int:
    return sum(
        proctable.read_file(f"/proc/{pid}/cmdline").startswith(b"sleep\0" + number.encode()) for pid in proctable.walk()
    )


def census() -> dict[str, Any]:
    """What this process holds: tasks, descriptors by what they lead to, threads, children."""
    gc.collect()
    threads = Counter(thread.name for thread in threading.enumerate())
    del threads["latchstep-tool"]  # idle ones are kept for the next call
    fds: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            fds[os.readlink(f"/proc/self/fd/{name}").split(":")[0]] += 1
    fds[f"/proc/{os.getpid()}/fd"] = 0
    return {
        "tasks": len(asyncio.all_tasks()),
        "descriptors": +fds,
        "threads": +threads,
        "children": proctable.descendants(proctable.walk(), os.getpid()),
    }


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    mark = f"m{next(NUMBERS)}"
    monkeypatch.setenv(MARK, mark)
    return mark


class Stage:
    """A coding session on disk. Its model gives a moment's answers, its workspace has the file `busy`."""

    def __init__(self, folder: Path, moment: Moment) -> None:
        self.moment, self.number = moment, str(next(NUMBERS))
        self.stubborn, self.store, self.workspace = Stubborn(), Store(folder / "home"), folder / "ws"
        self.workspace.mkdir()
        (self.workspace / "busy").write_text(BUSY.format(n=self.number))
        self.model = Chunks(*moment.answers)
        journal = self.store.create("s", time=0.0)
        self.folder = journal.directory
        self.session = self.open(journal, self.model, **moment.options)

    def open(self, journal: Any, model: Any, *, approve: Any = None, **rules: Any) -> Session:
        coding = coding_kit(retrying(model), self.workspace, directory=journal.directory, approve=approve)
        kit = replace(coding, tools=toolbox([*coding.tools.values(), *tools_of(self.stubborn)]))
        limits = ls.Limits(grace=0.05 if self.moment.deaf else 2.0, max_seconds=3600.0)
        return Session(journal, kit, build_rules(kit, limits=limits, **rules))

    def types(self) -> list[str]:
        return [event.type for event in self.events()]

    def events(self) -> list[ev.Event]:
        return list(read_journal(self.folder))

    async def reached(self) -> None:
        """The run stands where the moment says."""
        shown = self.session.watch()
        async for event in shown:
            if event.type == self.moment.event:
                break
        await shown.aclose()  # type: ignore[attr-defined]
        await self.session.barrier.quiet()
        await settled()
        await until_later(lambda: sleepers(self.number) >= self.moment.sleepers)


async def until_later(condition: Callable[[], object]) -> None:
    """As `until`, for what other processes do."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", MOMENTS, ids=lambda name: name.replace(" ", "-"))
def test_stopped(tmp_path: Path, mark: str, name: str, way: Any) -> None:
    async def main() -> None:
        KEPT.clear()
        KEPT.update(asyncio.all_tasks())
        before = census()
        stage = Stage(tmp_path, MOMENTS[name])
        try:
            await stopped_and_on(stage, mark, way)
        finally:
            stage.stubborn.let_go()
            await stage.session.close()
            await settled()
        assert not still_running(stage.folder / "tools.lock")
        del stage
        assert census() == before

    go(main())


async def stopped_and_on(stage: Stage, mark: str, way: Any) -> None:
    await way(stage.session, stage.reached)
    asked = len(stage.model.requests)
    assert living(mark, stage.number) == []
    judge(stage.events(), "budget" if way is deadline else "cancelled", stage.moment)
    assert stage.model.closed == asked
    stage.stubborn.let_go()
    await settled()
    assert stage.events()[-1].type == "run.finished"
    await next_prompt(stage, asked, way is session_closed)


def judge(events: list[ev.Event], status: str, moment: Moment) -> None:
    """Law 7, by the record alone."""
    types = [event.type for event in events]
    ending = events[-1]
    assert isinstance(ending, ev.RunFinished)
    assert ending.status == status
    assert types.count("run.finished") == 1
    assert types.count("clock.passed" if status == "budget" else "cancel.requested") == 1
    stopped = types.index("clock.passed" if status == "budget" else "cancel.requested")
    assert not {"model.requested", "tool.started", "check.started"} & set(types[stopped:])
    started = {event.call_id for event in events if isinstance(event, ev.ToolStarted)}
    finished = [event for event in events if isinstance(event, ev.ToolFinished)]
    calls = [c.id for event in events if isinstance(event, ev.MessageCompleted) for c in event.message.calls]
    assert [event.call_id for event in finished] == calls
    for event in finished:
        assert event.outcome in ("ok", "interrupted", "not_started")[0 if event.call_id in started else 2 :]
        assert ("may still be running" in str(event.content)) == (moment.deaf and event.outcome == "interrupted")


async def next_prompt(stage: Stage, asked: int, reopen: bool) -> None:
    """The next plain message is answered, and its request is valid."""
    model = stage.model
    model.answers = (*[[]] * asked, [done("here")])
    if reopen:
        stage.session = stage.open(stage.store.open("s"), model)
    stage.session.rules = build_rules(stage.session.kit)
    again = await stage.session.run("still there?")
    assert (again.status, again.final_text) == ("completed", "here")
    check_requests(model.requests[asked:])


@pytest.mark.parametrize("name", MOMENTS, ids=lambda name: name.replace(" ", "-"))
def test_the_run_is_told_at_once(tmp_path: Path, mark: str, name: str) -> None:
    """On record within a few turns of the event loop, whatever is deaf, once no barrier is under way."""

    async def main() -> None:
        stage = Stage(tmp_path, MOMENTS[name])
        try:
            async with stage.session.stream("go") as run:
                await stage.reached()
                run.cancel("enough")
                for _ in range(5):
                    await asyncio.sleep(0)
                assert "cancel.requested" in stage.types()
                stage.stubborn.let_go()
        finally:
            stage.stubborn.let_go()
            await stage.session.close()
            await settled()

    go(main())


WHOLE = Moment(
    [[text("a"), calling(call("read", path="busy"), call("ready"))], [text("b"), done()]],
    "",
    {"checks": ["true"], "approve": lambda question: True, **ASK},
)


def test_stopped_between_any_two_events(tmp_path: Path, mark: str) -> None:
    """By whoever iterates the run, at each event it is shown, the transient ones included."""

    async def one(at: int) -> bool:
        KEPT.clear()
        KEPT.update(asyncio.all_tasks())
        (tmp_path / str(at)).mkdir()
        stage = Stage(tmp_path / str(at), WHOLE)
        shown: list[ev.Event] = []
        try:
            async with stage.session.stream("go") as run:
                async for event in run:
                    if len(shown) == at:
                        run.cancel("enough")
                    shown.append(event)
            over = shown[-1] is shown[min(at, len(shown) - 1)]
            if not over:
                judge(stage.events(), "cancelled", WHOLE)
                await next_prompt(stage, len(stage.model.requests), reopen=False)
        finally:
            await stage.session.close()
            await settled()
        return over

    async def main() -> None:
        before, at = census(), 0
        while not await one(at):
            at += 1
        assert at > 15
        assert census() == before

    go(main())
