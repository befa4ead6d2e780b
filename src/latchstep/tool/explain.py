"""What a command's failures mean in a sandbox, said once each, so that the model does not fight what is meant so."""

from __future__ import annotations

from .sandbox import Sandbox

MEANINGS: tuple[tuple[tuple[bytes, ...], str, tuple[str, ...]], ...] = (
    (
        (b"/.git/config", b".git/hooks", b"could not lock config file", b"could not write config file", b"/hooks/"),
        "git's config, hooks and attributes are read-only in the sandbox (EBUSY, EROFS): commits and branches work; "
        "`git config`, `git remote add` and submodule set-up do not. For one command use `git -c name=value`",
        ("bubblewrap",),
    ),
    (
        (b"Could not resolve host", b"Temporary failure in name resolution", b"Network is unreachable", b"EAI_AGAIN",
         b"ENOTFOUND", b"Name or service not known", b"Address family not supported", b"EAFNOSUPPORT"),
        "commands have no network in this sandbox but what --net gives",
        ("bubblewrap", "landlock"),
    ),
    (
        (b"Read-only file system", b"EROFS"),
        "only the workspace and /tmp, and folders given for it, can be written in the sandbox",
        ("bubblewrap",),
    ),
    (
        (b"Permission denied", b"EACCES"),
        "only the workspace, $TMPDIR and folders given for it can be written in the sandbox, and little else be read",
        ("landlock",),
    ),
)  # fmt: skip
"""What shows in the output, what it means, and at which levels."""


def explain(output: bytes, sandbox: Sandbox | None, said: set[str]) -> str:
    """A line on what this output shows, "" where there is nothing new to say. What is said is put into `said`."""
    if sandbox is None:
        return ""
    for signs, meaning, levels in MEANINGS:
        if sandbox.level not in levels or meaning in said or not any(sign in output for sign in signs):
            continue
        if "network" in meaning and sandbox.net == "host":
            continue
        said.add(meaning)
        return meaning
    return ""
