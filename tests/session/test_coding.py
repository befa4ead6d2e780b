"""The coding agent over a reopened session: what the model last saw of a file survives, and so does the guard."""

from __future__ import annotations

import asyncio
from pathlib import Path

import latchstep as ls
from latchstep.core.message import ToolResult
from latchstep.journal.store import Store
from latchstep.session.build import build_rules
from latchstep.session.coding import coding_kit
from latchstep.session.session import Session


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
