"""A session may be cut after any line: what begins there opens, and answers the next plain message."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.core import event as ev
from latchstep.core.chunk import Completed
from latchstep.core.codec import decode_event, encode_event
from latchstep.core.message import Text, user
from latchstep.core.state import fold
from latchstep.journal.reader import read_journal
from latchstep.journal.store import Store
from latchstep.session.rewind import past_of
from latchstep.testing.disk import SimDisk

from .simulate import World, check_request
from .test_pure_core import policies, rules, run_with_crashes, scripts

DONE = Completed(blocks=(Text("done"),), stop_reason="stop")


def say(world: World, text: str) -> None:
    """As a session does: it joins a run that is not finished, and begins one otherwise."""
    if world.state.run is not None and world.state.run.active:
        number = f"m{len(world.record)}"
        world.append(ev.MessageAccepted(message_id=number, source="steer", message=user(text)))
    else:
        world.begin(text)


@settings(max_examples=25, deadline=None)
@given(scripts, policies, st.lists(st.integers(0, 60), max_size=2), st.sampled_from(["allow", "deny"]))
def test_a_fork_at_any_line_opens_and_answers_the_next_message(
    script: list[Completed], policy: dict[str, object], crashes: list[int], answer: str
) -> None:
    source = run_with_crashes(script, policy, crashes, answer)
    store = Store(Path("/sim"), disk=SimDisk())
    journal = store.create("source", time=1.0, workspace="/ws")
    journal.append([decode_event(encode_event(event)) for event in source.record[1:]])
    journal.close()
    for seq in range(len(source.record)):
        made = store.fork("source", seq, f"fork-{seq}", time=2.0)
        with store.open(f"fork-{seq}") as fork:
            record = list(fork.live())
        assert [event.type for event in record] == [event.type for event in source.record[: seq + 1]]
        assert isinstance(record[0], ev.SessionCreated)
        assert (record[0].session_id, record[0].workspace) == (f"fork-{seq}", "/ws")
        world = World([DONE], rules(**policy), record=record, answer=answer)  # type: ignore[arg-type]
        world.settles = lambda call_id: "unknown"
        world.open()
        unfinished = world.state.run is not None and world.state.run.active
        assert unfinished == past_of(read_journal(made, disk=store._disk)).unfinished_at(seq)
        say(world, "and now?")
        world.drive()
        if world.state.queue:  # the run that it joined had failed already, and now has its ending
            say(world, "still there?")
            world.drive()
        check_request(world.requests[-1])
        assert any(message.text == "and now?" for message in world.requests[-1])
        assert world.state.finished is not None
        assert world.state.finished.status == "completed"
        assert fold(world.record) == world.state
