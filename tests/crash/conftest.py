"""Sums up cases and CPU seconds of each row; the full set says them, and fails where a row tried too little."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

from tests.crash import tally


def used() -> float:
    """CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, None]:
    tally.now = tally.MODULES.get(item.path.stem, "")
    before, tried = used(), tally.cases[tally.now]
    yield
    tally.cpu[tally.now] += used() - before  # type: ignore[assignment]
    if tally.cases[tally.now] == tried:
        tally.case()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not tally.FULL and not terminalreporter.config.getoption("durations"):
        return
    terminalreporter.write_line("| row | cases | at least | CPU s |")
    for row, least in tally.ROWS.items():
        terminalreporter.write_line(f"| {row} | {tally.cases[row]} | {least} | {tally.cpu[row]:.0f} |")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of `pytest -n` has ended: what it tried counts here."""
    cases, cpu = getattr(node, "workeroutput", {}).get("tally", ({}, {}))
    tally.cases.update(cases)
    tally.cpu.update(cpu)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["tally"] = (dict(tally.cases), dict(tally.cpu))
        return
    if tally.FULL and session.exitstatus == 0:
        for row, least in tally.ROWS.items():
            if tally.cases[row] < least and session.config.args == ["tests/crash"]:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
