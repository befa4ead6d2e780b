"""What a run's beginning puts on record: its messages, its header, and that another model goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from latchstep.core import event as ev
from latchstep.core.message import Message, user
from latchstep.core.rules import Rules
from latchstep.core.state import State
from latchstep.journal.base import Journal

from .kit import Kit
from .model_call import chosen


def beginning(
    state: State,
    kit: Kit,
    rules: Rules,
    journal: Journal,
    new_id: Callable[[], str],
    *,
    prompt: str | None,
    start: Sequence[Message],
    first_request: int,
) -> list[ev.Event]:
    """On an unfinished run, the prompt joins it. `start` are messages said before, recorded as they are."""
    unfinished = state.run is not None and state.run.active
    events: list[ev.Event] = [
        ev.MessageAccepted(message_id=f"start-{number:03d}", source="start", message=message)
        for number, message in enumerate(start, 1)
    ]
    if prompt is not None:
        source: ev.Source = "steer" if unfinished else "prompt"
        message_id = f"{source}-{new_id()}"
        events.append(ev.MessageAccepted(message_id=message_id, source=source, message=user(prompt, message_id)))
    if not unfinished:
        events.append(
            ev.RunStarted(
                run_id=f"run-{new_id()}",
                model=kit.model.name,
                limits=msgspec.to_builtins(rules.limits),
                checks=rules.checks,
                system=journal.put_blob(kit.system.encode()),
                tools=journal.put_blob(kit.specs_json),
                first_request=first_request,
                head=kit.head,
                setup=kit.setup,
            )
        )
    return events + chosen(state, kit.model.name)
