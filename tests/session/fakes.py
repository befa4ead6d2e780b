"""What the session's tests stand on: a journal that tells and obeys, models that misbehave, a loop that is watched."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.core.codec import decode_event, encode_event, stamp
from latchstep.core.message import Text, ToolCall
from latchstep.errors import JournalPoisoned
from latchstep.model.base import Request
from latchstep.session.build import build_kit, build_rules
from latchstep.session.session import Session

T = TypeVar("T")

HANG_SECONDS = 20.0
"""Nothing here takes this long: a test that does would never end."""


def go(main: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; no task may be left when it has ended."""

    async def watched() -> T:
        async with asyncio.timeout(HANG_SECONDS):
            value = await main
        for _ in range(5):  # callbacks that are already due
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"left behind: {left}"
        return value

    return asyncio.run(watched())


async def until(condition: Callable[[], object]) -> None:
    """Return when it holds."""
    while not condition():  # noqa: ASYNC110 (there is no event to wait for)
        await asyncio.sleep(0)


async def settled() -> None:
    """Return when everything that can happen without the outside has happened."""
    for _ in range(20):
        await asyncio.sleep(0)


class FakeJournal:
    """A journal in memory that logs what happens to it, fails when told, and holds a sync until it is let go.

    log: `append TYPE…`, `sync`, `synced`, and whatever the test's tools and models put in. held_type: `hold` holds
    only a sync that covers an event of this type.
    """

    directory: Path | None = None

    def __init__(self, events: Iterable[ev.Event] = (), *, log: list[str] | None = None) -> None:
        self.log: list[str] = [] if log is None else log
        self.events: list[ev.Event] = []
        self.synced = -1
        self.fail_append: Callable[[Sequence[ev.Event]], bool] = lambda events: False
        self.fail_sync: Callable[[], bool] = lambda: False
        self.hold: asyncio.Event | None = None
        self.held_type = ""
        self.syncing = False
        self.poisoned = self.closed = False
        self.blobs: dict[str, bytes] = {}
        self.size = 0
        given = list(events) or [ev.SessionCreated(session_id="20260101-000000-abcdef")]
        for event in given:
            self._keep(event)
        self.synced = self.head

    @property
    def head(self) -> int:
        return len(self.events) - 1

    def _keep(self, event: ev.Event) -> None:
        raw = encode_event(event)
        stamp(event, len(self.events))
        kept = decode_event(raw)
        stamp(kept, len(self.events))
        self.events.append(kept)
        self.size += len(raw)

    def append(self, events: Sequence[ev.Event]) -> int:
        assert not self.syncing, f"{[e.type for e in events]} appended while a sync is under way"
        if self.poisoned or self.closed:
            raise JournalPoisoned("the journal takes nothing more")
        if self.fail_append(events):
            self.poisoned = True
            raise JournalPoisoned("no space left on device", tuple(event.type for event in events))
        for event in events:
            self._keep(event)
        self.log.append("append " + " ".join(event.type for event in events))
        return self.head

    async def sync(self) -> None:
        assert not self.syncing, "two syncs at once"
        if self.poisoned:
            raise JournalPoisoned("the journal takes nothing more")
        target = self.head
        self.syncing = True
        self.log.append("sync")
        try:
            held = any(event.type == self.held_type for event in self.events[self.synced + 1 :])
            if self.hold is not None and (held or not self.held_type):
                with contextlib.suppress(TimeoutError):  # a test that fails lets nobody go
                    async with asyncio.timeout(HANG_SECONDS):
                        await self.hold.wait()
            if self.fail_sync():
                self.poisoned = True
                lost = tuple(event.type for event in self.events[self.synced + 1 :])
                del self.events[self.synced + 1 :]
                raise JournalPoisoned("the disk failed", lost)
        finally:
            self.syncing = False
        self.synced = target
        self.log.append("synced")

    def live(self) -> Iterator[ev.Event]:
        return self.read()

    def read(self, after: int = -1) -> Iterator[ev.Event]:
        return iter(self.events[after + 1 :])

    def put_blob(self, data: bytes) -> str:
        self.blobs[digest := sha256(data).hexdigest()] = data
        return digest

    def close(self) -> None:
        self.closed = True

    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]


def cut(journal: FakeJournal, length: int) -> FakeJournal:
    """What another process finds of it: its first `length` records."""
    copy = FakeJournal([decode_event(encode_event(event)) for event in journal.events[:length]])
    copy.blobs = dict(journal.blobs)
    return copy


def session_of(
    model: Any,
    tools: Sequence[Any] = (),
    *,
    journal: Any = None,
    limits: ls.Limits | None = None,
    policy: Any = None,
    approve: Any = None,
    checks: Sequence[str] = (),
    check: Any = None,
    on_doubt: Any = "report",
    on_stale_approval: Any = "ask",
    strict_protocol: bool = False,
    system: str = "",
    **more: Any,
) -> Session:
    """A session put together as the composition root does it."""
    if isinstance(model, list):
        model = ls.ScriptedModel(model)
    kit = build_kit(model, tools, system, check=check, approve=approve)
    rules = build_rules(
        kit,
        limits=limits,
        policy=policy,
        checks=checks,
        on_doubt=on_doubt,
        on_stale_approval=on_stale_approval,
        strict_protocol=strict_protocol,
    )
    return Session(journal if journal is not None else FakeJournal(), kit, rules, **more)


class Chunks:
    """A model that yields what it is given, whatever that is: chunks, exceptions to raise, functions to await."""

    name = "fake:chunks"

    def __init__(self, *answers: Sequence[Any]) -> None:
        self.answers = answers
        self.requests: list[Request] = []
        self.closed = 0

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
        try:
            for item in answer:
                if isinstance(item, BaseException):
                    raise item
                if callable(item):
                    await item()
                else:
                    yield item
        finally:
            self.closed += 1


def done(text: str = "done", **more: Any) -> Completed:
    return Completed(blocks=(Text(text),), stop_reason="stop", **more)


def calling(*calls: ToolCall, **more: Any) -> Completed:
    return Completed(blocks=calls, stop_reason="tool_calls", **more)


def text(piece: str) -> Delta:
    return Delta("text", piece)


def call(name: str, id: str = "", **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def check_requests(requests: Sequence[Request]) -> None:
    """Every request valid, and each the beginning of the next, message by message."""
    from tests.crash.simulate import check_request

    for request in requests:
        check_request(list(request.messages))
    for earlier, later in pairwise(requests):
        assert list(later.messages)[: len(earlier.messages)] == list(earlier.messages)


def results(result: ls.RunResult) -> list[ls.ToolResult]:
    return [block for message in result.messages for block in message.blocks if isinstance(block, ls.ToolResult)]


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


class Never(Exception):
    """Raised by what must not be reached."""
