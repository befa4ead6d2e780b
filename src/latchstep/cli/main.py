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
    "auto: needs a sandbox. unconfined: nothing is asked, nothing is confined."
)
TASK_HELP = "TASK may be - to read it from standard input (an argument can only hold 128 KiB)."


def running_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options that `run` and `resume` share."""
    options = [
        click.option("--model", metavar="M", help="Model as provider:name (see: latchstep models)."),
        click.option("--base-url", metavar="URL", help="Server that speaks the provider's protocol."),
        click.option(
            "--cwd", type=click.Path(path_type=Path), metavar="DIR", help="Folder to work in (default: here)."
        ),
        click.option("--mode", type=click.Choice(MODES), help=MODE_HELP),
        click.option("--allow", multiple=True, metavar="CMD", help="A command that may run unasked, exactly as given."),
        click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="Model turns at most."),
        click.option("--check", multiple=True, metavar="CMD", help="A command that must pass before it is done."),
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

    Model, server, mode, allowed commands, checks and limits are those on record; what is given here comes on top.
    """
    from .running import resume_session

    return resume_session(task, **options)


@cli.command()
@click.option("--all", "everywhere", is_flag=True, help="Also the sessions of other folders.")
def sessions(everywhere: bool) -> int:
    """List sessions, the latest first."""
    from .showing import list_sessions

    return list_sessions(everywhere)


@cli.command()
@click.argument("session")
@click.option("--json", "as_json", is_flag=True, help="Print the stored events, one a line.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what another process records, until its run is over.")
@click.option("--after", type=click.IntRange(min=-1), default=-1, metavar="SEQ", help="Only events after this number.")
def show(session: str, **options: Any) -> int:
    """Tell the story of a session (an id, or the beginning of one)."""
    from .showing import show_session

    return show_session(session, **options)


@cli.command()
@click.option("--session", metavar="ID", help="Which session (default: the last one of this folder).")
@click.option("--run", type=click.IntRange(min=1), metavar="N", help="Only its N-th run.")
@click.option("--live-tools", is_flag=True, help="Run its tool calls and checks again, unasked, in --cwd.")
@click.option("--cwd", type=click.Path(path_type=Path), metavar="DIR", help="A copy of the workspace, for live tools.")
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
@click.option("--cwd", type=click.Path(path_type=Path), metavar="DIR", help="Which folder (default: here).")
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
