"""The streaming book loop: a conversation in items of the Responses API, told through four callbacks.

`python examples/responses_book.py` looks at the current folder. BOOK_MODEL names the model, as `openai:model`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nano_tools import tools
from responses_items import Item, Once, compatible, items_of, messages_of

import latchstep as ls
from latchstep.core.event import MessageCompleted, ModelDelta, ToolFinished

SYSTEM = "You look at one folder with the tools you have, and say what you see. Be brief."
DEMO = "List the files here, then read pyproject.toml, and tell me in one sentence what this is."
LIMITS = ls.Limits(max_parallel=1, max_empty=0, warn_at=None)
ENDINGS = ("MODEL_PROTOCOL_ERROR", "EMPTY_RESPONSE", "TRUNCATED", "REFUSED", "FILTERED")  # which only end the loop


@dataclass(frozen=True)
class Callbacks:
    """Told what happens, as it happens: on_tool_call_end gets the tool's name and the text of its result."""

    on_token: Callable[[str], Any]
    on_tool_call_start: Callable[[str, dict[str, Any]], Any]
    on_tool_call_end: Callable[[str, str], Any]
    on_complete: Callable[[str], Any]


@cache
def client() -> Any:
    """The model, made when it is first needed."""
    return ls.model(os.environ.get("BOOK_MODEL", "openai:gpt-5-mini"))


def run_agent(
    user_message: str, history: Iterable[Item], callbacks: Callbacks, model: Any = None, folder: Path | None = None
) -> list[Item]:
    """Answer a message: the history as it can be sent, the message, and every item that was added, as a new list.

    A stream that breaks off ends the loop: what was complete is in the history. Raises LatchstepError where the model
    could not be asked, or the loop itself failed.
    """
    return asyncio.run(answer(user_message, history, callbacks, Once(model or client()), folder or Path.cwd()))


async def answer(
    user_message: str, history: Iterable[Item], callbacks: Callbacks, model: Once, folder: Path
) -> list[Item]:
    items = [*compatible(history), {"role": "user", "content": user_message}]
    start = messages_of(items, model.name)
    readers = [tool for tool in tools(folder) if tool.effect == "read"]
    said, cut = list[str](), False
    async with ls.run_loop(messages=start, model=model, system=SYSTEM, tools=readers, limits=LIMITS) as run:
        async for event in run:
            cut = isinstance(event, ModelDelta) or (cut and not isinstance(event, MessageCompleted))
            if isinstance(event, ModelDelta) and event.kind == "text":
                said.append(event.piece)
                callbacks.on_token(event.piece)
            elif isinstance(event, MessageCompleted):
                for call in event.message.calls:
                    callbacks.on_tool_call_start(call.name, call.arguments)
            elif isinstance(event, ToolFinished):
                callbacks.on_tool_call_end(event.name, str(event.content))
        result = await run
    if result.status == "failed" and result.error and not cut and result.error.kind not in ENDINGS:
        raise ls.LatchstepError(f"{result.error.kind}: {result.error.message}")
    callbacks.on_complete("".join(said))
    return items + items_of(result.messages[len(start) :])


def main() -> None:
    def show(text: str) -> None:
        print(text, end="", flush=True)

    started = lambda name, arguments: show(f"→ {name} {arguments}\n"[:200])  # noqa: E731
    ended = lambda name, text: show(f"← {name}: {len(text)} characters\n")  # noqa: E731
    run_agent(DEMO, [], Callbacks(show, started, ended, lambda text: show("\n")))


if __name__ == "__main__":
    main()
