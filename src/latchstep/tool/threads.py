"""Calls functions of a tool, async or not; synchronous ones in daemon threads that are reused.

Never the default executor: the interpreter waits for its threads at exit, and a tool that never returns
would then never let go of the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Job = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]

_idle: list[SimpleQueue[Job]] = []
"""Queues of threads that wait for work. Appending and popping a list are atomic."""


async def invoke(function: Any, args: tuple[Any, ...], thread: bool, kwargs: dict[str, Any] | None = None) -> Any:
    """Call a tool's function, async or not; a synchronous one in a thread, unless it asks not to."""
    kwargs = kwargs or {}
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    value = await in_thread(lambda: function(*args, **kwargs)) if thread else function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


async def in_thread(function: Callable[[], Any]) -> Any:
    """Call `function` in a daemon thread, with the caller's context variables.

    A thread cannot be stopped: the first cancellation is remembered while the function is waited for, and
    raised when it ends; a second one leaves the thread behind and is raised at once.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()
    try:
        queue = _idle.pop()
    except IndexError:
        queue = SimpleQueue()
        threading.Thread(target=_work, args=(queue,), name="latchstep-tool", daemon=True).start()
    queue.put((lambda: context.run(function), done, loop))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if done.done():
            raise
        await asyncio.wait([done])
        raise


def _work(queue: SimpleQueue[Job]) -> None:
    while True:
        function, done, loop = queue.get()
        try:
            value, error = function(), None
        except BaseException as caught:
            value, error = None, caught
        del function
        try:
            loop.call_soon_threadsafe(_settle, done, value, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass
        del done, loop, value, error
        _idle.append(queue)


def _settle(done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(value)
        return
    if isinstance(error, StopIteration):  # a future refuses it
        error = RuntimeError(f"the function raised {error!r}")
    done.set_exception(error)
    done.exception()  # seen: a function abandoned by its caller must not be reported as never retrieved
