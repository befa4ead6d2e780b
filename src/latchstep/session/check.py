"""Declared checks: commands that the harness itself runs before a run with changes is `completed`.

The person who starts the run declares them, so nobody is asked about them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .kit import Checker

if TYPE_CHECKING:
    from latchstep.core.secrets import Masker
    from latchstep.tool.spawner import Finished, Spawner

MAX_SECONDS = 3600.0
"""A check that runs longer is stopped, and has failed. `Limits.tool_timeout` is usually shorter."""

SHOWN = 8_000
"""Bytes of a check's output that are recorded and go back to the model, half from each end."""


def checker(
    root: Path,
    spawner: Spawner | None = None,
    masker: Masker | None = None,
    refuse_gone: Callable[[], None] = lambda: None,
) -> Checker:
    """Runs commands in `root` by this spawner, or each by one of its own that ends with it. masker: see `Capture`.

    refuse_gone: raises ToolError where `root` is no longer the folder it was.
    """

    async def check(command: str) -> tuple[int | None, str]:
        from latchstep.errors import ToolError
        from latchstep.tool.capture import Capture
        from latchstep.tool.spawner import Spawner

        own = spawner or Spawner()
        try:
            refuse_gone()
            ended = await own.run(command, cwd=root, timeout=MAX_SECONDS, capture=Capture(masker=masker))
        except (ToolError, ValueError) as error:
            return None, str(error)
        finally:
            if own is not spawner:
                await own.close()
        return _status(ended), _output(ended)

    return check


def _status(ended: Finished) -> int | None:
    """The exit status, negative for a signal; None for one that did not end by itself."""
    import signal

    if ended.timed_out or ended.unknown:
        return None
    return -int(signal.Signals[ended.signal]) if ended.signal else ended.exit_status


def _output(ended: Finished) -> str:
    from latchstep.tool.text import clean_output

    data = ended.head + ended.tail
    if len(data) == ended.total <= SHOWN:
        return clean_output(data)
    head, tail = ended.head[: SHOWN // 2], data[-SHOWN // 2 :]
    left_out = ended.total - len(head) - len(tail)
    return f"{clean_output(head)}\n[… {left_out} bytes left out …]\n{clean_output(tail)}"
