"""Real processes, really killed, at every point there is; then resumed by another, and judged by what happened."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from latchstep.core import event as ev
from latchstep.core.message import ToolResult
from latchstep.core.project import Projection
from latchstep.core.state import fold
from latchstep.journal.reader import read_journal

from .simulate import check_request
from .tally import case, many

VICTIM = Path(__file__).with_name("victim.py")


class Victims:
    """The process that forks victims: see `victim.py`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        self._process = subprocess.Popen(
            [sys.executable, str(VICTIM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def place(self) -> tuple[Path, Path]:
        """A home and a ledger for one story."""
        self._number += 1
        ledger = self._folder / f"ledger-{self._number}"
        ledger.touch()
        return self._folder / f"home-{self._number}", ledger

    def live(self, place: tuple[Path, Path], point: str, *, may_fail: bool = False) -> int:
        """One life; how it ended."""
        home, ledger = place
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{home} {ledger} {point}\n")
        status = int(self._process.stdout.readline())
        assert status in (0, -signal.SIGKILL) or may_fail, f"status {status}"
        return status

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    made = Victims(tmp_path_factory.mktemp("victims"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def points(victims: Victims) -> list[str]:
    """Every point at which an undisturbed life could have died."""
    place = victims.place()
    assert victims.live(place, "count") == 0
    found = Path(f"{place[1]}.points").read_text().split()
    assert len(found) > 150
    assert {"effect:4", "tool.started:3", "run.finished:1", "check:1", "disk:1:0"} < set(found)
    return found


def judge(place: tuple[Path, Path], *, shown: bool = True) -> None:
    """Assert what must hold at the end. shown: what was seen is there; a power cut may have taken it."""
    home, ledger = place
    events = list(read_journal(home))
    assert [event.seq for event in events] == list(range(len(events)))
    for line in Path(f"{ledger}.seen").read_text().splitlines() if shown else ():
        seq, kind = line.split()
        assert events[int(seq)].type == kind, f"line {seq} was shown as {kind}"
    happened = Counter(ledger.read_text().split())
    outcomes = {e.call_id: e for e in events if isinstance(e, ev.ToolFinished)}
    assert len(outcomes) == 6
    assert sum(isinstance(e, ev.ToolFinished) for e in events) == 6
    assert [e.status for e in events if isinstance(e, ev.RunFinished)] == ["completed"]
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


def before_and_after(victims: Victims, first: str, *more: str) -> None:
    """Killed there, and at each of the others in the lives after it; then to the end."""
    place = victims.place()
    try:
        assert victims.live(place, first) == -signal.SIGKILL, "the point was never reached"
        killed = 1
        for point in more:
            killed += victims.live(place, point) != 0
        assert victims.live(place, "none") == 0
        judge(place)
    except AssertionError as error:
        error.add_note(f"killed at {first}, then at {more}, in {place[0]}")
        raise
    case(killed)


def test_b54_a_sigkill_at_every_point_and_a_resume(victims: Victims, points: list[str]) -> None:
    for point in many([p for p in points if not p.startswith("disk")] + points[::7], points):
        before_and_after(victims, point)


def test_sigkills_while_it_resumes(victims: Victims, points: list[str]) -> None:
    random = Random(5)
    for first in many(random.sample(points, 20), points):
        before_and_after(victims, first, *random.sample(points, 4))


def test_the_finished_half_of_a_parallel_batch_is_kept(victims: Victims) -> None:
    place = victims.place()
    victims.live(place, "tool.finished:1")
    victims.live(place, "none")
    started = Counter(e.call_id for e in read_journal(place[0]) if isinstance(e, ev.ToolStarted))
    assert started["c2"] == 1, "it had finished, and is not run again"
    assert started["c1"] == 2, "it is a read, and is run again"


def test_the_pure_simulation_agrees(victims: Victims) -> None:
    """A write that was in flight is told as unknown, in the words the simulation is tested for."""
    place = victims.place()
    victims.live(place, "effect:1")
    victims.live(place, "none")
    (told,) = [e for e in read_journal(place[0]) if isinstance(e, ev.ToolFinished) and e.call_id == "c3"]
    assert told.outcome == "interrupted"
    assert isinstance(told.content, str)
    assert "effects are unknown" in told.content
    assert "not run again" in told.content
