"""Runs a line under a real bash whose PATH holds only stubs that note how they were called: what it really runs."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from latchstep.policy.shell import Commands
from latchstep.policy.words import Word

STUBS = "ls rm git cat grep wc curl tee touch make python npm head cp mv x y a b c id".split()
"""Programs that only note their words."""

WRAPPERS = "env xargs find nice nohup timeout stdbuf setsid".split()
"""Real ones: what they start is what is noted."""

END = "-- end of a call --"

GUARD = "enable -n kill suspend; ulimit -t 2 -f 64 -c 0; FUNCNEST=20; PATH=$STUBS\n"
"""What a line shall not do to the machine that tests it, whatever a fuzzer makes of it."""

UNSAFE = re.compile(
    r"/|~|\benv\b.*-|-p|PATH|\.\.|sudo|kill|\b(yes|sleep|while|until|wait|read|select|coproc|exec)\b|:\(\)|[0-9]{4}"
)
"""Lines that are parsed but not run: those that reach out of the folder, or might never end."""


class Tracer:
    """A folder with stubs. `run` gives what a line started, each as its words, and the files it made."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.bin, self.logs, self.ground = folder / "bin", folder / "logs", folder / "ground"
        self.count = 0
        for made in (self.bin, self.logs, self.ground):
            made.mkdir()
            made.chmod(0o777)
        stub = self.bin / "stub"
        stub.write_text('#!/bin/sh\nprintf "%s\\0" "${0##*/}" "$@" "$END" >> "$TRACE"\n')
        stub.chmod(0o755)
        for name in STUBS:
            (self.bin / name).symlink_to(stub)
        for name in WRAPPERS:
            real = next(p for p in (Path("/usr/bin") / name, Path("/bin") / name) if p.exists())
            (self.bin / name).symlink_to(real)
        (self.bin / "bash").symlink_to("/bin/bash")
        shell = self.bin / "sh"
        shell.write_text('#!/bin/bash\nexec bash "$@"\n')
        shell.chmod(0o755)
        self.guard = folder / "guard"
        self.guard.write_text(GUARD)
        self.env = {
            "PATH": str(self.bin), "STUBS": str(self.bin), "END": END, "HOME": str(self.ground),
            "BASH_ENV": str(self.guard), "LC_ALL": "C.UTF-8",
        }  # fmt: skip

    def run(self, line: str) -> tuple[list[list[str]], set[str]]:
        """Never call it with a line that UNSAFE knows."""
        assert not UNSAFE.search(line)
        self.count += 1
        log = self.logs / str(self.count)
        ground = self.ground / str(self.count)  # its own, so that nothing of one line is taken for another's
        ground.mkdir()
        ground.chmod(0o777)
        alive, held = os.pipe()  # held by all that the line starts, whatever becomes of their output
        try:
            subprocess.run(
                ["/bin/bash", "-c", line],
                cwd=ground,
                env={**self.env, "TRACE": str(log)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=20,
                check=False,
                start_new_session=True,
                pass_fds=(held,),
                **({"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}),
            )
        finally:
            os.close(held)
            ended, _, _ = select.select([alive], [], [], 20)
            os.close(alive)
        assert ended, f"something of this line runs on: {line}"
        text = log.read_text(errors="surrogateescape") if log.exists() else ""
        rows = [row.split("\0")[:-1] for row in text.split(f"{END}\0")[:-1]]
        made = {path.name for path in ground.iterdir()}
        shutil.rmtree(ground)
        log.unlink(missing_ok=True)
        return rows, made


def said(parsed: Commands, argv: Sequence[str]) -> bool:
    """The gate named this command."""
    return any(
        _fits(command.words[at:], argv)
        for command in parsed.commands  # `bash x`: a script of that name, which here is a stub
        for at in range(len(command.words) if command.words[0].text in ("bash", "sh") else 1)
    )


def _fits(words: Sequence[Word], argv: Sequence[str]) -> bool:
    if not words:
        return not argv
    first, rest = words[0], words[1:]
    if first.kind in ("any", "glob", "paths"):
        least = 0 if first.kind == "any" else 1
        return any(_fits(rest, argv[taken:]) for taken in range(least, len(argv) + 1))
    return bool(argv) and (not first.literal or first.text == argv[0]) and _fits(rest, argv[1:])


def surprises(tracer: Tracer, line: str, parsed: Commands) -> list[str]:
    """What the line did and the gate had not said."""
    ran, made = tracer.run(line)
    found = [f"ran {argv}" for argv in ran if not said(parsed, argv)]
    if all(word.literal for word in parsed.writes):
        found += [f"made {name}" for name in made if name not in {Path(w.text).name for w in parsed.writes}]
    return found
