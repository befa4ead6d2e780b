"""Background jobs against real processes: started by bash, read, awaited, stopped, and never left behind."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from latchstep.core.secrets import Masker
from latchstep.errors import ToolError
from latchstep.tool.base import Context, Output
from latchstep.tool.jobs import MAX_JOBS, MAX_KEPT, Jobs
from latchstep.tool.preset import session_tools
from latchstep.tool.show import OUTPUT_LIMIT
from latchstep.tool.spawner import Finished, Spawner
from tests.cli.cli_kit import alive, pids_in

Call = Callable[..., Awaitable[str]]


def with_jobs(root: Path, work: Callable[[Call, Jobs], Awaitable[None]], masker: Masker | None = None) -> None:
    """Run `work` with a caller of the tools, by name. Nothing may be left when they are closed."""

    async def main() -> None:
        spawner = Spawner()
        jobs = Jobs(spawner, masker)
        tools = {tool.name: tool for tool in session_tools(jobs, root)}

        async def call(name: str, **arguments: Any) -> str:
            tool, context = tools[name], Context(outputs=root / "outputs", call_id="c")
            async with asyncio.timeout(20):
                result = await tool(**tool.validate(arguments), context=context)
            assert isinstance(result, Output)
            assert isinstance(result.content, str)
            assert result.outcome == "ok"
            return result.content

        before = asyncio.all_tasks()
        try:
            await work(call, jobs)
        finally:
            await jobs.close()
            await spawner.close(grace=0.1)
        assert asyncio.all_tasks() == before

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(main())
    assert len(os.listdir("/proc/self/fd")) == before


async def begun(call: Call, command: str, first: str) -> str:
    """Start it as job-1, and read it when this text has come, however slow the machine is."""
    said = await call("bash", command=command, background=True)
    return said if first in said else await call("job_read", job="job-1", wait=15, until=first)


async def until(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(20):
        while not (found := condition()):  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.01)
    return found


def test_a_job_is_started_read_awaited_and_stopped(tmp_path: Path) -> None:
    async def work(call: Call, jobs: Jobs) -> None:
        script = "echo $$ > pid; echo begun; while [ ! -e go ]; do sleep 0.02; done; echo more; sleep 300"
        said = await begun(call, script, "begun")
        assert said.startswith("begun\n[job-1 (echo $$ > pid;")
        assert "): running for " in said
        assert "job_read shows what comes next, job_stop ends it; else it ends with the session" in said
        assert str(tmp_path / "outputs" / "job-1.txt") in said
        assert (await call("job_read", job="job-1")).startswith("(no new output)\n[job-1")
        (tmp_path / "go").touch()
        assert (await call("job_read", job="job-1", wait=15, until="more")).startswith("more\n[job-1")
        assert "running for" in await call("job_read")
        (pid,) = pids_in(tmp_path / "pid")
        assert alive(pid)
        said = await call("job_stop", job="job-1")
        assert re.search(r"stopped after \d+\.\d s: it and all it had started were ended", said)
        assert not alive(pid)
        assert "stopped after" in await call("job_read", job="job-1")
        assert "stopped after" in await call("job_stop", job="job-1"), "stopping twice is no mistake"
        assert (tmp_path / "outputs" / "job-1.txt").read_text() == "begun\nmore\n"

    with_jobs(tmp_path, work)


def test_what_an_ended_job_left_running_is_stopped_with_it_and_nothing_else(tmp_path: Path) -> None:
    async def work(call: Call, jobs: Jobs) -> None:
        await call("bash", command="setsid -f sh -c 'echo $$ > other; exec sleep 300' >/dev/null; exit 0")
        await until(lambda: pids_in(tmp_path / "other"))
        script = (
            "setsid -f sh -c 'echo $$ > pid; exec sleep 300' >/dev/null; until [ -s pid ]; do sleep 0.02; done; exit 5"
        )
        said = await call("bash", command=script, background=True)
        if "exit status 5" not in said:
            said = await call("job_read", job="job-1", wait=15)
        assert "still running in the background" in said
        (pid,), (other,) = pids_in(tmp_path / "pid"), pids_in(tmp_path / "other")
        assert alive(pid)
        said = await call("job_stop", job="job-1")
        assert "exit status 5; what it had left running was ended" in said
        assert "still running" not in said
        assert not alive(pid)
        assert alive(other)
        assert "was ended" not in await call("job_stop", job="job-1")

    with_jobs(tmp_path, work)


@pytest.mark.parametrize(
    ("command", "state"),
    [
        ("echo x; exit 3", r"ended after \d+\.\d s: exit status 3"),
        ("no-such-program", r"exit status 127 \(as when a command is not found\)"),
        ("kill -SEGV $$", r"ended by signal SIGSEGV"),
    ],
)
def test_how_a_job_ended_is_said_in_words(tmp_path: Path, command: str, state: str) -> None:
    async def work(call: Call, jobs: Jobs) -> None:
        said = await call("bash", command=command, background=True)
        if "running" in said:  # the machine was slow
            said = await call("job_read", job="job-1", wait=15)
        assert re.search(state, said), said
        assert "job_stop" not in said

    with_jobs(tmp_path, work)


def test_a_job_has_its_deadline_and_a_wait_has_one(tmp_path: Path) -> None:
    async def work(call: Call, jobs: Jobs) -> None:
        said = await call("bash", command="sleep 300", background=True)
        said = await call("job_read", job="job-1", wait=0.05, until="never")
        assert "running for" in said
        assert "'never' did not come within 0.05 s" in said
        await call("bash", command="sleep 300", background=True, timeout=0.6)
        assert "timed out after 0.6 s" in await call("job_read", job="job-2", wait=15, until="never")

    with_jobs(tmp_path, work)


def test_a_text_in_two_pieces_and_in_colours_is_found(tmp_path: Path) -> None:
    async def work(call: Call, jobs: Jobs) -> None:
        script = "while [ ! -e go ]; do sleep 0.02; done; printf 'rea\\033[1mdy '; sleep 0.1; echo now; sleep 300"
        await call("bash", command=script, background=True)
        (tmp_path / "go").touch()
        said = await call("job_read", job="job-1", wait=15, until="ready now")
        assert said.startswith("ready now\n[job-1")
        assert "did not come" not in said

    with_jobs(tmp_path, work)


def test_much_output_is_bounded_and_whole_on_disk(tmp_path: Path) -> None:
    async def work(call: Call, jobs: Jobs) -> None:
        await begun(call, "echo first; while [ ! -e go ]; do sleep 0.02; done; seq 200000", "first")
        (tmp_path / "go").touch()
        said = await call("job_read", job="job-1", wait=20)
        assert len(said) < OUTPUT_LIMIT + 1000
        assert "\n200000\n[job-1" in said
        assert "of 200,000 lines (1,288,895 bytes); its whole output is in" in said
        assert len((tmp_path / "outputs" / "job-1.txt").read_bytes()) == 1_288_895 + len("first\n")

    with_jobs(tmp_path, work)


def test_secrets_are_masked_in_what_is_read_and_kept(tmp_path: Path) -> None:
    async def work(call: Call, jobs: Jobs) -> None:
        script = (
            "echo password-of-mine; printf 'password-'; while [ ! -e go ]; do sleep 0.02; done; echo of-mine; sleep 300"
        )
        assert "[masked: KEY]\n" in await begun(call, script, "masked")
        await until(lambda: jobs._jobs["job-1"].capture.held)
        assert "9 bytes of a line that is not ended wait for its end" in await call("job_read", job="job-1")
        (tmp_path / "go").touch()
        said = await call("job_read", job="job-1", wait=15, until="masked")
        assert said.startswith("[masked: KEY]\n[job-1")
        assert (tmp_path / "outputs" / "job-1.txt").read_text() == "[masked: KEY]\n" * 2

    with_jobs(tmp_path, work, Masker({"KEY": "password-of-mine"}))


def test_an_unknown_job_is_told_truthfully(tmp_path: Path) -> None:
    """Names are not given twice in a session: what an earlier process called job-1 is not this one's."""

    async def work(call: Call, jobs: Jobs) -> None:
        (tmp_path / "outputs").mkdir()
        (tmp_path / "outputs" / "job-1.txt").write_text("old\n")
        with pytest.raises(ToolError, match=r"was ended then.*What it wrote is in .*job-1\.txt"):
            await call("job_read", job="job-1")
        with pytest.raises(ToolError, match=r"no job '\.\./\.\./etc' in this process"):
            await call("job_stop", job="../../etc")
        assert "job-2 (true)" in await call("bash", command="true", background=True)
        assert "job-1" not in await call("job_read")

    with_jobs(tmp_path, work)


def test_jobs_are_bounded(tmp_path: Path) -> None:
    async def work(call: Call, jobs: Jobs) -> None:
        for _ in range(MAX_JOBS):
            await call("bash", command="sleep 300", background=True)
        with pytest.raises(ToolError, match=rf"{MAX_JOBS} jobs are running \(MAX_JOBS\): job-1, job-2"):
            await call("bash", command="true", background=True)
        await asyncio.gather(*(call("job_stop", job=f"job-{n}") for n in range(1, MAX_JOBS + 1)))
        for _ in range(MAX_KEPT + 1):
            await call("bash", command="true", background=True)
            await call("job_read", job=list(jobs._jobs)[-1], wait=15)
        assert len(jobs._jobs) == MAX_KEPT
        with pytest.raises(ToolError, match="no job 'job-1' in"):
            await call("job_read", job="job-1")

    with_jobs(tmp_path, work)


def test_a_call_cancelled_while_it_starts_a_job_ends_that_job_and_no_other(tmp_path: Path) -> None:
    async def work(call: Call, jobs: Jobs) -> None:
        await call("bash", command="echo $$ > first; sleep 300", background=True)
        (first,) = await until(lambda: pids_in(tmp_path / "first"))
        starting = asyncio.create_task(call("bash", command="echo $$ > second; sleep 300", background=True))
        (second,) = await until(lambda: pids_in(tmp_path / "second"))
        if starting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert not alive(second)
        assert alive(first)

    with_jobs(tmp_path, work)


def test_what_kills_everything_waits_until_the_jobs_know_it(tmp_path: Path) -> None:
    class Late(Spawner):
        """Hears of a command's end long after it."""

        async def run(self, command: str, **more: Any) -> Finished:
            finished = await super().run(command, **more)
            for _ in range(200):
                await asyncio.sleep(0)
            return finished

    async def main() -> None:
        jobs = Jobs(spawner := Late())
        try:
            await jobs.start("exec sleep 300", tmp_path, 60.0, Context(call_id="c"))
            await jobs.kill_all()
            (_, job_stop) = jobs.tools()
            said = await job_stop(job="job-1", context=Context(call_id="d"))
            assert isinstance(said, Output)
            assert "ended by signal SIGTERM" in str(said.content)
        finally:
            await jobs.close()
            await spawner.close(grace=0.1)

    asyncio.run(main())


def test_what_is_started_with_an_ampersand_is_told_of_jobs(tmp_path: Path) -> None:
    async def work(call: Call, jobs: Jobs) -> None:
        assert "run it with `background`, without &]" in await call("bash", command="sleep 300 >/dev/null & echo x")
        said = await begun(call, "sleep 300 >/dev/null & echo x; exit", "ended after")
        assert "still running in the background: sleep" in said
        assert "`background`" not in said

    with_jobs(tmp_path, work)


def test_without_jobs_bash_has_no_background(tmp_path: Path) -> None:
    from latchstep.tool.bash import bash_tool

    tool = bash_tool(Spawner(), tmp_path)
    assert "background" not in tool.schema["properties"]
    assert "job" not in tool.description
    with pytest.raises(ValueError, match="background"):
        tool.validate({"command": "x", "background": True})
    with_background = session_tools(Jobs(Spawner()), tmp_path)[0]
    assert set(with_background.schema["properties"]) == set(with_background.validate({"command": "x"}))
    assert with_background.validate({"command": "x"})["timeout"] == 120
    assert with_background.validate({"command": "x", "background": True})["timeout"] == 3600
    assert with_background.validate({"command": "x", "background": True, "timeout": 5})["timeout"] == 5
    with pytest.raises(ValueError, match="bool"):
        with_background.validate({"command": "x", "background": "yes"})
