"""`latchstep fork` and `latchstep rewind`: another session up to a line, and the files as they were there.

What will change is shown before it is asked about. The files as they are now are kept first and named in the old
session's record, so that going back can itself be taken back.
"""

from __future__ import annotations

import time
from pathlib import Path

from latchstep.core import event as ev
from latchstep.core.codec import stamp_time
from latchstep.core.printable import one_line, printable
from latchstep.errors import DefinitionError, SessionError
from latchstep.journal.base import Journal, new_session_id
from latchstep.journal.reader import read_journal
from latchstep.journal.store import Store
from latchstep.session.blocking import run_blocking
from latchstep.session.rewind import Files, Past, past_of
from latchstep.session.snapshots import kept
from latchstep.tool.head import head_of
from latchstep.tool.restore import Plan, Step, plan, restore
from latchstep.tool.snapshot import Shadow

from .asking import can_ask, forget_what_was_typed, read_line
from .running import folder, here, state_root, typed
from .screen import Screen

MAX_SHOWN = 200
"""Files that are named; more are counted."""

MARKS = {
    "create": ("+", "green", "comes back"),
    "change": ("~", "yellow", "is changed back"),
    "remove": ("-", "red", "is removed"),
}


def fork_session(session: str | None, at: int | None, files: bool, yes: bool) -> int:
    """A new session of another's lines up to `at`; with `files`, in the workspace as it was there."""
    store = Store(state_root())
    source = _chosen(store, session)
    past = past_of(read_journal(store.directory(source)))
    seq = _line(source, past, past.last if at is None else at)
    if files:
        return _go_back(store, source, past, seq, fork=True, yes=yes)
    new_id = _fork(store, source, seq)
    Screen().line(f"session {new_id}: a copy of {one_line(source, 100)} up to line {seq}")
    Screen().line(f"To go on: {_how(new_id, past, seq)}")
    return 0


def rewind_session(session: str | None, to: int | None, turns: int | None, yes: bool) -> int:
    """Back to a line, or to before one of the last prompts."""
    if to is not None and turns is not None:
        raise DefinitionError("--to and --turns both say how far to go back; give one of them")
    store = Store(state_root())
    source = _chosen(store, session)
    past = past_of(read_journal(store.directory(source)))
    if to is None and turns is None:
        if not past.turns:
            raise SessionError(f"session {source} has no prompt to go back to; give a line with --to")
        turns = _ask_for_turns(source, past)
        if not turns:
            return 130
    if turns is not None and turns > len(past.turns):
        many = f"{len(past.turns)} prompt{'' if len(past.turns) == 1 else 's'}"
        raise SessionError(f"session {source} has {many}; {turns} cannot be taken back")
    seq = _line(source, past, past.turns[-turns].before if turns is not None else to if to is not None else past.last)
    return _go_back(store, source, past, seq, fork=past.goes_on(seq), yes=yes)


def _chosen(store: Store, session: str | None) -> str:
    found = store.find(typed(session, "--session")) if session is not None else store.last(str(here()))
    if found is None:
        raise SessionError(f"there is no session of {printable(str(here()))} yet")
    return found


def _line(source: str, past: Past, seq: int) -> int:
    if seq > past.last:
        raise SessionError(f"session {source} has lines 0 to {past.last}; there is no line {seq}")
    return seq


def _fork(store: Store, source: str, seq: int) -> str:
    now = time.time()
    new_id = new_session_id(now)
    store.fork(source, seq, new_id, time=now)
    return new_id


def _how(session_id: str, past: Past, seq: int) -> str:
    command = f"latchstep resume --session {session_id}"
    if past.unfinished_at(seq):
        return command
    again = "" if past.left_at(seq) else "   (give --model and other options again: no run is left in it)"
    return f"{command} TASK{again}"


def _ask_for_turns(source: str, past: Past) -> int:
    """How many prompts a person takes back; 0 for none."""
    if not can_ask():
        raise DefinitionError("say how far to go back, with --turns N or --to LINE: nobody can be asked here")
    screen = Screen()
    screen.line(screen.style(f"session {one_line(source, 100)}", "bold"))
    for number, turn in enumerate(past.turns, 1):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(turn.time))
        calls = screen.style(f"  {turn.calls} call{'' if turn.calls == 1 else 's'}", "dim")
        screen.line(f"{number:>4}  {when}  {one_line(turn.prompt, 80)}{calls}")
    count = len(past.turns)
    while True:
        screen.prompt(screen.style(f"Back to before which prompt? [1-{count}, or Enter to leave] > ", "bold"))
        said = run_blocking(read_line())
        if not said.strip():
            return 0
        if said.strip().isdecimal() and 1 <= int(said) <= count:
            return count + 1 - int(said)


# -- the files ---------------------------------------------------------------------------------------------


def _go_back(store: Store, source: str, past: Past, seq: int, *, fork: bool, yes: bool) -> int:
    screen = Screen()
    journal = store.open(source)  # it is not at work, and will not be
    shadow = None
    try:
        shadow = _shadow(store, past.workspace)
        files = past.files_at(seq)
        screen.status("looking at the files …")
        present = shadow.take()
        wanted = plan(shadow, present, files.tree) if files.tree else None
        _announce(screen, source, past, seq, fork)
        _show(screen, files, wanted, seq)
        for path in past.beside if wanted is not None else ():
            words = "stays as it is: no snapshot holds what is beside the workspace"
            screen.line(screen.style(f"  = {one_line(path, 300)}/  {words}", "yellow"))
        _heads(screen, past, seq, shadow.root)
        if not fork and (wanted is None or not wanted.steps):
            screen.line("There is nothing to do.")
            return 0
        if not yes and not _confirmed(screen):
            screen.line("Nothing was changed.")
            return 130
        if wanted is not None and shadow.take().tree != present.tree:
            raise SessionError(
                "the files changed while you were asked, so nothing was done; look at them and try again"
            )
        undo = _note(journal, kept(present, "kept before going back"))
        target = _fork(store, source, seq) if fork else source
        try:
            failed = _restored(store, journal, target, shadow, wanted) if wanted is not None else []
        except BaseException:
            screen.line(f"To undo what was done: latchstep rewind --session {source} --to {undo}")
            raise
    finally:
        if shadow is not None:
            shadow.leave()
        journal.close()
    for path, why in failed:
        screen.line(screen.style(f"  ! {one_line(path, 200)} could not be put back: {one_line(why, 200)}", "red"))
    if fork:
        screen.line(screen.style(f"session {target}", "bold") + f": a copy of {one_line(source, 100)} up to line {seq}")
    screen.line(f"To go on: {_how(target, past, seq if fork else past.last)}")
    screen.line(f"To undo:  latchstep rewind --session {source} --to {undo}")
    return 1 if failed else 0


def _shadow(store: Store, workspace: str) -> Shadow:
    if not workspace:
        raise SessionError("this session has no workspace whose files could go back; fork it without --files")
    shadow = Shadow(folder(Path(workspace)), store.root)
    if not shadow.alone():
        raise SessionError(f"a session is at work in {printable(str(shadow.root))}; wait for its end, or stop it")
    return shadow


def _announce(screen: Screen, source: str, past: Past, seq: int, fork: bool) -> None:
    shown = one_line(source, 100)
    taken_back = [turn for turn in past.turns if turn.before >= seq]
    if not fork:
        screen.line(f"Session {shown} stays as it is; only files change.")
    elif not taken_back:
        screen.line(f"A new session takes over lines 0 to {seq} of {shown}, which stays.")
    else:
        screen.line(f"A new session takes over {shown}, which stays, up to before this was asked:")
        screen.line(screen.style("  › ", "cyan") + one_line(taken_back[0].prompt, 1000))
        if len(taken_back) > 1:
            screen.line(screen.style(f"  (and {len(taken_back) - 1} more)", "dim"))


def _show(screen: Screen, files: Files, wanted: Plan | None, seq: int) -> None:
    """What becomes of the files."""
    if wanted is None:
        screen.line(f"The files stay as they are: {printable(files.why)}.")
        return
    if files.missed:
        screen.line(
            f"No snapshot shows the files at line {seq}. That of line {files.seq} is older: what {files.missed} "
            f"call{'' if files.missed == 1 else 's'} did between is taken back too."
        )
    steps = _worth_naming(wanted.steps)
    screen.line(f"{len(steps)} change{'' if len(steps) == 1 else 's'} to the files:" if steps else "No file differs.")
    for step in steps[:MAX_SHOWN]:
        mark, colour, words = MARKS[step.what]
        path = one_line(step.path, 300) + ("/" if step.folder else "")
        screen.line(f"  {screen.style(mark, colour)} {path}  {screen.style(words, 'dim')}")
    if len(steps) > MAX_SHOWN:
        screen.line(f"  … and {len(steps) - MAX_SHOWN} more")
    for path, why in wanted.left_alone[:MAX_SHOWN]:
        screen.line(screen.style(f"  = {one_line(path, 300)}  stays as it is: {one_line(why, 200)}", "dim"))
    if len(wanted.left_alone) > MAX_SHOWN:
        screen.line(f"  … and {len(wanted.left_alone) - MAX_SHOWN} more stay as they are")


def _worth_naming(steps: tuple[Step, ...]) -> list[Step]:
    """One step a path, by path; a folder only where nothing in it says it all."""
    folders_of_others = {
        "/".join(parts[:end]) for step in steps for parts in [step.path.split("/")] for end in range(1, len(parts))
    }
    named: dict[str, Step] = {}
    for step in steps:
        if step.folder and step.path in folders_of_others:
            continue
        before = named.get(step.path)
        named[step.path] = step if before is None else Step(step.path, before.now, step.then)
    return [named[path] for path in sorted(named)]


def _heads(screen: Screen, past: Past, seq: int, root: Path) -> None:
    then = next((turn.head for turn in past.turns if turn.before >= seq), None)
    now = head_of(root)
    if then is not None and then != now:
        moved = f"HEAD was {then[:12] or 'none'} then and is {now[:12] or 'none'} now"
        screen.line(screen.style(f"{moved}: commits are not taken back; git can do that.", "yellow"))


def _confirmed(screen: Screen) -> bool:
    if not can_ask():
        raise DefinitionError("nothing was changed: nobody can be asked here, so say --yes to have it done")
    forget_what_was_typed()
    while True:
        screen.prompt(screen.style("Go back? [y] yes  [n] no > ", "bold"))
        said = run_blocking(read_line())
        if said.strip().lower() in ("y", "yes"):
            return True
        if not said or said.strip().lower() in ("n", "no"):
            return False


def _restored(store: Store, journal: Journal, target: str, shadow: Shadow, wanted: Plan) -> list[tuple[str, str]]:
    """Put the files back, and have it on record in the session that goes on with them: what shall be before it is done,
    and what came of it where that is something else."""
    own = store.open(target) if target != journal_id(journal) else journal
    try:
        line = _note(own, ev.WorkspaceSnapshot(tree=wanted.tree, because="going back to this"))
        try:
            failed = restore(shadow, wanted)
        except BaseException:
            Screen().line(f"stopped in the middle. To finish: latchstep rewind --session {target} --to {line}")
            raise
        if failed:
            _note(own, kept(shadow.take(), "not everything went back"))
        return failed
    finally:
        if own is not journal:
            own.close()


def journal_id(journal: Journal) -> str:
    return journal.directory.name if journal.directory is not None else ""


def _note(journal: Journal, event: ev.Event) -> int:
    """Its line, once it is on disk."""
    stamp_time(event, int(time.time() * 1e3) / 1e3, "", 0.0)
    line = journal.append([event])
    run_blocking(journal.sync())
    return line
