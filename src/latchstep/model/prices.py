"""What an answer cost and how much its model takes, from the table of `genai-prices`, as a wrapper around any model.

Rule: what the provider itself says wins, and what is not known is None, never zero. The table is loaded after the
first answer, off the event loop, as it takes 0.2 CPU-seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib.util import find_spec

import msgspec

from latchstep.core.chunk import Chunk, Completed
from latchstep.core.message import Usage
from latchstep.errors import ModelError
from latchstep.model.base import Model, Request, answering


class Priced:
    """See `priced`."""

    def __init__(self, inner: Model, known_as: str, url: str) -> None:
        self.inner = inner
        self._known_as, self._url = known_as, url

    def __repr__(self) -> str:
        return f"priced({self.inner!r})"

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def native_output(self) -> bool:
        return getattr(self.inner, "native_output", False)

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """As the inner model, with cost and window on its `Completed`; a cost on the ModelError of what was counted."""
        try:
            async with answering(self.inner, request) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, Completed) and chunk.cost is None and chunk.usage.total:
                        names = (chunk.model, self._known_as)
                        cost, window = await asyncio.to_thread(look_up, names, self._url, chunk.usage)
                        yield msgspec.structs.replace(chunk, cost=cost, window=chunk.window or window)
                    else:
                        yield chunk
        except ModelError as error:
            if error.cost is None and error.usage is not None and error.usage.total:
                error.cost, _ = await asyncio.to_thread(look_up, (self._known_as,), self._url, error.usage)
            raise


def look_up(names: tuple[str, ...], url: str, usage: Usage) -> tuple[float | None, int]:
    """(US dollars for these tokens, None where no such model is known at this URL; tokens the model takes, 0 where
    that is unknown). The first name that is known counts, and a price of zero is unknown. Imports `genai_prices`."""
    for name in names:
        try:
            import genai_prices

            tokens = genai_prices.Usage(
                input_tokens=usage.input,  # cached ones included, as here
                cache_read_tokens=usage.cache_read,
                cache_write_tokens=usage.cache_write,
                output_tokens=usage.output,
            )
            found = genai_prices.calc_price(tokens, name, provider_api_url=url)
            return float(found.total_price) or None, found.model.context_window or 0
        except Exception:  # not known, counts that contradict each other, a broken package: the answer stays good
            continue
    return None, 0


def priced(model: Model, known_as: str, url: str) -> Model:
    """The model, with what its answers cost; the model itself where `genai-prices` is not installed.

    known_as: what the provider calls it, where an answer does not say. url: the API's address, which tells whose
    prices apply: behind any other, such as a proxy of your own, the price is unknown.
    """
    return Priced(model, known_as, url) if find_spec("genai_prices") is not None else model
