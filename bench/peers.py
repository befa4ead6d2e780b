"""CPU of a tool step beside a peer's, in one run on one machine, as JSON: `make bench-peers`.

Both answer from a function, run the same trivial tool and keep the whole conversation. Ours validates, records and
shows every event. A step costs what the whole run costs, divided by its steps; the best of some rounds.
"""

from __future__ import annotations

import asyncio
import gc
import json
import platform
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from time import process_time

from pydantic_ai import Agent  # type: ignore[import-not-found, unused-ignore]
from pydantic_ai.messages import (  # type: ignore[import-not-found, unused-ignore]
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import (  # type: ignore[import-not-found, unused-ignore]
    AgentInfo,
    FunctionModel,
)
from pydantic_ai.usage import UsageLimits  # type: ignore[import-not-found, unused-ignore]

from .loop import add, run_steps

STEPS = (10, 100)
ROUNDS = 7


async def pydantic_ai(steps: int) -> float:
    """CPU seconds of one run of so many tool steps."""
    done = 0

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal done
        if done == steps:
            return ModelResponse(parts=[TextPart("done")])
        done += 1
        return ModelResponse(parts=[ToolCallPart("add", {"left": done, "right": 1}, f"c{done}")])

    async def sum_of(left: int, right: int) -> int:
        """Add two integers."""
        return left + right

    agent = Agent(FunctionModel(answer))
    agent.tool_plain(sum_of, name="add")
    gc.collect()
    began = process_time()
    result = await agent.run("go", usage_limits=UsageLimits(request_limit=None))
    used = process_time() - began
    assert (result.output, done) == ("done", steps)
    return used


async def ours(steps: int) -> float:
    return await run_steps(add, steps)


async def best(runs: list[Callable[[int], Awaitable[float]]], steps: int) -> list[float]:
    """Microseconds a step of each, taken in turn."""
    rounds = [[await run(steps) for run in runs] for _ in range(ROUNDS)]
    return [round(min(took) / steps * 1e6, 1) for took in zip(*rounds, strict=True)]


async def main() -> None:
    figures: dict[str, object] = {
        "machine": {"python": platform.python_version(), "system": platform.platform(terse=True)},
        "peer": f"pydantic-ai-slim {version('pydantic-ai-slim')}",
    }
    await ours(1)
    await pydantic_ai(1)  # what is imported or compiled on first use
    for steps in STEPS:
        mine, theirs = await best([ours, pydantic_ai], steps)
        figures[f"{steps}_steps"] = {"ours_us": mine, "peer_us": theirs, "ratio": round(theirs / mine, 1)}
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
