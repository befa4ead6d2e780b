"""Which level of the sandbox works here, found by running: each is given things to do that it must not let happen."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from latchstep.errors import DefinitionError, ToolError

from .sandbox import BUBBLEWRAP, NEWER, Level, Sandbox
from .spawner import CANNOT, Spawner

SECONDS = 10.0
"""A level that has not answered by then does not work."""

KEPT = 20
"""Trials that are remembered beside the newest."""

TRIAL = """
PATH=/usr/bin:/bin:$PATH  # what is first in a person's may lie in the workspace
{written}
cat {secret} 2>/dev/null && echo " is what a file outside says"
echo x 2>/dev/null >{secret}
(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && [ {net} = none ] && echo "the network is there"
(: >>/proc/sys/kernel/core_pattern) 2>/dev/null && echo "the kernel can be set"
grep -q "^Seccomp:.2" /proc/self/status || echo "no filter of system calls is loaded"
grep -q "^CapEff:.0*$" /proc/self/status || echo "rights of root are left"
exit 0
"""


WRITTEN = '[ -w . ] || echo "the workspace cannot be written"'
LOOKED = 'mkdir .latchstep-probe 2>/dev/null && rmdir .latchstep-probe && echo "the workspace can be written"'


async def trial(sandbox: Sandbox) -> str:
    """What is wrong with this level here, "" if nothing is."""
    with tempfile.TemporaryDirectory(prefix="latchstep-probe-") as folder:
        secret = Path(folder) / "secret"
        secret.write_text("this")
        os.chmod(secret, 0o666)  # no right of the disk shall be what stops it, whoever commands run as
        os.chmod(folder, 0o755)
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        net, written = "host" if sandbox.net == "host" else "none", LOOKED if sandbox.looks else WRITTEN
        script = TRIAL.format(secret=secret, port=port, net=net, written=written)
        spawner = Spawner(sandbox=sandbox)
        try:
            ended = await spawner.run(script, cwd=sandbox.root, timeout=SECONDS)
        except ToolError as error:
            return str(error).removeprefix("the command was not started: ").removeprefix(CANNOT)
        finally:
            await spawner.close(0.0)
            server.close()
            await server.wait_closed()
        if secret.read_text() != "this":
            return "a file outside could be written"
        said = (ended.head + ended.tail).decode(errors="replace").strip()
        return "; ".join(said.splitlines()) or ("" if ended.exit_status == 0 else "its trial did not end as it should")


async def best(
    make: Callable[[Level], Sandbox], wanted: str = "auto", passed: Path | None = None
) -> tuple[Sandbox, list[str]]:
    """The best sandbox that works (or the one that is wanted), and why each better one does not.

    passed: a file that keeps which trials were passed since the machine was started; these are not tried again. A
    sandbox that cannot be set up starts no command either way.
    Raises DefinitionError where the wanted one does not work; level `none` always does.
    """
    levels: tuple[Level, ...] = ("bubblewrap", "landlock") if wanted == "auto" else (wanted,)  # type: ignore[assignment]
    problems: list[str] = []
    for level in levels:
        if level == "none":
            break
        try:
            sandbox = make(level)
            known, key = _passed(passed), _key(sandbox)
            problem = "" if key in known else await trial(sandbox)
            if NEWER in problem:
                sandbox, passed = replace(sandbox, older=True), None
                problem = await trial(sandbox)
            if passed is not None and key not in known and not problem:
                _keep(passed, [key, *known[:KEPT]])
        except (DefinitionError, OSError) as error:
            problem = str(error)
        if not problem:
            return sandbox, problems
        problems.append(f"{level}: {problem}")
    if wanted not in ("auto", "none"):
        raise DefinitionError(f"the sandbox that was asked for does not work here: {problems[0]}")
    return make("none"), problems


def _passed(file: Path | None) -> list[str]:
    try:
        return file.read_text().split() if file is not None else []
    except (OSError, ValueError):
        return []


def _keep(file: Path, keys: list[str]) -> None:
    with suppress(OSError):  # then it is tried again
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(0o600)
        file.write_text("\n".join(keys))


def _key(sandbox: Sandbox) -> str:
    """What a trial was about: the same machine since the same start, kernel, user, program of the same bytes."""
    status = [os.stat(path) for path in BUBBLEWRAP if os.path.exists(path)]
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = os.urandom(16).hex()
    parts = (
        boot,
        os.uname(),
        os.geteuid(),
        sandbox.level,
        sandbox.net,
        sandbox.looks,
        sandbox.user,
        sys.executable,
        __file__,
    )
    return sha256(repr((parts, [(it.st_ino, it.st_mtime_ns, it.st_size) for it in status])).encode()).hexdigest()
