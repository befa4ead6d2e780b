"""The owner of a sandbox, as a process of its own: reads requests as JSON lines, runs them, answers in lines.

It stands for the agent: it holds a key, a home, a store of sessions, and must not lose them to a command.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from latchstep.errors import LatchstepError
from latchstep.tool.capture import Capture
from latchstep.tool.probe import trial
from latchstep.tool.sandbox import RLIMITS, Sandbox
from latchstep.tool.spawner import Spawner


async def main(told: dict[str, Any]) -> None:
    signals: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: signals.append(number))
    store = Path(told["store"])
    RLIMITS.update(told["limits"])
    sandbox = Sandbox(told["level"], told["root"], told["net"], told.get("cache", ""), (str(store),))
    spawner = Spawner(lock_path=store / "tools.lock", sandbox=sandbox)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        asked = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            match asked["do"]:
                case "run":
                    capture = Capture(Path(asked["keep"])) if asked.get("keep") else None
                    ended = await spawner.run(
                        asked["command"], cwd=told["root"], timeout=asked["timeout"], capture=capture
                    )
                    answer = {
                        "status": ended.exit_status,
                        "signal": ended.signal,
                        "unknown": ended.unknown,
                        "out": (ended.head + ended.tail).decode(errors="replace"),
                        "restarted": ended.restarted,
                    }
                case "close":
                    await spawner.close(0.0)
                case "trial":
                    answer = {"problem": await trial(sandbox)}
        except LatchstepError as error:
            answer = {"status": None, "signal": "", "unknown": "", "out": "", "restarted": "", "error": str(error)}
        answer["signals"] = len(signals)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    await spawner.close(0.0)


if __name__ == "__main__":
    os.umask(0o022)
    asyncio.run(main(json.loads(sys.argv[1])))
