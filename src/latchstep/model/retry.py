"""Asking again after a failure that may pass by itself, as a wrapper around any model.

Rule: bounded tries, exponential back-off with jitter, the server's own `Retry-After` as a minimum. A wait that
would be longer than the cap is not begun. What a failed attempt showed is void; `Failed` says so to watchers.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from latchstep.core.chunk import Chunk, Completed
from latchstep.errors import ModelError
from latchstep.model.base import Model, Request, answering, discarded


class Retrying:
    """See `retrying`."""

    def __init__(
        self,
        inner: Model,
        *,
        attempts: int,
        base: float,
        cap: float,
        sleep: Callable[[float], Awaitable[object]],
        jitter: Callable[[], float],
    ) -> None:
        self.inner = inner
        self._attempts, self._base, self._cap = attempts, base, cap
        self._sleep, self._jitter = sleep, jitter

    def __repr__(self) -> str:
        return f"retrying({self.inner!r}, attempts={self._attempts})"

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def native_output(self) -> bool:
        return getattr(self.inner, "native_output", False)

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """As the inner model; a `Failed` stands between two attempts. Raises the last attempt's ModelError."""
        asked = request
        for attempt in range(1, self._attempts + 1):
            completed = False
            try:
                async with answering(self.inner, asked) as chunks:
                    async for chunk in chunks:
                        completed = isinstance(chunk, Completed)
                        yield chunk
                        if completed:
                            return
                raise ModelError("protocol", "the model's stream ended without an answer")
            except ModelError as error:
                if completed:
                    return  # the answer is out; what breaks while closing changes nothing
                if not error.retryable or attempt == self._attempts:
                    raise
                failure = error
            wait = self._wait(attempt, failure)
            yield discarded(failure, wait)
            await self._sleep(wait)
            asked = msgspec.structs.replace(request, attempt=request.attempt + attempt, place=request.place + attempt)

    def _wait(self, attempt: int, error: ModelError) -> float:
        """Seconds until the next attempt; raises `error` where the server asks for more than the cap."""
        backoff = min(self._cap, self._base * 2.0 ** (attempt - 1)) * (0.5 + self._jitter() / 2)
        asked = error.retry_after
        if asked is None:
            return backoff
        if asked > self._cap:
            at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(min(time.time() + asked, 2**33)))
            error.message += f" (retry at {at}, in {asked:.0f} s; waits longer than {self._cap:g} s are not begun)"
            error.args = (error.message,)
            raise error
        return max(backoff, asked + self._jitter() * self._base)


def retrying(
    model: Model,
    *,
    attempts: int = 4,
    base: float = 1.0,
    cap: float = 60.0,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    jitter: Callable[[], float] = random.random,
) -> Model:
    """The model, asked again after a retryable ModelError, `attempts` times in all.

    base, cap: seconds before the second attempt, and the longest wait. The next attempt is asked with `attempt`
    and `place` one higher. Raises at once for what will not pass, and where the server's `Retry-After` is over
    the cap (`retry_after` of the error says it).
    """
    return Retrying(model, attempts=max(1, attempts), base=base, cap=cap, sleep=sleep, jitter=jitter)
