"""The `task` tool: a part of the work given to another agent, in a session of its own that is linked to this one.

Its session's name follows from the call, so a call that was in flight when the process died goes on where it was, and
one that had ended gives its result again: nothing of it is done twice. It works under the same policy, with the tools
of its parent but this one, and is cancelled with its parent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from latchstep.core import event as ev
from latchstep.core.rules import Rules
from latchstep.errors import JournalError, SessionError, ToolError
from latchstep.journal.base import restored
from latchstep.journal.file import FileJournal
from latchstep.journal.store import Store
from latchstep.tool.base import Context, Output, Tool
from latchstep.tool.define import tool

from .kit import Kit
from .run import RunResult
from .session import Session

MAX_STEPS = 50
"""Model turns of one task, at most and by default."""
MAX_SECONDS = 3600.0
"""How long one task may take."""

_ASKED = (
    "You work on a part of a larger task. Whoever gave it to you sees your last message and nothing else: say there "
    "what you found or changed, with the names of files, and what is left open.\n\n"
)

Build = Callable[[Path, int], tuple[Kit, Rules]]
"""(the folder of the task's session, model turns at most) -> what it works with."""


def task_tool(store: Store, parent: str, build: Build, *, workspace: str = "", program: str = "") -> Tool:
    """The `task` tool of the session `parent`. build: makes the kit, without this tool, and the rules."""

    @tool(effect="write", replay="safe", timeout=MAX_SECONDS)
    async def task(
        prompt: Annotated[str, Meta(min_length=1, description="The whole task: the other agent sees nothing else")],
        context: Context,
        max_steps: Annotated[int, Meta(ge=1, le=MAX_STEPS, description="Model turns at most")] = MAX_STEPS,
    ) -> Output:
        """Give a part of the work to another agent with the same tools. You get its last message.

        For work that can be told in full and whose details you do not need: a search through many files, one change
        among several. It has its own context; its turns do not fill yours.
        """
        name = f"{parent[:80]}-task-{sha256(context.idempotency_key.encode()).hexdigest()[:10]}"
        try:
            journal = _journal(store, name, parent, workspace, program)
        except (JournalError, SessionError) as error:
            raise ToolError(f"the task's session cannot be opened: {error}") from error
        kit, rules = build(journal.directory, max_steps)
        session = Session(journal, kit, rules, state=restored(journal), program=program)
        try:
            result = await _result(session, _ASKED + prompt, context)
        finally:
            await session.close()
        return _output(result, name)

    return task


def _journal(store: Store, name: str, parent: str, workspace: str, program: str) -> FileJournal:
    try:
        return store.open(name)
    except SessionError:
        return store.create(name, time=time.time(), workspace=workspace, program=program, parent=parent)


async def _result(session: Session, prompt: str, context: Context) -> ev.RunFinished | RunResult:
    """How the task ended: on record already, or by going on with it, or by beginning it."""
    if session.state.finished is not None and not session.unfinished:
        return session.state.finished
    begun = session.state.run is not None
    async with session.stream(None if begun else prompt) as run:
        async for event in run:
            if isinstance(event, ev.ToolStarted):
                context.progress(f"{event.name} {_about(session, event.call_id)}".rstrip())
        return await run.result()


def _about(session: Session, call_id: str) -> str:
    arguments = session.state.open_call(call_id).call.arguments
    return next((str(arguments[name])[:80] for name in ("command", "path", "pattern", "glob") if name in arguments), "")


def _output(result: ev.RunFinished | RunResult, name: str) -> Output:
    details: dict[str, Any] = {
        "session": name,
        "status": result.status,
        "steps": result.steps,
        "usage": msgspec.to_builtins(result.usage),
        "cost": result.cost,
    }
    if result.status == "completed":
        return Output(result.final_text or "(it said nothing)", details)
    why = f" ({result.error.message})" if result.error is not None else ""
    text = f"The task ended {result.status}{why}. What it did until then stays."
    if result.final_text:
        text += f" Its last words:\n{result.final_text}"
    return Output(text, details, outcome="error", is_error=True)
