"""A session's events as a person reads them: live while it runs, and again from the record."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from latchstep.core import event as ev
from latchstep.core import wording
from latchstep.core.message import Message, Text
from latchstep.core.plan import Item, plan_in
from latchstep.core.printable import one_line, printable
from latchstep.core.state import State

from .screen import Screen

PATIENCE = 2.0
"""Seconds after which a running tool, check or model shows that it is still at work."""

BEFORE = "keeping the files, preparing the calls"
"""What a session does after an answer, before its calls start."""

RETELL = 15.0
"""Seconds between progress lines where there is no terminal to redraw."""

MAX_SAID = 20
"""Lines of a person's message that are shown again."""

STEPS = {"done": ("✓", "green"), "doing": ("▸", "cyan"), "open": ("·", "dim")}

MARKS = {"ok": ("✓", "green"), "denied": ("–", "yellow"), "not_started": ("–", "yellow")}

ARGUMENTS = ("command", "path", "pattern", "question", "job")
"""Arguments that say by themselves what a call is about, and are shown without their name."""


class Human:
    """Shows events. Holds only what is needed to show the next one."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self._calls: dict[str, tuple[str, dict[str, Any]]] = {}
        self._waiting: dict[str, str] = {}
        self._busy: dict[str, tuple[str, float]] = {}
        self._latest = ""
        self._told = 0.0
        self._streamed = ""
        self._last_line = ""
        self._repaired: dict[str, int] = {}
        self._under: ev.RunStarted | ev.RunResumed | None = None
        self._wordy: set[str] = set()
        self._unkept = ""

    def show(self, event: ev.Event) -> None:
        match event:
            case ev.MessageAccepted():
                self._accepted(event)
            case ev.MessageEdited():
                self._note(f"in place of: {self._waiting.get(event.message_id, 'a waiting message')}")
                self._spoken(event.message_id, event.message)
            case ev.MessageWithdrawn():
                self._note(f"taken back: {self._waiting.get(event.message_id, 'a waiting message')}")
            case ev.ModelRequested():
                self._requested(event)
            case ev.ContextCompacted():
                self._busy.pop(event.request_id, None)
                self._note(f"compacted {_thousands(event.before)} → {_thousands(event.after)} tokens")
            case ev.ModelDelta(kind="text"):
                self._busy.pop(event.request_id, None)
                self.screen.piece(event.piece)
                self._streamed = event.request_id
            case ev.MessageCompleted():
                self._completed(event)
            case ev.ModelFailed():
                self._failed(event)
            case ev.ModelSwitched():
                self._note(f"model: {one_line(event.old, 80)} → {one_line(event.new, 80)}{_because(event.why)}")
            case ev.CallChanged():
                self._changed(event)
            case ev.RunStarted():
                self._under = event
            case ev.RunResumed():
                self._resumed(event)
            case ev.ToolStarted():
                self._started(event.call_id, event.name)
                self._last_line = event.call_id
            case ev.ToolOutput():
                self._latest = event.text
            case ev.ToolFinished():
                self._finished(event)
            case ev.ApprovalRequested():
                self._asked(event)
            case ev.ApprovalAnswered():
                self._answered(event)
            case ev.ApprovalAbandoned():
                self._note("a question was left unanswered when the process ended")
            case _:
                self._beside(event)

    def _beside(self, event: ev.Event) -> None:
        """What a run meets beside messages, calls and questions."""
        match event:
            case ev.CancelRequested():
                how = "stopping when the turn is complete" if event.after_turn else "stopping"
                self.screen.line(self.screen.style(f"{how}{_because(event.reason)} …", "yellow"))
            case ev.ClockPassed():
                self.screen.line(self.screen.style(f"{event.limit} ({event.seconds:g} s) is over", "yellow"))
            case ev.CheckStarted():
                self._begin(f"check {event.index}", f"check {event.command}")
                self.screen.line(f"{self._mark('▸', 'cyan')} {self._bold('check')} {self._code(event.command)}")
            case ev.CheckFinished():
                self._checked(event)
            case ev.WorkspaceSnapshot():
                self._kept(event)
            case _:
                pass

    def _kept(self, event: ev.WorkspaceSnapshot) -> None:
        if event.because:
            self._note(f"files: {one_line(event.because, 80)}")
        if event.error and event.error != self._unkept:
            self._note(f"the files are not kept; no rewind can bring them back: {one_line(event.error, 300)}")
        self._unkept = event.error

    def _requested(self, event: ev.ModelRequested) -> None:
        self._begin(event.request_id, "compacting" if event.because == "compact" else "the model")
        if event.repaired != self._repaired:
            self._repaired = event.repaired
            said = ", ".join(f"{times} {one_line(kind, 20)}" for kind, times in sorted(event.repaired.items()))
            self._note(f"the history was repaired on its way to the model: {said}")

    def _changed(self, event: ev.CallChanged) -> None:
        name, old = self._calls.get(event.call_id, ("call", {}))
        self._calls[event.call_id] = name, event.arguments
        was = one_line(summary(old), 40)
        self._note(f"changed by a hook: {one_line(name, 40)} {was} → {one_line(summary(event.arguments), 60)}")

    def _resumed(self, event: ev.RunResumed) -> None:
        changed = [name for name in ev.CONDITIONS if getattr(event, name) != getattr(self._under, name, None)]
        self._under = event
        self._note(f"not as before: {', '.join(changed)}")

    def questions(self, event: ev.ApprovalRequested) -> None:
        """Which of them want words: what is said to these is shown with the result."""
        self._wordy = {question.call_id for question in event.questions if question.about == "answer"}

    def _answered(self, event: ev.ApprovalAnswered) -> None:
        self._begin(BEFORE, BEFORE)
        if event.decision == "allow" and event.call_id in self._wordy:
            self._note("answered")
            return
        said = "allowed" if event.decision == "allow" else "declined"
        self._note(said + _because(": ".join(filter(None, (event.note, event.rule)))))

    def plan(self, plan: tuple[Item, ...]) -> None:
        """The plan as a list of what is done, being done and open."""
        for item in plan:
            mark, colour = STEPS[item.status]
            text = one_line(item.text, max(30, self.screen.width - 6))
            done = item.status == "done"
            self.screen.line(f"    {self._mark(mark, colour)} {self._dim(text) if done else text}")

    def _accepted(self, event: ev.MessageAccepted) -> None:
        if event.source in ("check", "notice", "correction"):
            self._note(one_line(event.message.text.split("\n")[0], 160))
        elif event.source != "start":
            self._spoken(event.message_id, event.message)

    def _spoken(self, message_id: str, message: Message) -> None:
        first, *more = printable(message.text).split("\n")
        self._waiting[message_id] = one_line(first, 100)
        self.screen.line(self.screen.style("› ", "cyan") + self._bold(one_line(first, 1000)))
        for line in more[:MAX_SAID]:
            self.screen.line("  " + self._bold(one_line(line, 1000)))
        if len(more) > MAX_SAID:
            self._note(f"(+{len(more) - MAX_SAID} lines)")

    def _asked(self, event: ev.ApprovalRequested) -> None:
        """All questions of a turn, before the first is put."""
        self._busy.pop(BEFORE, None)
        self.questions(event)
        if len(event.questions) > 1:
            self.screen.line(self._bold(f"{len(event.questions)} calls need an answer:"))
            for at, question in enumerate(event.questions, 1):
                self.screen.line(f"  {at}. {self._title(question.call_id, question.name)}")

    def _completed(self, event: ev.MessageCompleted) -> None:
        self._busy.pop(event.request_id, None)
        self.remember(event.message)
        if event.message.calls:
            self._begin(BEFORE, BEFORE)
        if self._streamed != event.request_id and event.message.text.strip():
            self.screen.piece(event.message.text)
        self.screen.end()
        if event.stop_reason == "length":
            self._note("the answer was cut by the output limit")

    def recall(self, state: State) -> None:
        """Take over in the middle: the calls of the turn that was under way."""
        self._calls = {entry.call.id: (entry.call.name, entry.call.arguments) for entry in state.turn}
        self._under = state.run.started if state.run is not None else None

    def remember(self, message: Message) -> None:
        """The calls that what follows is about."""
        self._calls = {call.id: (call.name, call.arguments) for call in message.calls}

    def _failed(self, event: ev.ModelFailed) -> None:
        self._busy.pop(event.request_id, None)
        self._streamed = ""
        if event.next == "give_up":  # the run ends with these words
            return
        again = "asking again" + (f" in {event.retry_in:.0f} s" if event.retry_in else "")
        after = "; " + {"compact": "making room", "go_on": "going on without"}.get(event.next, again)
        kind = event.kind.removeprefix("MODEL_").lower().replace("_", " ")
        self.screen.line(
            self.screen.style(f"! model: {printable(kind)}: {one_line(event.message, 300)}{after}", "yellow")
        )
        if event.next == "retry":
            self._begin(event.request_id, "waiting to ask the model again")

    def _started(self, call_id: str, name: str) -> None:
        self._busy.pop(BEFORE, None)
        self._begin(call_id, self._title(call_id, name))
        self.screen.line(f"{self._mark('▸', 'cyan')} {self._title(call_id, name, bold=True)}")

    def _finished(self, event: ev.ToolFinished) -> None:
        if event.call_id not in self._busy:
            self._started(event.call_id, event.name)
            self._last_line = event.call_id
        beside = len(self._calls) > 1 and self._last_line != event.call_id
        self._busy.pop(event.call_id, None)
        mark, colour = MARKS.get(event.outcome, ("✗", "red"))
        if event.outcome == "ok" and _exit_of(event) != 0:
            mark, colour = "✗", "yellow"
        who = f"{one_line(event.name, 40)}: " if beside else ""
        took = f"{event.duration:.1f} s  " if event.duration >= 0.1 else ""
        parts = [Text(event.content)] if isinstance(event.content, str) else event.content
        text = "\n".join(part.text if isinstance(part, Text) else "(a picture)" for part in parts)
        plan = plan_in(event.details) if event.outcome == "ok" else None
        said = one_line(text.partition("\n")[0], 120) if plan else _gist(event, text)
        self.screen.line(f"  {self._mark(mark, colour)} {self._dim(who + took + said)}")
        self.plan(plan or ())
        self._last_line = ""

    def _checked(self, event: ev.CheckFinished) -> None:
        self._busy.pop(f"check {event.index}", None)
        if event.passed:
            self.screen.line(f"  {self._mark('✓', 'green')} {self._dim('passed')}")
            return
        status = "did not finish" if event.exit_status is None else f"exit status {event.exit_status}"
        self.screen.line(f"  {self._mark('✗', 'red')} failed ({status})")
        for line in event.output.strip().splitlines()[-8:]:
            self.screen.line("    " + self._dim(one_line(line, 160)))

    # -- while something takes long ----------------------------------------------------------------------

    def _begin(self, key: str, title: str) -> None:
        self._busy[key] = (title, time.monotonic())
        self._latest, self._told = "", time.monotonic()

    async def tick(self) -> None:
        """Show, until cancelled, that what takes long is still at work."""
        while True:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            slow = [(title, now - since) for title, since in self._busy.values() if now - since >= PATIENCE]
            if not slow:
                continue
            title, seconds = slow[0]
            more = f" (+{len(slow) - 1})" if len(slow) > 1 else ""
            last = (self._latest.strip().splitlines() or [""])[-1]
            text = f"  … {seconds:.0f} s  {one_line(title, 60)}{more}  {one_line(last, 60)}".rstrip()
            if self.screen.terminal:
                self.screen.status(text)
            elif now - self._told >= RETELL:
                self._told = now
                self.screen.line(text)

    # -- words ---------------------------------------------------------------------------------------------

    def _title(self, call_id: str, name: str, bold: bool = False) -> str:
        _, arguments = self._calls.get(call_id, (name, {}))
        shown = one_line(name, 40)
        return f"{self._bold(shown) if bold else shown} {self._code(summary(arguments))}".rstrip()

    def _note(self, text: str) -> None:
        self.screen.line(self._dim(f"  {text}"))

    def _mark(self, mark: str, colour: str) -> str:
        return self.screen.style(mark, colour)

    def _dim(self, text: str) -> str:
        return self.screen.style(text, "dim")

    def _bold(self, text: str) -> str:
        return self.screen.style(text, "bold")

    def _code(self, text: str) -> str:
        return one_line(text, max(30, min(110, self.screen.width - 20)))


def _thousands(tokens: int) -> str:
    return f"{tokens / 1000:.0f}k" if tokens >= 10_000 else f"{tokens / 1000:.1f}k" if tokens >= 1_000 else str(tokens)


def _because(reason: str) -> str:
    return f" ({one_line(reason, 120)})" if reason else ""


def _exit_of(event: ev.ToolFinished) -> Any:
    """The exit status of a command (None: it ended by a signal), 0 for what has none."""
    return event.details.get("exit", 0) if isinstance(event.details, dict) else 0


def _gist(event: ev.ToolFinished, text: str) -> str:
    """What is worth one line: a command's last words with its status, else the first line and how much more."""
    lines = [line for line in text.strip().splitlines() if line.strip()] or [""]
    if event.outcome != "ok":
        outcome = "declined" if event.outcome == "denied" else event.outcome.replace("_", " ")
        said = one_line(lines[0], 300)
        if event.outcome == "interrupted":  # the rest is for the model
            return said.partition(". ")[0] + (f". {wording.STILL_RUNNING}" if wording.STILL_RUNNING in text else "")
        return said if said.lower().startswith(outcome) else f"{outcome}: {said}{_more(lines)}"
    if isinstance(event.details, dict) and "job" in event.details and len(lines) > 1:
        state = f"{event.details['job']}: {event.details.get('state', '')}"
        return f"{one_line(lines[-2], 90)}  [{one_line(state, 60)}]"
    if event.name == "bash" and len(lines) > 1:
        return f"{one_line(lines[-2], 90)}  {one_line(lines[-1], 60)}"
    return one_line(lines[0], 120) + _more(lines)


def _more(lines: list[str]) -> str:
    return f"  (+{len(lines) - 1} lines)" if len(lines) > 2 else "  (+1 line)" if len(lines) == 2 else ""


def summary(arguments: dict[str, Any]) -> str:
    """Arguments as a person would name them: the one that matters bare, others as name=value, long ones cut."""
    main = next((name for name in ARGUMENTS if isinstance(arguments.get(name), str)), None)
    parts = [str(arguments[main])] if main else []
    for name, value in arguments.items():
        if isinstance(value, list) and value and not all(isinstance(item, str) for item in value):
            parts.append(f"{one_line(name, 40)}: {len(value)}")
        elif name != main:
            parts.append(f"{one_line(name, 40)}={one_line(value if isinstance(value, str) else repr(value), 40)}")
    return "  ".join(parts)


def closing(result: ev.RunFinished, seconds: float, session: str, where: str, screen: Screen) -> None:
    """The last lines of a run: how it ended, what it took, where it lies, and how to go on where it is not done."""
    colour = {"completed": "green", "failed": "red", "unverified": "red"}.get(result.status, "yellow")
    if result.error is not None:
        screen.line(screen.style(f"{printable(result.error.kind)}: ", colour) + printable(result.error.message))
    usage = result.usage
    tokens = f"{usage.input:,} + {usage.output:,} tokens" if usage.total else "tokens unknown"
    cost = f" · ${result.cost:.4f}" if result.cost is not None and usage.total else ""
    steps = f"{result.steps} step{'' if result.steps == 1 else 's'}"
    screen.line(screen.style(result.status, "bold", colour) + f" · {steps} · {tokens}{cost} · {seconds:.1f} s")
    screen.line(screen.style(f"session {session} · {printable(where)}", "dim"))
