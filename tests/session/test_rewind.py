"""Where a session may be cut, and which snapshot shows the files there."""

from __future__ import annotations

import pytest

from latchstep.core import event as ev
from latchstep.core.codec import stamp
from latchstep.core.message import user
from latchstep.session.rewind import Past, past_of


def numbered(*events: ev.Event) -> Past:
    for seq, event in enumerate(events):
        stamp(event, seq)
    return past_of(events)


def said(text: str) -> ev.Event:
    return ev.MessageAccepted(message_id=text, source="prompt", message=user(text))


def started(run: str = "r") -> ev.Event:
    return ev.RunStarted(run_id=run, model="m", head="abc")


def tree(name: str) -> ev.Event:
    return ev.WorkspaceSnapshot(tree=name)


def effect() -> ev.Event:
    return ev.ToolStarted(call_id="c", name="bash", sha256="", effect="write")


def look() -> ev.Event:
    return ev.ToolStarted(call_id="c", name="read", sha256="", effect="read")


def ended() -> ev.Event:
    return ev.RunFinished(status="completed")


HEAD = ev.SessionCreated(session_id="s", workspace="/ws")


def opened() -> ev.Event:
    return ev.SessionOpened(epoch=1)


TWO_RUNS = (
    *(
        HEAD,
        opened(),
        said("one"),
        started(),
        look(),
        tree("A"),
        effect(),
        tree("B"),
        effect(),
        effect(),
        tree("C"),
        ended(),
    ),
    *(opened(), said("two"), started(), tree("D"), effect(), ended()),
)


def test_turns_begin_after_the_line_that_a_cut_leaves_last() -> None:
    past = numbered(*TWO_RUNS)
    assert [(turn.before, turn.prompt, turn.calls, turn.ended) for turn in past.turns] == [
        (1, "one", 4, 11),
        (12, "two", 1, 17),
    ]
    assert past.workspace == "/ws"
    assert past.last == 17
    assert past.turns[0].head == "abc"


def test_messages_written_together_with_a_run_belong_to_it_and_a_retry_has_none() -> None:
    past = numbered(HEAD, opened(), said("a"), said("b"), started(), ended(), opened(), started(), ended())
    assert [(turn.before, turn.prompt) for turn in past.turns] == [(1, "a"), (6, "(the last turn again)")]


@pytest.mark.parametrize(
    ("seq", "name", "missed"),
    [
        (0, "A", 0),  # nothing had an effect before it was taken
        (1, "A", 0),
        (4, "A", 0),
        (5, "A", 0),
        (6, "B", 0),  # the effect of line 6 is in it
        (7, "B", 0),
        (8, "B", 1),  # another effect came before C: what stood between is in no snapshot
        (9, "C", 0),
        (10, "C", 0),
        (12, "D", 0),  # what a person changed between the runs is in D
        (14, "D", 0),
        (15, "D", 0),
        (16, "D", 1),  # none came after the last effect
        (17, "D", 1),
    ],
)
def test_the_snapshot_that_shows_the_files_at_a_line(seq: int, name: str, missed: int) -> None:
    found = numbered(*TWO_RUNS).files_at(seq)
    assert (found.tree, found.missed) == (name, missed)


def test_where_there_is_none_it_is_said() -> None:
    past = numbered(HEAD, opened(), said("one"), started(), look(), ended())
    assert past.files_at(3).why == "nothing of this session could change a file"
    past = numbered(HEAD, opened(), said("one"), started(), effect(), ended())
    assert past.files_at(3).why == "no snapshot was taken of them"
    past = numbered(HEAD, opened(), said("one"), started(), ev.WorkspaceSnapshot(error="disk full"), effect(), ended())
    assert past.files_at(1).tree == ""
    assert past.files_at(1).why.endswith("disk full")


def test_what_a_cut_takes_back() -> None:
    past = numbered(*TWO_RUNS, tree("E"), opened(), tree("F"))
    assert [past.goes_on(seq) for seq in (11, 12, 16, 17, 18, 20)] == [True, True, True, False, False, False]
    assert past.files_at(18).tree == "E"
    assert past.files_at(17).tree == "E"
    assert [past.unfinished_at(seq) for seq in (1, 2, 3, 10, 11, 12, 14, 17)] == [
        *(False, True, True, True, False, False, True, False),
    ]  # fmt: skip
