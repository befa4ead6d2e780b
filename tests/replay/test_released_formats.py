"""Journals of each released format: they open, verify, fold to the same state and play back, for ever.

`format-1` holds two runs that ended and a third that was cancelled at its first intent: thinking with a signature,
parallel reads, a question and its answer, a rejected call, a follow-up, a check, a provider's block, odd characters.
`format-1-compacted`, whose keys name their request too, holds a run with a compaction at the threshold (its summary
retried), hooks that change, keep and refuse, a question that expired, snapshots of the workspace, an edited and a
withdrawn message; a compaction asked for between two runs; and a run whose process died in a call, resumed under
other limits, with a call id that was used before.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.message import Thinking
from latchstep.core.rules import RUN, Traits, Verdict
from latchstep.core.state import fold
from latchstep.journal.blob import read_blob
from latchstep.journal.reader import read_journal
from latchstep.journal.store import Store
from latchstep.session.replay import blobs_of, replay

SPENT = ev.MessageCompleted | ev.ModelFailed | ev.ContextCompacted
FORMAT_1 = Path(__file__).parent / "format-1"


def test_format_1_verifies_and_folds() -> None:
    events = list(read_journal(FORMAT_1))
    assert not any(isinstance(event, ev.Unknown) for event in events)
    state = fold(events)
    assert [message.role for message in state.transcript[:4]] == ["user", "assistant", "tool", "tool"]
    assert state.transcript[1].blocks[0] == Thinking("hm", {"signature": "s"})
    endings = [event for event in events if isinstance(event, ev.RunFinished)]
    assert [(ending.status, ending.steps) for ending in endings] == [("completed", 4), ("cancelled", 1)]
    assert endings[0].usage == ls.Usage(60, 15, cache_read=2)
    assert state.armed, "the cancelled run had begun to write"


def test_format_1_opens_for_writing(tmp_path: Path) -> None:
    home = tmp_path / "sessions" / "20261130-000000-000001"
    home.mkdir(parents=True)
    shutil.copy(FORMAT_1 / "journal.jsonl", home)
    with Store(tmp_path).open(home.name) as journal:
        before = journal.head
        journal.append([ev.SessionOpened(epoch=2)])
        assert journal.head == before + 1


def test_format_1_plays_back() -> None:
    """The first run again, its model played from the record and every request compared with the recorded one."""

    @ls.tool(effect="read")
    async def look(name: str) -> str:
        "Look."
        return f"saw {name}"

    @ls.tool
    def put(name: str) -> str:
        "Put."
        return f"did {name}"

    def policy(call: ls.ToolCall, traits: Traits) -> Verdict:
        return Verdict("ask", "may it?") if call.name == "put" else RUN

    cassette = ls.Cassette(read_journal(FORMAT_1))
    agent = ls.Agent(cassette, [look, put], "Be brief.", policy=policy, approve=lambda question: True)

    async def main() -> ls.RunResult:
        async with agent.stream("go") as run:
            await run.follow_up("and then?")
            return await run.result()

    result = asyncio.run(main())
    assert result.error is None, result.error
    assert (result.status, result.final_text) == ("completed", "second answer")


@pytest.mark.parametrize("folder", sorted(FORMAT_1.parent.glob("format-*")), ids=lambda folder: folder.name)
def test_every_released_journal_replays_to_the_same_events(folder: Path) -> None:
    """Loop, projection and wording of today make of it what those of its day did."""
    events = list(read_journal(folder))
    found = asyncio.run(replay(events, blob=blobs_of(lambda digest: read_blob(folder, digest))))
    assert found.difference is None, found.difference
    assert not found.taken
    assert not found.blind
    assert sum(found.kinds.values()) == len([e for e in events if not isinstance(e, ev.SessionSnapshot)]) - 1


def test_format_1_compacted_folds_from_each_of_its_snapshots() -> None:
    events = list(read_journal(FORMAT_1.parent / "format-1-compacted"))
    assert not any(isinstance(event, ev.Unknown) for event in events)
    state = fold(events)
    snapshots = [event for event in events if isinstance(event, ev.SessionSnapshot)]
    assert [snapshot.whole for snapshot in snapshots] == [True, True]
    for snapshot in snapshots:
        assert fold(events[snapshot.needed :]) == state
    assert state.transcript[0].id == "summary-compact-002"
    assert [message.text for message in state.transcript if message.role == "user"][1:] == ["and that?", "more"]
    endings = [event for event in events if isinstance(event, ev.RunFinished)]
    assert [(ending.status, ending.steps) for ending in endings] == [("completed", 4), ("completed", 3)]
    assert endings[0].usage == sum((e.usage for e in events[: endings[0].seq] if isinstance(e, SPENT)), ls.Usage()), (
        "summaries and failed attempts count"
    )
