"""Which level of the sandbox works here, found by running: each is given things to do that it must not let happen."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from latchstep.errors import DefinitionError, ToolError

from .sandbox import Level, Sandbox
from .spawner import CANNOT, Spawner

SECONDS = 10.0
"""A level that has not answered by then does not work."""

TRIAL = """
[ -w . ] || echo "the workspace cannot be written"
cat {secret} 2>/dev/null && echo " is what a file outside says"
echo x 2>/dev/null >{secret}
(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && [ {net} = none ] && echo "the network is there"
(: >>/proc/sys/kernel/core_pattern) 2>/dev/null && echo "the kernel can be set"
grep -q "^Seccomp:.2" /proc/self/status || echo "no filter of system calls is loaded"
grep -q "^CapEff:.0*$" /proc/self/status || echo "rights of root are left"
exit 0
"""


async def trial(sandbox: Sandbox) -> str:
    """What is wrong with this level here, "" if nothing is."""
    with tempfile.TemporaryDirectory(prefix="latchstep-probe-") as folder:
        secret = Path(folder) / "secret"
        secret.write_text("this")
        os.chmod(secret, 0o666)  # no right of the disk shall be what stops it, whoever commands run as
        os.chmod(folder, 0o755)
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        script = TRIAL.format(secret=secret, port=port, net=sandbox.net)
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


async def best(make: Callable[[Level], Sandbox], wanted: str = "auto") -> tuple[Sandbox, list[str]]:
    """The best sandbox that works (or the one that is wanted), and why each better one does not.

    Raises DefinitionError where the wanted one does not work; level `none` always does.
    """
    levels: tuple[Level, ...] = ("bubblewrap", "landlock") if wanted == "auto" else (wanted,)  # type: ignore[assignment]
    problems: list[str] = []
    for level in levels:
        if level == "none":
            break
        try:
            sandbox = make(level)
            problem = await trial(sandbox)
        except (DefinitionError, OSError) as error:
            problem = str(error)
        if not problem:
            return sandbox, problems
        problems.append(f"{level}: {problem}")
    if wanted not in ("auto", "none"):
        raise DefinitionError(f"the sandbox that was asked for does not work here: {problems[0]}")
    return make("none"), problems
