"""How a command ended: the spawner's report, read as untrusted, and what the caller gets of it.

A child may have taken the worker over, so a report is matched against its grammar and each number is bounded;
anything else is nonsense, and the spawner that said it is no longer used.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from .capture import Capture
from .text import clean_output

REPORT = re.compile(rb"(-?\d{1,3}|\?)\0([01])\0(\d{1,12})\0(\d{1,7})((?:\0\d{1,10}\0[^\0]{1,64}){0,20})")


@dataclass(frozen=True, slots=True)
class Left:
    """A process that a command left running."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended.

    Of `exit_status` and `signal` (a name such as "SIGSEGV", else "") one is set, unless `unknown` says why the
    outcome cannot be told. duration: seconds. head, tail, total, lines, output, output_problem: see `Capture`.
    left: at most 20 of its `left_count` processes that still run; they live until the spawner is closed, and what
    they write from now on is read and forgotten. id: what `Spawner.kill_all` knows it by.
    """

    exit_status: int | None
    signal: str
    timed_out: bool
    duration: float
    head: bytes
    tail: bytes
    total: int
    lines: int
    output: Path | None = None
    output_problem: str = ""
    left: tuple[Left, ...] = ()
    left_count: int = 0
    unknown: str = ""
    restarted: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one command. `failed`: it did not start; `lost`: nobody can tell; why, in words.

    stale: it did not start, since the sandbox does not hold this path any more.
    """

    status: int | None = None
    timed_out: bool = False
    duration: float = 0.0
    left: tuple[Left, ...] = ()
    left_count: int = 0
    failed: str = ""
    lost: str = ""
    stale: str = ""


def parse_report(raw: bytes) -> Report:
    """The fields after the id of an `ended` message. Raises ValueError for anything out of shape."""
    found = REPORT.fullmatch(raw)
    if found is None:
        raise ValueError("not a report")
    status, timed_out, milliseconds, count, listed = found.groups()
    fields = listed.split(b"\0")[1:]
    left = tuple(
        Left(int(pid), clean_output(name).replace("\n", " "))
        for pid, name in zip(fields[::2], fields[1::2], strict=True)
    )
    return Report(
        status=None if status == b"?" else int(status),
        timed_out=timed_out == b"1",
        duration=int(milliseconds) / 1000,
        left=left,
        left_count=max(int(count), len(left)),
    )


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def finished(report: Report, capture: Capture, elapsed: float, restarted: str = "", id: str = "") -> Finished:
    """Join a report with what was captured; `elapsed` seconds bound what the report says of its duration."""
    capture.flush()
    status, unknown = report.status, report.lost
    if status is None and not unknown:
        unknown = "its process could not be killed"
    return Finished(
        exit_status=status if status is not None and status >= 0 else None,
        signal=signal_name(-status) if status is not None and status < 0 else "",
        timed_out=report.timed_out,
        duration=elapsed if report.lost else min(report.duration, elapsed),
        head=capture.head,
        tail=capture.tail,
        total=capture.total,
        lines=capture.lines,
        output=capture.path if capture.kept else None,
        output_problem=capture.problem,
        left=report.left,
        left_count=report.left_count,
        unknown=unknown,
        restarted=restarted,
        id=id,
    )
