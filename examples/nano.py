"""A coding agent in one file: five tools over a folder, and a person asked before three of them run.

`python examples/nano.py` works in the current folder. It speaks the Messages API and needs ANTHROPIC_API_KEY, unless
NANO_MODEL names another model, as `provider:model`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from messages_api import joined, split
from nano_tools import tools

import latchstep as ls
from latchstep.core.event import MessageCompleted, Question
from latchstep.core.message import user
from latchstep.core.rules import Traits

SYSTEM = "You are a coding agent. You work in one folder with the tools you have. Be brief."
MAX_TOKENS = 8_192  # of one answer


@cache
def client() -> Any:
    """The model, made when it is first needed."""
    return ls.model(os.environ.get("NANO_MODEL", "anthropic:claude-opus-4-8"))


def gate(call: ls.ToolCall, traits: Traits) -> ls.Verdict:
    return ls.Verdict("ask", "it can change things") if traits.effect == "write" else ls.Verdict("run")


def ask(question: Question) -> bool:
    """Shows exactly what would run. Anything but y declines."""
    return input(f"{question.found}\nrun {question.name}? [y/N] ").strip().lower() == "y"


def call(history: list[ls.Message], model: Any, folder: Path, approve: Callable[[Question], Any]) -> ls.Run:
    """The one function that leaves the machine."""
    return ls.run_loop(
        messages=history,
        model=model,
        limits=ls.Limits(max_output=MAX_TOKENS, warn_at=None),
        system=SYSTEM,
        tools=tools(folder),
        policy=gate,
        approve=approve,
        questions="in_turn",
    )


async def agent(
    messages: list[ls.Message],
    model: Any = None,
    folder: Path | None = None,
    approve: Callable[[Question], Any] = ask,
) -> None:
    """Answer the last message, a user's. `messages` is extended in place, by whole messages, also where it fails.

    Raises LatchstepError when the run did not end by itself.
    """
    history = split(messages)
    run = call(history, model or client(), folder or Path.cwd(), approve)
    try:
        async with run:
            async for event in run:
                if isinstance(event, MessageCompleted):
                    show(event.message)
    finally:
        result = await run
        left = run.session.state.outgoing(())  # what is true of calls that a cancel cut short
        messages.extend(joined([*result.messages[len(history) :], *left]))
    if result.error is not None:
        raise ls.LatchstepError(f"{result.error.kind}: {result.error.message}")


def show(message: ls.Message) -> None:
    """Text as it is; each call in one short line."""
    for block in message.blocks:
        if isinstance(block, ls.Text):
            print(block.text)
        elif isinstance(block, ls.ToolCall):
            print(f"→ {block.name} {block.arguments}"[:100])


def main(model: Any = None) -> None:
    """One line typed, one answer. A call that fails takes its line back and nothing else."""
    messages: list[ls.Message] = []
    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            return
        if not line.strip():
            continue
        messages.append(said := user(line))
        try:
            asyncio.run(agent(messages, model))
        except (ls.LatchstepError, KeyboardInterrupt) as error:
            print(f"! {error or 'stopped'}")
            if messages[-1] is said:
                messages.pop()


if __name__ == "__main__":
    main()
