"""Steps, deltas and concurrent runs inside one process, in CPU microseconds."""

from __future__ import annotations

import asyncio
import gc
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import latchstep as ls
from latchstep.core.chunk import Delta
from latchstep.journal.base import Journal
from latchstep.journal.disk import OsDisk
from latchstep.journal.store import Store

ROUNDS = 5


@ls.tool(effect="read")
async def add(left: int, right: int) -> int:
    """Add two integers."""
    return left + right


@ls.tool(effect="read", thread=False)
def add_inline(left: int, right: int) -> int:
    """Add two integers."""
    return left + right


@ls.tool(effect="read")
def add_threaded(left: int, right: int) -> int:
    """Add two integers."""
    return left + right


@ls.tool
async def put(left: int, right: int) -> int:
    """Pretend to have an effect."""
    return left + right


def script(tool: Any, steps: int, deltas: int = 0) -> ls.ScriptedModel:
    pieces = [Delta("text", "piece ")] * deltas if deltas else None
    calls = [ls.ToolCall(id=f"c{i}", name=tool.name, arguments={"left": i, "right": 1}) for i in range(steps)]
    return ls.ScriptedModel([*(ls.Reply(call, deltas=pieces) for call in calls), "done"])


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def run_steps(tool: Any, steps: int, *, deltas: int = 0, journal: Journal | None = None) -> float:
    """CPU seconds of one run of so many tool steps."""
    agent = ls.Agent(script(tool, steps, deltas), tools=[tool], limits=ls.Limits(max_steps=steps + 1), journal=journal)
    gc.collect()
    began = cpu()
    result = await agent.run("go")
    used = cpu() - began
    assert result.status == "completed", result
    assert result.steps == steps + 1
    return used


async def marginal(measure: Callable[[int], Awaitable[float]], short: int, long: int) -> float:
    """Microseconds a step costs between two lengths of run: the best of some rounds of each, subtracted."""
    shorts, longs = [], []
    for _ in range(ROUNDS):
        shorts.append(await measure(short))
        longs.append(await measure(long))
    return round((min(longs) - min(shorts)) / (long - short) * 1e6, 1)


async def floor(steps: int) -> float:
    """A bare loop over the same script: what no library can be faster than."""
    model = script(add, steps)
    began = cpu()
    transcript: list[Any] = []
    for reply in model.replies[:steps]:
        call = reply.blocks[0]  # type: ignore[union-attr]
        transcript.append(call)
        transcript.append(await add.function(**call.arguments))  # type: ignore[union-attr]
    return cpu() - began


async def steps() -> dict[str, Any]:
    rows: dict[str, Any] = {"floor_us": await marginal(floor, 10, 2000)}
    for name, tool in (("async", add), ("inline", add_inline), ("threaded", add_threaded)):
        rows[f"{name}_us"] = await marginal(lambda n, tool=tool: run_steps(tool, n), 10, 510)  # type: ignore[misc]
    rows["async_5_deltas_us"] = await marginal(lambda n: run_steps(add, n, deltas=5), 10, 510)
    early = await marginal(lambda n: run_steps(add, n), 10, 110)
    late = await marginal(lambda n: run_steps(add, n), 1000, 1500)
    rows["late_over_early"] = round(late / early, 2)
    return rows


class Counting(OsDisk):
    """The real disk, with its barriers counted."""

    barriers = 0

    def sync(self, handle: int) -> None:
        self.barriers += 1
        super().sync(handle)


async def journaled() -> dict[str, Any]:
    """Steps on disk: without a barrier (reads), and with one each (writes), and what they write."""
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        count = 0

        async def on_disk(tool: Any, n: int) -> float:
            nonlocal count
            count += 1
            journal = store.create(f"s{count}", time=0.0)
            used = await run_steps(tool, n, journal=journal)
            rows["bytes_a_step"] = round(journal.size / n)
            journal.close()
            return used

        rows["journaled_us"] = await marginal(lambda n: on_disk(add, n), 10, 510)
        rows["durable_us"] = await marginal(lambda n: on_disk(put, n), 10, 210)
        disk = Counting()
        journal = Store(Path(folder), disk=disk).create("counted", time=0.0)
        before = disk.barriers
        await run_steps(put, 100, journal=journal)
        rows["barriers_for_100_write_steps"] = disk.barriers - before
        journal.close()
    return rows


class Talker:
    """A model that yields many deltas without suspending."""

    name = "bench:talker"

    def __init__(self, deltas: int) -> None:
        self.deltas = deltas

    async def stream(self, request: Any) -> Any:
        piece = Delta("text", "word ")
        for _ in range(self.deltas):
            yield piece
        from latchstep.core.chunk import Completed

        yield Completed(blocks=(ls.Text("done"),), stop_reason="stop")


async def deltas() -> dict[str, Any]:
    async def consumed(n: int) -> float:
        began = cpu()
        seen = 0
        async with ls.Agent(Talker(n)).stream("go") as run:
            async for event in run:
                seen += event.type == "model.delta"
        assert seen == n
        return cpu() - began

    return {"consumed_us": await marginal(consumed, 100, 20_100)}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def concurrent() -> dict[str, Any]:
    """1,000 runs of five steps at once: each waits for all others in its last tool call."""
    runs, gate, leave, waiting = 1000, asyncio.Event(), asyncio.Event(), 0

    @ls.tool(effect="read")
    async def meet(left: int, right: int) -> int:
        """Wait for everybody."""
        nonlocal waiting
        waiting += 1
        if waiting == runs:
            gate.set()
        await gate.wait()
        await leave.wait()
        return left + right

    def agent() -> ls.Agent:
        calls = [ls.ToolCall(id=f"c{i}", name="add", arguments={"left": i, "right": 1}) for i in range(4)]
        last = ls.ToolCall(id="c4", name="meet", arguments={"left": 1, "right": 1})
        return ls.Agent(ls.ScriptedModel([*calls, last, "done"]), tools=[add, meet])

    gc.collect()
    shared = agent()
    before, began, wall = resident(), cpu(), time.perf_counter()
    tasks = [asyncio.ensure_future(shared.run("go")) for _ in range(runs)]
    await gate.wait()
    held = resident() - before
    leave.set()
    results = await asyncio.gather(*tasks)
    assert all(result.status == "completed" for result in results)
    return {
        "cpu_s": round(cpu() - began, 2),
        "wall_s": round(time.perf_counter() - wall, 2),
        "kb_each": round(held / runs / 1024, 1),
    }
