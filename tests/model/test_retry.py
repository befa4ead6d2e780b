"""The retry wrapper with a scripted inner model and a clock that only counts; then over the wire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from latchstep.core.chunk import Chunk, Completed, Delta, Failed
from latchstep.core.message import Text, user
from latchstep.errors import RETRYABLE, ModelError
from latchstep.model.base import Model, Request
from latchstep.model.openai_chat import build
from latchstep.model.retry import retrying
from tests.model.strict_chat import StrictChat, split, text_answer
from tests.model.vectors import vector

DONE = Completed(blocks=(Text("hello"),), stop_reason="stop")
PART = Delta("text", "hel")


class Scripted:
    """Plays one list of chunks a request; an exception in it is raised."""

    name = "scripted:m"

    def __init__(self, *scripts: list[Any]) -> None:
        self.scripts = list(scripts)
        self.requests: list[Request] = []
        self.closed = 0

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        try:
            for item in self.scripts.pop(0):
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed += 1


def run(inner: Model, *, jitter: float = 0.0, **options: Any) -> tuple[list[Chunk], list[float], ModelError | None]:
    """(chunks, waits, error)."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def collect() -> tuple[list[Chunk], ModelError | None]:
        chunks: list[Chunk] = []
        request = Request(request_id="r", messages=(user("hi"),), place=7)
        try:
            async for chunk in retrying(inner, sleep=sleep, jitter=lambda: jitter, **options).stream(request):
                chunks.append(chunk)
        except ModelError as error:
            return chunks, error
        return chunks, None

    chunks, error = asyncio.run(collect())
    return chunks, waits, error


def test_a_good_answer_passes_through() -> None:
    inner = Scripted([PART, DONE])
    assert run(inner) == ([PART, DONE], [], None)
    assert inner.closed == 1


def test_after_partial_output_the_attempt_is_void_and_asked_again() -> None:
    inner = Scripted([PART, ModelError("network", "gone")], [ModelError("overloaded", "busy")], [PART, DONE])
    chunks, waits, error = run(inner, jitter=1.0)
    failed = [
        Failed(kind="network", message="gone", retry_in=1.0),
        Failed(kind="overloaded", message="busy", retry_in=2.0),
    ]
    assert chunks == [PART, failed[0], failed[1], PART, DONE]
    assert waits == [1.0, 2.0]
    assert error is None
    assert [(request.attempt, request.place) for request in inner.requests] == [(1, 7), (2, 8), (3, 9)]
    assert inner.closed == 3


def test_attempts_are_bounded_and_waits_grow_to_the_cap() -> None:
    inner = Scripted(*[[ModelError("server", str(at))] for at in range(9)])
    chunks, waits, error = run(inner, attempts=9, jitter=1.0)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert error is not None
    assert error.message == "8"
    assert len(chunks) == 8
    assert run(Scripted([ModelError("server", "x")] * 1), attempts=1)[1] == []
    assert run(Scripted(*[[ModelError("server", "x")]] * 4))[1] == [0.5, 1.0, 2.0]


def test_what_will_not_pass_is_raised_at_once() -> None:
    for kind in ("auth", "permission", "not_found", "bad_request", "context_overflow", "filtered", "quota"):
        assert kind not in RETRYABLE
        inner = Scripted([PART, ModelError(kind, "x", retry_after=1)])  # type: ignore[arg-type]
        chunks, waits, error = run(inner)
        assert (chunks, waits) == ([PART], [])
        assert error is not None
        assert error.kind == kind


def test_a_stream_without_an_answer_is_a_failure() -> None:
    chunks, waits, error = run(Scripted([PART], [PART, DONE]))
    assert [type(chunk).__name__ for chunk in chunks] == ["Delta", "Failed", "Delta", "Completed"]
    assert (len(waits), error) == (1, None)


def test_what_comes_after_the_answer_changes_nothing() -> None:
    assert run(Scripted([DONE, PART, ModelError("network", "x")])) == ([DONE], [], None)

    class Breaks(Scripted):
        async def stream(self, request: Request) -> AsyncIterator[Chunk]:
            try:
                yield DONE
            finally:
                raise ModelError("network", "while closing")

    assert run(Breaks()) == ([DONE], [], None)


def test_retry_after_is_a_minimum_and_above_the_cap_nothing_is_begun() -> None:
    asked = ModelError("rate_limited", "slow", retry_after=30)
    assert run(Scripted([asked], [DONE]))[1] == [30]
    assert run(Scripted([ModelError("rate_limited", "slow", retry_after=30)], [DONE]), jitter=1.0)[1] == [31]
    assert run(Scripted([ModelError("rate_limited", "slow", retry_after=0)], [DONE]))[1] == [0.5]
    _, waits, error = run(Scripted([ModelError("rate_limited", "slow", retry_after=61)]))
    assert waits == []
    assert error is not None
    assert error.retry_after == 61
    assert "retry at 20" in error.message
    assert run(Scripted([ModelError("rate_limited", "slow", retry_after=1e30)]))[1] == []


def test_b36_over_the_wire() -> None:
    with StrictChat(split(vector("B36"))) as server:
        chunks, waits, error = run(build("m", server.url))
        assert len(server.bodies) == 3
        assert server.bodies[0] == server.bodies[1] == server.bodies[2]
    assert waits == [2.0, 1.0]
    assert error is not None
    assert (error.kind, error.retry_after) == ("rate_limited", 11180)
    assert [chunk.kind for chunk in chunks if isinstance(chunk, Failed)] == ["rate_limited", "overloaded"]


BACKOFF = 0.5
OPENAI = "Rate limit reached for m in organization org-1 on tokens per min (TPM): Limit 1, Used 1. "


@pytest.mark.parametrize(
    ("headers", "words", "waits"),
    [
        ("retry-after=7", "", 7.0),
        ("retry-after=2.5", "", 2.5),
        ("retry-after=0", "", BACKOFF),
        ("retry-after=60", "", 60.0),
        ("retry-after=61", "", None),
        ("retry-after=60.01", "", None),
        ("retry-after-ms=1500 retry-after=9", "", 1.5),
        ("retry-after-ms=-1 retry-after=9", "", 9.0),
        ("retry-after=Wed, 21 Oct 2015 07:28:00 GMT", "", BACKOFF),
        ("retry-after=Wed, 21 Oct 2015 07:28:00 -0000", "", BACKOFF),
        ("retry-after=Wednesday, 21-Oct-15 07:28:00 GMT", "", BACKOFF),
        ("retry-after=Wed Oct 21 07:28:00 2015", "", BACKOFF),
        ("retry-after=Wed, 21 Oct 9999 07:28:00 GMT", "", None),
        *((f"retry-after={junk}", "", BACKOFF) for junk in ("-5", "²", "NaN", "inf", "1e9", "soon", "9" * 400)),
        ("x-ratelimit-reset-requests=1s", "", 1.0),
        ("x-ratelimit-reset-tokens=2m59.5s", "", None),
        ("x-ratelimit-reset-tokens=6m0s x-ratelimit-remaining-tokens=0", "", None),
        ("x-ratelimit-reset-tokens=6m0s x-ratelimit-remaining-tokens=12", "", BACKOFF),
        ("x-ratelimit-reset-requests=1500ms x-ratelimit-reset-tokens=1.25s", "", 1.5),
        ("x-ratelimit-reset-requests=12 x-ratelimit-reset-tokens=-3", "", 12.0),
        ("x-ratelimit-reset-requests=120ms retry-after=9", "", 9.0),
        ("x-ratelimit-reset-requests=120ms", "", BACKOFF),
        *((f"x-ratelimit-reset-tokens={junk}", "", BACKOFF) for junk in ("s", "1x", "1s2", "²s", "9" * 400 + "s")),
        ("anthropic-ratelimit-requests-reset=2015-10-21T07:28:00Z", "", BACKOFF),
        ("anthropic-ratelimit-tokens-reset=9999-10-21T07:28:00Z", "", None),
        ("anthropic-ratelimit-tokens-reset=9999-10-21T07:28:00Z anthropic-ratelimit-tokens-remaining=5", "", BACKOFF),
        ("anthropic-ratelimit-input-tokens-reset=soon", "", BACKOFF),
        ("", OPENAI + "Please try again in 1.2s. Visit x to learn more.", 1.2),
        ("", OPENAI + "Please try again in 820ms.", 0.82),
        ("", OPENAI + "Please try again in 1m30s.", None),
        ("", "Please retry after 10 seconds.", 10.0),
        ("", "Please retry in 30.5s.", 30.5),
        ("", "Please try again in 1 minute 0 seconds!", 60.0),
        ("", "Please try again in a while, or in 2 moments", BACKOFF),
        ("retry-after=3", OPENAI + "Please try again in 50s.", 3.0),
        ("x-ratelimit-reset-tokens=40s", OPENAI + "Please try again in 1.2s.", 1.2),
    ],
)  # fmt: skip
def test_b36_every_form_of_the_wait_is_honoured_up_to_the_cap(headers: str, words: str, waits: float | None) -> None:
    """None: it is over the cap, and nothing is waited for."""
    refused = [f"#STATUS 429 {headers}", {"error": {"message": words or "slow down", "code": "rate_limit_exceeded"}}]
    with StrictChat([refused, text_answer("hello")]) as server:
        _, waited, error = run(build("m", server.url))
        assert waited == ([] if waits is None else [waits])
        assert len(server.bodies) == 1 + len(waited)
    assert (error is None) == (waits is not None)
    if error is not None:
        assert error.retry_after is not None
        assert error.retry_after > 60
        assert "waits longer than 60 s are not begun" in str(error)


def test_b36_a_moment_to_come_is_waited_for_and_a_reset_counts_only_for_a_limit() -> None:
    at = time.time() + 40
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(at))
    iso = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    for header in (f"retry-after={date}", f"anthropic-ratelimit-output-tokens-reset={iso}"):
        with StrictChat([[f"#STATUS 429 {header}"], text_answer("hello")]) as server:
            (waited,) = run(build("m", server.url))[1]
            assert 20 < waited <= 40
    with StrictChat([["#STATUS 500 x-ratelimit-reset-tokens=30s"], text_answer("hello")]) as server:
        assert run(build("m", server.url))[1] == [BACKOFF]
    event = {"error": {"code": "rate_limit_exceeded", "message": OPENAI + "Please try again in 1.2s."}}
    with StrictChat([[text_answer("Par")[0], event], text_answer("hello")]) as server:
        assert run(build("m", server.url))[1] == [1.2]


def test_b31_and_b33_are_asked_again() -> None:
    half = text_answer("Par")[:1]
    for first in ([*half, "#EOF"], [*half, "#RST"], [*half, {"error": {"type": "overloaded_error", "message": "x"}}]):
        with StrictChat([first, text_answer("hello")]) as server:
            chunks, waits, error = run(build("m", server.url))
            assert (len(waits), error, len(server.bodies)) == (1, None, 2)
            assert sum(isinstance(chunk, Completed) for chunk in chunks) == 1
    with StrictChat([[*half, {"error": {"type": "invalid_request_error", "message": "x"}}]]) as server:
        assert run(build("m", server.url))[1] == []
        assert len(server.bodies) == 1


def test_the_wait_can_be_cancelled_and_the_wrapper_closed() -> None:
    inner = Scripted([PART, ModelError("network", "x")])

    async def cancelled() -> None:
        async def collect() -> None:
            async for _ in retrying(inner, base=1_000, cap=1_000).stream(Request(request_id="r", messages=())):
                pass

        task = asyncio.create_task(collect())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert inner.closed == 1
    inner = Scripted([PART, DONE])

    async def left() -> None:
        chunks: Any = retrying(inner).stream(Request(request_id="r", messages=()))
        async with aclosing(chunks):
            await anext(chunks)
        assert inner.closed == 1

    asyncio.run(left())
