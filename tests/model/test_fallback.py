"""The fallback wrapper with scripted inner models and a clock that only counts; then over the wire."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, get_args

import pytest

from latchstep.core.chunk import Chunk, Completed, Delta, Failed, Switched
from latchstep.core.message import Message, Text, user
from latchstep.errors import DefinitionError, ModelError, ModelErrorKind
from latchstep.model.base import Model, Request
from latchstep.model.fallback import CURABLE, PREFERRED, fallback
from latchstep.model.openai_chat import build
from latchstep.model.retry import retrying
from tests.model.strict_anthropic import streamed, strict_anthropic
from tests.model.strict_chat import StrictChat, text_answer
from tests.model.test_catalog import no_keys  # noqa: F401 (a fixture)
from tests.model.test_retry import DONE, PART, Scripted


class Named(Scripted):
    def __init__(self, name: str, *scripts: list[Any]) -> None:
        super().__init__(*scripts)
        self.name = name


def down(kind: Any = "overloaded", words: str = "busy") -> list[Any]:
    return [PART, ModelError(kind, words, status=529, retry_after=3)]


def answered(name: str) -> Completed:
    return Completed(blocks=(Text("hello"),), stop_reason="stop", origin=name)


def failed(kind: str = "overloaded", words: str = "busy") -> Failed:
    return Failed(kind=kind, message=words, retry_in=0.0)


def switched(old: str, new: str, why: str = "overloaded") -> Switched:
    return Switched(old=old, new=new, why=why)


def said_by(name: str) -> list[Message]:
    return [user("hi"), Message("assistant", (Text("x"),), origin=name), user("more")]


def ask(model: Model, messages: Sequence[Message] = (user("hi"),)) -> tuple[list[Chunk], ModelError | None]:
    """(chunks, error) of one request."""

    async def collect() -> tuple[list[Chunk], ModelError | None]:
        chunks: list[Chunk] = []
        try:
            async for chunk in model.stream(Request(request_id="r", messages=messages, place=7)):
                chunks.append(chunk)
        except ModelError as error:
            return chunks, error
        return chunks, None

    return asyncio.run(collect())


def test_a_good_answer_passes_with_its_origin() -> None:
    first, second = Named("p:a", [PART, DONE]), Named("p:b")
    model = fallback(first, second)
    assert model.name == "p:a"
    assert ask(model) == ([PART, answered("p:a")], None)
    assert (first.closed, second.requests) == (1, [])


def test_the_next_one_is_asked_with_the_next_attempt_and_place() -> None:
    first, second = Named("p:a", down()), Named("p:b", [PART, DONE])
    chunks, error = ask(fallback(first, second))
    assert chunks == [PART, failed(), switched("p:a", "p:b"), PART, answered("p:b")]
    assert error is None
    assert [(request.attempt, request.place) for request in first.requests + second.requests] == [(1, 7), (2, 8)]
    assert (first.closed, second.closed) == (1, 1)


def test_what_a_model_retried_by_itself_counts() -> None:
    async def at_once(seconds: float) -> None:
        pass

    first, second = Named("p:a", down(), down(), down()), Named("p:b", [DONE])
    chunks, _ = ask(fallback(retrying(first, attempts=3, sleep=at_once), second))
    assert sum(isinstance(chunk, Failed) for chunk in chunks) == 3
    assert [(request.attempt, request.place) for request in second.requests] == [(4, 10)]


@pytest.mark.parametrize("kind", get_args(ModelErrorKind))
def test_what_lies_with_the_request_is_not_asked_elsewhere(kind: Any) -> None:
    second = Named("p:b", [DONE])
    chunks, error = ask(fallback(Named("p:a", down(kind, "no")), second))
    assert (kind in CURABLE) == (kind not in ("bad_request", "context_overflow", "filtered"))
    if kind in CURABLE:
        assert chunks[1:3] == [failed(kind, "no"), switched("p:a", "p:b", kind)]
    else:
        assert (chunks, second.requests) == ([PART], [])
        assert error is not None
        assert (error.kind, error.message, error.status, error.retry_after) == (kind, "no", 529, 3)


def test_where_all_fail_the_last_error_names_each() -> None:
    broken = ModelError("rate_limited", "slow", status=429, retry_after=9)
    models = [Named("p:a", down(), down()), Named("p:b", down("auth", "no key"), [DONE]), Named("p:c", [broken])]
    model = fallback(*models)
    chunks, error = ask(model)
    assert [chunk.new for chunk in chunks if isinstance(chunk, Switched)] == ["p:b", "p:c"]
    assert error is not None
    assert (error.kind, error.status, error.retry_after) == ("rate_limited", 429, 9)
    assert error.message == "p:a: overloaded: busy; then p:b: auth: no key; then p:c: rate_limited: slow"
    assert broken.message == "slow"
    assert ask(model)[0] == [PART, failed(), switched("p:a", "p:b"), answered("p:b")]  # the preferred one comes first
    _, error = ask(fallback(Named("p:a", down()), Named("p:b", down("bad_request", "what?")), Named("p:c", [DONE])))
    assert error is not None
    assert (error.kind, error.message) == ("bad_request", "p:a: overloaded: busy; then p:b: bad_request: what?")


def test_it_stays_with_the_next_one_and_comes_back() -> None:
    now = 100.0
    first = Named("p:a", down(), [DONE], [DONE])
    second = Named("p:b", [DONE], [DONE], down())
    model = fallback(first, second, stay=60, monotonic=lambda: now)
    assert ask(model)[0][-1] == answered("p:b")
    now = 159.9
    assert ask(model, said_by("p:b")) == ([answered("p:b")], None)
    assert len(first.requests) == 1
    # in use and down: the preferred one is asked before its time, rather than nobody
    chunks, _ = ask(model, said_by("p:b"))
    assert chunks == [PART, failed(), switched("p:b", "p:a"), answered("p:a")]
    now = 999.0
    assert ask(model, said_by("p:b")) == ([switched("p:b", "p:a", PREFERRED), answered("p:a")], None)


def test_another_conversation_is_told_who_is_in_use() -> None:
    first = Named("p:a", down())
    model = fallback(first, Named("p:b", *[[DONE]] * 5), stay=float("inf"))
    ask(model)
    for messages in ([user("hi")], said_by("p:a"), said_by("q:other")):
        assert ask(model, messages) == ([switched("p:a", "p:b"), answered("p:b")], None), messages
    assert ask(fallback(model, Named("p:c")), said_by("p:b"))[0][-1] == answered("p:b")
    assert len(first.requests) == 1


def test_a_stream_without_an_answer_is_a_failure_and_what_follows_the_answer_is_not() -> None:
    chunks, _ = ask(fallback(Named("p:a", [PART]), Named("p:b", [DONE])))
    assert [type(chunk) for chunk in chunks] == [Delta, Failed, Switched, Completed]
    late = Named("p:a", [DONE, PART, ModelError("network", "x")])
    assert ask(fallback(late, Named("p:b"))) == ([answered("p:a")], None)


def test_one_name_at_two_places_is_no_switch() -> None:
    chunks, _ = ask(fallback(Named("p:a", down()), Named("p:a", [DONE])))
    assert chunks == [PART, failed(), answered("p:a")]


def test_leaving_closes_the_model_in_use() -> None:
    first, second = Named("p:a", down()), Named("p:b", [PART, DONE])

    async def left() -> None:
        chunks: Any = fallback(first, second).stream(Request(request_id="r", messages=()))
        async with aclosing(chunks):
            while not second.requests:
                await anext(chunks)
        assert (first.closed, second.closed) == (1, 1)

    asyncio.run(left())


def test_what_is_no_fallback_is_said_where_it_is_declared() -> None:
    good = Named("p:a")
    wrong: list[Any] = [(), (good,), (good, "nosuch:m"), (good, "openai-chat:"), (good, 3)]
    for models in wrong:
        with pytest.raises(DefinitionError):
            fallback(*models)
    for stay in (-1.0, float("nan")):
        with pytest.raises(DefinitionError, match="stay"):
            fallback(good, good, stay=stay)


@pytest.mark.usefixtures("no_keys")
def test_names_are_built_when_they_are_asked() -> None:
    with strict_anthropic([streamed({"type": "text", "text": "hello"})] * 2) as server:
        os.environ["ANTHROPIC_BASE_URL"] = server.url
        model = fallback("openai-chat:m", "anthropic:n")
        assert model.name == "openai-chat:m"
        chunks, error = ask(model)
        assert error is None
        assert [type(chunk).__name__ for chunk in chunks] == ["Failed", "Switched", "Delta", "Delta", "Completed"]
        assert isinstance(chunks[0], Failed)
        assert chunks[0].kind == "auth"
        assert "OPENAI_API_KEY" in chunks[0].message
        assert isinstance(chunks[-1], Completed)
        assert chunks[-1].origin == "anthropic:n"
        assert server.refused == []


def test_over_the_wire() -> None:
    half = text_answer("Par")[:1]
    with StrictChat([[*half, "#EOF"]]) as first, StrictChat([text_answer("hello")]) as second:
        model = fallback(build("m", first.url, name="one:m"), build("m", second.url, name="two:m"))
        chunks, error = ask(model)
        assert error is None
        assert [type(chunk) for chunk in chunks] == [Delta, Failed, Switched, Delta, Completed]
        assert first.bodies == second.bodies
        first.wait(lambda: first.open == 0)
