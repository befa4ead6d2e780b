"""Another model where the one in use stays down, as a wrapper around two or more.

Rule: what another model may cure is asked of the next; what is wrong with the request itself is not. Nothing that
matters is kept: which model is in use is a hint, and every change is said to watchers, so that it is recorded.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import msgspec

from latchstep.core.chunk import Chunk, Completed, Failed, Switched
from latchstep.errors import RETRYABLE, DefinitionError, ModelError
from latchstep.model.base import Model, Request, answering, discarded

CURABLE = RETRYABLE | {"quota", "auth", "permission", "not_found"}
"""Kinds that lie with a model, its provider or its account. Not so `bad_request`, `filtered` and `context_overflow`:
they lie with what was asked, and a conversation that is too long is not sent around until one takes it."""

PREFERRED = "preferred"
"""Why the first model is asked again."""


class Fallback:
    """See `fallback`."""

    def __init__(self, models: list[Model | str], *, stay: float, monotonic: Callable[[], float]) -> None:
        self._models = models
        self._stay, self._monotonic = stay, monotonic
        self._at, self._until, self._why = 0, 0.0, ""

    def __repr__(self) -> str:
        return f"fallback({', '.join(map(repr, self._models))})"

    @property
    def name(self) -> str:
        return self._name(0)

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """As the model in use; a `Failed` and a `Switched` stand before the next one's. Raises ModelError."""
        if self._monotonic() >= self._until:
            self._at = 0
        used, why = self._used(request), self._why if self._at else PREFERRED
        asked, tries = request, 0
        failures: list[str] = []
        for at in [*range(self._at, len(self._models)), *range(self._at)]:
            if (name := self._name(at)) != used:
                yield Switched(old=used, new=name, why=why)
            completed = False
            try:
                async with answering(self._model(at), asked) as chunks:
                    async for chunk in chunks:
                        if isinstance(chunk, Completed):
                            completed = True
                            yield msgspec.structs.replace(chunk, origin=chunk.origin or name)
                            return
                        tries += isinstance(chunk, Failed)
                        yield chunk
                raise ModelError("protocol", "the model's stream ended without an answer")
            except ModelError as error:
                if completed:
                    return  # the answer is out; what breaks while closing changes nothing
                failures.append(f"{name}: {error}")
                self._go_on(at, error, failures)
                failed = error
            yield discarded(failed, 0.0)
            used, why, tries = name, self._why, tries + 1
            asked = msgspec.structs.replace(request, attempt=request.attempt + tries, place=request.place + tries)

    def _go_on(self, at: int, error: ModelError, failures: list[str]) -> None:
        """The next model is in use from now on. Raises the error, naming all before it, where none may help."""
        last = len(failures) == len(self._models)
        if not last and error.kind in CURABLE:
            self._at = (at + 1) % len(self._models)
            self._until, self._why = self._monotonic() + self._stay, error.kind
            return
        if last:
            self._at = 0
        words = "; then ".join(failures) if len(failures) > 1 else error.message
        raise ModelError(error.kind, words, status=error.status, retry_after=error.retry_after) from error

    def _used(self, request: Request) -> str:
        """The name of the model that answered last in this conversation: what a watcher thinks is in use."""
        last = next((message.origin for message in reversed(request.messages) if message.role == "assistant"), "")
        return last if last in map(self._name, range(len(self._models))) else self.name

    def _name(self, at: int) -> str:
        given = self._models[at]
        return given if isinstance(given, str) else given.name

    def _model(self, at: int) -> Model:
        given = self._models[at]
        if isinstance(given, str):
            from latchstep.model.catalog import model

            given = self._models[at] = model(given)
        return given


def fallback(*models: Model | str, stay: float = 60.0, monotonic: Callable[[], float] = time.monotonic) -> Model:
    """The first of these models that answers. Its name is the first's, an answer's origin is who really gave it.

    models: two or more, as names or objects, in the order of preference. A name is looked up now and built when it is
    first asked: a missing key then counts as that model's failure. Each keeps its own retries (`retrying`); after them
    an error of a kind in `CURABLE` leads to the next, which is asked with `attempt` and `place` one higher.
    stay: seconds for which the next one stays in use before the first is tried again. Each is asked at most once a
    request. Raises DefinitionError; the stream raises the last ModelError, naming what each said.
    """
    if len(models) < 2:
        raise DefinitionError("fallback takes two models or more, the preferred one first")
    if not stay >= 0:
        raise DefinitionError(f"stay is a number of seconds, not {stay!r}")
    for given in models:
        if isinstance(given, str):
            from latchstep.model.catalog import service_of

            service_of(given)
        elif not isinstance(given, Model):
            raise DefinitionError(
                f"a model is a name or an object with `name` and `stream`, not {type(given).__name__}"
            )
    return Fallback(list(models), stay=stay, monotonic=monotonic)
