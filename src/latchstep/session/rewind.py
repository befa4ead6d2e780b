"""Where a session can be cut, and which snapshot shows the files as they were at a line.

Pure: a walk over its events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from latchstep.core import event as ev


@dataclass(frozen=True, slots=True)
class Turn:
    """One run and what it was asked. before: the last line before anything of it; ended: that of its ending, -1 if it
    has none. head: HEAD when it began."""

    before: int
    prompt: str
    time: float
    head: str
    calls: int = 0
    ended: int = -1


@dataclass(frozen=True, slots=True)
class Files:
    """The snapshot that shows the files as they were at a line. seq: the line that names it. missed: calls with effects
    before the line that it does not show. "" for a tree: none does, and `why` says so."""

    tree: str = ""
    seq: int = -1
    missed: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """A session's events, as far as a cut needs them. beside: folders outside the workspace that could be written."""

    workspace: str
    turns: tuple[Turn, ...]
    last: int
    said: int
    snapshots: tuple[ev.WorkspaceSnapshot, ...]
    effects: tuple[int, ...]
    beside: tuple[str, ...] = ()

    def files_at(self, seq: int) -> Files:
        """The next snapshot where no effect came between, since it shows what a person changed too; else the last."""
        before = [taken for taken in self.snapshots if taken.seq <= seq]
        after = [taken for taken in self.snapshots if taken.seq > seq]
        if before and before[-1].seq == seq:
            return _files(before[-1])
        if after and not any(seq < effect < after[0].seq for effect in self.effects):
            return _files(after[0])
        if before:
            missed = sum(before[-1].seq < effect <= seq for effect in self.effects)
            return _files(before[-1], missed)
        if not self.effects:
            return Files(why="nothing of this session could change a file")
        return Files(why="no snapshot was taken of them")

    def left_at(self, seq: int) -> tuple[Turn, ...]:
        """The turns that a cut after this line leaves."""
        return tuple(turn for turn in self.turns if turn.before < seq)

    def unfinished_at(self, seq: int) -> bool:
        left = self.left_at(seq)
        return bool(left) and not 0 <= left[-1].ended <= seq

    def goes_on(self, seq: int) -> bool:
        """Whether anything was said or done after a line, so that a cut there would take something back."""
        return self.said > seq


def _files(taken: ev.WorkspaceSnapshot, missed: int = 0) -> Files:
    why = f"they could not be kept then: {taken.error}" if not taken.tree else ""
    return Files(taken.tree, taken.seq, missed, why)


def past_of(events: Iterable[ev.Event]) -> Past:
    """The past of a whole journal, from line 0 on."""
    workspace, turns = "", list[Turn]()
    snapshots: list[ev.WorkspaceSnapshot] = []
    effects: list[int] = []
    beside: dict[str, None] = {}
    first: ev.MessageAccepted | None = None
    last = said = calls = 0
    for event in events:
        last = event.seq
        match event:
            case ev.SessionCreated():
                workspace = event.workspace
            case ev.MessageAccepted():
                first = first or event
            case ev.RunStarted():
                turns.append(_turn(first, event))
                calls = 0
            case ev.RunFinished() if turns:
                turns[-1] = replace(turns[-1], ended=event.seq)
            case ev.ToolStarted(effect="write"):
                effects.append(event.seq)
            case ev.WorkspaceSnapshot():
                snapshots.append(event)
        if isinstance(event, ev.RunStarted | ev.RunResumed):
            named = event.setup.get("also_write")
            beside |= dict.fromkeys(map(str, named if isinstance(named, list) else ()))
        if isinstance(event, ev.ToolStarted) and turns:
            calls += 1
            turns[-1] = replace(turns[-1], calls=calls)
        if not isinstance(event, ev.MessageAccepted):
            first = None
        if not isinstance(event, ev.SessionCreated | ev.SessionOpened | ev.SessionSnapshot | ev.WorkspaceSnapshot):
            said = event.seq
    return Past(workspace, tuple(turns), last, said, tuple(snapshots), tuple(effects), tuple(beside))


def _turn(first: ev.MessageAccepted | None, started: ev.RunStarted) -> Turn:
    """`first` is the first of the messages written together with the run's beginning."""
    if first is None:
        return Turn(started.seq - 1, "(the last turn again)", started.time, started.head)
    return Turn(first.seq - 1, first.message.text, first.time, started.head)
