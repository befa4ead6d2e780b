"""Law 1 for whoever else watches: nothing stored missed or doubled, and the driver never slowed."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Delta
from latchstep.session.hub import MERGED, QUEUE
from latchstep.session.tools import PROGRESS_WAITING

from .fakes import Chunks, call, done, go, session_of, text, until
from .test_lockstep import tool_that


def test_a_watcher_sees_the_whole_record_then_what_comes() -> None:
    async def main() -> None:
        session = session_of([call("act"), "one", "two"], [tool_that([])])
        await session.run("1")
        seen: list[ev.Event] = []

        async def watch() -> None:
            async for event in session.watch():
                seen.append(event)

        watching = asyncio.create_task(watch())
        await session.run("2")
        await session.close()
        await watching
        assert [event.seq for event in seen if not event.part] == list(range(session.journal.head + 1))

    go(main())


def test_a_lagging_watcher_goes_on_from_the_record_and_misses_no_stored_event() -> None:
    async def main() -> None:
        turns = 2 * QUEUE // 4
        model = ls.ScriptedModel([*(call("count", n=n) for n in range(turns)), "done"])

        @ls.tool(effect="read", thread=False)
        def count(n: int) -> str:
            return str(n)

        session = session_of(model, [count], limits=ls.Limits(max_steps=turns + 1))
        watcher = session.watch()
        seen = [await anext(watcher)]
        assert (await session.run("go")).status == "completed"  # it took nothing meanwhile
        await session.close()
        seen += [event async for event in watcher]
        assert session.journal.head > QUEUE
        assert [event.seq for event in seen if not event.part] == list(range(session.journal.head + 1))

    go(main())


def test_deltas_merge_for_a_watcher_that_lags_and_no_text_is_lost() -> None:
    async def main() -> None:
        pieces = [f"{n}," for n in range(5000)]
        session = session_of(Chunks([*(text(p) for p in pieces), Delta("thinking", "hm"), done()]))
        watcher = session.watch(session.journal.head)
        running = session.stream("go").start()
        first = await anext(watcher)
        assert first.type == "message.accepted"
        await running
        await session.close()
        deltas = [event async for event in watcher if isinstance(event, ev.ModelDelta)]
        assert "".join(d.piece for d in deltas if d.kind == "text") == "".join(pieces)
        assert max(len(d.piece) for d in deltas) <= MERGED + 8
        assert len(deltas) < 20
        assert deltas[-1].kind == "thinking"

    go(main())


def test_a_watcher_that_raises_is_detached_and_hurts_nobody() -> None:
    async def main() -> None:
        session = session_of([call("act"), "done"], [tool_that([])])
        run = session.stream("go").start()

        async def watch() -> None:
            async for event in session.watch():
                raise RuntimeError(f"cannot draw {event.type}")

        with pytest.raises(RuntimeError, match="cannot draw"):
            await watch()
        assert (await run).status == "completed"
        gc.collect()
        await until(lambda: not session.hub.watchers)

    go(main())


def test_a_watcher_never_begun_leaves_nothing_behind_and_one_begun_after_the_end_ends() -> None:
    async def main() -> None:
        session = session_of(["done"])
        for _ in range(10):
            session.watch()
        assert session.hub.watchers == set()
        assert not session.hub.busy
        await session.run("go")
        late = session.watch()
        await session.close()
        assert [event.type async for event in late][-1] == "run.finished"

    go(main())


def test_progress_is_shown_in_order_bounded_and_never_after_its_call() -> None:
    async def main() -> None:
        kept: list[ls.Context] = []

        @ls.tool
        async def chatty(context: ls.Context) -> str:
            kept.append(context)
            for n in range(3 * QUEUE):
                context.progress(f"{n}\0")
            await asyncio.sleep(0)
            return "ok"

        session = session_of([call("chatty"), "done"], [chatty])
        async with session.stream("go") as run:
            seen: list[ev.Event] = []
            async for event in run:
                seen.append(event)
                if event.type == "tool.finished":
                    kept[0].progress("too late")
                    await asyncio.sleep(0)
        shown = [event for event in seen if isinstance(event, ev.ToolOutput)]
        flood = range(3 * QUEUE - PROGRESS_WAITING, 3 * QUEUE)  # the newest
        assert [event.text for event in shown] == [f"{n}␀" for n in flood]
        assert [event.part for event in shown] == list(range(1, len(shown) + 1))

    go(main())


def test_a_model_that_never_suspends_can_be_cancelled() -> None:
    async def main() -> None:
        class Endless:
            name = "fake:endless"

            async def stream(self, request: Any) -> Any:
                while True:
                    yield text("x")

        run = session_of(Endless()).stream("go").start()
        for _ in range(10):
            await asyncio.sleep(0)
        run.cancel()
        assert (await run).status == "cancelled"

    go(main())
