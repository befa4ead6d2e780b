"""Puts a question about a call to the person at the terminal: exactly what would run, escaped and whole."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from latchstep.core.event import Question
from latchstep.core.printable import printable

from .screen import Screen


async def read_line() -> str:
    """One line typed by the person; "" at the end of input. Can be cancelled, unlike `input` in a thread."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    fd = sys.stdin.fileno()
    loop.add_reader(fd, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(fd)
    return sys.stdin.readline()


def lay_out(question: Question) -> str:
    """The whole of what is asked about, as printable text: arguments, and what preparing it found."""
    parts = [printable(question.reason)] if question.about == "doubt" else []
    for name, value in question.arguments.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        shown = printable(text)
        parts.append(
            f"  {printable(name)}: {shown}" if "\n" not in shown else f"  {printable(name)}:\n{_indented(shown)}"
        )
    found = question.found
    if isinstance(found, dict) and isinstance(diff := found.get("diff"), str) and diff:
        parts.append(_indented(printable(diff)))
    return "\n".join(parts)


async def ask(screen: Screen, question: Question) -> bool:
    """Yes or no. Anything but a clear yes is no; so is the end of input."""
    screen.line(screen.style(f"May {printable(question.name)} run?", "bold", "yellow"))
    screen.line(lay_out(question))
    while True:
        screen.line(screen.style("[y] yes   [n] no", "bold"))
        typed = await read_line()
        answer = typed.strip().lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("n", "no") or not typed:
            return False


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())
