"""What a wire keeps of a history it has encoded, and when it lets go."""

from __future__ import annotations

from typing import Any

import latchstep.model.history as module
from latchstep.core.message import Message, Text, user
from latchstep.core.project import Projection
from latchstep.model.history import History


def encode(messages: list[Message], taken: set[str], place: int) -> tuple[list[bytes], set[str]]:
    ENCODED.extend(messages)
    return [message.text.encode() for message in messages], set()


ENCODED: list[Message] = []


def talk(projection: Projection, turns: int) -> Any:
    return projection.feed([m for n in range(turns) for m in (user(f"q{n}"), Message("assistant", (Text(f"a{n}"),)))])


def test_a_history_nobody_holds_any_more_is_let_go() -> None:
    """As after a compaction, from which on a session projects anew."""
    history = History(encode, opens=("user",))
    one, other = Projection(), Projection()
    history.pieces(talk(one, 10))
    history.pieces(talk(other, 5))
    assert len(history._kept) == 2
    held = history._kept_bytes
    del one
    assert len(history._kept) == 1
    assert 0 < history._kept_bytes < held
    ENCODED.clear()
    history.pieces(talk(other, 1))
    assert len(ENCODED) < 6, "the other is still there"


def test_a_list_that_cannot_be_held_weakly_is_kept_while_there_is_room(monkeypatch: Any) -> None:
    class View(list[Message]):
        base: list[Message]

    history = History(encode, opens=("user",))
    view = View(talk(Projection(), 3))
    view.base = list(view)
    for _ in range(2):
        ENCODED.clear()
        history.pieces(view)
    assert len(ENCODED) == 2
    monkeypatch.setattr(module, "MAX_CACHED", 1)
    history.pieces(talk(Projection(), 3))
    assert len(history._kept) <= 1
