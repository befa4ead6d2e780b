"""Run a coroutine to its end from synchronous code, without ever hanging on what it left behind.

`asyncio.run` waits for every task that ignores cancellation; here they get a bounded time.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from latchstep.errors import LatchstepError

T = TypeVar("T")

LEFTOVER_SECONDS = 2.0
"""How long tasks left behind may take to stop once the main one has ended."""


def run_blocking(main: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result. Ctrl-C cancels it, once, and is raised as KeyboardInterrupt when it has ended."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        main.close()
        raise LatchstepError("an event loop is already running here; await the asynchronous form instead")
    loop = asyncio.new_event_loop()
    task = loop.create_task(main)
    previous = _cancel_on_interrupt(loop, task)
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        if previous is not None:
            raise KeyboardInterrupt from None
        raise
    finally:
        if previous is not None:
            signal.signal(signal.SIGINT, previous)
        _close(loop)


def _cancel_on_interrupt(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> Any:
    """SIGINT cancels the task; the previous handler, or None where signals are not ours to set."""
    if threading.current_thread() is not threading.main_thread():
        return None
    previous = signal.getsignal(signal.SIGINT)
    if previous is not signal.default_int_handler:
        return None
    signal.signal(signal.SIGINT, lambda number, frame: loop.call_soon_threadsafe(task.cancel))
    return previous


def _close(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=LEFTOVER_SECONDS))
        for task in left:
            if not task.done():  # deaf: it was reported when its run ended
                task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
