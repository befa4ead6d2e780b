"""What tools and clocks may do to a run: floods, endless and failing objects, crowds of children, time set back."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.secrets import Masker
from latchstep.journal.store import Store
from latchstep.session.build import build_kit, build_rules
from latchstep.session.coding import coding_kit
from latchstep.session.session import Session
from latchstep.tool import proctable
from latchstep.tool.capture import FILE_LIMIT
from latchstep.tool.define import MAX_DETAILS

from .fakes import FakeJournal, call, go, results, session_of

FLOOD = """
import asyncio, resource, sys
from pathlib import Path
import latchstep as ls
from latchstep.journal.store import Store
from latchstep.session.build import build_rules, toolbox
from latchstep.session.coding import coding_kit
from latchstep.session.session import Session
from dataclasses import replace

peaks = []

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

@ls.tool
def huge() -> str:
    text = "x" * 500_000_000
    peaks.append(peak())
    return text

@ls.tool
def warm() -> str:
    peaks.append(peak())
    return "ok"

async def main():
    folder = Path(sys.argv[1])
    journal = Store(folder).create("s", time=0.0)
    calls = [
        ls.ToolCall("warm-1", "bash", {"command": "yes x | head -c 3000000"}),
        ls.ToolCall("warm-2", "warm", {}),
        ls.ToolCall("command", "bash", {"command": "yes 0123456789 | head -c 1000000000"}),
        ls.ToolCall("warm-3", "warm", {}),
        ls.ToolCall("tool", "huge", {}),
    ]
    kit = coding_kit(ls.ScriptedModel([*calls, "done"]), folder, directory=journal.directory)
    kit = replace(kit, tools=toolbox([*kit.tools.values(), huge, warm]))
    session = Session(journal, kit, build_rules(kit))
    result = await session.run("go")
    await session.close()
    assert result.status == "completed", result
    print(peaks[1] - peaks[0], peak() - peaks[2])

asyncio.run(main())
"""


def test_a_gigabyte_from_a_command_and_half_of_one_from_a_tool(tmp_path: Path) -> None:
    """Ten megabytes of memory above what the tool itself holds; the beginning on disk up to its named limit."""
    done = subprocess.run(
        [sys.executable, "-c", FLOOD, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(ls.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert all(int(grown) <= 10 for grown in done.stdout.split()), done.stdout
    with Store(tmp_path).open("s") as journal:
        finished = {event.call_id: event for event in journal.read() if isinstance(event, ev.ToolFinished)}
    for name, size in (("command", 1_000_000_000), ("tool", 500_000_000)):
        event = finished[name]
        assert event.output == f"{name}.txt"
        assert (tmp_path / "sessions" / "s" / "outputs" / event.output).stat().st_size == FILE_LIMIT
        assert "67,108,864 bytes are kept (output file limit)" in str(event.content)
        assert len(str(event.content)) < 110_000
        assert event.details is None or event.details["bytes"] == size
    assert "max_result is 100000" in str(finished["tool"].content)


class NoIteration(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("no iteration")


class Endless(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(ls.Text("x"))


class Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __str__ = __repr__


class Exits(dict[str, Any]):
    @property
    def __dict__(self) -> Any:
        raise SystemExit(3)

    @property
    def __class__(self) -> Any:
        raise SystemExit(3)


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def deep() -> list[Any]:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


STRANGE = {
    "iteration fails": lambda: NoIteration([1]),
    "iteration never ends": lambda: Endless([ls.Text("x")]),
    "no words": Unreadable,
    "class exits": Exits,
    "generator": lambda: itertools.repeat(1),
    "deep": deep,
    "raises without words": lambda: (_ for _ in ()).throw(Wordless()),
    "raises many words": lambda: (_ for _ in ()).throw(RuntimeError("x" * 50_000_000)),
    "huge details": lambda: ls.Output("ok", details={"x": "y" * (MAX_DETAILS + 1)}),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_whatever_a_tool_returns_is_one_result_and_the_run_goes_on(kind: str) -> None:
    @ls.tool
    async def strange() -> Any:
        return STRANGE[kind]()

    journal = FakeJournal()
    result = go(session_of([call("strange"), "done"], [strange], journal=journal).run("go"))
    assert (result.status, result.final_text) == ("completed", "done")
    (block,) = results(result)
    assert block.outcome in ("ok", "error")
    assert len(block.text) <= 100_200
    assert journal.size < 1_000_000


def test_a_flood_of_progress_from_a_thread_stops_nobody() -> None:
    async def main() -> None:
        stop = False

        @ls.tool
        def flood(context: ls.Context) -> str:
            while not stop:
                context.progress("x" * 20_000)
            return "ok"

        session = session_of([call("flood"), "done"], [flood])
        shown: list[ev.Event] = []
        async with session.stream("go") as run:
            async for event in run:
                shown.append(event)
                if sum(isinstance(event, ev.ToolOutput) for event in shown) == 500:
                    run.cancel("enough")
                    stop = True
        assert (await run.result()).status == "cancelled"
        assert all(len(event.text) <= 10_000 for event in shown if isinstance(event, ev.ToolOutput))

    go(main())


def test_a_thousand_children_in_the_background_end_with_the_run(tmp_path: Path) -> None:
    number = f"66{os.getpid():07d}"

    def living() -> int:
        argument = f"sleep\0{number}\0".encode()
        return sum(proctable.read_file(f"/proc/{pid}/cmdline") == argument for pid in proctable.walk())

    async def main() -> None:
        journal = Store(tmp_path).create("s", time=0.0)
        command = f"for i in $(seq 1000); do sleep {number} & done"
        model = ls.ScriptedModel([call("bash", command=command), call("wait")])

        @ls.tool
        async def wait() -> None:
            await asyncio.get_running_loop().create_future()

        kit = coding_kit(model, tmp_path, directory=journal.directory)
        kit.tools = {**kit.tools, "wait": wait}
        kit.coroutines = kit.coroutines | {"wait"}
        session = Session(journal, kit, build_rules(kit))
        run = session.stream("go").start()
        await until_started(session, "wait")
        assert living() == 1000
        run.cancel()
        result = await run
        assert living() == 0
        assert result.status == "cancelled"
        bash = next(event for event in journal.read() if isinstance(event, ev.ToolFinished))
        assert "and 990 more" in str(bash.content)
        await session.close()

    go(main())


async def until_started(session: Session, name: str) -> None:
    async for event in session.watch():
        if isinstance(event, ev.ToolStarted) and event.name == name:
            return


def test_a_clock_that_is_set_back_changes_no_order_and_no_budget() -> None:
    """`time` is a label. Order is `seq`; what counts is monotonic and adds up."""
    labels = itertools.chain([1e9, 2e9, 5.0, 1e9], itertools.repeat(3.0))
    ticks = itertools.count(0.0, 0.5)

    @ls.tool
    async def ready() -> str:
        return "ok"

    journal = FakeJournal()
    session = session_of(
        [call("ready"), "done"],
        [ready],
        journal=journal,
        limits=ls.Limits(max_seconds=1000.0),
        now=lambda: next(labels),
        monotonic=lambda: next(ticks),
    )
    assert go(session.run("go")).status == "completed"
    elapsed = [event.elapsed for event in journal.events if event.run_id]
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] > 0
    times = [event.time for event in journal.events]
    assert times != sorted(times)
    assert [event.seq for event in journal.events] == list(range(len(journal.events)))


def test_a_secret_in_a_long_result_is_masked_in_the_text_and_on_disk(tmp_path: Path) -> None:
    """Where it is cut through the secret, and where an escape sequence stands in it, too."""
    secret = "sk-ant-0123456789abcdefghij0123456789"
    broken = secret[:10] + "\x1b[0m" + secret[10:]

    @ls.tool
    async def leaky() -> str:
        return "x" * 60 + secret + "y" * 5000 + secret + f"\n{broken}\n{secret}"

    journal = Store(tmp_path).create("s", time=0.0)
    kit = build_kit(ls.ScriptedModel([call("leaky", "c1"), "done"]), [leaky], masker=Masker({"KEY": secret}))
    session = Session(journal, kit, build_rules(kit, limits=ls.Limits(max_result=100)))
    result = go(session.run("go"))
    (block,) = results(result)
    kept = (tmp_path / "sessions" / "s" / "outputs" / "c1.txt").read_text()
    assert secret not in kept
    assert kept.count("[masked: KEY]") == 3
    assert secret[:12] not in block.text
    assert secret[-12:] not in block.text
