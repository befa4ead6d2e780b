"""Crash tests for programs whose files go through a `Disk`: a journal, a store, an agent with its tools.

A `Trial` is a simulated disk, a program that lives on it, and a judge. `crashes` ends the program at each operation
of its disk in turn, lets it live again to its end, and asks the judge. `Witness` holds what such a judge knows.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Literal, Protocol

from latchstep.core.codec import encode_event
from latchstep.core.event import Event, RunFinished, SessionCreated, ToolFinished, ToolStarted
from latchstep.core.rules import FINAL
from latchstep.errors import JournalDamaged, JournalError, JournalLocked, JournalTooNew, LatchstepError
from latchstep.journal.file import FileJournal

from .disk import Died, How, SimDisk

Crash = Literal["kill", "power", "full", "eio", "short"]
"""`kill`: the process dies in the operation, the cache stays. `power`: the machine does, and the cache is lost. The
others are errors of the disk, as `SimDisk.fail` makes them; the program ends by itself then."""

_HOW: dict[Crash, How] = {"kill": "die", "power": "die", "full": "full", "eio": "eio", "short": "short"}
_LOG = logging.getLogger("latchstep")

TAILS = {
    "nothing": b"",
    "zeros": bytes(700),
    "garbage": bytes(i * 151 % 256 for i in range(300)) + b'\n{"n":3,"b":1,"p":"\n\n"crc":"12345678"}\n',
    "foreign lines": b'{"type":"message","text":"not ours"}\n[1,2]\n',
}
"""What may stand behind the last byte that arrived."""


class Trial(Protocol):
    """One world. A new one is made for each crash."""

    disk: SimDisk

    def live(self) -> None:
        """One life of the program: make what is missing, open what is there, go on to the end. It may raise `Died`,
        OSError or a LatchstepError when the disk fails it, and nothing else."""

    def judge(self) -> None:
        """Assert what must hold after a life that came to its end."""


def crashes(
    make: Callable[[], Trial], how: Sequence[Crash] = ("kill", "power"), *, seed: int = 0, every: int = 1
) -> int:
    """Crash at every operation (or every so many), half the time once more in the life after that. Returns how many
    crashes were judged. What fails says where; the same seed does the same again."""
    whole = make()
    whole.live()
    whole.judge()
    for at in range(0, whole.disk.operations, every):
        for kind in how:
            random = Random(f"{seed} {at} {kind}")
            trial = make()
            try:
                _end(trial, kind, at, random)
                if random.random() < 0.5:
                    _end(trial, kind, random.randrange(20), random)
                trial.live()
                trial.judge()
            except BaseException as error:
                error.add_note(f"after a crash ({kind}) at operation {at} of {whole.disk.operations}, seed {seed}")
                raise
    return len(how) * len(range(0, whole.disk.operations, every))


def _end(trial: Trial, kind: Crash, at: int, random: Random) -> None:
    part = random.choice((0, 1, -1, random.randrange(1000)))
    trial.disk.fail(_HOW[kind], after=at, part=part)
    _LOG.disabled = True  # what a driver says of a disk that died is no news here
    try:
        trial.live()
    except (Died, OSError, LatchstepError):
        pass
    finally:
        _LOG.disabled = False
    if kind == "power":
        trial.disk.power_cut(random.randrange)
    else:
        trial.disk.kill()


def truncations(data: bytes, tails: Collection[bytes] = tuple(TAILS.values())) -> Iterator[tuple[int, bytes]]:
    """A file that ends at each of its bytes, with each tail behind: (bytes that arrived, content)."""
    for cut in range(len(data)):
        for tail in tails:
            yield cut, data[:cut] + tail


def create_or_open(disk: SimDisk, directory: Path, header: SessionCreated) -> FileJournal:
    """A session after a creation that may have got anywhere: begun again where its line 0 never arrived whole."""
    try:
        return FileJournal.open(directory, disk=disk)
    except (JournalDamaged, JournalLocked, JournalTooNew):
        raise
    except JournalError:
        return FileJournal.create(directory, header, disk=disk)


class Witness:
    """The truth outside the record: effects that happened, and what was shown or promised. What a program does once
    its disk is dead did not happen."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.effects: Counter[str] = Counter()
        self._shown: dict[int, bytes] = {}
        self._promised: dict[int, bytes] = {}

    def effect(self, call_id: str) -> None:
        """To be called inside a tool, where its effect happens."""
        if self._disk.dead:
            raise Died
        self.effects[call_id] += 1

    def shown(self, event: Event) -> None:
        """A recorded event was seen: it must outlive the process."""
        if not self._disk.dead and not event.part:
            self._shown[event.seq] = encode_event(event)

    def promised(self, events: Iterable[Event]) -> None:
        """A sync that covers these has returned: they must outlive the machine, and a failing disk."""
        if not self._disk.dead:
            self._promised.update({event.seq: encode_event(event) for event in events})

    def check(self, record: Sequence[Event], *, repeatable: Collection[str] = ()) -> None:
        """Assert over the record as it was read back. repeatable: names of tools whose effects may happen twice."""
        assert [event.seq for event in record] == list(range(len(record))), "the numbers are not contiguous"
        for seq, told in (self._promised if self._disk.lossy else {**self._shown, **self._promised}).items():
            assert seq < len(record), f"lost: {told!r}"
            assert encode_event(record[seq]) == told, f"line {seq} was {told!r}"
        begun = {event.call_id: event.name for event in record if isinstance(event, ToolStarted)}
        ended: dict[str, ToolFinished] = {}
        for event in record:
            if isinstance(event, ToolFinished):
                assert event.call_id not in ended, f"call {event.call_id} has two results"
                ended[event.call_id] = event
        for call_id, times in self.effects.items():
            assert call_id in begun, f"call {call_id} had an effect and has no intent"
            assert times == 1 or begun[call_id] in repeatable, f"call {call_id} had its effect {times} times"
        for call_id, result in ended.items():
            if result.outcome == "ok" and result.name != FINAL:
                assert self.effects[call_id], f"call {call_id} is ok and never happened"
            elif result.outcome in ("not_started", "denied", "rejected", "truncated"):
                assert not self.effects[call_id], f"call {call_id} is {result.outcome} and happened"
        endings = Counter(event.run_id for event in record if isinstance(event, RunFinished))
        assert set(endings.values()) <= {1}, f"runs with more than one ending: {endings}"
