"""`latchstep run` and `latchstep resume`: from what was typed and what is on record to a session to drive.

Whatever is wrong with the request is said before a session is made, so that a mistake leaves nothing behind.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from latchstep.core.printable import one_line, printable
from latchstep.core.rules import Limits, OnDoubt
from latchstep.core.state import State
from latchstep.errors import DefinitionError, JournalError, ModelError, SessionError
from latchstep.journal.base import Journal, new_session_id, restored
from latchstep.journal.store import Store, default_root
from latchstep.model.base import Model

from .asking import is_terminal
from .driving import PROGRAM, drive
from .screen import Screen

MOST_NAMED = 5
"""Of the processes that still run, those that are named."""

QUIET_SECONDS = 2.0
"""How long a resume waits for commands of the dead process to end."""


class Typed(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """What a person typed where the folder's settings have a say, as in Setup."""

    mode: str = ""
    checks: tuple[str, ...] = ()
    max_steps: int = 0


class Setup(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """What is needed to build the same agent again; recorded in `run.started`.

    allow, ask, deny: rules, as `rule_for` reads them. fetch: hosts that pages may be fetched from.
    also, also_write: real paths of folders beside the workspace, to read and to write.
    cut: the server's URL held a user, a password or a query, which are not recorded.
    sandbox: the one that was wanted. level: the one that it was, for the record.
    typed: what of it would hold without the folder, whose say is asked anew in each run; None where it had none.
    """

    model: str = ""
    base_url: str = ""
    cut: bool = False
    mode: str = ""
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    fetch: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    max_steps: int = 0
    sandbox: str = "auto"
    net: str = "none"
    cache: str = ""
    also: tuple[str, ...] = ()
    also_write: tuple[str, ...] = ()
    level: str = ""
    max_context: int = 0
    on_doubt: OnDoubt = "report"
    typed: Typed | None = None


def run_task(task: str, *, session: str | None, cwd: Path | None, as_json: bool, **options: Any) -> int:
    """A new session in a folder (or a given one), and a run in it."""
    if session is not None:
        return resume_session(task, session=session, cwd=cwd, as_json=as_json, anyway=False, **options)
    text = read_task(task)
    model, setup = resolve(asked(Setup(), **options))
    root = folder(cwd or here())
    store, now = Store(state_root()), time.time()
    session_id = new_session_id(now)
    screen = None if as_json else Screen()
    from .preparing import prepare

    kit, rules = prepare(model, root, setup, store.sessions / session_id, screen)
    journal = store.create(session_id, time=now, workspace=str(root), program=PROGRAM)
    return drive(journal, restored(journal), kit, rules, text, screen=screen)


def resume_session(
    task: str | None, *, session: str | None, cwd: Path | None, as_json: bool, anyway: bool, **options: Any
) -> int:
    """Go on in a session: its unfinished run, or a new one for `task`."""
    text = read_task(task) if task is not None else None
    store = Store(state_root())
    session_id = last_session(store, session, cwd or here())
    screen = None if as_json else Screen()
    journal = store.open(session_id)
    try:
        state = restored(journal)
        if text is None and not (state.run is not None and (state.run.active or state.answerable)):
            last = state.finished
            ended = f"its last run ended ({last.status})" if last is not None else "it never had one"
            raise SessionError(
                f"session {session_id} has no unfinished run, and nothing that waits for an answer: {ended}. "
                f"To read it: latchstep show {session_id}; to go on: latchstep resume --session {session_id} TASK"
            )
        model, setup = resolve(asked(recorded(state), **options))
        root = folder(cwd or (Path(state.workspace) if state.workspace else here()))
        if not anyway:
            _same_head(root, state)
            _nothing_left(journal, as_json)
        from .preparing import prepare

        kit, rules = prepare(model, root, setup, journal.directory, screen)
    except BaseException:
        journal.close()
        raise
    return drive(journal, state, kit, rules, text, screen=screen)


def last_session(store: Store, named: str | None, where: Path) -> str:
    """The id of the session that was named, else of the last one of this folder. Raises SessionError."""
    session_id = store.find(typed(named, "--session")) if named is not None else store.last(str(where))
    if session_id is None:
        entries = store.list()
        others = " (sessions of other folders: latchstep sessions --all)" if entries else ""
        if any(not entry.workspace and entry.damaged for entry in entries):
            others = " (some cannot be read: latchstep sessions)"
        raise SessionError(
            f"there is no session of {printable(str(where))} yet; begin one with: latchstep run TASK{others}"
        )
    return session_id


def state_root() -> Path:
    """Where sessions are kept. Raises DefinitionError where there is no home folder to keep them in."""
    try:
        return default_root()
    except RuntimeError as error:
        raise DefinitionError(f"{str(error).rstrip('.')}: set LATCHSTEP_HOME to a folder for sessions") from None


# -- what was typed, and what is on record ------------------------------------------------------------------


def read_task(given: str) -> str:
    """The task as text; `-` is standard input. Raises DefinitionError for what is no message, and loses nothing."""
    most = Limits().max_prompt
    if given == "-":
        if is_terminal(sys.stdin):
            print("Type the task, and end it with Ctrl-D on a line of its own.", file=sys.stderr)
        data = sys.stdin.buffer.read(4 * most + 1)  # four bytes a character at most
    else:
        data = os.fsencode(given)
    if len(data) > 4 * most:
        raise DefinitionError(f"the task has more than {4 * most:,} bytes; max_prompt is {most:,} characters")
    text = _decode(data, "the task")
    if len(text) > most:
        raise DefinitionError(f"the task has {len(text):,} characters; max_prompt is {most:,}")
    if "\0" in text:
        raise DefinitionError(f"the task has a NUL character at position {text.index(chr(0))}")
    if not text.strip():
        raise DefinitionError("the task is blank; say what is to be done")
    return text


def typed(text: str, what: str) -> str:
    """An argument as text, whatever the locale. Raises DefinitionError where it is not UTF-8."""
    return text if text.isascii() else _decode(os.fsencode(text), what)


def _decode(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DefinitionError(
            f"{what} is not UTF-8: byte 0x{data[error.start]:02x} at position {error.start}"
        ) from None


def here() -> Path:
    """The current folder. Raises DefinitionError where it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        raise DefinitionError("the current folder does not exist any more; give one with --cwd DIR") from None


def asked(base: Setup, *, model: Any, base_url: Any, check: Any, cache: Any = None, **given: Any) -> Setup:
    """The recorded set-up with what was typed now on top; rules and checks are added."""
    given |= _beside(base, given)
    given["cache"] = str(folder(cache, "cache", "--cache")) if cache else None
    given["model"] = name = typed(model, "--model") if model else None
    if name and _service(name) not in (None, _service(base.model)):
        given |= {"base_url": "", "cut": False}  # the server on record is another service's
    if base_url:
        given |= {"base_url": typed(base_url, "--base-url"), "cut": False}
    checks = (*base.checks, *(typed(command, "--check") for command in check))
    given |= {name: _added(base, name, given.get(name, ())) for name in ("allow", "ask", "deny", "fetch")}
    return msgspec.structs.replace(
        base,
        **{name: value for name, value in given.items() if value is not None},
        checks=tuple(dict.fromkeys(checks)),
    )


def _beside(base: Setup, given: dict[str, Any]) -> dict[str, Any]:
    """The folders beside the workspace. One that is named again is what it is named as now."""
    options = {"also": "--also", "also_write": "--also-write"}
    new = {
        name: tuple(dict.fromkeys(str(folder(path, "folder", option)) for path in given.get(name, ())))
        for name, option in options.items()
    }
    named = [path for paths in new.values() for path in paths]
    return {name: (*(it for it in getattr(base, name) if it not in named), *paths) for name, paths in new.items()}


def _added(base: Setup, name: str, texts: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*getattr(base, name), *(typed(text, f"--{name}") for text in texts))))


def _service(name: str) -> str | None:
    """The service that a model's name begins with, if it does."""
    from latchstep.model.catalog import SERVICES

    provider = name.partition(":")[0]
    return provider if ":" in name and provider in SERVICES else None


def recorded(state: State) -> Setup:
    """The set-up of the last run. Raises SessionError where another program recorded it in another form."""
    if state.run is None:
        return Setup()
    try:
        setup = msgspec.convert(state.run.started.setup, Setup)
    except msgspec.ValidationError as error:
        raise SessionError(f"the set-up on record is not one of this program: {error}") from error
    own = setup.typed
    if own is None:
        return setup
    return msgspec.structs.replace(setup, mode=own.mode, checks=own.checks, max_steps=own.max_steps, typed=None)


def resolve(setup: Setup) -> tuple[Model, Setup]:
    """The model that was named, and the set-up that names it wherever it is read again.

    Raises DefinitionError that says what to type.
    """
    from urllib.parse import urlsplit, urlunsplit

    from latchstep.model.catalog import SERVICES, model

    from .keys import bring_keys

    if setup.cut:
        raise DefinitionError(
            f"the server's URL ({setup.base_url}) had a user, a password or a query, which are not kept on record; "
            "give it again with --base-url"
        )
    name = setup.model or os.environ.get("LATCHSTEP_MODEL", "")
    if not name and not setup.base_url:
        bring_keys("")
        name = _first_usable()
    provider, bare = name.partition(":")[0], ":" not in name and (name != "local" or bool(setup.base_url))
    if bare or (setup.base_url and provider not in SERVICES):
        provider, name = "openai-chat", f"openai-chat:{name or 'default'}"
    bring_keys(f"{provider}:")
    url = setup.base_url or (os.environ.get("OPENAI_BASE_URL", "") if provider == "openai-chat" else "")
    try:
        built = model(name, base_url=url or None)
    except ModelError as error:  # a key is missing: said before anything starts
        hint = f" (a name without provider: is one of {provider})" if bare and setup.model else ""
        raise DefinitionError(error.message.removesuffix(", or pass api_key=") + hint) from error
    parts = urlsplit(url.strip())
    kept = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    cut = bool(parts.query or "@" in parts.netloc)
    return built, msgspec.structs.replace(setup, model=built.name, base_url=kept, cut=cut)


def _first_usable() -> str:
    """The name of a model, where none was named; says which, and why. Raises DefinitionError where there is none."""
    from .models import choose

    offer = choose()
    if offer is None:
        raise DefinitionError(
            "no model was named: give --model provider:name (or set LATCHSTEP_MODEL), or --base-url of a local server; "
            "latchstep models lists what there is"
        )
    if not offer.usable:
        raise DefinitionError(f"no model was named, and {offer.example} cannot be used: {offer.why}")
    print(f"no model was named: using {one_line(offer.example, 200)} ({one_line(offer.why, 200)})", file=sys.stderr)
    return offer.example


def folder(path: Path, what: str = "workspace", option: str = "--cwd") -> Path:
    """The real path of the workspace, or of another folder. Raises DefinitionError."""
    shown = printable(str(path))
    try:
        if not path.exists():
            raise DefinitionError(f"the {what} {shown} does not exist; give another with {option} DIR")
        if not path.is_dir():
            raise DefinitionError(f"the {what} {shown} is not a folder; give one with {option} DIR")
        root = path.resolve()
        str(root).encode()
    except UnicodeEncodeError:
        raise DefinitionError(f"the path of the {what}, {shown}, is not UTF-8 here; rename it") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise DefinitionError(f"the {what} {shown} cannot be opened: {error}") from error
    return root


# -- what must hold before a run goes on --------------------------------------------------------------------


def _same_head(root: Path, state: State) -> None:
    """An unfinished run goes on only where it began: at the commit that was pinned for it."""
    from latchstep.tool.head import head_of

    if state.run is None or not state.run.active:
        return
    then, now = state.run.started.head, head_of(root)
    if then != now:
        raise SessionError(
            f"HEAD of {root} was {then[:12] or 'none'} when this run began and is {now[:12] or 'none'} now: "
            "its files may have changed under it. Check that commit out again, or resume with --anyway"
        )


def _nothing_left(journal: Journal, as_json: bool) -> None:
    """No command of the process that died is alive any more. Waits a little; raises JournalError."""
    from latchstep.journal.reader import TOOLS_LOCK
    from latchstep.session.blocking import run_blocking
    from latchstep.tool.toolslock import holders, still_running, wait_until_quiet

    if journal.directory is None or not still_running(lock := journal.directory / TOOLS_LOCK):
        return
    if not as_json:
        print("waiting for commands of the process that died …", file=sys.stderr)
    if not run_blocking(wait_until_quiet(lock, QUIET_SECONDS)):
        found = holders(lock)
        named = ", ".join(f"{one_line(command, 80)} (pid {pid})" for pid, command in found[:MOST_NAMED])
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        end = f"kill {' '.join(str(pid) for pid, _ in found)}" if found else f"it holds {lock}"
        raise JournalError(
            f"a command that this session started is still running{': ' if named else ''}{named}{more}. "
            f"End it ({end}), or resume with --anyway and let it run"
        )
