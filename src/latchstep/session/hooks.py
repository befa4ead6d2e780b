"""Performs `Consult`: the hooks before calls look at them, and what each made of its call is recorded.

A hook is consulted once a call. One that fails or takes too long lets nothing run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from latchstep.core import wording
from latchstep.core.action import Consult
from latchstep.core.calls import result
from latchstep.core.event import CallChanged, CallKept, Event
from latchstep.core.message import clean, clean_json
from latchstep.core.parts import OpenCall
from latchstep.core.rules import Verdict
from latchstep.errors import FatalToolError, ToolError
from latchstep.tool.base import Context, Tool
from latchstep.tool.threads import invoke

from .tools import bounded, call_context

if TYPE_CHECKING:
    from .crew import Member
    from .session import Session

_SORTED = msgspec.json.Encoder(order="sorted")


async def consult(session: Session, action: Consult) -> None:
    """All calls at once, each with its tool's hooks one after the other."""
    entries = {call_id: session.state.open_call(call_id) for call_id in action.calls}
    for call_id, entry in entries.items():
        tool = session.kit.tools[entry.call.name]
        work = _looked_at(tool, entry, call_context(session, entry))
        session.crew.start(call_id, work, tool.timeout or session.limits.tool_timeout)
    while (ended := await session.crew.next()) is not None:
        if ended.how != "interrupted":
            await session.emit(_made_of(session, entries[ended.key], ended))


async def _looked_at(tool: Tool, entry: OpenCall, context: Context) -> dict[str, Any] | Verdict:
    """The arguments that the hooks leave, or the first refusal."""
    arguments: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(entry.call.arguments))
    for hook in tool.before:
        said = await invoke(hook, (arguments, context), tool.thread)
        if isinstance(said, Verdict) and said.kind == "refuse":
            return said
        if isinstance(said, dict):
            arguments = said
        elif said is not None:
            raise ToolError(f"it gave {said!r:.200}, which is neither arguments nor a refusal nor None")
    kept: dict[str, Any] = clean_json(arguments)
    return kept


def _made_of(session: Session, entry: OpenCall, ended: Member) -> Event:
    said = ended.value
    if ended.how == "timed_out":
        return result(
            entry, "error", wording.hook_failed(f"it took longer than {ended.seconds:g} s") + ended.remark(), True
        )
    if ended.error is not None:
        text = wording.hook_failed(bounded(session, clean(wording.of_error(ended.error))))
        return result(entry, "error", text, True, fatal=isinstance(ended.error, FatalToolError))
    if isinstance(said, Verdict):
        return result(entry, "denied", wording.denied(bounded(session, clean(said.text)), "a hook"), False)
    if _SORTED.encode(said) == _SORTED.encode(entry.call.arguments):
        return CallKept(call_id=entry.call.id)
    return CallChanged(call_id=entry.call.id, arguments=said)
