"""The coding agent on the demo's project, as the terminal puts it together; and a process of it that dies at work.

`python -m tests.conformance.coding_run HOME ROOT MODEL URL` kills itself when the tests first print something.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import latchstep as ls
from latchstep.cli.demo import PROJECT, TASK
from latchstep.cli.demo_script import demo_model
from latchstep.core.event import Event, ToolOutput
from latchstep.core.state import fold
from latchstep.journal.base import Journal
from latchstep.journal.store import Store
from latchstep.policy.preset import preset
from latchstep.policy.rule import Rule
from latchstep.session.agent import memory_journal
from latchstep.session.build import build_rules
from latchstep.session.coding import coding_kit
from latchstep.session.session import Session

TEST = "python3 -m unittest -q"
SCRIPTED = "scripted:demo"


def project(root: Path) -> Path:
    shutil.copytree(PROJECT, root, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def the_model(name: str, url: str) -> Any:
    return demo_model(TEST) if name == SCRIPTED else ls.model(name, base_url=url)


def work(
    model: Any,
    root: Path,
    journal: Journal | None = None,
    task: str | None = TASK,
    watch: Callable[[Event], None] = lambda event: None,
) -> ls.RunResult:
    """One run in mode `edits`, where the tests may run too. Without a task the unfinished run goes on."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    async def main() -> ls.RunResult:
        record = journal or memory_journal(str(root))
        kit = coding_kit(model, root, directory=record.directory, path=path)
        rules = build_rules(
            kit, policy=preset("edits", [Rule("allow", "bash", TEST, True)], asks=False), checks=(TEST,)
        )
        session = Session(record, kit, rules, state=fold(record.read(-1)))
        try:
            async with session.stream(task) as run:
                async for event in run:
                    watch(event)
                return await run
        finally:
            await session.close()
            record.close()

    return asyncio.run(main())


def die_when_the_tests_talk(event: Event) -> None:
    if isinstance(event, ToolOutput):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    home, folder, name, url = sys.argv[1:]
    journal = Store(Path(home)).create("killed", time=0.0, workspace=folder)
    work(the_model(name, url), Path(folder), journal, watch=die_when_the_tests_talk)
