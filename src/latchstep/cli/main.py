"""The command line: what can be typed, and what its exit status means.

0 completed · 1 failed · 2 usage · 3 max_steps, budget, stalled · 4 unverified · 5 session damaged or locked ·
130 cancelled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from latchstep import __version__
from latchstep.core.printable import printable
from latchstep.errors import DefinitionError, JournalError, LatchstepError, SessionError

MODES = ("ask", "plan", "edits", "auto", "unconfined")

EXIT = {
    "completed": 0,
    "failed": 1,
    "max_steps": 3,
    "budget": 3,
    "stalled": 3,
    "unverified": 4,
    "cancelled": 130,
}


def guarded(action: Callable[[], int]) -> None:
    """Run it and exit with its status; what is raised on purpose becomes one line and its own status."""
    try:
        status = action()
    except LatchstepError as error:
        click.echo(f"Error: {printable(str(error))}", err=True)
        usage = isinstance(error, DefinitionError | SessionError)
        status = 2 if usage else 5 if isinstance(error, JournalError) else 1
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:  # whoever read our output has gone; nothing is left to say to them
        sys.stderr.close()
        status = 1
    sys.exit(status)


def running_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that `run` and `resume` share."""
    options = [
        click.option("--model", metavar="M", help="Model as provider:name, such as openai-chat:NAME."),
        click.option("--base-url", metavar="URL", help="Server that speaks the provider's protocol."),
        click.option(
            "--cwd", type=click.Path(path_type=Path), metavar="DIR", help="Folder to work in (default: here)."
        ),
        click.option("--mode", type=click.Choice(MODES), help="What may run unasked (default: ask)."),
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


@cli.command()
@click.argument("task")
@running_options
@click.option("--session", metavar="ID", help="Go on in this session instead of a new one.")
def run(task: str, **options: Any) -> None:
    """Work on TASK until it is done and checked."""
    from .running import run_task

    guarded(lambda: run_task(task, **options))


@cli.command()
@click.argument("task", required=False)
@running_options
@click.option("--session", metavar="ID", help="Which session (default: the last one of this folder).")
@click.option("--anyway", is_flag=True, help="Resume although the repository's HEAD has moved since.")
def resume(task: str | None, **options: Any) -> None:
    """Go on with an unfinished run, or with a new TASK in its session."""
    from .running import resume_session

    guarded(lambda: resume_session(task, **options))


@cli.command()
@click.option("--all", "everywhere", is_flag=True, help="Also the sessions of other folders.")
def sessions(everywhere: bool) -> None:
    """List sessions, the latest first."""
    from .showing import list_sessions

    guarded(lambda: list_sessions(everywhere))


@cli.command()
@click.argument("session")
@click.option("--json", "as_json", is_flag=True, help="Print the stored events, one a line.")
def show(session: str, as_json: bool) -> None:
    """Tell the story of a session (an id, or the beginning of one)."""
    from .showing import show_session

    guarded(lambda: show_session(session, as_json))


@cli.command()
@click.option("--crash", is_flag=True, help="Die by SIGKILL while the tests run, then resume.")
def demo(crash: bool) -> None:
    """Repair a small broken project, offline, with the real loop."""
    from .demo import run_demo

    guarded(lambda: run_demo(crash))


@cli.command()
def doctor() -> None:
    """Say what works on this machine, and how well you are protected."""
    from .doctor import examine

    guarded(examine)


def main() -> None:
    """Entry point of the `latchstep` command."""
    cli()


if __name__ == "__main__":
    main()
