"""Changing what a model is sent, right before it is encoded, as a wrapper around any model.

Rule: the record is not touched, and whatever the transform gives is repaired as a transcript is. A provider's prompt
cache holds only as far as the transform gives the same beginning again.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from msgspec.structs import replace

from latchstep.core import wording
from latchstep.core.chunk import Chunk
from latchstep.core.message import Message
from latchstep.core.project import Projection
from latchstep.errors import ModelError
from latchstep.model.base import Model, Request, answering

Transform = Callable[[Sequence[Message]], Sequence[Message] | Awaitable[Sequence[Message]]]


class Transformed:
    """See `transformed`."""

    def __init__(self, inner: Model, transform: Transform) -> None:
        self.inner, self._transform = inner, transform

    def __repr__(self) -> str:
        return f"transformed({self.inner!r})"

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def native_output(self) -> bool:
        return getattr(self.inner, "native_output", False)

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """As the inner model. Raises ModelError("bad_request") where the transform fails, or leaves nothing to say."""
        try:
            given = self._transform(request.messages)
            messages = tuple(Projection().feed(tuple(await given if inspect.isawaitable(given) else given)))
        except Exception as error:
            raise ModelError("bad_request", f"the context transform failed: {wording.of_error(error)}") from error
        if not messages:
            raise ModelError("bad_request", "the context transform left no message")
        async with answering(self.inner, replace(request, messages=messages)) as chunks:
            async for chunk in chunks:
                yield chunk


def transformed(model: Model, transform: Transform) -> Model:
    """The model, which sees of each request's messages what the transform makes of them.

    transform(messages) -> messages, sync or async: called once a request, with everything said so far; it must not
    change what it is given, and gives the same for the same. Calls and results that it parts are repaired as in any
    transcript: a result without its call is dropped, a call without its result gets one that says so.
    """
    return Transformed(model, transform)
