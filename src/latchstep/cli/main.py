"""The command line: what can be typed, and what its exit status means.

0 completed · 1 failed, or a replay that differs · 2 usage · 3 max_steps, budget, stalled · 4 unverified ·
5 session damaged or locked · 130 cancelled.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from latchstep import __version__
from latchstep.core.printable import printable
from latchstep.errors import DefinitionError, JournalError, LatchstepError, SessionError

from .screen import OutputLost

MODES = ("ask", "plan", "edits", "auto", "unconfined")

MODE_HELP = (
    "plan: only reading. ask (default): changes and commands are asked about. edits: files may be changed unasked. "
    "auto: nothing is asked, the sandbox confines. unconfined: nothing is asked, nothing is confined."
)
SANDBOXES = ("auto", "bubblewrap", "landlock", "none")
SANDBOX_HELP = "What holds commands; auto (default): the best that works here (see: latchstep doctor)."
NET_HELP = "Network of commands: none (default), host (all of this machine's), or allow:HOST,… (those, by a proxy)."
CACHE_HELP = "A folder that package managers may use as their cache; give it to nobody else."
ALSO_HELP = "A folder beside the workspace that may be read{}; again for more."
DOUBTS = ("report", "ask", "fail")
DOUBT_HELP = (
    "What becomes of a call that was running when the process died, if its effect cannot be looked up. report "
    "(default): the model is told that it is unknown. ask: you decide whether it runs again. fail: the run fails."
)
ALLOW_HELP = "What may run unasked: a command, exactly as given, or a rule such as 'bash: git status *'."
RULE_HELP = "What is always {}: a rule such as 'bash: git push *' or 'write: **/.env'."
FETCH_HELP = "A host whose pages may be fetched: docs.python.org, or *.example.com; again for more."
TASK_HELP = "TASK may be - to read it from standard input (an argument can only hold 128 KiB)."


PATHS: click.Path = click.Path(path_type=Path)


def running_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options that `run` and `resume` share."""
    options = [
        click.option("--model", metavar="M", help="Model as provider:name (see: latchstep models)."),
        click.option("--base-url", metavar="URL", help="Server that speaks the provider's protocol."),
        click.option(
            "--cwd", type=PATHS, metavar="DIR", help="Folder to work in (default: here, or the session's own)."
        ),
        click.option("--mode", type=click.Choice(MODES), help=MODE_HELP),
        click.option("--sandbox", type=click.Choice(SANDBOXES), help=SANDBOX_HELP),
        click.option("--net", metavar="NET", help=NET_HELP),
        click.option("--cache", type=PATHS, metavar="DIR", help=CACHE_HELP),
        click.option("--also", type=PATHS, multiple=True, metavar="DIR", help=ALSO_HELP.format("")),
        click.option("--also-write", type=PATHS, multiple=True, metavar="DIR", help=ALSO_HELP.format(" and written")),
        click.option("--allow", multiple=True, metavar="RULE", help=ALLOW_HELP),
        click.option("--ask", multiple=True, metavar="RULE", help=RULE_HELP.format("asked about")),
        click.option("--deny", multiple=True, metavar="RULE", help=RULE_HELP.format("refused")),
        click.option("--fetch", multiple=True, metavar="HOST", help=FETCH_HELP),
        click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="Model turns at most."),
        click.option(
            "--max-context",
            type=click.IntRange(min=1),
            metavar="N",
            help="Tokens that the model takes (else as known).",
        ),
        click.option("--check", multiple=True, metavar="CMD", help="A command that must pass before it is done."),
        click.option("--on-doubt", type=click.Choice(DOUBTS), help=DOUBT_HELP),
        click.option("--json", "as_json", is_flag=True, help="Print one event a line, and nothing else, on stdout."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="latchstep")
def cli() -> None:
    """A coding agent in which every step latches: watch it, stop it, kill it, resume it."""


@cli.command(epilog=TASK_HELP)
@click.argument("task")
@running_options
@click.option("--session", metavar="ID", help="Go on in this session instead of a new one.")
def run(task: str, **options: Any) -> int:
    """Work on TASK until it is done and checked."""
    from .running import run_task

    return run_task(task, **options)


@cli.command(epilog=TASK_HELP)
@click.argument("task", required=False)
@running_options
@click.option("--session", metavar="ID", help="Which session (default: the last one of this folder).")
@click.option("--anyway", is_flag=True, help="Resume although HEAD has moved, or a command of it still runs.")
def resume(task: str | None, **options: Any) -> int:
    """Go on with an unfinished run, or with a new TASK in its session.

    Model, server, mode, rules, checks and limits are those on record; what is given here comes on top.
    """
    from .running import resume_session

    return resume_session(task, **options)


@cli.command()
@click.argument("focus", default="")
@click.option("--session", metavar="ID", help="Which session (default: the last one of this folder).")
def compact(focus: str, session: str | None) -> int:
    """Summarise what was said in a session, so that there is room again. FOCUS: what the summary must not lose."""
    from .compacting import compact_session

    return compact_session(focus, session)


@cli.group(invoke_without_command=True)
@click.option("--all", "everywhere", is_flag=True, help="Also the sessions of other folders.")
@click.pass_context
def sessions(context: click.Context, everywhere: bool) -> int:
    """List sessions, the latest first; verify them, or salvage a damaged one."""
    from .showing import list_sessions

    return 0 if context.invoked_subcommand else list_sessions(everywhere)


@sessions.command()
@click.argument("session", required=False)
@click.pass_context
def verify(context: click.Context, session: str | None) -> int:
    """Verify every line and blob of SESSION, or of all the sessions that `sessions` lists."""
    from .mending import verify_sessions

    assert context.parent is not None
    return verify_sessions(session, context.parent.params["everywhere"])


@sessions.command()
@click.argument("session")
def salvage(session: str) -> int:
    """Copy what is whole of a damaged SESSION, up to the damage, into a new one."""
    from .mending import salvage_session

    return salvage_session(session)


@cli.command()
@click.option("--session", metavar="ID", help="Which session (default: the last one of this folder).")
@click.option("--at", type=click.IntRange(min=0), metavar="LINE", help="The last line it takes over (default: all).")
@click.option("--files", is_flag=True, help="Put the files back, too, as they were at that line.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def fork(session: str | None, at: int | None, files: bool, yes: bool) -> int:
    """Begin a new session as a copy of one, whole or up to a line."""
    from .rewinding import fork_session

    return fork_session(session, at, files, yes)


@cli.command()
@click.option("--session", metavar="ID", help="Which session (default: the last one of this folder).")
@click.option("--to", type=click.IntRange(min=0), metavar="LINE", help="The last line that stays.")
@click.option("--turns", type=click.IntRange(min=1), metavar="N", help="Take back the last N prompts.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def rewind(session: str | None, to: int | None, turns: int | None, yes: bool) -> int:
    """Go back to an earlier point: a new session up to there, and the files as they were.

    Shows what it will change and asks. The old session stays, and the files as they are now are kept, so that it can be
    undone.
    """
    from .rewinding import rewind_session

    return rewind_session(session, to, turns, yes)


@cli.command()
@click.option("--cwd", type=PATHS, metavar="DIR", help="Of which folder (default: here).")
@click.option("--revoke", metavar="RULE", help="Take this rule back, as it is listed.")
def grants(cwd: Path | None, revoke: str | None) -> int:
    """List what was allowed for always in a folder, and by whom."""
    from .granted import list_grants
    from .running import folder, here, state_root

    return list_grants(folder(cwd or here()), state_root(), revoke)


@cli.command()
@click.argument("session", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the stored events, one a line.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what another process records, until its run is over.")
@click.option("--after", type=click.IntRange(min=-1), default=-1, metavar="SEQ", help="Only events after this number.")
def show(session: str | None, **options: Any) -> int:
    """Tell the story of a SESSION: an id, or the beginning of one; else the last one of this folder."""
    from .showing import show_session

    return show_session(session, **options)


@cli.command()
@click.option("--session", metavar="ID", help="Which session (default: the last one of this folder).")
@click.option("--run", type=click.IntRange(min=1), metavar="N", help="Only its N-th run.")
@click.option("--live-tools", is_flag=True, help="Run its tool calls and checks again, unasked, in --cwd.")
@click.option("--cwd", type=PATHS, metavar="DIR", help="A copy of the workspace, for live tools.")
@click.option("--keep", is_flag=True, help="Keep the replay as a session of its own.")
def replay(**options: Any) -> int:
    """Run the loop again on a recorded session and say where it first differs.

    Answers, tool results, permissions and what was said come from the record. Nothing else is asked or run.
    """
    from .replaying import replay_session

    return replay_session(**options)


@cli.command()
@click.option("--crash", is_flag=True, help="Die by SIGKILL while the tests run, then resume.")
def demo(crash: bool) -> int:
    """Repair a small broken project, offline, with the real loop."""
    from .demo import run_demo

    return run_demo(crash)


@cli.command()
@click.option("--cwd", type=PATHS, metavar="DIR", help="Which folder (default: here).")
@click.option("--yes", is_flag=True, help="Trust it without a question.")
@click.option("--revoke", is_flag=True, help="Do not trust it any more.")
def trust(cwd: Path | None, yes: bool, revoke: bool) -> int:
    """Show what a folder configures, and vouch for it."""
    from .trusting import trust

    return trust(cwd, yes, revoke)


@cli.command()
def models() -> int:
    """List the services, which of them can be used here, and why the others cannot."""
    from .models import list_models

    return list_models()


@cli.command()
def doctor() -> int:
    """Say what works on this machine, and how well you are protected."""
    from .doctor import examine

    return examine()


def main() -> None:
    """Entry point of the `latchstep` command."""
    _complete_streams()
    arguments = sys.argv[1:]
    if not os.environ.get("HOME"):  # set to nothing it would be the root folder
        os.environ.pop("HOME", None)
    sys.argv = ["latchstep", *(name for name in arguments[:1] if name in cli.commands)]  # a lock names us by it
    status = _status_of(lambda: int(cli.main(arguments, prog_name="latchstep", standalone_mode=False) or 0))
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        text = f"the output could not be written: {error}"
        status = status or _say(lambda: _complain(text), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer shall not be tried again at the exit
    sys.exit(status)


def _status_of(action: Callable[[], int]) -> int:
    """Its exit status; what is raised on purpose, or by the machine, becomes one line and a status of its own."""
    try:
        return action()
    except click.ClickException as error:
        show, status = error.show, error.exit_code
        return _say(show, status)
    except (KeyboardInterrupt, click.Abort):
        return 130
    except OutputLost as error:
        status, text = 1, f"the output could not be written: {error}"
    except LatchstepError as error:
        usage = isinstance(error, DefinitionError | SessionError)
        status = 2 if usage else 5 if isinstance(error, JournalError) else 1
        text = str(error)
    except OSError as error:
        status, text = 1, f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    return _say(lambda: _complain(text), status)


def _complain(text: str) -> None:
    line = printable(text).replace("\n", "\\n")  # one line, whatever a path or a name holds
    click.echo(f"Error: {line}", err=True)


def _say(words: Callable[[], object], status: int) -> int:
    try:
        words()
    except (OSError, ValueError):  # nobody hears it; the status says it
        pass
    return status


def _complete_streams() -> None:
    """All three standard streams exist, and take every character.

    Where one was closed its number is free, and the next file to be opened would get it: a journal as stdout.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", closefd=False, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
