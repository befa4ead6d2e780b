"""What a person says to a session: accepted on disk before it is acknowledged, changed while it still waits.

What no request has carried yet waits in the state's queue; what one has carried is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from latchstep.core.calls import withdrawn
from latchstep.core.event import ApprovalAnswered, Decision, MessageAccepted, MessageEdited, MessageWithdrawn, Source
from latchstep.core.message import clean, user
from latchstep.core.state import PEOPLE
from latchstep.errors import DefinitionError, SessionError

if TYPE_CHECKING:
    from .session import Session


def readable(text: str, most: int) -> None:
    """Refuse a message that cannot be one. Raises DefinitionError, SessionError."""
    if not isinstance(text, str):
        raise DefinitionError(f"a message is a string, not {type(text).__name__}")
    if not text.strip():
        raise SessionError("a blank message says nothing; it was not accepted")
    if len(text) > most:
        raise SessionError(f"the message has {len(text)} characters; max_prompt is {most}")


async def take(session: Session, text: str, source: Source, message_id: str) -> None:
    """Accept a message."""
    readable(text, session.limits.max_prompt)
    if source not in PEOPLE:
        raise DefinitionError(f"source must be one of {', '.join(PEOPLE)}, not {source!r}")
    await session.barrier.quiet()
    if (waiting := len(session.state.queue)) >= session.limits.max_waiting:
        raise SessionError(f"{waiting} messages wait to be delivered; max_waiting is {session.limits.max_waiting}")
    session.record(MessageAccepted(message_id=message_id, source=source, message=user(text, message_id)))
    await session.sync()


async def reply(session: Session, call_id: str, decision: Decision, *, by: str, rule: str, note: str) -> None:
    """Answer the question about one call."""
    if decision not in ("allow", "deny"):
        raise DefinitionError(f"decision must be 'allow' or 'deny', not {decision!r}")
    await session.barrier.quiet()
    asked = next((entry for entry in session.questions if entry.call.id == call_id), None)
    if asked is None:
        raise SessionError(f"no question is open about call {call_id!r}")
    sha256, note = asked.question, clean(note)
    session.record(ApprovalAnswered(call_id=call_id, decision=decision, sha256=sha256, by=by, rule=rule, note=note))
    await session.sync()
    session.wake()


async def change(session: Session, message_id: str, text: str | None) -> None:
    """Edit a person's message that still waits, or (without a text) take it back, or the question about a call."""
    if text is not None:
        readable(text, session.limits.max_prompt)
    await session.barrier.quiet()
    if text is None and (asked := next((e for e in session.questions if e.call.id == message_id), None)) is not None:
        session.record(*withdrawn(asked))
        await session.sync()
        session.wake()
        return
    if not any(item.message_id == message_id and item.source in PEOPLE for item in session.state.queue):
        raise SessionError(f"{message_id} is not waiting: it was delivered, withdrawn, or never accepted")
    if text is None:
        session.record(MessageWithdrawn(message_id=message_id))
    else:
        session.record(MessageEdited(message_id=message_id, message=user(text, message_id)))
    await session.sync()
