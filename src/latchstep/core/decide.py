"""What must happen next: a pure function of the state and the rules.

Whatever the loop does, it does because `decide` said so; whatever a resumed run does differently from a
fresh one, it does because other events have been applied.
"""

from __future__ import annotations

from typing import Literal

from . import wording
from .action import Action, CallModel, Check, Note, Wait
from .budget import STOPPED, Bound, near, over, shown
from .calls import last_word, next_of_calls, not_started, result
from .compact import compaction, explained
from .event import Because, ErrorInfo, Event, MessageAccepted, RunFinished, Status
from .markup import call_in_text
from .message import Message, ToolCall, user
from .parts import Queued, RunState
from .rules import Answer, Rules
from .state import State
from .waiting import due, due_at_end


def decide(state: State, rules: Rules) -> Action:
    """The next action. The same state and rules always give the same one."""
    run = state.run
    if run is None or not run.active:
        return Wait("idle")
    if run.cancelled or run.clock is not None:
        return _stop(state, run)
    if state.pending:
        return next_of_calls(state, run, rules)
    if run.error is not None:
        return _finish(state, "failed", explained(run.error, state, rules))
    if state.stop in ("filtered", "refused") and state.request is None and (state.turn or state.answered):
        text = state.transcript[-1].text if state.answered else ""
        return _fail(state, state.stop.upper(), text or f"the model's answer was {state.stop}")
    wanted = state.fill.focus is not None and over(state, run, rules.limits) is None
    if wanted and (action := compaction(state, rules)) is not None:
        return action
    if (said := last_word(state, rules)) is not None:
        return _answered(state, run, rules, said)
    return _results(state, run, rules)


def _stop(state: State, run: RunState) -> Action:
    """Cancelled, or out of time: close every open call truthfully, then the run."""
    why = "the run was cancelled" if run.cancelled else "the run's time was up"
    if run.cancelled and run.cancel_reason:
        why += f" ({run.cancel_reason})"
    events: list[Event] = []
    for entry in state.turn:
        if entry.status == "lost":
            events.append(result(entry, "interrupted", wording.lost(), True))
        elif entry.status == "started":
            events.append(result(entry, "interrupted", wording.interrupted(why), True))
        elif entry.status != "finished":
            events.append(not_started(entry, why))
    if events:
        return Note(tuple(events))
    if run.cancelled:
        return _finish(state, "cancelled")
    assert run.clock is not None
    return _finish(state, "budget", ErrorInfo("MAX_SECONDS", f"max_seconds is {run.clock.seconds:g}"))


def _results(state: State, run: RunState, rules: Rules) -> Action:
    """All calls have results, or a prompt waits: ask the model, unless a bound is reached."""
    limits = rules.limits
    if state.turn and rules.strict_protocol and state.stop != "tool_calls":
        return _fail(state, "MODEL_PROTOCOL_ERROR", f"the answer has calls, but its stop reason is {state.stop!r}")
    if state.stop == "length" and state.turn and run.truncations > limits.max_truncations:
        return _fail(state, "TRUNCATED", f"{run.truncations} answers with calls were cut by the output limit")
    repeats = state.repeats() if state.turn else 0
    if repeats >= limits.max_repeats + 2 and state.told:
        return _finish(state, "stalled", ErrorInfo("STALLED", f"the same calls gave the same results {repeats} times"))
    if (bound := over(state, run, limits)) is not None:
        return _over_budget(state, bound)
    if repeats >= limits.max_repeats and not state.told:
        return _say(state, "notice", wording.repeated(repeats))
    if (bound := near(run, limits)) is not None:
        name, value, limit = bound
        return _say(state, "notice", wording.nearly_over(name, shown(value), shown(limit)), name)
    queued = due(state, limits)
    because: Because = "results" if state.turn else "prompt" if queued or not state.place else "retry"
    if state.turn and state.stop == "length":
        because = "truncated"
    elif any(item.source == "steer" for item in queued):
        because = "steer"
    return _call_model(state, rules, because, queued)


def _answered(state: State, run: RunState, rules: Rules, said: Message | ToolCall) -> Action:
    """The model stopped: is its answer whole, is nothing waiting, and is the work done and checked?"""
    bound = over(state, run, rules.limits)
    if isinstance(said, Message) and (action := _text(state, run, rules, said, bound)) is not None:
        return action
    if queued := due_at_end(state, rules.limits):
        if bound is not None:
            return _over_budget(state, bound)
        source = queued[0].source
        return _call_model(state, rules, "prompt" if source == "start" else source, queued)
    given = rules.output(said) if rules.output is not None else None
    if given is not None and given.problem:
        if run.corrections >= rules.limits.max_corrections:
            return _finish(state, "failed", ErrorInfo("OUTPUT_INVALID", given.problem), given)
        if bound is not None:
            return _over_budget(state, bound)
        return _say(state, "correction", wording.not_the_output(given.problem, given.wanted))
    if rules.checks and state.armed:
        if len(state.checks) < len(rules.checks):
            return Check(len(state.checks), rules.checks[len(state.checks)])
        if failures := [(c.command, c.exit_status, c.output) for c in state.checks if not c.passed]:
            if run.check_rounds >= rules.limits.max_check_rounds:
                names = ", ".join(command for command, _, _ in failures)
                error = ErrorInfo("UNVERIFIED", f"failing after {run.check_rounds} rounds: {names}")
                return _finish(state, "unverified", error, given)
            return _say(state, "check", wording.checks_failed(failures))
    return _finish(state, "completed", None, given)


def _text(state: State, run: RunState, rules: Rules, said: Message, bound: Bound | None) -> Action | None:
    """A text that is no last word: it contradicts itself, was cut or paused, or was meant to be a call."""
    if rules.strict_protocol and state.stop == "tool_calls":
        return _fail(state, "MODEL_PROTOCOL_ERROR", "the stop reason announces calls, but the answer has none")
    if state.stop == "length" and run.continuations > rules.limits.max_continuations:
        return _fail(state, "TRUNCATED", "the answer was cut by the output limit")
    if state.stop in ("length", "paused"):
        if bound is not None:
            return _over_budget(state, bound)
        queued = due(state, rules.limits)
        if state.stop == "length" and not queued:
            return _say(state, "notice", wording.went_on())
        return _call_model(state, rules, "paused" if state.stop == "paused" else "truncated", queued)
    if bound is None and not run.corrected and (name := call_in_text(said, rules.known)):
        return _say(state, "notice", wording.called_in_text(name))
    return None


def _call_model(state: State, rules: Rules, because: Because, queued: list[Queued]) -> Action:
    request, carries = state.request, tuple(item.message_id for item in queued)
    if (compact := compaction(state, rules, carries)) is not None:
        return compact
    if request is not None:  # lost with its process, too large, or the answer was empty: the same request again
        again: Because = "compacted" if state.fill.unjudged else "retry"
        return CallModel(request.request_id, request.attempt + 1, again, carries)
    return CallModel(f"request-{state.requests + 1:03d}", 1, because, carries)


def _say(state: State, source: Literal["notice", "check", "correction"], text: str, about: str = "") -> Note:
    """A message of the harness itself. Its id follows from what is recorded, so a replay gives the same."""
    message_id = f"{source}-{state.place:03d}{'-' + about if about else ''}"
    return Note((MessageAccepted(message_id=message_id, source=source, message=user(text, message_id), about=about),))


# -- endings -------------------------------------------------------------------------------------------


def _over_budget(state: State, bound: Bound) -> Note:
    name, value, limit = bound
    if name == STOPPED:
        return _finish(state, "cancelled")
    error = ErrorInfo(name.upper(), f"{name} is {shown(limit)}, reached with {shown(value)}")
    return _finish(state, "max_steps" if name == "max_steps" else "budget", error)


def _fail(state: State, kind: str, message: str) -> Note:
    return _finish(state, "failed", ErrorInfo(kind, message))


def _finish(state: State, status: Status, error: ErrorInfo | None = None, given: Answer | None = None) -> Note:
    """The one ending. The final text is the model's last word, if nothing followed it; only `completed` has output."""
    run = state.run
    assert run is not None
    text = state.answered.text if state.answered is not None else ""
    return Note(
        (
            RunFinished(
                status=status,
                final_text=given.text if given is not None else text,
                output=given.value if given is not None and status == "completed" else None,
                steps=run.steps,
                usage=run.usage,
                cost=run.dollars,
                error=error,
            ),
        )
    )
