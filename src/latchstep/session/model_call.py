"""Performs `CallModel`: one request out, deltas shown as they come, one answer or one failure recorded."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from latchstep.core import wording
from latchstep.core.accept import accept, dollars
from latchstep.core.action import CallModel
from latchstep.core.chunk import Completed, Delta, Failed, Switched
from latchstep.core.compact import recoverable
from latchstep.core.event import ModelDelta, ModelFailed, ModelRequested, ModelSwitched
from latchstep.core.message import Message, Usage, clean
from latchstep.core.state import State
from latchstep.errors import JournalError, ModelError
from latchstep.model.base import Model, Request

from .build import resolve_model
from .kit import Kit

if TYPE_CHECKING:
    from .session import Session

RUN_KINDS = {"protocol": "MODEL_PROTOCOL_ERROR", "context_overflow": "CONTEXT_FULL", "filtered": "FILTERED"}
"""Error kinds of a run that do not simply read `MODEL_` and the model error's kind."""


async def call_model(session: Session, action: CallModel) -> None:
    """Ask, show what comes, and record one answer or one failure."""
    view = session.projection.feed(_unprojected(session, action.carries))
    digest = session.projection.sha256(session.kit.prompt_digest)
    requested = ModelRequested(
        request_id=action.request_id,
        attempt=action.attempt,
        because=action.because,
        carries=action.carries,
        sha256=digest,
        repaired={kind: times for kind, times in session.projection.repaired.items() if times},
    )
    await session.emit(requested)
    session.projected = len(session.state.transcript)
    if session.interrupted:
        return
    if not view:
        await session.emit(_give_up(session, "INVALID_TRANSCRIPT", "there is no message that the model could answer"))
        return
    request = Request(
        request_id=action.request_id,
        messages=view,
        system=session.kit.system,
        tools=session.kit.specs,
        output=session.kit.held,
        place=session.state.place,
        attempt=action.attempt,
        max_output=session.limits.max_output,
        options=session.kit.options,
        sha256=digest,
    )
    if session.state.files == "changed":
        session.snapshots.begin()
    answer = await ask(session, session.kit.model, request)
    if answer is None:
        return
    await session.snapshots.note(session, wait=False)
    if isinstance(answer, BaseException):
        failed = _failure(session, answer)
        if failed.kind == "CONTEXT_FULL" and recoverable(session.state):
            failed = msgspec.structs.replace(failed, next="compact")
        await session.emit(failed)
    else:
        session.kit.forget_calls()
        await session.emit(accept(answer, session.state, session.kit.model.name, session.limits.max_empty))


def _unprojected(session: Session, carries: tuple[str, ...]) -> list[Message]:
    """What this request says beyond the last one."""
    return [*session.state.transcript[session.projected :], *session.state.outgoing(carries)]


async def ask(session: Session, model: Model, request: Request) -> Completed | BaseException | None:
    """The answer to a request that is on record, or why there is none; None where the run was interrupted."""
    session.crew.start(request.request_id, _answer(session, model, request), session.limits.stream_timeout)
    ended = await session.crew.next()
    if ended is None or ended.how == "interrupted":
        return None
    if ended.how == "timed_out":
        return ModelError("timeout", f"the model was silent for {ended.seconds:g} s (stream_timeout){ended.remark()}")
    answer: Completed = ended.value
    return ended.error or answer


async def _answer(session: Session, model: Model, request: Request) -> Completed:
    """Drain the stream to its end; only then is its terminal event believed."""
    answer: Completed | None = None
    request_id = request.request_id
    hidden = session.state.fill.is_summary(request_id)
    stream = model.stream(request)
    try:
        async for chunk in stream:
            if not session.crew.touch(request_id):
                break  # told to stop, and deaf to it
            if answer is not None:
                raise ModelError("protocol", f"the model's stream went on after its answer: {type(chunk).__name__}")
            if isinstance(chunk, Delta) and hidden:
                await session.hub.passed()
            elif isinstance(chunk, Delta):
                await session.show(
                    ModelDelta(
                        request_id=request_id,
                        kind=chunk.kind,
                        piece=clean(chunk.piece),
                        call_id=chunk.call_id,
                        name=chunk.name,
                    )
                )
            elif isinstance(chunk, Failed):
                session.crew.touch(request_id, chunk.retry_in)
                await _attempt_failed(session, request, chunk)
            elif isinstance(chunk, Switched):
                old, new, why = clean(chunk.old), clean(chunk.new), clean(chunk.why)
                await session.emit(ModelSwitched(old=old, new=new, why=why, request_id=request_id))
                await asyncio.sleep(0)
            elif isinstance(chunk, Completed):
                answer = chunk
            else:
                raise ModelError("protocol", f"the model's stream holds {type(chunk).__name__}, which is no chunk")
    finally:
        if (close := getattr(stream, "aclose", None)) is not None:
            await close()
    if answer is None:
        raise ModelError("protocol", "the model's stream ended without its terminal event")
    return answer


async def _attempt_failed(session: Session, request: Request, chunk: Failed) -> None:
    """A wrapper discards an attempt and asks again: both are recorded."""
    state = session.state
    open_request = state.fill.open if state.fill.is_summary(request.request_id) else state.request
    attempt = open_request.attempt if open_request is not None else request.attempt
    failed = ModelFailed(
        request_id=request.request_id,
        attempt=attempt,
        kind=chunk.kind,
        message=clean(chunk.message),
        next="retry",
        retry_in=chunk.retry_in,
        usage=chunk.usage,
        cost=dollars(chunk.cost),
    )
    again = ModelRequested(request_id=request.request_id, attempt=attempt + 1, because="retry")
    await session.emit(failed)
    await session.emit(again)
    await asyncio.sleep(0)  # a model that fails without ever suspending can still be cancelled


def with_model(kit: Kit, model: Model | str) -> Kit:
    """The kit with another model. A copy: other sessions may work with this one."""
    return replace(kit, model=resolve_model(model))


def chosen(state: State, name: str) -> list[ModelSwitched]:
    """That a run goes on with another model than the session used last, if it does."""
    used = (state.run.model or state.run.started.model) if state.run is not None else name
    return [ModelSwitched(old=used, new=name, why="chosen for this run")] if used != name else []


def _failure(session: Session, error: BaseException) -> ModelFailed:
    said = said_of(error)
    return msgspec.structs.replace(_give_up(session, said["kind"], said["message"]), **said)


def said_of(error: BaseException) -> dict[str, Any]:
    """What is recorded of a model's failure. A journal's is raised again."""
    if isinstance(error, JournalError):
        raise error
    if isinstance(error, ModelError):
        kind = RUN_KINDS.get(error.kind, f"MODEL_{error.kind.upper()}")
        return {
            "kind": kind,
            "message": clean(error.message),
            "usage": error.usage or Usage(),
            "cost": dollars(error.cost),
        }
    return {"kind": "MODEL_ERROR", "message": clean(wording.of_error(error))}


def _give_up(session: Session, kind: str, message: str) -> ModelFailed:
    request = session.state.request
    assert request is not None
    return ModelFailed(
        request_id=request.request_id,
        attempt=request.attempt,
        kind=kind,
        message=clean(message),
        next="give_up",
    )
