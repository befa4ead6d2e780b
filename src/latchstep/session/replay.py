"""Runs the loop again on a recorded session and finds the first event that is another.

The real session drives. What came from outside (answers, results, findings, verdicts, what people said, time) is
played from the record, at its place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec.structs import replace

from latchstep.core import event as ev
from latchstep.core.rules import Rules, Traits, Verdict
from latchstep.core.state import fold
from latchstep.errors import JournalError, LatchstepError, SessionError
from latchstep.journal.base import Journal, MemoryJournal

from .compacting import compact_now
from .kit import Kit
from .played import FOR_EVER, PlayedModel, as_it_is, played_kit, played_rules
from .player import Player, Replayed
from .run import Run
from .session import Session
from .tape import Tape, is_foreign, is_said


async def replay(
    events: Iterable[ev.Event],
    *,
    blob: Callable[[str], bytes | None] = lambda digest: None,
    run: int = 0,
    journal: Journal | None = None,
    live: Kit | None = None,
) -> Replayed:
    """Replay a session, or only its `run`-th run (from 1).

    blob: the recorded blob of this SHA-256, or None. journal: holds the replay and has its own header; by default it
    is kept in memory. live: a kit whose tools and checks really run. Raises SessionError where there is no such run.
    """
    tape = Tape(events)
    if not isinstance(header := tape.next, ev.SessionCreated):
        raise SessionError("a replay needs a session from its first event on")
    if journal is None:
        journal = MemoryJournal()
        journal.append([copy.copy(header)])
    tape.advance()
    if run:
        first, last = _bounds(tape, run)
        del tape.events[last:]
        while tape.at < first:
            if not isinstance(event := tape.events[tape.at], ev.Unknown):
                journal.append([copy.copy(event)])
            tape.advance()
    player = Player(tape, journal, blob, live, header)
    await _play(player)
    return player.found


def _bounds(tape: Tape, run: int) -> tuple[int, int]:
    """Where a run begins, with its messages, and where it is over."""
    begins = [at for at, event in enumerate(tape.events) if isinstance(event, ev.RunStarted)]
    if not 1 <= run <= len(begins):
        raise SessionError(f"the session has {len(begins)} runs; there is no run {run}")
    first = begins[run - 1]
    while tape.begins(first - 1) == begins[run - 1]:
        first -= 1
    ends = (at for at, e in enumerate(tape.events) if at > first and isinstance(e, ev.RunFinished))
    return first, next(ends, len(tape.events) - 1) + 1


async def _play(player: Player) -> None:
    try:
        while player.found.difference is None and (event := player.tape.next) is not None:
            if isinstance(event, ev.SessionOpened) or player.session is None:
                await _open(player)
                continue
            at = player.tape.at
            await _step(player, player.session, event)
            if player.tape.at == at and player.found.difference is None:
                player.differs(event, None)
    finally:
        if player.session is not None:
            await player.session.close()
        if player.live_kit is not None and player.live_kit.on_close is not None:
            await player.live_kit.on_close()


async def _open(player: Player) -> None:
    """A process opens the session, as one did then. The one before it, if any, is gone."""
    if player.session is not None:
        await player.session.close()
    state = fold(player.live())
    name = (state.run.model or state.run.started.model) if state.run is not None else ""
    on_open = player.live_kit.on_open if player.live_kit is not None else lambda seen, partly: None
    kit = Kit(model=PlayedModel(player, name), tools={}, render=as_it_is, on_open=on_open)
    rules = Rules(judge=lambda call: Verdict("refuse"), traits=lambda name: Traits())
    player.sent = 0
    player.session = Session(
        player, kit, rules, state=state, now=player.now, monotonic=player.monotonic, new_id=lambda: player.ids.pop(0)
    )


async def _step(player: Player, session: Session, event: ev.Event) -> None:
    begins = player.tape.begins(player.tape.at)
    if session.unfinished and not is_said(event):
        await _resume(player, session)
    elif begins >= 0:
        await _begin(player, session, begins)
    elif isinstance(event, ev.ModelRequested) and session.state.fill.focus is not None:
        await _compact(player, session)
    elif is_said(event) or is_foreign(event):
        await session.barrier.quiet()
        player.take_over(event)
    else:
        player.differs(event, None)


async def _resume(player: Player, session: Session) -> None:
    run, tape, at = session.state.run, player.tape, player.tape.at
    assert run is not None
    started, name = run.started, run.model or run.started.model
    if isinstance(event := tape.next, ev.RunResumed):
        started = replace(started, **{field: getattr(event, field) for field in ev.CONDITIONS})
        at += 1
    event = tape.events[at] if at < len(tape.events) else None
    if isinstance(event, ev.ModelSwitched) and not event.request_id:
        name = event.new
    _set_up(player, session, started, name)
    await _drive(player, session, session.stream())


async def _begin(player: Player, session: Session, begins: int) -> None:
    tape = player.tape
    messages = [e for e in tape.events[tape.at : begins] if isinstance(e, ev.MessageAccepted)]
    started = tape.events[begins]
    assert isinstance(started, ev.RunStarted)
    prompt = messages.pop() if messages and messages[-1].source == "prompt" else None
    player.ids = [prompt.message_id.removeprefix("prompt-")] if prompt is not None else []
    player.ids.append(started.run_id.removeprefix("run-"))
    _set_up(player, session, started, started.model)
    run = session.stream(
        prompt.message.text if prompt is not None else None,
        start=[event.message for event in messages],
        first_request=started.first_request,
    )
    await _drive(player, session, run)


async def _compact(player: Player, session: Session) -> None:
    """What was asked for between two runs, under the conditions of the one before: no others are on record."""
    if (run := session.state.run) is None:
        return
    _set_up(player, session, run.started, run.model or run.started.model)
    with suppress(LatchstepError):  # no summary came, or the record ends
        await compact_now(session)


def _set_up(player: Player, session: Session, started: ev.RunStarted, name: str) -> None:
    session.kit, player.known = played_kit(player, started, name, player.live_kit)
    session.rules = played_rules(player.tape, session.kit, started)
    limits = replace(session.rules.limits, max_seconds=None, tool_timeout=FOR_EVER, stream_timeout=FOR_EVER)
    limits = replace(limits, approval_timeout=None)
    if player.live_kit is None:  # what was bounded when it was recorded is not bounded again
        limits = replace(limits, max_result=1 << 40)
    session.limits = replace(limits, max_prompt=1 << 40)
    if not player.known and started.run_id not in player.found.blind:
        player.found.blind.append(started.run_id)
    player.base = session.state.run.elapsed if session.unfinished and session.state.run is not None else 0.0


async def _drive(player: Player, session: Session, run: Run) -> None:
    async with run:
        async for event in run:
            if isinstance(event, ev.ModelRequested):
                player.sent = len(session.projection.messages)
            await player.outside(session)
        await run.result()


def blobs_of(read: Callable[[str], bytes]) -> Callable[[str], bytes | None]:
    """Blobs as a replay asks for them: None for one that is not kept. Raises JournalError for a damaged one."""

    def blob(digest: str) -> bytes | None:
        try:
            return read(digest)
        except JournalError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    return blob
