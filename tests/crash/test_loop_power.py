"""The whole loop on a disk that dies, forgets and fails: the ledger of effects and the acknowledgements judge it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Chunk, Completed
from latchstep.core.message import Text, ToolCall
from latchstep.core.rules import Verdict
from latchstep.model.base import Request
from latchstep.session.build import build_kit, build_rules
from latchstep.session.session import Session
from latchstep.testing.crash import Crash, Witness, crashes, create_or_open
from latchstep.testing.disk import SimDisk

from .crash_kit import HEADER, HOME
from .simulate import check_request
from .tally import case, many

BATCHES = [["look", "look", "put", "store"], ["guarded", "mark"], ["guarded", "look", "put"]]
RUNS = 2


class Script:
    """The answers, by how often the model has spoken; each request is checked as a provider would."""

    name = "script"

    def __init__(self, trial: LoopTrial) -> None:
        self.trial = trial

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        messages = list(request.messages)
        check_request(messages)
        turn = sum(message.role == "assistant" for message in messages)
        batch = [*BATCHES, []][turn % (len(BATCHES) + 1)]
        calls = [
            ToolCall(id=f"c{turn}{i}", name=name, arguments={"call": f"c{turn}{i}"}) for i, name in enumerate(batch)
        ]
        if calls:
            yield Completed(blocks=tuple(calls), stop_reason="tool_calls")
        else:
            yield Completed(blocks=(Text(f"answer {turn}"),), stop_reason="stop")


class LoopTrial:
    """Two runs of one session: reads, effects of every kind, a question, a check, a steer."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.witness = Witness(self.disk)
        self.steered = set[str]()
        effect = self._effect
        settle = self._settle

        @ls.tool(effect="read", thread=False)
        def look(call: str) -> str:
            """Read."""
            return effect(call)

        @ls.tool(thread=False)
        def put(call: str) -> str:
            """Write once."""
            return effect(call)

        @ls.tool(thread=False)
        def guarded(call: str) -> str:
            """Write once, if allowed."""
            return effect(call)

        @ls.tool(replay="safe", thread=False)
        def mark(call: str) -> str:
            """Write as often as you like."""
            return effect(call)

        @ls.tool(settle=settle, thread=False)
        def store(call: str) -> str:
            """Write once, and be able to look."""
            return effect(call)

        self._tools = [look, put, guarded, mark, store]

    def _effect(self, call: str) -> str:
        self.witness.effect(call)
        return f"did {call}"

    def _settle(self, arguments: dict[str, str], found: object, context: ls.Context) -> str:
        return "done" if self.witness.effects[arguments["call"]] else "not_done"

    def live(self) -> None:
        journal = create_or_open(self.disk, HOME, HEADER)
        try:
            asyncio.run(self._runs(journal))
        finally:
            journal.close()

    async def _runs(self, journal: Any) -> None:
        async def check(command: str) -> tuple[int, str]:
            return 0, ""

        def policy(call: ToolCall, traits: object) -> Verdict:
            return Verdict("ask", "?") if call.name == "guarded" else Verdict("run")

        kit = build_kit(Script(self), self._tools, check=check, approve=lambda question: not self.disk.dead)
        session = Session(journal, kit, build_rules(kit, policy=policy, checks=["make"]))
        while session.unfinished or len([e for e in journal.read() if isinstance(e, ev.RunFinished)]) < RUNS:
            async with session.stream(None if session.unfinished else "go") as run:
                async for event in run:
                    self.witness.shown(event)
                    if isinstance(event, ev.ModelRequested) and event.attempt == 1:
                        self.witness.promised(self._covered(journal, event))
                    if isinstance(event, ev.RunFinished):
                        self.witness.promised(journal.read() if not event.part else ())
                    if isinstance(event, ev.MessageCompleted) and not self.steered:
                        said = await run.steer("and this")
                        self.steered.add(said)
                        self.witness.promised(journal.read())
                result = await run.result()
            if result.status != "completed":
                return

    def _covered(self, journal: Any, event: ev.ModelRequested) -> list[ev.Event]:
        """The first request of a run follows a prompt, which is on disk by then."""
        record = list(journal.read())[: event.seq]
        return record if isinstance(record[-1], ev.RunStarted) else []

    def judge(self) -> None:
        journal = create_or_open(self.disk, HOME, HEADER)
        record = list(journal.read())
        journal.close()
        self.witness.check(record, repeatable=("look", "mark"))
        endings = [event.status for event in record if isinstance(event, ev.RunFinished)]
        assert endings == ["completed"] * RUNS
        results = [event for event in record if isinstance(event, ev.ToolFinished)]
        assert len(results) == RUNS * sum(map(len, BATCHES))
        assert {event.outcome for event in results} <= {"ok", "interrupted"}
        judge_order(record)


def judge_order(record: list[ev.Event]) -> None:
    """A write begins alone, only with a grant of this opening where one is needed; a check follows the last one, and
    each opening since; a request is made only when nothing is open."""
    open_calls, granted, wrote, unchecked = set[str](), set[str](), False, False
    for event in record:
        if isinstance(event, ev.SessionOpened):
            open_calls, granted, unchecked = set(), set(), unchecked or wrote
        elif isinstance(event, ev.ApprovalAnswered):
            granted.add(event.call_id)
        elif isinstance(event, ev.ToolStarted):
            assert event.effect == "read" or not open_calls, f"{event.call_id} began beside {open_calls}"
            assert event.name != "guarded" or event.call_id in granted, f"{event.call_id} ran without a grant"
            open_calls.add(event.call_id)
            wrote = wrote or event.effect == "write"
            unchecked = unchecked or event.effect == "write"
        elif isinstance(event, ev.ToolFinished):
            open_calls.discard(event.call_id)
        elif isinstance(event, ev.CheckFinished):
            unchecked = False
        elif isinstance(event, ev.ModelRequested):
            assert not open_calls, f"{open_calls} were open when the model was asked"
        elif isinstance(event, ev.RunFinished):
            assert not unchecked, "completed, and not checked"
            wrote = False


@pytest.mark.parametrize("how", ["kill", "power", "full", "eio", "short"])
def test_no_crash_loses_a_promise_or_repeats_an_effect(how: Crash) -> None:
    row = {"kill": "SIGKILL", "power": "power cut"}.get(how, "errors")
    for seed in range(many(1, {"power": 12, "kill": 4}.get(how, 2))):
        case(crashes(LoopTrial, [how], seed=seed, every=many(1 if how == "kill" else 3, 1)), row)
