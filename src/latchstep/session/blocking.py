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
    ours = _cancel_on_interrupt(loop, task)
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        if ours:
            raise KeyboardInterrupt from None
        raise
    finally:
        if ours:
            loop.remove_signal_handler(signal.SIGINT)  # which sets Python's own again
        _close(loop)


def _cancel_on_interrupt(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> bool:
    """SIGINT cancels the task; whether it does: signals may not be ours to set.

    Through the loop's wake-up descriptor: a plain handler waits for the next bytecode of the main thread, and a
    signal that comes just before the loop goes to sleep would be seen when something else wakes it.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    return True


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
