"""The coding agent over a reopened session: what the model last saw of a file survives, and so does the guard."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import latchstep as ls
from latchstep.core.message import ToolResult
from latchstep.journal.store import Store
from latchstep.session.agent import memory_journal
from latchstep.session.build import build_rules
from latchstep.session.coding import coding_kit
from latchstep.session.session import Session
from tests.cli.cli_kit import alive, pids_in
from tests.tool.test_jobs import until


def life(folder: Path, home: Path, call: ls.ToolCall) -> ToolResult:
    """One process's worth: open the session (or make it), let the model make one call, close. Its result."""

    async def main() -> ToolResult:
        store = Store(home)
        journal = store.open("s") if store.list() else store.create("s", time=0.0)
        answers = sum(event.type == "message.completed" for event in journal.read())
        model = ls.ScriptedModel(["before"] * answers + [call, "done"])
        kit = coding_kit(model, folder, directory=journal.directory)
        session = Session(journal, kit, build_rules(kit))
        result = await session.run("go")
        await session.close()
        assert result.status == "completed", result
        (block,) = result.messages[-2].blocks
        assert isinstance(block, ToolResult)
        return block

    return asyncio.run(main())


def test_b66_the_guard_against_lost_updates_survives_a_reopening(tmp_path: Path) -> None:
    folder, home = tmp_path / "ws", tmp_path / "home"
    folder.mkdir()
    (folder / "f").write_text("one\n")
    (folder / "g").write_text("one\n")
    write = {name: ls.ToolCall(name="write", arguments={"path": name, "content": "two\n"}) for name in "fg"}
    assert life(folder, home, ls.ToolCall(name="read", arguments={"path": "f"})).outcome == "ok"
    assert life(folder, home, ls.ToolCall(name="grep", arguments={"pattern": "one", "path": "f"})).outcome == "ok"
    assert life(folder, home, write["f"]).outcome == "ok", "it was read, in another process"
    assert life(folder, home, write["g"]).outcome == "error", "it never was"
    (folder / "f").write_text("somebody else's\n")
    refused = life(folder, home, write["f"])
    assert refused.outcome == "error"
    assert "changed" in refused.text
    assert (folder / "f").read_text() == "somebody else's\n"
    (folder / "h").write_text("line\n" * 30)
    assert life(folder, home, ls.ToolCall(name="read", arguments={"path": "h", "limit": 5})).outcome == "ok"
    part = life(folder, home, ls.ToolCall(name="write", arguments={"path": "h", "content": "two\n"}))
    assert "read it from offset=6 on first" in part.text, "what another process was shown was a part"
    (folder / "h").write_text("somebody else's\n")
    edit = ls.ToolCall(name="edit", arguments={"path": "h", "old": "somebody", "new": "nobody"})
    assert "changed since it was read" in life(folder, home, edit).text, "and that is guarded too"


def test_a_job_outlives_its_run_and_ends_when_one_is_stopped_or_the_session_closed(tmp_path: Path) -> None:
    async def main() -> None:
        def job(file: str) -> ls.ToolCall:
            command = f"echo $$ > {file}; exec sleep 300"
            return ls.ToolCall(name="bash", arguments={"command": command, "background": True})

        read = ls.ToolCall(name="job_read", arguments={"job": "job-1"})
        wait = ls.ToolCall(name="job_read", arguments={"job": "job-1", "wait": 60})
        model = ls.ScriptedModel([job("a"), "started", read, wait, read, "seen", job("b"), "again"])
        kit = coding_kit(model, tmp_path)
        session = Session(memory_journal(), kit, build_rules(kit))

        def last() -> str:
            (block,) = [m for m in session.state.transcript if m.role == "tool"][-1].blocks
            assert isinstance(block, ToolResult)
            return block.text

        try:
            await session.run("go")
            (first,) = await until(lambda: pids_in(tmp_path / "a"))
            run = session.stream("go on").start()
            await until(lambda: session.state.run is not None and session.state.run.tool_calls == 2)
            assert "running for" in last(), "it goes on in the next run"
            assert alive(first)
            run.cancel()
            assert (await run).status == "cancelled"
            assert not alive(first)
            await session.run("what became of it?")
            assert "ended by signal SIGTERM" in last()
            await session.run("another")
            (second,) = await until(lambda: pids_in(tmp_path / "b"))
            assert alive(second)
            await session.close()
            assert not alive(second)
        finally:
            await session.close()

    asyncio.run(main())


@pytest.mark.parametrize("path", [".venv/bin/ls", ".venv/bin/new/x"])
def test_file_tools_write_no_program_that_a_command_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A command that only reads runs unasked, by the program of its name that PATH leads to."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{tmp_path}/.venv/bin:{os.environ['PATH']}:{tmp_path}")
    calls = [ls.ToolCall(name="write", arguments={"path": it, "content": "x\n"}) for it in (path, ".venv/lib")]

    async def main() -> list[str]:
        kit = coding_kit(ls.ScriptedModel([*calls, "done"]), tmp_path, snapshots=False)
        session = Session(memory_journal(), kit, build_rules(kit))
        result = await session.run("go")
        await session.close()
        return [it.outcome for message in result.messages for it in message.blocks if isinstance(it, ToolResult)]

    assert asyncio.run(main()) == ["error", "ok"]
    assert not (tmp_path / path).exists()
