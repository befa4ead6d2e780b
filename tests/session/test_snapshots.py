"""A session keeps its workspace's files before a run's first effect, and after effects while the model is thinking."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import latchstep as ls
from latchstep.core import event as ev
from latchstep.errors import SessionError
from latchstep.session import snapshots
from latchstep.session.build import build_kit, build_rules
from latchstep.session.session import Session
from latchstep.tool.snapshot import Taken

from .fakes import Chunks, FakeJournal, call, calling, cut, done, go, until

TREE = Taken("ab" * 32, 3, (("big", "too large"),))


class Shutter:
    """Takes snapshots, as fast as it is let."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.open = threading.Event()
        self.open.set()
        self.error: Exception | None = None
        self.begun = self.stopped = 0
        self.shuts_at = 0

    def __call__(self, stop: Callable[[], bool]) -> Taken:
        if self.begun + 1 == self.shuts_at:
            self.open.clear()
        self.begun += 1
        self.log.append("looking")
        while not self.open.wait(0.001):
            if stop():
                self.stopped += 1
                raise SessionError("stopped")
        if self.error is not None:
            raise self.error
        self.log.append("looked")
        return TREE


def session_with(journal: FakeJournal, model: Any, shutter: Shutter) -> Session:
    @ls.tool
    async def write(n: int = 0) -> str:
        journal.log.append(f"effect {n}")
        return "wrote"

    @ls.tool(effect="read")
    async def read(n: int = 0) -> str:
        return "seen"

    kit = build_kit(ls.ScriptedModel(model) if isinstance(model, list) else model, [write, read], snapshot=shutter)
    return Session(journal, kit, build_rules(kit))


def kinds(journal: FakeJournal) -> list[str]:
    """What is on record of a run, without its frame."""
    return [kind for kind in journal.types() if not kind.startswith(("session", "message", "run"))]


def test_the_files_are_on_record_before_the_first_effect_and_again_after_it() -> None:
    async def main() -> None:
        journal = FakeJournal()
        shutter = Shutter(journal.log)
        session = session_with(journal, [[call("read")], [call("write", n=1), call("write", n=2)], "done"], shutter)
        assert (await session.run("go")).status == "completed"
        log = [line for line in journal.log if "look" in line or "effect" in line or "snapshot" in line]
        first = "append workspace.snapshot"
        assert log == ["looking", "looked", first, "effect 1", "effect 2", "looking", "looked", first]
        covered = journal.log[journal.log.index(first) : journal.log.index("effect 1")]
        assert covered == [first, "append tool.started", "sync", "synced"]
        assert [event.tree for event in journal.of(ev.WorkspaceSnapshot)] == [TREE.tree] * 2
        event = journal.of(ev.WorkspaceSnapshot)[0]
        assert (event.files, event.left_out, event.examples) == (3, 1, ("big: too large",))
        assert session.state.files == "kept"

    go(main())


def test_each_run_keeps_the_files_anew_since_a_person_may_have_changed_them() -> None:
    async def main() -> None:
        journal = FakeJournal()
        shutter = Shutter(journal.log)
        session = session_with(journal, [[call("write", n=1)], "done", [call("write", n=2)], "done"], shutter)
        await session.run("one")
        await session.run("two")
        log = [line for line in journal.log if "looked" in line or "effect" in line]
        assert log == ["looked", "effect 1", "looked", "looked", "effect 2", "looked"]

    go(main())


def test_runs_that_only_read_take_none() -> None:
    async def main() -> None:
        journal = FakeJournal()
        shutter = Shutter(journal.log)
        await session_with(journal, [[call("read")], "done"], shutter).run("go")
        assert shutter.begun == 0

    go(main())


def test_no_step_waits_for_a_snapshot_but_the_next_effect_does() -> None:
    async def main() -> None:
        journal = FakeJournal()
        shutter = Shutter(journal.log)
        shutter.shuts_at = 2
        model = Chunks(
            [calling(call("write", "c1", n=1))], [calling(call("read", "c2"), call("write", "c3", n=2))], [done()]
        )
        run = session_with(journal, model, shutter).stream("go").start()
        await until(lambda: journal.types().count("tool.finished") == 2)  # the model was heard, and the read has run
        await until(lambda: shutter.begun == 2)
        assert journal.types().count("workspace.snapshot") == 1
        for _ in range(50):
            await asyncio.sleep(0)
        assert "effect 2" not in journal.log
        shutter.open.set()
        assert (await run).status == "completed"
        assert journal.log.index("effect 2") > [at for at, line in enumerate(journal.log) if line == "looked"][1]
        second = [event.seq for event in journal.of(ev.WorkspaceSnapshot)][1]
        assert second < next(event.seq for event in journal.of(ev.ToolStarted) if event.call_id == "c3")

    go(main())


def test_one_that_is_ready_is_recorded_before_the_answer_it_was_taken_under() -> None:
    async def main() -> None:
        journal = FakeJournal()
        shutter = Shutter(journal.log)
        heard = asyncio.Event()
        model = Chunks([calling(call("write", "c1"))], [heard.wait, done()])
        session = session_with(journal, model, shutter)
        run = session.stream("go").start()
        await until(lambda: shutter.begun == 2 and session.snapshots.ready)
        heard.set()
        await run
        assert kinds(journal)[-2:] == ["model.requested", "workspace.snapshot"]
        assert journal.types()[-3:] == ["workspace.snapshot", "message.completed", "run.finished"]

    go(main())


def test_the_ending_waits_for_the_one_under_way() -> None:
    async def main() -> None:
        journal = FakeJournal()
        shutter = Shutter(journal.log)
        shutter.shuts_at = 2
        run = session_with(journal, [[call("write")], "done"], shutter).stream("go").start()
        await until(lambda: journal.types().count("message.completed") == 2)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not run.finished
        await until(lambda: shutter.begun == 2)
        shutter.open.set()
        assert (await run).status == "completed"
        assert journal.types()[-2:] == ["workspace.snapshot", "run.finished"]

    go(main())


def test_what_is_said_while_the_ending_waits_for_one_is_still_answered() -> None:
    async def main() -> None:
        journal = FakeJournal()
        shutter = Shutter(journal.log)
        shutter.shuts_at = 2
        run = session_with(journal, [[call("write")], "done", "and this"], shutter).stream("go").start()
        await until(lambda: journal.types().count("message.completed") == 2)
        await until(lambda: shutter.begun == 2)
        await run.steer("wait")
        shutter.open.set()
        result = await run
        assert (result.status, result.final_text) == ("completed", "and this")

    go(main())


def test_one_that_fails_is_said_and_fails_nothing_else() -> None:
    async def main() -> None:
        for error, words in (
            (OSError(28, "No space left on device"), "No space left"),
            (SessionError("more than 200,000 files (MAX_FILES)"), "MAX_FILES"),
        ):
            journal = FakeJournal()
            shutter = Shutter(journal.log)
            shutter.error = error
            calls = [[call("write", n=1)], [call("write", n=2)], "done"]
            assert (await session_with(journal, calls, shutter).run("go")).status == "completed"
            said = journal.of(ev.WorkspaceSnapshot)
            assert len(said) == 3
            assert all(event.tree == "" and words in event.error for event in said)
            assert [line for line in journal.log if "effect" in line] == ["effect 1", "effect 2"]

    go(main())


def test_one_that_takes_too_long_is_given_up(monkeypatch: Any) -> None:
    async def main() -> None:
        monkeypatch.setattr(snapshots, "SNAPSHOT_SECONDS", 0.01)
        journal = FakeJournal()
        shutter = Shutter(journal.log)
        shutter.open.clear()
        assert (await session_with(journal, [[call("write")], "done"], shutter).run("go")).status == "completed"
        assert "SNAPSHOT_SECONDS" in journal.of(ev.WorkspaceSnapshot)[0].error
        assert "effect 0" in journal.log

    go(main())


def test_a_cancel_stops_one_at_once() -> None:
    async def main(effects: int) -> None:
        journal = FakeJournal()
        shutter = Shutter(journal.log)
        shutter.shuts_at = effects + 1
        model = Chunks([calling(call("write", "c1", n=1))], [calling(call("write", "c2", n=2))], [done()])
        session = session_with(journal, model, shutter)
        run = session.stream("go").start()
        await until(lambda: shutter.begun == effects + 1 and journal.types().count("message.completed") == effects + 1)
        run.cancel()
        assert (await run).status == "cancelled"
        assert shutter.stopped == 1
        assert journal.types().count("workspace.snapshot") == effects
        assert journal.of(ev.ToolFinished)[-1].outcome == "not_started"
        assert f"effect {effects + 1}" not in journal.log

    go(main(0))
    go(main(1))


def test_closing_stops_one() -> None:
    async def main() -> None:
        journal = FakeJournal()
        shutter = Shutter(journal.log)
        shutter.open.clear()
        session = session_with(journal, [[call("write")], "done"], shutter)
        session.stream("go").start()
        await until(lambda: shutter.begun == 1)
        await session.close()
        assert shutter.stopped == 1

    go(main())


def test_another_process_takes_its_own_before_its_first_effect_wherever_the_first_one_died() -> None:
    async def whole() -> FakeJournal:
        journal = FakeJournal()
        calls = [[call("write", "c1", n=1)], [call("write", "c2", n=2)], "done"]
        await session_with(journal, calls, Shutter(journal.log)).run("go")
        return journal

    recorded = go(whole())

    async def main(length: int) -> None:
        journal = cut(recorded, length)
        shutter = Shutter(journal.log)
        place = len(journal.of(ev.MessageCompleted))
        script = [[call("write", "c1", n=1)], [call("write", "c2", n=2)], "done", "done"]
        session = session_with(journal, script[: max(place, 0)] + script[place:], shutter)
        result = await session.run(None if session.unfinished else "go")
        assert result.status == "completed"
        opened = max(event.seq for event in journal.of(ev.SessionOpened))
        effects = [event.seq for event in journal.of(ev.ToolStarted) if event.seq > opened]
        taken = [event.seq for event in journal.of(ev.WorkspaceSnapshot) if event.seq > opened]
        if effects:
            assert taken
            assert taken[0] < effects[0]
            assert taken[-1] > effects[-1]

    for length in range(1, len(recorded.events)):
        go(main(length))
