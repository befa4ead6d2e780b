"""The graded while-loop: call the model while it stops for tools, and say what was done.

`python examples/while_loop.py loop CASE` replays a cassette (a path, or a name in `cassettes/`) and prints one line.
Any stop reason but `tool_use` is the end, with no recovery of any kind.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec
from messages_api import joined, split
from msgspec.structs import replace
from while_loop_cassette import cassette, play

import latchstep as ls
from latchstep.core.chunk import Chunk, Completed
from latchstep.model.base import Model, Request

WORDS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


class Outcome(msgspec.Struct, frozen=True, rename="camel"):
    trajectory: list[dict[str, Any]]
    final_text: str
    stop_reason: str
    turns: int


def run_loop(
    messages: list[ls.Message], model: Model, execute: Callable[[str, dict[str, Any]], Any], cap: int = 25
) -> Outcome:
    """Run to the first stop that is no tool use, or for `cap` turns. `messages` is extended in place.

    execute(tool, input): the result; what it raises becomes an error result. Raises LatchstepError where the model
    gave no answer.
    """
    trajectory: list[dict[str, Any]] = []

    @ls.tool(name="execute")
    def tool(tool: str, input: dict[str, Any]) -> Any:
        trajectory.append({"tool": tool, "input": input})
        return execute(tool, input)

    history = inward(split(messages))
    judged = Graded(model)
    limits = ls.Limits(max_steps=cap, max_repeats=cap + 1, max_empty=0, warn_at=None)
    run = ls.run_loop(messages=history, model=judged, tools=[tool], limits=limits, strict_protocol=True)
    result = asyncio.run(run.result())
    messages.extend(joined(outward(result.messages[len(history) :])))
    if judged.asked > len(judged.answers):
        raise ls.LatchstepError(f"{result.error.kind}: {result.error.message}" if result.error else result.status)
    last = judged.answers[-1]
    text = "".join(block.text for block in last.blocks if isinstance(block, ls.Text))
    return Outcome(trajectory, text, WORDS.get(last.raw_stop_reason, last.raw_stop_reason), len(judged.answers))


class Graded:
    """The model as the library sees it: every call is one of the tool `execute`, every other stop an ordinary end."""

    def __init__(self, model: Model) -> None:
        self.model, self.name, self.asked = model, model.name, 0
        self.answers: list[Completed] = []

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        self.asked += 1
        async for chunk in self.model.stream(replace(request, messages=outward(request.messages), tools=())):
            if isinstance(chunk, Completed):
                self.answers.append(chunk)
                (answer,) = inward([ls.Message("assistant", chunk.blocks)])
                stop = "tool_calls" if chunk.stop_reason == "tool_calls" else "stop"
                chunk = replace(chunk, blocks=answer.blocks, stop_reason=stop)
            yield chunk


def inward(messages: Iterable[ls.Message]) -> list[ls.Message]:
    """Each call NAME(INPUT) as execute(NAME, INPUT), so that `execute` decides which tools there are."""

    def turned(block: Any) -> Any:
        if not isinstance(block, ls.ToolCall):
            return block
        return replace(block, name="execute", arguments={"tool": block.name, "input": block.arguments})

    return [replace(message, blocks=tuple(map(turned, message.blocks))) for message in messages]


def outward(messages: Iterable[ls.Message]) -> list[ls.Message]:
    """And back. Results get the name of their call."""
    names: dict[str, str] = {}

    def turned(block: Any) -> Any:
        if isinstance(block, ls.ToolResult):
            return replace(block, name=names[block.call_id])
        if not isinstance(block, ls.ToolCall):
            return block
        names[block.id] = block.arguments["tool"]
        return replace(block, name=block.arguments["tool"], arguments=block.arguments["input"])

    return [replace(message, blocks=tuple(map(turned, message.blocks))) for message in messages]


def main(mode: str = "", case: str = "", *more: str) -> None:
    if mode != "loop" or not case or more:
        sys.exit("usage: python examples/while_loop.py loop CASE")
    try:
        outcome = run_loop(*cassette(case), play)
    except (OSError, msgspec.DecodeError, ls.LatchstepError) as error:
        sys.exit(f"{case}: {error}")
    shown = msgspec.to_builtins(outcome)
    del shown["turns"]
    print(msgspec.json.encode(shown).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
