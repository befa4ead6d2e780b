"""Hooks that are commands: what they are given, what they may answer, and that nothing fails open."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.message import ToolResult
from latchstep.journal.store import Store
from latchstep.session.agent import memory_journal
from latchstep.session.build import build_rules
from latchstep.session.coding import coding_kit
from latchstep.session.session import Session
from latchstep.tool.command_hooks import MAX_SAID, CommandHook
from tests.cli.cli_kit import alive, pids_in
from tests.tool.test_jobs import until


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


class Ground:
    """A workspace, and a folder for programs beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "ws"
        self.root.mkdir()
        self.events: list[ev.Event] = []

    def hook(self, when: Any, body: str, tool: str = "bash", timeout: float = 10.0) -> CommandHook:
        """A program of this body."""
        program = self.folder / f"hook {len(list(self.folder.iterdir()))}"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o700)
        return CommandHook(when=when, tool=tool, command=(str(program), "two words", "$(touch shell)"), timeout=timeout)

    def call(self, hooks: Sequence[CommandHook], name: str = "bash", **arguments: Any) -> ToolResult:
        """The result of one call under these hooks, in a session of its own."""

        async def main() -> ToolResult:
            store = Store(self.folder / "home")
            journal = store.create(f"s{len(store.list())}", time=0.0)
            model = ls.ScriptedModel([ls.ToolCall(id="it", name=name, arguments=arguments), "done"])
            kit = coding_kit(model, self.root, directory=journal.directory, hooks=hooks, snapshots=False)
            session = Session(journal, kit, build_rules(kit))
            result = await session.run("go")
            self.events = list(journal.read())
            await session.close()
            assert result.status == "completed", result
            (block,) = result.messages[-2].blocks
            assert isinstance(block, ToolResult)
            return block

        return asyncio.run(main())

    def made(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir())


def test_a_hook_sees_what_is_masked(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "value-of-a-key-in-use")
    (ground.root / ".env").write_text("KEY=value-of-a-key-in-use\n")
    given = ground.folder / "given"
    done = ground.call([ground.hook("after", f"cat > '{given}'", tool="read")], name="read", path=".env")
    assert "[masked: SOME_API_KEY]" in done.text
    assert "[masked: SOME_API_KEY]" in given.read_text()
    assert "value-of-a-key-in-use" not in given.read_text()


def test_a_change_is_recorded_and_is_what_runs(ground: Ground) -> None:
    given = ground.folder / "given"
    body = f"cat > '{given}'; env > '{given}.env'; pwd > '{given}.pwd'; printf %s \"$*\" > '{given}.words'"
    answer = """; echo noise >&2; printf '{"arguments": {"command": "echo changed > made"}}'"""
    os.environ["SOME_API_KEY"] = "secret"
    try:
        done = ground.call([ground.hook("before", body + answer)], command="touch never")
    finally:
        del os.environ["SOME_API_KEY"]
    assert (done.outcome, ground.made()) == ("ok", ["made"])
    assert [e.arguments for e in ground.events if isinstance(e, ev.CallChanged)] == [{"command": "echo changed > made"}]
    assert json.loads(given.read_text()) == {"tool": "bash", "arguments": {"command": "touch never"}}
    told = given.with_suffix(".env").read_text().splitlines()
    assert {"LATCHSTEP_TOOL=bash", "LATCHSTEP_CALL_ID=it", "LATCHSTEP_SESSION=s0"} <= set(told)
    assert "secret" not in given.with_suffix(".env").read_text()
    assert given.with_suffix(".pwd").read_text().strip() == str(ground.root)
    assert given.with_suffix(".words").read_text() == "two words $(touch shell)", "no shell reads the words"


def test_silence_keeps_a_call_and_other_tools_are_not_looked_at(ground: Ground) -> None:
    assert ground.call([ground.hook("before", ":")], command="echo hi").outcome == "ok"
    assert any(isinstance(e, ev.CallKept) for e in ground.events)
    assert ground.call([ground.hook("before", "exit 2", "write")], command="echo hi").outcome == "ok"
    assert ground.call([ground.hook("before", "exit 2", "*")], command="echo hi").outcome == "denied"


def test_a_refusal_says_why(ground: Ground) -> None:
    done = ground.call([ground.hook("before", "echo not on Fridays >&2; exit 2")], command="touch made")
    assert (done.outcome, ground.made()) == ("denied", [])
    assert "declined by a hook: not on Fridays" in done.text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo broken >&2; exit 1", "exit status 1: broken"),
        ("kill -9 $$", "SIGKILL"),
        ("exec /no/such/program", "exit status 127"),
        ("echo keep", "what it wrote is no answer"),
        ("echo '{\"arguments\": 5}'", "what it wrote is no answer"),
        ('echo \'{"content": "x"}\'', "what it wrote is no answer"),
        ('echo \'{"arguments": {}, "allow": true}\'', "allow"),
        ('echo \'{"arguments": {"command": "touch made"}} {}\'', "what it wrote is no answer"),
        ("printf '\\377'", "what it wrote is no answer"),
        ('echo \'{"arguments": {"comand": "touch made"}}\'', "comand"),
        (f"head -c {MAX_SAID + 10} /dev/zero", "it wrote more than"),
    ],
)
def test_anything_else_lets_nothing_run(ground: Ground, body: str, words: str) -> None:
    done = ground.call([ground.hook("before", body)], command="touch made")
    assert (done.outcome, done.is_error, ground.made()) == ("error", True, [])
    assert words in done.text
    assert not [e for e in ground.events if isinstance(e, ev.ToolStarted)]


def test_a_program_that_is_not_there_lets_nothing_run(ground: Ground) -> None:
    hook = CommandHook(when="before", tool="*", command=(str(ground.folder / "none"),))
    done = ground.call([hook], command="touch made")
    assert (done.outcome, ground.made()) == ("error", [])
    assert "exit status 127" in done.text


def test_one_that_takes_too_long_is_ended_with_all_it_started(ground: Ground) -> None:
    pids = ground.folder / "pids"
    body = f"sleep 300 & echo $$ $! > '{pids}'; wait"
    done = ground.call([ground.hook("before", body, timeout=0.5)], command="touch made")
    assert (done.outcome, ground.made()) == ("error", [])
    assert "timed out after 0.5 s" in done.text
    assert len(pids_in(pids)) == 2
    assert not any(alive(pid) for pid in pids_in(pids))


def test_a_cancel_ends_a_hook_and_its_call_does_not_run(ground: Ground) -> None:
    pids = ground.folder / "pids"
    hook = ground.hook("before", f"sleep 300 & echo $$ $! > '{pids}'; wait", timeout=60)

    async def main() -> None:
        model = ls.ScriptedModel([ls.ToolCall(name="bash", arguments={"command": "touch made"}), "done"])
        kit = coding_kit(model, ground.root, hooks=[hook])
        session = Session(memory_journal(), kit, build_rules(kit))
        run = session.stream("go").start()
        found = await until(lambda: two if len(two := pids_in(pids)) == 2 else None)
        assert all(alive(pid) for pid in found)
        run.cancel()
        assert (await run).status == "cancelled"
        assert not any(alive(pid) for pid in found)
        await session.close()

    asyncio.run(main())
    assert ground.made() == []


def test_hooks_run_in_their_order_and_the_first_refusal_is_the_last(ground: Ground) -> None:
    again = """printf '{"arguments": {"command": "echo second"}}'"""
    log = ground.folder / "log"
    hooks = [
        ground.hook("before", f"echo one >> '{log}'; {again}"),
        ground.hook("before", f"cat >> '{log}'"),
        ground.hook("after", """printf '{"content": "inner"}'"""),
        ground.hook("after", f"cat >> '{log}'"),
        ground.hook("before", "exit 2"),
    ]
    done = ground.call(hooks[:4], command="echo first")
    assert done.text == "inner"
    assert log.read_text().startswith('one\n{"tool":"bash","arguments":{"command":"echo second"}}')
    assert '"content":"inner"' in log.read_text()
    assert ground.call(hooks, command="echo first").outcome == "denied"


# -- after -------------------------------------------------------------------------------------------------


def test_a_result_is_seen_and_replaced(ground: Ground) -> None:
    given = ground.folder / "given"
    hook = ground.hook("after", f"""cat > '{given}'; printf '{{"content": "it was a secret"}}'""")
    done = ground.call([hook], command="echo 1234; exit 3")
    assert (done.text, done.outcome) == ("it was a secret", "ok")
    seen = json.loads(given.read_text())
    assert (seen["tool"], seen["outcome"]) == ("bash", "ok")
    assert seen["arguments"]["command"] == "echo 1234; exit 3"
    assert seen["content"] == "1234\n[exit status 3]"
    (finished,) = [e for e in ground.events if isinstance(e, ev.ToolFinished)]
    assert finished.details["exit"] == 3, "what people get stays"


def test_the_file_of_a_long_result_is_not_named_by_what_replaced_it(ground: Ground) -> None:
    hook = ground.hook("after", """printf '{"content": "short"}'""")
    ground.call([hook], command="head -c 400000 /dev/zero | tr '\\0' x")
    (finished,) = [e for e in ground.events if isinstance(e, ev.ToolFinished)]
    assert (finished.content, finished.output) == ("short", "")


@pytest.mark.parametrize("body", ["exit 2", "exit 1", "echo what", "echo '{\"arguments\": {}}'"])
def test_a_result_is_withheld_where_the_hook_fails(ground: Ground, body: str) -> None:
    done = ground.call([ground.hook("after", body)], command="touch made; echo 1234")
    assert (done.outcome, ground.made()) == ("error", ["made"])
    assert "This call was made and has ended" in done.text
    assert "1234" not in done.text


def test_what_a_call_reads_and_writes_may_be_long(ground: Ground) -> None:
    hooks = [ground.hook("before", "cat >&2; exit 2", "write")]
    done = ground.call(hooks, "write", path="f", content="x" * 3_000_000)
    assert done.outcome == "denied"
    assert done.text.count("x") > 1000


def test_nothing_runs_in_the_folder_that_took_the_place_of_the_workspace(ground: Ground) -> None:
    mark = ground.folder / "ran"
    first = ground.hook("before", f"mv '{ground.root}' '{ground.root}-away'; mkdir '{ground.root}'")
    done = ground.call([first, ground.hook("before", f"touch '{mark}'")], command="touch made")
    assert (done.outcome, mark.exists(), ground.made()) == ("error", False, [])
