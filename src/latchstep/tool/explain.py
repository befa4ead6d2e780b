"""What a command's failures mean in a sandbox, said once each, so that the model does not fight what is meant so."""

from __future__ import annotations

import re

from .sandbox import Sandbox

MEANINGS: tuple[tuple[re.Pattern[bytes], str, tuple[str, ...]], ...] = (
    (
        re.compile(rb"could not (?:lock|write) config file"
                   rb"|(?m:^(?=.*(?:\.git/config|/hooks/)).*(?:EBUSY|EROFS|ead-only file system|esource busy))"),
        "git's config, hooks and attributes are read-only in the sandbox (EBUSY, EROFS): commits and branches work; "
        "`git config`, `git remote add` and submodule set-up do not. For one command use `git -c name=value`",
        ("bubblewrap",),
    ),
    (
        re.compile(rb"Could not resolve host|Temporary failure in name resolution|Network is unreachable|EAI_AGAIN"
                   rb"|ENOTFOUND|Name or service not known|Address family not supported|EAFNOSUPPORT"),
        "commands have no network in this sandbox but what --net gives",
        ("bubblewrap", "landlock"),
    ),
    (
        re.compile(b"Read-only file system|EROFS"),
        "only the workspace and /tmp, and folders given for it, can be written in the sandbox",
        ("bubblewrap",),
    ),
    (
        re.compile(b"Permission denied|EACCES"),
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
        if sandbox.level not in levels or sandbox.looks or meaning in said or not signs.search(output):
            continue
        if "network" in meaning and sandbox.net == "host":
            continue
        said.add(meaning)
        return meaning
    return ""
