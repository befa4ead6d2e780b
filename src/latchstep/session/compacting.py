"""Performs `Compact`: asks for the summary, records what takes the place of what was said, or why nothing does.

The request goes through the same crew as any other: deadlines, cancels and retries are the same. Its tokens count.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from latchstep.core.accept import STOP_REASONS, dollars
from latchstep.core.action import Compact
from latchstep.core.chunk import Completed
from latchstep.core.compact import SYSTEM, compacted, compaction, cut, to_summarise
from latchstep.core.event import (
    CancelRequested,
    CompactRequested,
    ContextCompacted,
    ModelFailed,
    ModelRequested,
    SessionSnapshot,
)
from latchstep.core.message import Text, Usage, clean, user
from latchstep.core.project import Projection
from latchstep.errors import JournalPoisoned, LatchstepError, SessionError
from latchstep.model.base import Request

from .model_call import ask, said_of

if TYPE_CHECKING:
    from .session import Session

SNAPSHOT_EVERY = 1 << 18
"""Bytes of journal between two snapshots of the state; where it is larger itself, as many as it has."""

MAX_SNAPSHOT = 32 << 20
"""Bytes of a state that is still worth a snapshot."""

LEAST_OUTPUT = 2_000
"""Tokens that a summary may have, however short the answers of the run must be."""


async def compact(session: Session, action: Compact) -> None:
    """One summary asked for; one `context.compacted` or `model.failed` recorded, unless it was interrupted."""
    state, rules, kit = session.state, session.rules, session.kit
    model = kit.summarizer or kit.model
    projection = Projection()
    view = projection.feed([user(clean(to_summarise(state, action, rules)))])
    digest = projection.sha256(SYSTEM.encode())
    await session.emit(
        ModelRequested(request_id=action.request_id, attempt=action.attempt, because="compact", sha256=digest)
    )
    if session.interrupted:
        return
    request = Request(
        request_id=action.request_id,
        messages=view,
        system=SYSTEM,
        place=state.place,
        attempt=action.attempt,
        max_output=session.limits.max_output and max(session.limits.max_output, LEAST_OUTPUT),
        options=kit.options if model is kit.model else {},
        sha256=digest,
    )
    answer = await ask(session, model, request)
    if answer is None:
        return
    if isinstance(answer, BaseException):
        said = said_of(answer)
        failed = _failed(session, action, said["kind"], said["message"])
        await session.emit(structs.replace(failed, **said))
        return
    event = _summary(session, action, answer, model.name)
    await session.emit(event)
    if isinstance(event, ContextCompacted):
        await snapshot(session)


def _summary(session: Session, action: Compact, answer: Completed, name: str) -> ContextCompacted | ModelFailed:
    """The event for this answer. Whatever else it holds, only its text counts."""
    try:
        text = clean("\n".join(block.text for block in answer.blocks if isinstance(block, Text))).strip()
    except TypeError as error:
        return _failed(session, action, "MODEL_PROTOCOL_ERROR", f"the answer cannot be recorded: {error}")
    if answer.stop_reason not in STOP_REASONS or not isinstance(answer.usage, Usage):
        return _failed(session, action, "MODEL_PROTOCOL_ERROR", f"the answer ended with {answer.stop_reason!r}")
    if text and answer.stop_reason not in ("refused", "filtered"):
        answer = structs.replace(answer, origin=clean(answer.origin) or name, cost=dollars(answer.cost))
        return compacted(session.state, action, session.rules, text, answer)
    failed = _failed(session, action, "EMPTY_RESPONSE", f"there is no summary in the answer ({answer.stop_reason})")
    return structs.replace(
        failed,
        usage=answer.usage,
        cost=dollars(answer.cost),
        stop_reason=answer.stop_reason,
        raw_stop_reason=clean(answer.raw_stop_reason),
    )


def _failed(session: Session, action: Compact, kind: str, message: str) -> ModelFailed:
    """Without a summary the run goes on, unless the request did not fit. One too long to be summarised is shown less
    of once."""
    request = session.state.fill.open or action  # a cancel that came with the failure has closed it
    ending = ModelFailed(
        request_id=request.request_id,
        attempt=request.attempt,
        kind=kind,
        message=message,
        next="give_up" if action.because == "overflow" else "go_on",
    )
    again = kind == "CONTEXT_FULL" and not session.state.fill.tight
    return structs.replace(ending, next="compact") if again else ending


async def snapshot(session: Session) -> None:
    """Record the state, so that a resume needs nothing before it. A journal in memory saves nothing by it.

    What lies before is synced first: an opening verifies from there on what no sync covered.
    """
    if not session.journal.size:
        return
    await session.sync()
    await session.barrier.quiet()  # from here to the record nothing else happens, or it would undo that
    raw = msgspec.Raw(session.state.snapshot())
    if len(raw) <= MAX_SNAPSHOT:
        await session.emit(SessionSnapshot(needed=session.journal.head + 1, state=raw, whole=True))
    session.next_snapshot = session.journal.size + max(SNAPSHOT_EVERY, len(raw))


async def compact_session(session: Session, focus: str) -> ContextCompacted | None:
    """See `Session.compact`."""
    await session.barrier.quiet()
    if not cut(session.state, 0):
        raise SessionError("there is nothing to compact yet")
    request = CompactRequested(focus=clean(focus), by="caller")
    if session.unfinished:
        session.record(request)
        await session.sync()
        return None
    return await compact_now(session, request)


async def compact_now(session: Session, *request: CompactRequested) -> ContextCompacted | None:
    """Perform what is, or was, asked for while no run is active. None where it was cancelled. Raises LatchstepError."""
    session.enter(None)
    head = session.journal.head
    session.crew.rest()
    try:
        if request:
            session.record(*request)
        await session.sync()
        while session.state.fill.focus is not None and (action := compaction(session.state, session.rules)) is not None:
            await compact(session, action)
            await session.note_interrupt()
    except asyncio.CancelledError:
        session.cancel("the task was cancelled", by="asyncio")
        await session.crew.quit()
        with suppress(JournalPoisoned):
            await session.note_interrupt()
        raise
    finally:
        session.crew.rest()
        if session.compacting is not None:
            session.compacting.set_result(None)
        session.compacting = None
    ends = [e for e in session.journal.read(head) if isinstance(e, ContextCompacted | ModelFailed | CancelRequested)]
    match ends[-1:]:
        case [ContextCompacted() as done]:
            return done
        case [CancelRequested()]:
            return None
        case [ModelFailed() as failed]:
            raise LatchstepError(f"the context was not compacted: {failed.message}")
        case _:
            raise LatchstepError("the context was not compacted: nothing can be cut")
