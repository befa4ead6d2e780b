"""Puts a question about a call to the person at the terminal: exactly what would run, escaped and whole.

An answer counts only if it was typed after its question was shown; anything but a clear yes is no.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import msgspec

from latchstep.core.event import Question
from latchstep.core.printable import one_line

from .screen import Screen, gutter

MAX_TYPED = 4096
"""Bytes of an answer that are read; a terminal hands over no more in one line."""

MAX_DIFF_ROWS = 400
MAX_DIFF_ROW = 400
"""From this size on a prepared diff may have been cut, and the arguments are shown beside it."""


async def ask(screen: Screen, question: Question) -> bool:
    """Yes or no. So is the end of input, or a terminal that has gone."""
    again = " again" if question.about == "doubt" else ""
    screen.line(screen.style(f"May {one_line(question.name, 60)} run{again}?", "bold", "yellow"))
    rows = lay_out(question, screen.width)
    for row in rows:
        screen.line(row)
    forget_what_was_typed()
    size = f" ({len(rows)} rows)" if len(rows) > 10 else ""
    while True:
        screen.prompt(screen.style(f"{one_line(question.name, 60)}{size}: [y] yes  [n] no > ", "bold"))
        typed = await read_line()
        answer = typed.strip().lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("n", "no"):
            return False
        if not typed:
            screen.line()
            return False


async def read_line() -> str:
    """One line typed by the person; "" at the end of input. Can be cancelled, unlike `input` in a thread.

    The descriptor itself is read: a buffer could keep a line back and hand it to the next question.
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    fd = sys.stdin.fileno()
    loop.add_reader(fd, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(fd)
    try:
        return os.read(fd, MAX_TYPED).decode("utf-8", "replace")
    except OSError:
        return ""


def forget_what_was_typed() -> None:
    """What lies in the terminal was typed before the question, and is no answer to it."""
    import termios

    try:
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    except (termios.error, OSError):
        pass


def lay_out(question: Question, columns: int) -> list[str]:
    """The whole of what is asked about, as rows: why, each argument, and what preparing it found."""
    rows = gutter(question.reason, columns) if question.about == "doubt" else []
    diff = question.found.get("diff") if isinstance(question.found, dict) else None
    whole = isinstance(diff, str) and _is_whole(diff)
    for name, value in question.arguments.items():
        if whole and name in ("old", "new", "content"):
            continue  # the diff says it, and is bound to what runs by the hashes beside it
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        rows += [f"  {one_line(name, 60)}", *gutter(text, columns)]
    if isinstance(diff, str) and diff:
        rows += ["  changes", *gutter(diff, columns)]
    return rows


def _is_whole(diff: str) -> bool:
    """No row of the diff was left out or cut, so that it says all that an edit changes."""
    lines = diff.split("\n")
    cut = any(len(row) >= MAX_DIFF_ROW or row.startswith(("… ", "-… ", "+… ")) for row in lines)
    return lines[0].startswith("--- ") and len(lines) < MAX_DIFF_ROWS and not cut


def can_ask() -> bool:
    """A person is at the terminal: both ends of it are ours."""
    return is_terminal(sys.stdin) and is_terminal(sys.stdout)


def is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False
