"""Secrets that tools come across reach neither the model nor the disk, and the mark is never written over them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import latchstep as ls
from latchstep.core.message import ToolResult
from latchstep.journal.store import Store
from latchstep.session.build import build_rules
from latchstep.session.coding import coding_kit
from latchstep.session.session import Session

TOKEN = "ghp_" + "a1B2c3D4" * 5
IN_USE = "value-of-a-key-in-use"


def results(folder: Path, home: Path, calls: list[ls.ToolCall], checks: tuple[str, ...] = ()) -> list[ToolResult]:
    """Let a model make these calls, one a turn; what it was told of each."""

    async def main() -> list[ToolResult]:
        journal = Store(home).create("s", time=0.0)
        kit = coding_kit(ls.ScriptedModel([*calls, "done", "done"]), folder, directory=journal.directory)
        session = Session(journal, kit, build_rules(kit, checks=checks, limits=ls.Limits(max_check_rounds=0)))
        result = await session.run("go")
        await session.close()
        return [block for message in result.messages for block in message.blocks if isinstance(block, ToolResult)]

    return asyncio.run(main())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOME_API_KEY", IN_USE)
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / ".env").write_text(f"TOKEN={TOKEN}\nOTHER={IN_USE}\nname=me\n")
    return tmp_path / "ws"


def on_disk(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


def test_no_tool_carries_a_secret_out(folder: Path, tmp_path: Path) -> None:
    call = ls.ToolCall
    said = results(
        folder,
        tmp_path / "home",
        [
            call(name="read", arguments={"path": ".env"}),
            call(name="grep", arguments={"pattern": "TOKEN", "path": ".env"}),
            call(name="bash", arguments={"command": "cat .env"}),
            call(name="bash", arguments={"command": 'yes "$(cat .env)" | head -n 60000'}),
            call(name="bash", arguments={"command": "cat .env; sleep 60", "timeout": 0.5}),
            call(name="edit", arguments={"path": ".env", "old": "name=me", "new": "name=you"}),
        ],
        checks=("cat .env; false",),
    )
    assert len(said) == 6
    for result in said:
        assert TOKEN not in result.text
        assert IN_USE not in result.text
    assert "[masked: GitHub token]" in said[0].text
    assert "[masked: SOME_API_KEY]" in said[2].text
    assert "name=me" in said[4].text, "what is no secret is told"
    kept = on_disk(tmp_path / "home")
    assert TOKEN.encode() not in kept
    assert IN_USE.encode() not in kept
    assert b"[masked: GitHub token]" in kept
    assert (folder / ".env").read_text() == f"TOKEN={TOKEN}\nOTHER={IN_USE}\nname=you\n"


@pytest.mark.parametrize("name", ["write", "edit"])
def test_a_mark_is_never_written_in_place_of_the_secret(folder: Path, tmp_path: Path, name: str) -> None:
    before = (folder / ".env").read_text()
    arguments = {"path": ".env", "content": "TOKEN=[masked: GitHub token]\n"}
    if name == "edit":
        arguments = {"path": ".env", "old": "name=me", "new": "copy=[masked: GitHub token]"}
    _, refused = results(
        folder,
        tmp_path / "home",
        [ls.ToolCall(name="read", arguments={"path": ".env"}), ls.ToolCall(name=name, arguments=arguments)],
    )
    assert refused.outcome == "error"
    assert "masked" in refused.text
    assert (folder / ".env").read_text() == before


def test_a_library_agent_masks_what_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has in its environment, wherever a tool of its developer's says it; not what only looks like a secret."""
    monkeypatch.setenv("SOME_API_KEY", IN_USE)
    monkeypatch.setenv("LATCHSTEP_HOME", str(tmp_path / "home"))

    @ls.tool(effect="read")
    def tell(context: ls.Context) -> dict[str, str]:
        """Says too much."""
        context.progress(f"it is {IN_USE}")
        return {"key": os.environ["SOME_API_KEY"], "token": TOKEN}

    @ls.tool
    def fail() -> str:
        """Fails with it."""
        raise ls.ToolError(f"401 for {IN_USE}")

    agent = ls.Agent(
        ls.ScriptedModel([ls.ToolCall(name="tell"), ls.ToolCall(name="fail"), "done", "done"]),
        tools=[tell, fail],
        workspace=tmp_path,
        checks=(f"echo {IN_USE}; false",),
        limits=ls.Limits(max_check_rounds=0),
    )

    async def main() -> list[str]:
        session = agent.session()
        result = await session.run("go")
        await session.close()
        return [block.text for message in result.messages for block in message.blocks if isinstance(block, ToolResult)]

    told, failed = asyncio.run(main())
    assert "[masked: SOME_API_KEY]" in told
    assert TOKEN in told
    assert failed == "401 for [masked: SOME_API_KEY]"
    kept = on_disk(tmp_path / "home")
    assert IN_USE.encode() not in kept.replace(f"echo {IN_USE}".encode(), b""), "but where the developer wrote it"
    assert kept.count(b"[masked: SOME_API_KEY]") >= 3
