"""A governed coding agent: all on record, resumed only where and as it began, done only when its checks pass.

`python examples/rivumi.py "TASK"` works in the current repository; without a task it goes on with what it left.
RIVUMI_MODEL names the model (RIVUMI_URL its server), RIVUMI_CHECK the command that must pass.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import latchstep as ls
from latchstep.core.state import fold
from latchstep.journal.base import new_session_id
from latchstep.journal.store import Store, default_root
from latchstep.policy.preset import preset
from latchstep.session.build import build_rules
from latchstep.session.coding import coding_kit
from latchstep.tool.head import head_of

LIMITS = ls.Limits(max_steps=40, max_seconds=1_800, max_tool_calls=200, max_truncations=3)


def governed(
    store: Store, root: Path, model: Any, *, checks: Sequence[str], approve: Callable[[Any], Any], old: str | None
) -> ls.Session:
    """A new session in `root`, or an `old` one where nothing it began with has changed. Raises SessionError."""
    if not (head := head_of(root)):
        raise ls.SessionError(f"{root} is no git repository with a commit")
    now = time.time()
    journal = store.open(old) if old else store.create(new_session_id(now), time=now, workspace=str(root))
    state = fold(journal.live())
    if (run := state.run) is not None and run.active:
        pinned = {"HEAD": (run.started.head, head), "the model": (run.model or run.started.model, model.name)}
        if moved := [f"{what} was {then} and is {at}" for what, (then, at) in pinned.items() if then != at]:
            journal.close()
            raise ls.SessionError(f"session {state.session_id} does not go on: {'; '.join(moved)}")
    kit = coding_kit(model, root, directory=journal.directory, approve=approve)
    kit.head = head
    doubts: dict[str, Any] = {"on_doubt": "fail", "on_stale_approval": "abandon"}
    rules = build_rules(kit, limits=LIMITS, policy=preset("edits", asks=True), checks=checks, **doubts)
    return ls.Session(journal, kit, rules, state=state)


async def main(task: str | None) -> None:
    store, model = Store(default_root()), ls.model(os.environ["RIVUMI_MODEL"], base_url=os.environ.get("RIVUMI_URL"))
    checks, old = [os.environ.get("RIVUMI_CHECK", "true")], None if task else store.last(str(Path.cwd()))
    ask: Callable[[Any], bool] = lambda q: input(f"{q.name} {q.arguments}? ") == "y"  # noqa: E731
    session = governed(store, Path.cwd(), model, checks=checks, approve=ask, old=old)
    async for event in (run := session.stream(task)):
        print(event.type, *(getattr(event, name, "") for name in ("because", "outcome", "status")), flush=True)
    await run
    await session.close()


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or None))
