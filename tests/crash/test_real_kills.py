"""Real processes, really killed, at chosen points; then resumed by another, and judged by what happened."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from latchstep.core import event as ev
from latchstep.core.message import ToolResult
from latchstep.core.project import Projection
from latchstep.core.state import fold
from latchstep.journal.reader import read_journal

from .simulate import check_request

VICTIM = Path(__file__).with_name("victim.py")

POINTS = [
    "message.accepted:1",
    "model.requested:1",
    "model.delta:1",
    "message.completed:1",
    "tool.started:1",
    "look-quick:1",
    "tool.finished:1",
    "message.completed:2",
    "tool.started:3",
    "effect:1",
    "effect:2",
    "effect:3",
    "effect:4",
    "tool.finished:3",
    "check:1",
    "check.finished:1",
    "run.finished:1",
]


def live(home: Path, ledger: Path, point: str) -> int:
    done = subprocess.run(
        [sys.executable, str(VICTIM), str(home), str(ledger), point],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.parametrize("point", POINTS)
def test_a_sigkill_and_a_resume(tmp_path: Path, point: str) -> None:
    home, ledger = tmp_path / "home", tmp_path / "ledger"
    ledger.touch()
    assert live(home, ledger, point) == -signal.SIGKILL, "the point was never reached"
    before = list(read_journal(home / "sessions" / "s"))
    assert live(home, ledger, "none") == 0
    events = list(read_journal(home / "sessions" / "s"))
    assert events[: len(before)] == before, "what was on record is on record"
    assert [event.seq for event in events] == list(range(len(events)))
    happened = Counter(ledger.read_text().split())
    outcomes = {e.call_id: e for e in events if isinstance(e, ev.ToolFinished)}
    assert len(outcomes) == 6
    assert sum(isinstance(e, ev.RunFinished) for e in events) == 1
    for name, times in happened.items():
        assert times == 1 or name == "b", f"{name} happened {times} times"
    for call_id, name in (("c3", "a"), ("c4", "b"), ("c5", "c"), ("c6", "d")):
        if outcomes[call_id].outcome == "ok":
            assert happened[name], f"{call_id} is ok and never happened"
        else:
            assert outcomes[call_id].outcome == "interrupted"
            assert call_id in ("c3", "c5", "c6"), "what may be repeated is repeated"
    state = fold(events)
    check_request(list(Projection().feed(state.transcript)))
    results = [b.call_id for m in state.transcript for b in m.blocks if isinstance(b, ToolResult)]
    assert results == ["c1", "c2", "c3", "c4", "c5", "c6"]


def test_the_finished_half_of_a_parallel_batch_is_kept(tmp_path: Path) -> None:
    home, ledger = tmp_path / "home", tmp_path / "ledger"
    ledger.touch()
    live(home, ledger, "tool.finished:1")
    live(home, ledger, "none")
    started = Counter(e.call_id for e in read_journal(home / "sessions" / "s") if isinstance(e, ev.ToolStarted))
    assert started["c2"] == 1, "it had finished, and is not run again"
    assert started["c1"] == 2, "it is a read, and is run again"


def test_the_pure_simulation_agrees(tmp_path: Path) -> None:
    """A write that was in flight is told as unknown, in the words the simulation is tested for."""
    home, ledger = tmp_path / "home", tmp_path / "ledger"
    ledger.touch()
    live(home, ledger, "effect:1")
    live(home, ledger, "none")
    events = list(read_journal(home / "sessions" / "s"))
    (told,) = [e for e in events if isinstance(e, ev.ToolFinished) and e.call_id == "c3"]
    assert told.outcome == "interrupted"
    assert isinstance(told.content, str)
    assert "effects are unknown" in told.content
    assert "not run again" in told.content
