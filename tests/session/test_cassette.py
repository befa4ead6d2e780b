"""A session recorded once is a regression test for ever: played back, every event is the same."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Completed, Failed
from latchstep.core.codec import decode_event, encode_event
from latchstep.core.message import Text, Thinking, Usage
from latchstep.errors import ModelError

from .fakes import Chunks, FakeJournal, call, calling, done, go, session_of, text


@ls.tool(effect="read")
async def look(n: int = 0) -> str:
    return f"saw {n}"


@ls.tool
async def fail() -> str:
    raise RuntimeError("as always")


IGNORED = {"time", "elapsed", "run_id", "duration", "retry_in", "message_id", "id", "pid", "host"}


def plain(value: Any) -> Any:
    """Without ids of runs and messages, and without times."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in IGNORED}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, str) and value.split("-")[0] in ("prompt", "steer", "run"):
        return value.split("-")[0]
    return value


def record(model: Any, *prompts: str, **more: Any) -> FakeJournal:
    async def main() -> FakeJournal:
        journal = FakeJournal()
        session = session_of(model, [look, fail], journal=journal, **more)
        for prompt in prompts:
            await session.run(prompt)
        return journal

    return go(main())


RETRIED = Failed(kind="overloaded", message="busy", retry_in=9.0, usage=Usage(3, 1))
EMPTY = Completed(blocks=(), stop_reason="tool_calls", raw_stop_reason="tool_use", usage=Usage(4, 2))
THOUGHT = Completed(blocks=(Thinking("hm"),), stop_reason="length", raw_stop_reason="max_tokens", usage=Usage(4, 2))
RECORDED: dict[str, list[list[Any]]] = {
    "tools": [[calling(call("look", "a", n=1), call("look", "a", n=2), call("fail"), call("nope"))], [done(cost=0.5)]],
    "retries": [[text("x"), RETRIED, RETRIED, calling(call("look"))], [RETRIED, done()]],
    "failure": [[calling(call("look"))], [ModelError("rate_limited", "slow down")], [done()]],
    "failure after retries": [[RETRIED, ModelError("server", "500")], [done()]],
    "exception": [[RuntimeError("boom")], [done()]],
    "protocol": [[text("half")], [done()]],
    "overflow": [[ModelError("context_overflow", "too long")], [done()]],
    "empty once": [[EMPTY], [done()]],
    "empty twice": [[EMPTY], [EMPTY], [done()]],
    "only thought": [[THOUGHT], [done()]],
    "cut": [[Completed(blocks=(Text("once"), call("look", "c")), stop_reason="length", usage=Usage(1, 9))], [done()]],
    "refused": [[Completed(blocks=(Text("no"),), stop_reason="refused", raw_stop_reason="refusal")], [done()]],
    "named by the provider": [[done(response_id="resp_1")], [done(response_id="resp_2")]],
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_replay_is_the_same_event_for_event(name: str) -> None:
    recorded = record(Chunks(*RECORDED[name]), "go", "and?")
    replayed = record(ls.Cassette(recorded.events), "go", "and?")
    old, new = ([plain(msgspec.json.decode(encode_event(e))) for e in j.events] for j in (recorded, replayed))
    assert new == old
    assert recorded.of(ev.RunFinished)[-1].status == "completed"


def test_a_cassette_survives_the_record_on_disk() -> None:
    recorded = record(Chunks(*RECORDED["tools"]), "go")
    events = [decode_event(encode_event(event)) for event in recorded.events]
    assert record(ls.Cassette(events), "go").types() == recorded.types()


def test_the_first_difference_is_shown_readably() -> None:
    recorded = record(Chunks(*RECORDED["tools"]), "go")
    replayed = record(ls.Cassette(recorded.events), "go elsewhere")
    (failed,) = replayed.of(ev.ModelFailed)
    assert failed.kind == "MODEL_BAD_REQUEST"
    assert "request-001 is not the request that was recorded" in failed.message
    assert '-["user",[{"type":"text","text":"go"}]]' in failed.message
    assert '+["user",[{"type":"text","text":"go elsewhere"}]]' in failed.message
    other = record(ls.Cassette(recorded.events), "go", system="You are someone else.")
    assert "the system prompt or the tools differ" in other.of(ev.ModelFailed)[0].message
    lax = record(ls.Cassette(recorded.events, strict=False), "go elsewhere")
    assert lax.of(ev.RunFinished)[0].status == "completed"


def test_asked_once_too_often_and_without_a_run() -> None:
    recorded = record(Chunks([done()]), "go")
    replayed = record(ls.Cassette(recorded.events), "go", "and?")
    assert "number 2 was asked for" in replayed.of(ev.ModelFailed)[0].message
    with pytest.raises(ls.DefinitionError, match="run was started"):
        ls.Cassette(recorded.events[:2])
