"""Each signal that ends programs, at each moment of a run at a real terminal: cancelled, kept, nothing left.

A new moment is one row of `MOMENTS`.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from latchstep.journal.store import Store
from latchstep.tool import proctable
from latchstep.tool.toolslock import still_running
from tests.cli.cli_kit import Home, Terminal, bash, begun, edit, wait_for
from tests.model.strict_chat import StrictChat, text_answer

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NUMBERS = itertools.count(63_000_000 + os.getpid() * 100)
BUSY = "sleep NUMBER & setsid sh -c 'sleep NUMBER & sleep NUMBER' & env -i setsid -f sleep NUMBER"
SLEEPERS = 4


class Moment(NamedTuple):
    """answers: the model's; `NUMBER` in them stands for one that only this run's processes carry. shown: what the
    terminal says by then. options: of `latchstep run`. sleepers: processes that live by then."""

    answers: Callable[[str], list[Any]]
    shown: str
    options: Callable[[str], list[str]] = lambda number: []
    sleepers: int = 0


def unconfined(number: str) -> list[str]:
    return ["--mode", "unconfined"]


MOMENTS: dict[str, Moment] = {
    "waiting for an answer": Moment(lambda n: [["#STALL"]], "go\n"),
    "in the middle of a stream": Moment(lambda n: [begun("Half a sent", "#STALL")], "Half a sent"),
    "in back-off": Moment(lambda n: ["#STATUS 429 retry-after=30"], "asking again in"),
    "at a question": Moment(lambda n: [bash("touch made")], "[y] yes  [n] no >"),
    "in a command": Moment(lambda n: [bash(busy(n) + "; wait")], "▸ bash", unconfined, SLEEPERS),
    "with commands in the background": Moment(
        lambda n: [bash(busy(n)), begun("Half a sent", "#STALL")], "Half a sent", unconfined, SLEEPERS
    ),
    "in a check": Moment(
        lambda n: [edit("a", "x"), text_answer("Done.")],
        "▸ check",
        lambda n: ["--mode", "edits", "--check", f"[ -e ran ] || {{ touch ran; {busy(n)}; wait; }}"],
        SLEEPERS,
    ),
}


def busy(number: str) -> str:
    return BUSY.replace("NUMBER", number)


def living(number: str) -> int:
    argument = b"sleep\0" + number.encode()
    return sum(proctable.read_file(f"/proc/{pid}/cmdline").startswith(argument) for pid in proctable.walk())


@pytest.mark.parametrize("name", MOMENTS, ids=lambda name: name.replace(" ", "-"))
def test_a_signal(tmp_path: Path, name: str) -> None:
    moment = MOMENTS[name]
    with ExitStack() as stack:
        started = []
        for number in ENDING:
            (tmp_path / number.name).mkdir()
            home, own = Home(tmp_path / number.name), str(next(NUMBERS))
            server = stack.enter_context(StrictChat(moment.answers(own)))
            options = ["--base-url", server.url, *moment.options(own)]
            terminal = stack.enter_context(Terminal(home, "run", "go", *options, NO_COLOR="1"))
            started.append((number, home, own, server, terminal))
        for number, home, own, server, terminal in started:
            terminal.expect(moment.shown)
            server.wait(lambda: len(server.bodies) >= 1)  # noqa: B023
            wait_for(lambda: living(own) == moment.sleepers, "what runs")  # noqa: B023
            if number == signal.SIGINT:
                terminal.type("\x03")
            else:
                terminal.process.send_signal(number)
            assert terminal.end() == 130, terminal.shown
            is_over(home, own, number.name, terminal.shown)
            server.wait(lambda: server.open == 0)  # noqa: B023
            server.scripts = [text_answer("Back again.")]
            again = home.run("resume", "--session", home.session().name, "go on")
            assert (again.status, "Back again." in again.out) == (0, True), again
            assert not server.refused


def is_over(home: Home, number: str, reason: str, shown: str) -> None:
    assert living(number) == 0
    assert not still_running(home.session() / "tools.lock")
    assert Store(home.state).verify(home.session().name).sound
    events = home.events()
    assert (events[-1]["type"], events[-1]["status"]) == ("run.finished", "cancelled")
    (asked,) = (event for event in events if event["type"] == "cancel.requested")
    assert asked["reason"] == reason
    assert not any("Half" in str(event) for event in events)  # of an answer only what is whole is kept
    assert f"stopping ({reason})" in shown
    assert f"To go on: latchstep resume --session {home.session().name} " in shown
    assert "Traceback" not in shown
