"""Performs `RunTools`: prepare, record the intents, run the group together, record each result.

A call with effects starts only when its intent is on disk; every call that started gets exactly one result.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from hashlib import sha256
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from latchstep.core import wording
from latchstep.core.action import RunTools
from latchstep.core.calls import result
from latchstep.core.event import ToolFinished, ToolOutput, ToolStarted
from latchstep.core.message import Outcome, clean, clean_json
from latchstep.core.parts import OpenCall
from latchstep.errors import FatalToolError, ToolError
from latchstep.tool.base import Context
from latchstep.tool.capture import Capture, output_path
from latchstep.tool.show import where
from latchstep.tool.text import clean_output
from latchstep.tool.threads import invoke

from .crew import Member

if TYPE_CHECKING:
    from .session import Session

PROGRESS_WAITING = 256
"""Progress texts of one call that may wait to be shown; in a flood the oldest are dropped."""
PROGRESS_LENGTH = 10_000
"""Characters of a progress text that are shown, from its end."""
PIECE = 1 << 20
"""Characters of a long result that go to disk at once."""

_SORTED = msgspec.json.Encoder(order="sorted")
_SPAN = 4096
"""Characters beyond a cut that are looked at, so that a secret across it is seen whole."""


def fingerprint(name: str, arguments: dict[str, Any], found: Any) -> str:
    """SHA-256 over exactly what will run. A grant is bound to it."""
    return sha256(_SORTED.encode((name, arguments, found))).hexdigest()


def call_context(session: Session, entry: OpenCall) -> Context:
    directory = session.journal.directory
    return Context(
        call_id=entry.call.id,
        idempotency_key=entry.key or f"{session.id}:{session.state.requests}:{entry.call.id}",
        workspace=session.kit.workspace,
        outputs=directory / "outputs" if directory is not None else None,
        deps=session.kit.deps,
        found=entry.found,
        answer=entry.answer,
    )


def progress_of(session: Session, entry: OpenCall) -> Callable[[str], None]:
    """A tool's way to show a line, callable from any thread. Once its call has ended it shows nothing."""
    loop = asyncio.get_running_loop()
    waiting: deque[str] = deque(maxlen=PROGRESS_WAITING)
    due = False

    def show() -> None:
        nonlocal due
        due = False
        for _ in range(len(waiting)):
            text = waiting.popleft()
            if entry.status == "started":
                session.present(ToolOutput(call_id=entry.call.id, text=text))

    def progress(text: str) -> None:
        nonlocal due
        said = _masked(session, clean(str(text)[-PROGRESS_LENGTH - _SPAN :]))
        waiting.append(said[-PROGRESS_LENGTH:])
        if not due:
            due = True
            try:
                loop.call_soon_threadsafe(show)
            except RuntimeError:  # the loop is closed: nobody watches any more
                pass

    return progress


async def run_tools(session: Session, action: RunTools) -> None:
    """Intents first, on disk if any has effects; then the group runs together; then each result."""
    entries = [session.state.open_call(call_id) for call_id in action.calls]
    contexts = {entry.call.id: call_context(session, entry) for entry in entries}
    entries = await _prepared(session, entries, contexts)
    if not entries or session.interrupted:
        return
    if any(session.kit.tools[entry.call.name].effect == "write" for entry in entries):
        await session.snapshots.before_effects(session)
        if session.interrupted:
            return
    started = [_intent(session, entry, contexts[entry.call.id]) for entry in entries]
    await session.emit(*started)
    if any(event.effect == "write" for event in started):
        await session.sync()
    if session.interrupted:
        await session.note_interrupt()
        text = wording.not_started("the run was stopped before it began")
        await session.emit(*(result(entry, "not_started", text, True) for entry in entries))
        return
    await _run_group(session, entries, contexts)


async def _prepared(session: Session, entries: list[OpenCall], contexts: dict[str, Context]) -> list[OpenCall]:
    """Run each `prepare` not already run for a question. What cannot be prepared ends here, unstarted."""
    todo = [e for e in entries if not e.question and session.kit.tools[e.call.name].prepare is not None]
    if not todo:
        return entries
    failed = await prepare(session, todo, contexts)
    return [entry for entry in entries if entry.call.id not in failed]


async def prepare(session: Session, entries: list[OpenCall], contexts: dict[str, Context]) -> set[str]:
    """Fill `context.found`; ids of the calls whose `prepare` failed, their results recorded."""
    crew = session.crew
    by_id = {entry.call.id: entry for entry in entries}
    failed: set[str] = set()
    for entry in entries:
        tool = session.kit.tools[entry.call.name]
        assert tool.prepare is not None
        arguments = session.kit.validated(entry.call)
        work = invoke(tool.prepare, (arguments, contexts[entry.call.id]), tool.thread)
        crew.start(entry.call.id, work, tool.timeout or session.limits.tool_timeout)
    while (ended := await crew.next()) is not None:
        entry, error = by_id[ended.key], ended.error
        if ended.how == "done" and error is None:
            try:
                found = clean_json(msgspec.to_builtins(ended.value, str_keys=True))
                contexts[ended.key].found = _masked_json(session, found)
                continue
            except (TypeError, ValueError, RecursionError) as unfit:
                error = ToolError(f"what was prepared is not JSON ({unfit}); nothing was run")
        failed.add(ended.key)
        if ended.how == "interrupted":
            continue
        if ended.how == "timed_out":
            error = ToolError(f"preparing took longer than {ended.seconds:g} s; nothing was run{ended.remark()}")
        if error is not None:
            await session.emit(_raised(session, entry, error))
    return failed


def _intent(session: Session, entry: OpenCall, context: Context) -> ToolStarted:
    tool = session.kit.tools[entry.call.name]
    digest = fingerprint(entry.call.name, entry.call.arguments, context.found)
    if entry.question and entry.about != "doubt" and digest != entry.question:
        raise FatalToolError(f"{entry.call.name}: what would run is not what was approved")
    return ToolStarted(
        call_id=entry.call.id,
        name=entry.call.name,
        sha256=digest,
        effect=tool.effect,
        replay=tool.replay,
        idempotency_key=context.idempotency_key,
        found=context.found,
        rule="" if entry.question else session.rules.judge(entry.call).rule,
    )


async def _run_group(session: Session, entries: list[OpenCall], contexts: dict[str, Context]) -> None:
    crew = session.crew
    by_id = {entry.call.id: entry for entry in entries}
    began = perf_counter()
    for entry in entries:
        tool = session.kit.tools[entry.call.name]
        context = contexts[entry.call.id]
        context.progress = progress_of(session, entry)
        arguments = dict(session.kit.validated(entry.call))
        if tool.context:
            arguments[tool.context] = context
        seconds = tool.timeout or session.limits.tool_timeout
        if tool.name in session.kit.coroutines:
            crew.start(entry.call.id, tool.function(**arguments), seconds)
        elif tool.thread:
            crew.start(entry.call.id, invoke(tool.function, (), True, arguments), seconds)
        else:
            value, error = _call(tool.function, arguments)
            if inspect.isawaitable(value):
                crew.start(entry.call.id, _awaited(value), seconds)
            else:
                crew.did(entry.call.id, value, error)
    while (ended := await crew.next()) is not None:
        await session.emit(_finished(session, by_id[ended.key], contexts[ended.key], ended, perf_counter() - began))


def _call(function: Any, arguments: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """A synchronous tool that asked for no thread: nothing can stop it, so it needs no task either."""
    try:
        return function(**arguments), None
    except BaseException as error:
        return None, error


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _finished(session: Session, entry: OpenCall, context: Context, ended: Member, duration: float) -> ToolFinished:
    """How the call ended, in the terms of the record."""
    if ended.how == "timed_out":
        text = wording.timed_out(ended.seconds, _captured(session, context))
        return _ended(entry, "timed_out", text + ended.remark("\n"))
    if ended.how == "interrupted":
        text = wording.interrupted(session.why_interrupted(), _captured(session, context))
        return _ended(entry, "interrupted", text + ended.remark("\n"))
    if ended.error is not None:
        return _raised(session, entry, ended.error)
    kept: list[str] = []
    try:
        output = session.kit.render(ended.value, _texts(session, context, kept))
    except ToolError as unfit:
        return _raised(session, entry, unfit)
    except BaseException as strange:
        words = f"the tool returned {type(ended.value).__name__}, which fails when it is read"
        return _raised(session, entry, ToolError(f"{words} ({wording.of_error(strange)})"))
    return ToolFinished(
        call_id=entry.call.id,
        name=entry.call.name,
        outcome=output.outcome,
        content=output.content,
        is_error=output.is_error,
        details=_masked_json(session, output.details),
        duration=round(duration, 6),
        output=output.output or "".join(kept[:1]),
    )


def _ended(entry: OpenCall, outcome: Outcome, text: str) -> ToolFinished:
    return result(entry, outcome, clean(text), True)


def _raised(session: Session, entry: OpenCall, error: BaseException) -> ToolFinished:
    """A tool's own error: its words for the model, and its siblings unaffected."""
    text = bounded(session, wording.of_error(error))
    return result(entry, "error", text, True, fatal=isinstance(error, FatalToolError))


def _captured(session: Session, context: Context) -> str:
    return bounded(session, str(context.captured))


def _texts(session: Session, context: Context, kept: list[str]) -> Callable[[str], str]:
    """Makes the model's text of each of one result's, together at most `max_result` characters. The whole of each that
    is cut goes to disk, up to the limit of such files; their names go to `kept`."""
    left = session.limits.max_result

    def text_of(text: str) -> str:
        nonlocal left
        room, left = left, max(0, left - len(text))
        place = _put_by(session, context, text, kept) if len(text) > room else ""
        return bounded(session, text, room, place, clean_output)

    return text_of


def _put_by(session: Session, context: Context, text: str, kept: list[str]) -> str:
    """Put a long text on disk; where it is, in words."""
    capture = Capture(output_path(context.outputs, context.call_id), session.kit.masker)
    for at in range(0, len(text), PIECE):
        if capture.path is None or capture.problem:
            break
        capture.feed(text[at : at + PIECE].encode("utf-8", "replace"))
    capture.flush()
    place = where(capture)
    if capture.path is not None and capture.kept:
        kept.append(capture.path.name)
    return f"; {place}"


def bounded(
    session: Session, text: str, room: int | None = None, place: str = "", tidy: Callable[[str], str] = clean
) -> str:
    """Tidy, without secrets, and at most `max_result` characters, or the `room` that is left of them: head and tail,
    how much is missing, and the place of the whole."""
    most = session.limits.max_result
    room = most if room is None else room
    if len(text) <= room:
        return _masked(session, tidy(text))
    first, last = room * 2 // 3, room // 3
    head = _masked(session, tidy(text[: first + _SPAN]))[:first]
    tail = _masked(session, tidy(text[-last - _SPAN :]))[-last:] if last else ""
    return f"{head}\n[… {len(text) - first - last} characters left out (max_result is {most}){place} …]\n{tail}"


def _masked(session: Session, text: str) -> str:
    return session.kit.masker.mask(text) if session.kit.masker is not None else text


def _masked_json(session: Session, value: Any) -> Any:
    return session.kit.masker.mask_json(value) if session.kit.masker is not None else value
