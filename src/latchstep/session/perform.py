"""The one place where things are done: each action of `decide`, and what is recorded of it.

Every function here ends with the consequences recorded, whatever happened, or with the session interrupted;
`decide` then says what that means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from latchstep.core import wording
from latchstep.core.action import Action, Ask, CallModel, Check, Compact, Consult, Note, RunTools, Settle
from latchstep.core.calls import in_doubt, result
from latchstep.core.event import ApprovalRequested, CheckFinished, CheckStarted, Question, RunFinished
from latchstep.core.message import clean
from latchstep.tool.threads import invoke

from .compacting import compact
from .hooks import consult
from .model_call import call_model
from .tools import bounded, call_context, fingerprint, prepare, run_tools

if TYPE_CHECKING:
    from .session import Session


async def perform(session: Session, action: Action) -> None:
    """Do what `decide` said. An action without a case here is a broken promise, not a no-op."""
    match action:
        case CallModel():
            await call_model(session, action)
        case Compact():
            await compact(session, action)
        case RunTools():
            await run_tools(session, action)
        case Note(events=(RunFinished(),)) if session.snapshots.under_way:
            await session.snapshots.note(session)  # and decide again: somebody may have said something meanwhile
        case Note(events=(RunFinished() as ending,)):
            await session.finish(ending)
        case Note():
            await session.emit(*action.events)
        case Consult():
            await consult(session, action)
        case Ask():
            await ask(session, action)
        case Settle():
            await settle(session, action)
        case Check():
            await check(session, action)
        case _:
            raise TypeError(f"no way to perform {action!r}")


async def ask(session: Session, action: Ask) -> None:
    """Prepare the calls and record the question: exactly what would run, bound by its digest."""
    entries = [session.state.open_call(call_id) for call_id in action.calls]
    reasons = dict(zip(action.calls, action.reasons, strict=True))
    contexts = {entry.call.id: call_context(session, entry) for entry in entries}
    if action.about == "run":
        todo = [e for e in entries if session.kit.tools[e.call.name].prepare is not None]
        failed = await prepare(session, todo, contexts) if todo else set()
        entries = [entry for entry in entries if entry.call.id not in failed]
    if not entries or session.interrupted:
        return
    questions = tuple(
        Question(
            call_id=entry.call.id,
            name=entry.call.name,
            sha256=fingerprint(entry.call.name, entry.call.arguments, contexts[entry.call.id].found),
            reason=reasons[entry.call.id],
            about="answer" if action.about == "run" and session.kit.tools[entry.call.name].asks else action.about,
            found=contexts[entry.call.id].found,
        )
        for entry in entries
    )
    await session.emit(ApprovalRequested(questions=questions))


async def settle(session: Session, action: Settle) -> None:
    """Look the effect up; where that cannot tell, the policy for doubt says what happens."""
    entry = session.state.open_call(action.call)
    tool = session.kit.tools[entry.call.name]
    assert tool.settle is not None
    work = invoke(
        tool.settle, (session.kit.validated(entry.call), entry.found, call_context(session, entry)), tool.thread
    )
    session.crew.start(action.call, work, tool.timeout or session.limits.tool_timeout)
    ended = await session.crew.next()
    if ended is None or ended.how == "interrupted":
        return
    if ended.value == "done":
        await session.emit(result(entry, "ok", wording.settled(True), False))
    elif ended.value == "not_done":
        await session.emit(result(entry, "interrupted", wording.settled(False), True))
    else:
        await perform(session, in_doubt(entry, session.rules, wording.LOOKED))


async def check(session: Session, action: Check) -> None:
    """Run one declared check. One that cannot be run has failed."""
    await session.emit(CheckStarted(command=action.command, index=action.index))
    if session.interrupted:
        return
    work = invoke(session.kit.check, (action.command,), False)
    session.crew.start(action.command, work, session.limits.tool_timeout)
    ended = await session.crew.next()
    if ended is None or ended.how == "interrupted":
        return
    if ended.how == "timed_out":
        status, output = None, f"stopped after {ended.seconds:g} s{ended.remark()}"
    elif ended.error is not None:
        status, output = None, wording.of_error(ended.error)
    else:
        status, output = ended.value
    await session.emit(
        CheckFinished(
            command=action.command,
            index=action.index,
            passed=status == 0,
            exit_status=status,
            output=bounded(session, clean(output)),
        )
    )
