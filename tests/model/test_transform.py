"""What a model is sent may be changed right before it goes out; the record is not, and nothing invalid leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import latchstep as ls
from latchstep.core.message import Message, Text
from latchstep.model.retry import retrying
from latchstep.model.transform import transformed
from tests.crash.simulate import check_request
from tests.session.fakes import Chunks, call, calling, check_requests, done, go, session_of


@ls.tool(effect="read")
async def look(n: int = 0) -> str:
    return f"saw {n}"


def masked(messages: Sequence[Message]) -> list[Message]:
    """Key numbers do not leave."""

    def hide(block: Any) -> Any:
        return Text(block.text.replace("1234", "…")) if isinstance(block, Text) else block

    return [Message(m.role, tuple(map(hide, m.blocks)), m.id, m.origin) for m in messages]


async def later(messages: Sequence[Message]) -> list[Message]:
    return masked(messages)


@pytest.mark.parametrize("transform", [masked, later])
def test_the_model_sees_what_the_transform_gives_and_the_record_keeps_what_was_said(transform: Any) -> None:
    inner = Chunks([calling(call("look", "a"))], [done()])
    model = transformed(inner, transform)
    assert model.name == inner.name
    result = go(session_of(model, [look]).run("my key is 1234"))
    assert (result.status, result.messages[0].text) == ("completed", "my key is 1234")
    assert [request.messages[0].text for request in inner.requests] == ["my key is …"] * 2
    check_requests(inner.requests)


@pytest.mark.parametrize("keep", range(1, 7))
def test_a_history_cut_anywhere_is_still_a_valid_request(keep: int) -> None:
    inner = Chunks([calling(call("look", "a", n=1), call("look", "b", n=2))], [calling(call("look", "c"))], [done()])
    result = go(session_of(transformed(inner, lambda messages: messages[-keep:]), [look]).run("go"))
    if result.status == "failed":  # only results were left, whose calls are gone
        assert "left no message" in (result.error.message if result.error else "")
    for request in inner.requests:
        check_request(list(request.messages))


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (lambda messages: 1 / 0, "the context transform failed: ZeroDivisionError"),
        (lambda messages: None, "the context transform failed"),
        (lambda messages: ["text"], "the context transform failed"),
        (lambda messages: [], "the context transform left no message"),
    ],
)
def test_one_that_fails_is_a_failure_that_is_not_tried_again(transform: Any, words: str) -> None:
    inner = Chunks([done()])
    result = go(session_of(retrying(transformed(inner, transform)), [look]).run("go"))
    assert (result.status, inner.requests) == ("failed", [])
    assert result.error is not None
    assert (result.error.kind, words in result.error.message) == ("MODEL_BAD_REQUEST", True)


def test_the_ability_to_hold_an_answer_to_a_schema_is_handed_on() -> None:
    class Native(Chunks):
        native_output = True

    assert transformed(Native(), masked).native_output is True  # type: ignore[attr-defined]
    assert transformed(Chunks(), masked).native_output is False  # type: ignore[attr-defined]
