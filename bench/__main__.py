"""All figures of docs/performance.md in one command, as JSON: `python -m bench` (or `make bench`)."""

from __future__ import annotations

import asyncio
import json
import platform

from . import long, loop, opening, process, sandbox, search, snapshot, terminal, wires


async def in_process() -> dict[str, object]:
    return {
        "step": await loop.steps(),
        "journal": await loop.journaled(),
        "delta": await loop.deltas(),
        "wires": await wires.wires(),
        "concurrent": await loop.concurrent(),
        "sandbox": await sandbox.sandbox(),
        "search": await search.search(),
    }


def main() -> None:
    figures = {
        "machine": {"python": platform.python_version(), "system": platform.platform(terse=True)},
        "terminal": terminal.terminal(),
        "snapshot": snapshot.snapshots(),
        **asyncio.run(in_process()),
        "opening": opening.opening(),
        "import": process.imports(),
        "run": process.first_request(),
        "long": long.long(),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
