"""Puts a question about a call to the person at the terminal: exactly what would run, escaped and whole.

An answer counts only if it was typed after its question was shown; anything but a clear yes is no.
"""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec

from latchstep.core.event import Question
from latchstep.core.message import ToolCall
from latchstep.core.printable import one_line, suspicions
from latchstep.core.rules import Verdict
from latchstep.errors import DefinitionError
from latchstep.policy.grants import grant, offer
from latchstep.policy.rule import Rule

from . import granted
from .screen import Screen, gutter

MAX_TYPED = 4096
"""Bytes of an answer that are read; a terminal hands over no more in one line."""

MAX_DIFF_ROWS = 400
MAX_DIFF_ROW = 400
"""From this size on a prepared diff may have been cut, and the arguments are shown beside it."""


CONTENT = ("old", "new", "content")
"""Arguments that are text of a file, and may be in any language."""


class Always(msgspec.Struct, frozen=True):
    """What "always" adds to: the rules in force, and where they are kept for this workspace."""

    root: Path
    state: Path
    rules: list[Rule]


async def ask(screen: Screen, question: Question, always: Always | None = None) -> bool | str | Verdict:
    """Yes, no, the rule by which it is yes from now on, or the words that answer a question of the model's. The end of
    input is no; so is a terminal that has gone."""
    if question.about == "answer":
        return await in_words(screen, question.arguments)
    again = " again" if question.about == "doubt" else ""
    screen.line(screen.style(f"May {one_line(question.name, 60)} run{again}?", "bold", "yellow"))
    rows = lay_out(question, screen.width)
    for row in rows:
        screen.line(row)
    for warning in _warnings(question):
        for at, piece in enumerate(textwrap.wrap(warning, screen.width - 4)):
            screen.line(screen.style(f"  {' ' if at else '!'} {piece}", "bold", "red"))
    call = ToolCall(question.call_id, question.name, question.arguments)
    offered = offer(call, str(always.root)) if always is not None and question.about == "run" else None
    forget_what_was_typed()
    size = f" ({len(rows)} rows)" if len(rows) > 10 else ""
    more = "[a] always  " if offered is not None else ""
    while True:
        screen.prompt(screen.style(f"{one_line(question.name, 60)}{size}: {more}[y] yes  [n] no > ", "bold"))
        typed = await read_line()
        answer = typed.strip().lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("n", "no"):
            return False
        if not typed:
            screen.line()
            return False
        if answer in ("a", "always") and offered is not None and always is not None:
            rule = await _settle_rule(screen, offered, call, always)
            if rule is not None:
                return Verdict("run", "always", str(rule))


async def _settle_rule(screen: Screen, offered: Rule, call: ToolCall, always: Always) -> Rule | None:
    """Show the rule, let it be changed, and keep it; None to go back to the question."""
    screen.line("  This rule would be kept for this workspace:")
    for row in gutter(str(offered), screen.width):
        screen.line(row)
    forget_what_was_typed()
    while True:
        screen.prompt(screen.style("Enter keeps it, another rule replaces it, n goes back > ", "bold"))
        typed = await read_line()
        text = typed.strip()
        if not typed or text.lower() in ("n", "no"):
            if not typed:
                screen.line()
            return None
        try:
            rule = offered if text.lower() in ("", "y", "yes") else grant(text, call, str(always.root))
            granted.keep(always.state, always.root, rule)
        except (DefinitionError, OSError) as error:
            for row in gutter(f"not kept: {error}", screen.width):
                screen.line(row)
            continue
        always.rules.append(rule)
        return rule


def _warnings(question: Question) -> list[str]:
    """What in the arguments may look like something else than it is."""
    shown = (_text(value) for name, value in question.arguments.items() if name not in CONTENT)
    return suspicions("\n".join(shown))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def in_words(screen: Screen, arguments: dict[str, Any]) -> bool | str:
    """The person's own words, or the choice they named by its number; False where they give no answer."""
    given = arguments.get("choices")
    choices = [str(choice) for choice in given] if isinstance(given, list) else []
    screen.line(screen.style("The model asks:", "bold", "yellow"))
    for row in gutter(str(arguments.get("question", "")), screen.width):
        screen.line(row)
    for number, choice in enumerate(choices, 1):
        first, *more = gutter(choice, screen.width, "     ")
        screen.line(screen.style(f"  {number}. ", "bold") + first.lstrip())
        for row in more:
            screen.line(row)
    forget_what_was_typed()
    how = "a number, or your own words" if choices else "your answer"
    while True:
        screen.prompt(screen.style(f"{how} (Ctrl-D: no answer) > ", "bold"))
        typed = await read_line()
        answer = typed.strip()
        if answer.isdecimal() and answer not in choices and 0 < int(answer) <= len(choices):
            return choices[int(answer) - 1]
        if answer:
            return answer
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
    said = f"no rule covers {question.arguments.get('command')}"  # of one command, which follows anyway
    rows = ["  why", *gutter(question.reason, columns)] if question.reason not in ("", said) else []
    diff = question.found.get("diff") if isinstance(question.found, dict) else None
    whole = isinstance(diff, str) and _is_whole(diff)
    for name, value in question.arguments.items():
        if whole and name in CONTENT:
            continue  # the diff says it, and is bound to what runs by the hashes beside it
        rows += [f"  {one_line(name, 60)}", *gutter(_text(value), columns)]
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
