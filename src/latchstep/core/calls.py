"""What becomes of the calls of a turn: closed unrun, settled, asked about, or run in groups.

Part of `decide`, and pure like it. A call that may not run still gets its one truthful result.
"""

from __future__ import annotations

from itertools import takewhile

from . import wording
from .action import Action, Ask, Consult, Note, RunTools, Settle, Wait
from .event import ApprovalAbandoned, Event, ToolFinished
from .message import Message, Outcome, ToolCall
from .parts import OpenCall, RunState
from .rules import FINAL, RUN, Rules, Verdict
from .state import State


def next_of_calls(state: State, run: RunState, rules: Rules) -> Action:
    """Close what may not run, settle what is lost, consult hooks, ask what must be asked, then run the next group.

    Questions of a turn come together before any call runs, or (`in_turn`) each just before its call would.
    """
    waiting = [entry for entry in state.turn if entry.status not in ("asked", "finished")]
    if vetoed := _vetoed(state, run, rules, waiting):
        return Note(vetoed)
    if run.error is not None and waiting:
        return Note(tuple(not_started(entry, "the run failed") for entry in waiting))
    closed: list[Event] = []
    asks: list[OpenCall] = []
    reasons: list[str] = []
    for entry in waiting:
        if entry.status == "new" and _is_final(entry, rules):
            closed.append(_final(entry, state, rules))
            continue
        if entry.status == "lost" and (action := _lost(entry, rules)) is not None:
            return action
        if entry.status == "allowed" and entry.about == "doubt" and not _may_still_run(entry, rules):
            return Note((result(entry, "interrupted", wording.lost(), True),))
        verdict = _verdict(entry, rules)
        if (event := _closed(entry, verdict)) is not None:
            closed.append(event)
        elif verdict.kind == "ask":
            asks.append(entry)
            reasons.append(verdict.text)
    if closed:
        return Note(tuple(closed))
    if unseen := [e for e in waiting if e.status == "new" and not e.hooks and rules.traits(e.call.name).hooked]:
        return Consult(tuple(entry.call.id for entry in unseen))
    if stale := [entry for entry in asks if entry.stale and rules.on_stale_approval == "abandon"]:
        abandoned = ApprovalAbandoned(call_ids=tuple(entry.call.id for entry in stale), reason="the process ended")
        return Note((abandoned, *(result(entry, "not_started", wording.abandoned(), True) for entry in stale)))
    open_question = len(waiting) < state.pending
    if asks and rules.questions == "together":
        return Ask(tuple(entry.call.id for entry in asks), tuple(reasons))
    if open_question:
        return Wait("answer")
    if asks and asks[0] is waiting[0]:
        return Ask((asks[0].call.id,), (reasons[0],))
    return _group(list(takewhile(lambda entry: entry not in asks, waiting)), run, rules)


def _verdict(entry: OpenCall, rules: Rules) -> Verdict:
    """A grant needs none. Nor does a person's answer, whoever can be asked now; but it may be an older process's, and
    its tool may have gone."""
    if entry.status == "new" or (entry.status == "allowed" and entry.about == "answer"):
        verdict = rules.judge(entry.call)
        return verdict if entry.status == "new" or verdict.kind == "reject" else RUN
    return RUN


def _is_final(entry: OpenCall, rules: Rules) -> bool:
    return rules.output is not None and entry.call.name == FINAL


def _final(entry: OpenCall, state: State, rules: Rules) -> ToolFinished:
    """The result of a call that gives the output. It never runs, and counts only by itself: beside others it was
    made before their results were known."""
    if len(state.turn) > 1:
        return result(entry, "rejected", wording.final_not_alone(), True)
    if rules.output is not None and rules.output(entry.call).problem:
        return result(entry, "rejected", wording.final_refused(), True)
    return result(entry, "ok", wording.final_taken(), False)


def last_word(state: State, rules: Rules) -> Message | ToolCall | None:
    """What the model ended its work with, while nothing has followed: a text, or the one call that gives the output."""
    if state.answered is None and len(state.turn) == 1 and _is_final(entry := state.turn[0], rules):
        return entry.call if entry.result is not None and entry.result.outcome in ("ok", "rejected") else None
    return state.answered


def _vetoed(state: State, run: RunState, rules: Rules, waiting: list[OpenCall]) -> tuple[Event, ...]:
    """The response itself forbids that its calls run: it was cut, filtered, refused, or contradicts itself."""
    if state.stop == "tool_calls" or (state.stop == "stop" and not rules.strict_protocol):
        return ()
    fresh = [entry for entry in waiting if entry.status == "new"]
    if state.stop == "length":
        text = wording.truncated(run.output_tokens)
        return tuple(result(entry, "truncated", text, True) for entry in fresh)
    if state.stop in ("filtered", "refused"):
        return tuple(not_started(entry, f"the answer was {state.stop}") for entry in fresh)
    if rules.strict_protocol and len(fresh) == len(state.turn):
        return tuple(not_started(entry, f"the stop reason was {state.stop!r}") for entry in fresh)
    return ()


def _lost(entry: OpenCall, rules: Rules) -> Action | None:
    """A call was in flight when its process died. None: it may simply run again."""
    traits = rules.traits(entry.call.name)
    verdict = rules.judge(entry.call)
    if entry.replay == "safe" and traits.replay == "safe":
        if verdict.kind == "run" or (entry.about == "answer" and verdict.kind != "reject"):
            return None
        if verdict.kind == "ask":
            return Ask((entry.call.id,), (verdict.text,), "doubt")
        return Note((result(entry, "interrupted", wording.lost(), True),))
    if traits.settles and verdict.kind != "reject":
        return Settle(entry.call.id)
    return in_doubt(entry, rules)


def _may_still_run(entry: OpenCall, rules: Rules) -> bool:
    """Its tool is still there and takes these arguments, and no rule forbids it now."""
    return rules.judge(entry.call).kind in ("run", "ask")


def in_doubt(entry: OpenCall, rules: Rules, tried: str = "") -> Action:
    """Nothing can tell whether the effect happened: what the policy says then."""
    match rules.on_doubt:
        case "ask":
            return Ask((entry.call.id,), (wording.run_again(),), "doubt")
        case "fail":
            return Note((result(entry, "interrupted", wording.lost(tried), True, fatal=True),))
        case _:
            return Note((result(entry, "interrupted", wording.lost(tried), True),))


def _closed(entry: OpenCall, verdict: Verdict) -> ToolFinished | None:
    """The result of a call that may not run; None for one that may, or must be asked about."""
    if entry.status == "denied":
        if entry.about == "doubt":
            return result(entry, "interrupted", wording.lost(wording.DECLINED), True)
        said = wording.unanswered if entry.about == "answer" else wording.denied
        return result(entry, "denied", said(entry.note, entry.by), False)
    if verdict.kind in ("run", "ask"):
        return None
    if verdict.kind == "refuse":
        return result(entry, "denied", wording.denied(verdict.text), False)
    if entry.hooks == "changed":
        return result(entry, "error", wording.hook_spoilt(verdict.text), True)
    return result(entry, "rejected", verdict.text, True)


def _group(waiting: list[OpenCall], run: RunState, rules: Rules) -> Action:
    """Consecutive reads together, anything else by itself."""
    first = waiting[0]
    left = len(waiting)
    if (most := rules.limits.max_tool_calls) is not None:
        left = most - run.tool_calls
        if left <= 0:
            return Note(tuple(not_started(entry, f"max_tool_calls is {most}") for entry in waiting))
    if not _shares(first, rules):
        return RunTools((first.call.id,))
    together = list(takewhile(lambda entry: _shares(entry, rules), waiting))
    return RunTools(tuple(entry.call.id for entry in together[: min(left, rules.limits.max_parallel)]))


def _shares(entry: OpenCall, rules: Rules) -> bool:
    traits = rules.traits(entry.call.name)
    return traits.effect == "read" and not traits.alone


def withdrawn(entry: OpenCall) -> tuple[Event, ...]:
    """The question about a call is taken back: it is not run."""
    why = "the question about this call was withdrawn"
    return ApprovalAbandoned(call_ids=(entry.call.id,), reason="withdrawn"), not_started(entry, why)


def held_back(state: State) -> bool:
    """A call of this turn was not run, since a bound forbade it."""
    return any(entry.result is not None and entry.result.outcome == "not_started" for entry in state.turn)


def result(entry: OpenCall, outcome: Outcome, text: str, is_error: bool, *, fatal: bool = False) -> ToolFinished:
    """A result that no tool made."""
    return ToolFinished(
        call_id=entry.call.id,
        name=entry.call.name,
        outcome=outcome,
        content=text,
        is_error=is_error,
        fatal=fatal,
    )


def not_started(entry: OpenCall, why: str) -> ToolFinished:
    return result(entry, "not_started", wording.not_started(why), True)
