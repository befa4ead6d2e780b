"""A model, tools, checks and rules that say what was recorded, each at its place. A replay is made of them.

Verdicts are taken from the record too: who may do what came from outside the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from latchstep.core import event as ev
from latchstep.core import wording
from latchstep.core.chunk import Chunk, Delta, Failed, Switched
from latchstep.core.message import Message, ToolCall
from latchstep.core.rules import FINAL, RUN, Answer, Limits, Rules, Traits, Verdict
from latchstep.errors import FatalToolError, ToolError
from latchstep.model.base import Request, ToolSpec
from latchstep.model.cassette import chunks_of
from latchstep.tool.base import Context, Output, Tool
from latchstep.tool.text import clean_output
from latchstep.tool.threads import invoke

from .kit import Kit
from .tape import ANSWERS, HOOK_REFUSED, About, Control, Tape, by_hook

if TYPE_CHECKING:
    from .player import Player

FOR_EVER = 1e9
"""Seconds: no deadline is left to a clock, since the record says which of them passed."""

CAPTURED = "\nOutput until then:\n"
DEAF = "may still be running."


def as_it_is(value: Any, text_of: Callable[[str], str]) -> Output:
    """What was recorded has been made fit already."""
    assert isinstance(value, Output)
    return value


class PlayedModel:
    """Answers with what is next on the tape."""

    def __init__(self, player: Player, name: str) -> None:
        self._player, self.name = player, name

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        tape = self._player.tape
        while True:
            event = tape.coming
            if isinstance(event, Control) and isinstance(tape.after_stop, ANSWERS):
                event = tape.after_stop  # it came in the very moment of the stop
                asyncio.get_running_loop().call_soon(self._player.interrupt)
            match event:
                case ev.ModelSwitched() if event.request_id:
                    yield Switched(old=event.old, new=event.new, why=event.why)
                case ev.ModelFailed(next="retry"):
                    yield Failed(
                        kind=event.kind,
                        message=event.message,
                        retry_in=event.retry_in,
                        usage=event.usage,
                        cost=event.cost,
                    )
                case ev.MessageCompleted() | ev.ModelFailed() | ev.ContextCompacted():
                    for chunk in chunks_of(event):
                        if not isinstance(chunk, Delta):
                            yield chunk
                    return
                case _:
                    raise await self._player.nothing_for("answer")


def played_kit(player: Player, started: ev.RunStarted, name: str, live: Kit | None) -> tuple[Kit, bool]:
    """The kit of a recorded run, and whether its system prompt and tools are known. Without them requests cannot be
    compared."""
    tape = player.tape
    system, raw = player.blob(started.system), player.blob(started.tools)
    known = system is not None and raw is not None
    specs = msgspec.json.decode(raw, type=list[ToolSpec]) if raw is not None else _named(tape)

    async def check(command: str) -> tuple[int | None, str]:
        event = tape.after_stop
        if not isinstance(event, ev.CheckFinished):
            raise await player.nothing_for("result of the check")
        done = await live.check(command) if live is not None else (event.exit_status, event.output)
        if isinstance(tape.coming, Control):
            await player.last_moment()
        return done

    kit = Kit(
        model=PlayedModel(player, name),
        tools={spec.name: _tool(player, spec, live) for spec in specs},
        render=as_it_is,
        system=(system or b"").decode(),
        check=check,
        workspace=live.workspace if live is not None else None,
        masker=live.masker if live is not None else None,
        setup=started.setup,
        head=started.head,
    )
    if raw is not None:
        kit.specs_json = raw
        kit.prompt_digest = sha256(kit.system.encode() + b"\0" + raw).digest()
    player.names = {kit.system.encode(): started.system, kit.specs_json: started.tools}
    return kit, known


def _named(tape: Tape) -> list[ToolSpec]:
    names = [e.name for e in tape.events if isinstance(e, ev.ToolStarted)]
    names += [q.name for e in tape.events if isinstance(e, ev.ApprovalRequested) for q in e.questions]
    return [ToolSpec(name, "", {}) for name in dict.fromkeys(names)]


def _tool(player: Player, spec: ToolSpec, live: Kit | None) -> Tool:
    tape, traits = player.tape, _traits(player.tape, spec.name)
    real = live.tools.get(spec.name) if live is not None else None

    async def run(arguments: dict[str, Any], context: Context) -> Output:
        recorded = tape.result(context.call_id)
        done: Output | Exception | None = None
        if live is not None and recorded is not None and recorded.outcome not in ("interrupted", "timed_out"):
            done = await _run_again(live, real, arguments, context, player.workspace)
        await player.turn(context.call_id)
        if isinstance(tape.coming, Control):
            if recorded is None or recorded.outcome == "interrupted":
                await _until_stopped(player, context, recorded)
            await player.last_moment()
        if recorded is None:
            raise await player.nothing_for("result of this call")
        if isinstance(done, Exception):
            raise done
        if recorded.fatal and done is None:
            raise FatalToolError(str(recorded.content))
        return done or Output(recorded.content, recorded.details, recorded.outcome, recorded.is_error, recorded.output)

    async def prepare(arguments: dict[str, Any], context: Context) -> Any:
        about = tape.about(context.call_id)
        if isinstance(about, ev.ToolFinished):
            if about.outcome == "error":
                await player.turn(context.call_id)
                raise (FatalToolError if about.fatal else ToolError)(str(about.content))
            return None
        if real is not None:
            given = real.validate(arguments["arguments"])
            return await invoke(real.prepare, (given, context), real.thread) if real.prepare else None
        if isinstance(about, ev.ApprovalRequested):
            return next(question.found for question in about.questions if question.call_id == context.call_id)
        return about.found if isinstance(about, ev.ToolStarted) else None

    async def before(arguments: dict[str, Any], context: Context) -> Any:
        await player.turn(context.call_id)
        return _hooked(tape.about(context.call_id))

    def settle(arguments: dict[str, Any], found: Any, context: Context) -> Any:
        return _settled(tape.about(context.call_id))

    return Tool(
        name=spec.name,
        description=spec.description,
        schema=spec.schema,
        function=run,
        validate=lambda arguments: {"arguments": arguments},
        context="context",
        prepare=prepare,
        settle=settle if traits.settles else None,
        before=(before,) if traits.hooked else (),
        effect=traits.effect,
        replay=traits.replay,
        asks=traits.asks,
        alone=traits.alone,
        timeout=FOR_EVER,
        thread=False,
    )


async def _run_again(
    live: Kit, real: Tool | None, arguments: dict[str, Any], context: Context, workspace: str
) -> Output | Exception | None:
    """What a live tool says now, as if in the recorded workspace; None where there is no such tool."""
    if real is None:
        return None
    given = {**real.validate(arguments), **({real.context: context} if real.context else {})}
    try:
        said = live.render(await invoke(real.function, (), real.thread, given), clean_output)
    except Exception as error:
        return error
    if isinstance(said.content, str) and live.workspace is not None:
        said = replace(said, content=said.content.replace(str(live.workspace), workspace))
    return said


def _settled(about: About | None) -> str:
    said = str(about.content) if isinstance(about, ev.ToolFinished) else ""
    return {wording.settled(True): "done", wording.settled(False): "not_done"}.get(said, "unknown")


def _hooked(about: About | None) -> Any:
    """What the hooks before a call made of it. Raises what comes back as the words that were recorded."""
    match about:
        case ev.CallChanged():
            return about.arguments
        case ev.ToolFinished(outcome="denied"):
            return Verdict("refuse", _reason(about, HOOK_REFUSED))
        case ev.ToolFinished(outcome="error"):
            head, tail = wording.hook_failed("\0").split("\0")
            why = str(about.content).removeprefix(head).removesuffix(tail)
            raise type(why, (FatalToolError if about.fatal else ToolError,), {})
        case _:
            return None


def _reason(event: ev.ToolFinished, head: str) -> str:
    return str(event.content).removeprefix(head).removesuffix(". It was not run.").removeprefix(": ")


async def _until_stopped(player: Player, context: Context, recorded: ev.ToolFinished | None) -> None:
    """The call was stopped while it ran: it ends when it is, with what it had got, and in the order of the record."""
    said = str(recorded.content) if recorded is not None else ""
    context.captured = said.partition(CAPTURED)[2]
    player.stop_soon()
    try:
        await never()
    except asyncio.CancelledError:
        await player.turn(context.call_id, stopped=True)
        if said.endswith(DEAF) and not context.captured:
            await never()
        raise


async def never() -> None:
    await asyncio.get_running_loop().create_future()


def _traits(tape: Tape, name: str) -> Traits:
    """What the record shows of a tool. One whose calls were never begun together is as good as one that forbids it."""
    places = tape.starts(name)
    started = [tape.events[place] for place in ([p for p in places if p >= tape.at] or places)[:1]]
    near = [tape.events[p] for place in places for p in (place - 1, place + 1) if 0 <= p < len(tape.events)]
    looked_up = (wording.settled(True), wording.settled(False))
    settles = any(isinstance(e, ev.ToolFinished) and e.name == name and e.content in looked_up for e in tape.events)
    alone = not any(isinstance(event, ev.ToolStarted) for event in near)
    hooked, asks = tape.hooked(name), tape.asks(name)
    if started and isinstance(first := started[0], ev.ToolStarted):
        return Traits(first.effect, first.replay, settles, alone, hooked, asks)
    return Traits(settles=settles, hooked=hooked, asks=asks)


def played_rules(tape: Tape, kit: Kit, started: ev.RunStarted) -> Rules:
    traits = {
        name: Traits(t.effect, t.replay, t.settle is not None, t.alone, bool(t.before), t.asks)
        for name, t in kit.tools.items()
    }
    return Rules(
        judge=lambda call: _verdict(tape, call, kit),
        traits=lambda name: traits.get(name, Traits()),
        known=lambda name: name in kit.tools,
        output=(lambda said: _output(tape, said)) if FINAL in kit.tools else None,
        limits=msgspec.convert(started.limits, Limits),
        checks=started.checks,
        overhead=kit.overhead,
        **{name: value for name, value in started.rules.items() if name in Rules.__struct_fields__},
    )


def _verdict(tape: Tape, call: ToolCall, kit: Kit) -> Verdict:
    match event := tape.about(call.id):
        case ev.ApprovalRequested():
            return Verdict("ask", next(q.reason for q in event.questions if q.call_id == call.id))
        case ev.ApprovalAbandoned():
            return Verdict("ask")
        case ev.ToolFinished(outcome="error") if tape.unprepared(call.id):
            return Verdict("ask")
        case ev.ToolFinished(outcome="rejected"):
            return Verdict("reject", str(event.content))
        case ev.CallChanged() | ev.CallKept():
            return RUN
        case ev.ToolFinished() if by_hook(event):
            return RUN
        case ev.ToolFinished(outcome="denied"):
            return Verdict("refuse", _reason(event, "This call was declined"))
        case ev.ToolFinished(outcome="error") if str(event.content).startswith(wording.hook_spoilt("")):
            return Verdict("reject", str(event.content).removeprefix(wording.hook_spoilt("")))
        case ev.ToolFinished(outcome="interrupted"):  # it was lost, and might not run again
            return Verdict("refuse")
        case _ if call.name not in kit.tools:
            return Verdict("reject", f"the record has no tool {call.name}")
        case ev.ToolStarted():
            return Verdict("run", rule=event.rule)
        case _:
            return RUN


def _output(tape: Tape, said: Message | ToolCall) -> Answer:
    """What the answer was worth as the run's output, by what followed it."""
    text = said.text if isinstance(said, Message) else ""
    match event := tape.coming:
        case ev.MessageAccepted(source="correction"):
            problem, _, wanted = event.message.text.removeprefix(wording.not_the_output("", "")[:-1]).partition("\n")
            return Answer(text, problem=problem, wanted=wanted)
        case ev.ToolFinished(outcome="rejected"):
            return Answer(text, problem="rejected")
        case ev.RunFinished():
            invalid = event.error is not None and event.error.kind == "OUTPUT_INVALID"
            problem = event.error.message if event.error is not None and invalid else ""
            over = "over" if event.status in ("max_steps", "budget") else ""
            return Answer(event.final_text, event.output, problem=problem or over)
        case _:
            return Answer(text)
