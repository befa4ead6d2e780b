"""What a run's beginning puts on record: its messages, its header, and that another model goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
    """On an unfinished run, the prompt joins it, and what it works under is recorded where that has changed. `start`
    are messages said before, recorded as they are."""
    unfinished = state.run is not None and state.run.active
    events: list[ev.Event] = [
        ev.MessageAccepted(message_id=f"start-{number:03d}", source="start", message=message)
        for number, message in enumerate(start, 1)
    ]
    if prompt is not None:
        source: ev.Source = "steer" if unfinished else "prompt"
        message_id = f"{source}-{new_id()}"
        events.append(ev.MessageAccepted(message_id=message_id, source=source, message=user(prompt, message_id)))
    conditions: dict[str, Any] = {
        "limits": msgspec.to_builtins(rules.limits),
        "rules": rules.chosen(),
        "checks": rules.checks,
        "system": journal.put_blob(kit.system.encode()),
        "tools": journal.put_blob(kit.specs_json),
        "head": kit.head,
        "setup": kit.setup,
    }
    if state.run is None or not state.run.active:
        run_id, model = f"run-{new_id()}", kit.model.name
        events.append(ev.RunStarted(run_id=run_id, model=model, first_request=first_request, **conditions))
    elif _plain(conditions) != _plain({name: getattr(state.run.started, name) for name in conditions}):
        events.append(ev.RunResumed(**conditions))
    return events + chosen(state, kit.model.name)


def _plain(conditions: dict[str, Any]) -> bytes:
    """As it is recorded, so that a tuple is the list it comes back as."""
    return msgspec.json.encode(conditions, order="sorted")
