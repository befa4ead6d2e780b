"""Law 4: whatever was said, what goes out is valid, stable, and repaired nowhere but here."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core.accept import LEGAL_ID
from latchstep.core.message import Message, Text, Thinking, ToolCall, ToolResult, user
from latchstep.core.project import MISSING, Projection
from tests.crash.simulate import check_request

ids = st.sampled_from(["c1", "c2", "c3", "call|x", "é", "", "y" * 50, "call-", "c1-2"])
texts = st.sampled_from(["hello", "", "  ", "\n", "a\ud83db", "nul\0"])
outputs = st.sampled_from(["hello", "", "  ", "\n"])
users = st.builds(
    lambda said, more: Message("user", (Text(said), *more)),
    texts,
    st.lists(st.builds(ToolResult, ids, st.just("t"), outputs), max_size=1),
)
assistants = st.builds(
    lambda blocks: Message("assistant", tuple(blocks)),
    st.lists(
        st.one_of(st.builds(Text, texts), st.builds(ToolCall, ids, st.just("t")), st.builds(Thinking, st.just("hm"))),
        max_size=4,
    ),
)
tools = st.builds(lambda id, said: Message("tool", (ToolResult(id, "t", said),)), ids, outputs)
histories = st.lists(st.one_of(users, assistants, tools), max_size=14)


@settings(max_examples=300, deadline=None)
@given(histories)
def test_any_history_goes_out_valid_and_its_repair_is_stable(history: list[Message]) -> None:
    before = msgspec.json.encode([(m.role, len(m.blocks)) for m in history])
    sent = list(Projection().feed(history))
    check_request(sent)
    assert all(LEGAL_ID.fullmatch(c.id) for m in sent for c in m.calls)
    assert msgspec.json.encode([(m.role, len(m.blocks)) for m in history]) == before
    assert list(Projection().feed(sent)) == sent
    for message in sent:
        assert not any(isinstance(b, ToolResult) for b in message.blocks) or message.role == "tool"


@settings(max_examples=200, deadline=None)
@given(st.lists(histories, max_size=5))
def test_what_went_out_never_changes(pieces: list[list[Message]]) -> None:
    projection = Projection()
    sent: list[Message] = []
    digests = []
    for piece in pieces:
        view = projection.feed(piece)
        assert list(view)[: len(sent)] == sent
        sent = list(view)
        check_request(sent)
        digests.append(projection.sha256(b"system"))
    again = Projection()
    repeated = []
    for piece in pieces:
        again.feed(piece)
        repeated.append(again.sha256(b"system"))
    assert repeated == digests


def test_a_view_keeps_its_length_while_the_list_grows() -> None:
    projection = Projection()
    view = projection.feed([user("one"), user("two")])
    longer = projection.feed([user("three")])
    assert [m.text for m in view] == ["one", "two"]
    assert (len(view), len(longer)) == (2, 3)
    assert view[-1].text == "two"
    assert [m.text for m in view[1:9]] == ["two"]
    with pytest.raises(IndexError):
        view[2]
    assert view.base is longer.base  # type: ignore[attr-defined]


def test_a_call_without_a_result_gets_one_that_claims_nothing() -> None:
    sent = list(Projection().feed([user("x"), Message("assistant", (ToolCall("c1", "t"),)), user("y")]))
    (result,) = sent[2].blocks
    assert isinstance(result, ToolResult)
    assert (result.text, result.outcome, result.is_error) == (MISSING, "interrupted", True)


def test_the_digest_covers_content_and_context_but_no_message_ids() -> None:
    def digest(*messages: Message, context: bytes = b"") -> str:
        projection = Projection()
        projection.feed(messages)
        return projection.sha256(context)

    one = digest(user("x", "id-1"))
    assert one == digest(user("x", "id-2"))
    different: list[Any] = [digest(user("y")), digest(user("x"), context=b"s"), digest(user("x"), user("z"))]
    assert len({one, *different}) == 4
