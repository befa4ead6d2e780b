"""Ctrl-C and synchronous callers: the run ends, is recorded, and the interrupt is raised."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.session.session import Session

from .fakes import (
    Chunks,
    FakeJournal,
    call,
    calling,
    done,
    go,
    session_of,
    until,
)
from .test_cancel import hang

PROGRAM = """
import asyncio, gc, os, signal, sys, threading, warnings
warnings.simplefilter("error")
import latchstep as ls
from latchstep.journal.base import MemoryJournal
from latchstep.core import event as ev

journal = MemoryJournal()
journal.append([ev.SessionCreated(session_id="s")])

@ls.tool
{tool}

agent = ls.Agent(ls.ScriptedModel([ls.ToolCall("c1", "act", {{}}), "done"]), [act], journal=journal,
                 limits=ls.Limits(grace=0.1))
try:
    {call}
except KeyboardInterrupt:
    print("KeyboardInterrupt")
gc.collect()
print([e.outcome for e in journal.read() if isinstance(e, ev.ToolFinished)])
print([e.status for e in journal.read() if isinstance(e, ev.RunFinished)])
"""

TOOLS = {
    "coroutine": """
async def act() -> str:
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(60)
    return "no"
""",
    "thread": """
def act(context: ls.Context) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    while not threading.Event().wait(0.1):
        context.progress("still here")  # wakes the loop: `asyncio.run` may sleep over a signal that came just before
""",
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("call", ["agent.run_sync('go')", "asyncio.run(agent.run('go'))"])
def test_ctrl_c_ends_the_run_and_is_raised(tool: str, call: str) -> None:
    program = textwrap.dedent(PROGRAM).format(tool=TOOLS[tool].strip(), call=call)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == ["KeyboardInterrupt", "['interrupted']", "['cancelled']"]
    assert ended.returncode == 0


def test_run_sync_refuses_inside_a_loop_and_restores_the_signal_handler() -> None:
    agent = ls.Agent(ls.ScriptedModel(["done"]))
    assert agent.run_sync("go").final_text == "done"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    async def main() -> None:
        with pytest.raises(ls.LatchstepError, match="await"):
            agent.run_sync("go")

    go(main())
    gc.collect()


def test_run_sync_in_a_thread() -> None:
    said: list[str] = []
    agent = ls.Agent(ls.ScriptedModel(["done"]))
    thread = threading.Thread(target=lambda: said.append(agent.run_sync("go").final_text))
    thread.start()
    thread.join(20)
    assert said == ["done"]


def test_a_cancelled_session_is_a_session(tmp_path: Any) -> None:
    """Resume after the record ends in `cancel.requested`: the old run gets its ending, the prompt its answer."""

    async def main() -> None:
        journal = FakeJournal()
        session: Session = session_of(Chunks([calling(call("hang"))]), [hang], journal=journal)
        async with session.stream("go") as run:
            await until(lambda: "tool.started" in journal.types())
            run.cancel()
        end = journal.types().index("cancel.requested") + 1
        from .fakes import cut

        reopened = session_of(Chunks([done("here")]), [hang], journal=cut(journal, end))
        assert reopened.unfinished
        result = await reopened.run("and now?")
        assert (result.status, result.final_text) == ("completed", "here")
        assert [e.status for e in reopened.journal.of(ev.RunFinished)] == ["cancelled", "completed"]  # type: ignore[attr-defined]
        alone = session_of(Chunks([done("here")]), [hang], journal=cut(journal, end))
        assert (await alone.resume()).status == "cancelled"

    go(main())
