"""Whatever a person does at whatever moment: one ending, a valid request, nothing lost, nothing run twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Failed
from latchstep.core.state import fold
from latchstep.errors import ModelError

from .fakes import Chunks, FakeJournal, call, calling, check_requests, cut, done, go, session_of, text


def tools_of(effects: Counter[str], chance: random.Random) -> list[ls.Tool]:
    async def pause() -> None:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)

    @ls.tool
    async def write(context: ls.Context) -> str:
        await pause()
        effects[context.call_id] += 1
        await pause()
        return "wrote"

    @ls.tool(effect="read")
    async def look() -> str:
        await pause()
        return f"saw {chance.random()}"

    @ls.tool
    async def bad() -> str:
        await pause()
        raise RuntimeError("bad")

    return [write, look, bad]


turns = st.lists(st.sampled_from(["write", "look", "bad", "nope"]), min_size=1, max_size=4)
scripts = st.lists(st.one_of(turns, st.sampled_from(["retry", "fail"])), max_size=4)
deeds = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from(["steer", "follow_up", "answer", "cancel", "withdraw", "task"])),
    max_size=6,
)


def answers_of(script: list[Any]) -> list[list[Any]]:
    answers: list[list[Any]] = []
    for turn in script:
        if turn == "retry":
            answers.append([text("x"), Failed(kind="server", message="m", retry_in=0.0), calling(call("look"))])
        elif turn == "fail":
            answers.append([text("x"), ModelError("server", "gone")])
        else:
            answers.append([text("x"), calling(*(call(name) for name in turn))])
    return [*answers, [text("d"), done()]]


async def one(
    script: list[Any], plan: list[tuple[int, str]], asks: bool, iterated: bool, seed: int
) -> list[FakeJournal]:
    """The journals of the session, and of one that went on from a crash in it."""
    chance = random.Random(seed)
    effects: Counter[str] = Counter()
    journal = FakeJournal()
    model = Chunks(*answers_of(script))
    session = session_of(
        model,
        tools_of(effects, chance),
        journal=journal,
        policy=lambda call, traits: ls.Verdict("ask" if asks and traits.effect == "write" else "run"),
        limits=ls.Limits(max_steps=8),
    )
    accepted: list[str] = []
    withdrawn: set[str] = set()
    run = session.stream("go").start()

    async def watch() -> None:
        seen = [event async for event in run]
        stored = [event.seq for event in seen if not event.part]
        assert stored == list(range(stored[0], stored[0] + len(stored)))
        assert seen[-1].type == "run.finished"

    async def person() -> None:
        for delay, deed in plan:
            for _ in range(delay):
                await asyncio.sleep(0)
            try:
                match deed:
                    case "steer" | "follow_up":
                        accepted.append(await getattr(run, deed)(f"message {len(accepted)}"))
                    case "answer" if session.questions:
                        asked = chance.choice(session.questions).call.id
                        await run.answer(asked, chance.choice(["allow", "deny"]))
                    case "withdraw" if accepted:
                        message_id = chance.choice(accepted)
                        await session.withdraw(message_id)
                        withdrawn.add(message_id)
                    case "cancel":
                        run.cancel()
                    case "task" if not run.finished and run._task is not None:
                        run._task.cancel()
            except ls.SessionError:
                pass
        while not run.finished:  # nobody leaves a question open for ever
            for entry in session.questions:
                try:
                    await run.answer(entry.call.id, "allow")
                except ls.SessionError:
                    pass
            await asyncio.sleep(0)

    await asyncio.gather(person(), *([watch()] if iterated else []))
    await run
    judge(journal, effects)
    check_requests(model.requests)
    assert fold(journal.events) == session.state
    # the next message is answered, and carries everything that was accepted and not taken back
    model.answers = ([done("here")],)
    session.rules = ls_rules(session)
    result = await session.run("still there?")
    assert (result.status, result.final_text) == ("completed", "here")
    check_requests(model.requests)
    delivered = [message.id for message in result.messages if message.role == "user"]
    wanted = [message_id for message_id in accepted if message_id not in withdrawn]
    assert [message_id for message_id in delivered if message_id in accepted] == sorted(wanted, key=delivered.index)
    assert set(wanted) <= set(delivered)
    assert not withdrawn & set(delivered)
    assert len(delivered) == len(set(delivered))
    # and so it is in the next process, wherever this one had died
    copy = cut(journal, chance.randrange(2, len(journal.events)))
    again = Chunks([done("here")])
    reopened = session_of(again, tools_of(Counter(), chance), journal=copy)
    assert (await reopened.run("and now?")).final_text == "here"
    check_requests(again.requests)
    return [journal, copy]


def ls_rules(session: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(session.rules, limits=ls.Limits())


def judge(journal: FakeJournal, effects: Counter[str]) -> None:
    assert journal.types().count("run.finished") == 1
    assert max(effects.values(), default=0) <= 1
    started = Counter(e.call_id for e in journal.of(ev.ToolStarted))
    finished = {e.call_id: e for e in journal.of(ev.ToolFinished)}
    assert len(finished) == len(journal.of(ev.ToolFinished))
    assert set(started) <= set(finished)
    for call_id, ending in finished.items():
        if ending.outcome == "ok" and ending.name == "write":
            assert effects[call_id] == 1
        if ending.outcome in ("not_started", "denied", "rejected"):
            assert effects[call_id] == 0
    calls = [c.id for e in journal.of(ev.MessageCompleted) for c in e.message.calls]
    assert set(calls) == set(finished)
    allowed = {e.call_id for e in journal.of(ev.ApprovalAnswered) if e.decision == "allow"}
    asked = {q.call_id for e in journal.of(ev.ApprovalRequested) for q in e.questions}
    assert {e.call_id for e in journal.of(ev.ToolStarted)} & asked <= allowed


@settings(max_examples=150, deadline=None)
@given(scripts, deeds, st.booleans(), st.booleans(), st.integers(0, 2**16))
def test_any_deeds_at_any_moments(
    script: list[Any], plan: list[tuple[int, str]], asks: bool, iterated: bool, seed: int
) -> None:
    go(one(script, plan, asks, iterated, seed))
