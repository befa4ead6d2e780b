"""Nothing outlives: whoever of owner, guard and worker is killed, and whatever a command did to get away."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from latchstep.tool import proctable
from latchstep.tool.capture import Capture
from latchstep.tool.outcome import Finished
from latchstep.tool.spawner import Spawner, still_running

OWNER = """
import asyncio, json, os, sys
from latchstep.tool.spawner import Spawner

async def main():
    own = Spawner(lock_path=sys.argv[1])
    await own.run(sys.argv[2], cwd="/")
    print(json.dumps({"guard": own.guards[0]}), flush=True)
    await own.run(sys.argv[3], cwd="/")

asyncio.run(main())
"""

RUNAWAYS = """
sleep {n} &
setsid sleep {n} &
nohup sleep {n} >/dev/null 2>&1 &
sleep {n} & disown
(setsid sh -c 'sleep {n} & sleep {n}' &)
sh -c "trap '' TERM INT HUP; while :; do sleep {n}; done" &
setsid sh -c 'trap "" TERM; (sleep {n} &) ; setsid sleep {n} & sleep {n}' >/dev/null 2>&1 &
{python} -c '
import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.execvp("sleep", ["sleep", "{n}"])' &
"""
CLEARED = "env -i setsid -f sleep {n}\n"
"""Leaves neither mark nor session nor parent behind: only a living subreaper can find it."""

NUMBERS = itertools.count(72_000_000 + os.getpid() * 100)


def named(pid: int) -> str:
    return proctable.name_of(pid).decode()


def living(number: str) -> list[int]:
    needle = number.encode()
    return [pid for pid in proctable.walk() if needle in proctable.read_file(f"/proc/{pid}/cmdline")]


def wait_until(condition: object, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.005)


@contextmanager
def owner(lock: Path, runaways: str, later: str = "") -> Iterator[tuple[dict[str, int], str]]:
    """A process with a spawner, one finished command that left much behind and one that runs: pids by role."""
    number = str(next(NUMBERS))
    script = runaways.format(n=number, python=sys.executable)
    arguments = [sys.executable, "-c", OWNER, str(lock), script, later.format(n=number) + script + "wait"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        guard = json.loads(process.stdout.readline())["guard"]
        worker = worker_of(guard)
        wait_until(lambda: len([pid for pid in living(number) if named(pid) == "sleep"]) >= 20)
        yield {"owner": process.pid, "guard": guard, "worker": worker}, number
    finally:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()
        for pid in living(number):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def worker_of(guard: int) -> int:
    table = proctable.walk()
    (worker,) = (pid for pid in table if table[pid][0] == guard and named(pid) == "latchstep-spawn")
    return worker


def below(pid: int) -> list[int]:
    return proctable.descendants(proctable.walk(), pid)


SUBSETS = [each for size in (1, 2) for each in itertools.combinations(("owner", "guard", "worker"), size)]


@pytest.mark.parametrize("victims", SUBSETS, ids="-".join)
def test_all_is_gone_when_any_of_the_three_is_killed(tmp_path: Path, victims: tuple[str, ...]) -> None:
    with owner(tmp_path / "lock", RUNAWAYS + CLEARED * ("worker" not in victims or "guard" not in victims)) as (
        pids,
        number,
    ):
        order = random.sample(sorted(victims), len(victims))
        for at, role in enumerate(order):
            with suppress(ProcessLookupError):  # the first one's end may have been the other's
                os.kill(pids[role], signal.SIGKILL)
            if not at:
                time.sleep(random.choice((0, 0.001, 0.003, 0.01, 0.03)))  # the other is in the middle of its answer
        wait_until(lambda: [pid for pid in living(number) if pid != pids["owner"]] == [])
        wait_until(lambda: "owner" not in victims or not still_running(tmp_path / "lock"))
        for role in ("guard", "worker"):
            wait_until(lambda role=role: pids[role] not in proctable.walk())


@pytest.mark.parametrize("order", list(itertools.permutations(("owner", "guard", "worker"))), ids="-".join)
def test_all_three_killed_in_one_blow(tmp_path: Path, order: tuple[str, ...]) -> None:
    with owner(tmp_path / "lock", RUNAWAYS) as (pids, number):
        for role in order:
            with suppress(ProcessLookupError):  # the first one's end may have been another's
                os.kill(pids[role], signal.SIGKILL)
        wait_until(lambda: living(number) == [])
        wait_until(lambda: not still_running(tmp_path / "lock"))


def test_a_command_that_kills_every_python_by_its_arguments(tmp_path: Path) -> None:
    """As `pkill -9 -f python` does, but aimed at our three only."""
    with owner(tmp_path / "lock", RUNAWAYS) as (pids, number):
        subprocess.run(["kill", "-9", *map(str, pids.values())], check=False)  # one may be gone by then
        wait_until(lambda: living(number) == [])


@pytest.mark.parametrize("stopped", ["guard", "worker"])
def test_a_stopped_guard_or_worker_saves_nobody(tmp_path: Path, stopped: str) -> None:
    with owner(tmp_path / "lock", RUNAWAYS + CLEARED) as (pids, number):
        os.kill(pids[stopped], signal.SIGSTOP)
        os.kill(pids["owner"], signal.SIGKILL)
        wait_until(lambda: living(number) == [])
        wait_until(lambda: not set(pids.values()) & set(proctable.walk()))


def test_signals_of_the_terminal_do_not_reach_the_spawner(tmp_path: Path) -> None:
    with owner(tmp_path / "lock", RUNAWAYS) as (pids, _):
        table = proctable.walk()
        assert {table[pids["guard"]][2], table[pids["worker"]][2]} == {pids["guard"]}
        assert table[pids["owner"]][2] != pids["guard"]
        for role in ("guard", "worker"):
            status = proctable.read_file(f"/proc/{pids[role]}/status").decode()
            ignored = int(status.split("SigIgn:")[1].split()[0], 16)
            for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                assert ignored >> (each - 1) & 1
                os.kill(pids[role], each)
        assert {pids["guard"], pids["worker"]} <= set(proctable.walk())


def test_the_lock_tells_of_what_no_watch_could_find(tmp_path: Path) -> None:
    """All three killed, a process without mark left, and another command that had unlocked what it inherited."""
    with owner(tmp_path / "lock", CLEARED * 10 + "sleep {n} &\n", "flock -u 97\n") as (pids, number):
        for each in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none of them acts
            for role in ("guard", "worker", "owner"):
                os.kill(pids[role], each)
        wait_until(lambda: not set(pids.values()) & set(proctable.walk()))
        strays = living(number)
        assert len(strays) >= 20
        assert still_running(tmp_path / "lock")
        for pid in strays:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not still_running(tmp_path / "lock"))


def test_a_fork_of_the_owner_does_not_keep_it_alive(tmp_path: Path) -> None:
    """Its fork holds the pipes open, so that their end never comes; the owner's own end is what counts."""
    number, fork = str(next(NUMBERS)), "    print(os.fork() or time.sleep(60), flush=True)\n"
    program = OWNER.replace("import asyncio,", "import time, asyncio,").replace(
        "    await own.run(sys.argv[3]", fork + "    await own.run(sys.argv[3]"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "lock"), f"sleep {number} &", f"sleep {number}"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.readline()
    forked = int(process.stdout.readline())
    try:
        wait_until(lambda: len([pid for pid in living(number) if named(pid) == "sleep"]) == 2)
        process.kill()
        process.wait()
        wait_until(lambda: living(number) == [forked])
    finally:
        os.kill(forked, signal.SIGKILL)
        process.stdout.close()


def test_an_owner_killed_at_any_moment_of_the_start(tmp_path: Path) -> None:
    for _ in range(8):
        number = str(next(NUMBERS))
        script = RUNAWAYS.format(n=number, python=sys.executable)
        arguments = [sys.executable, "-c", OWNER, str(tmp_path / "lock"), script, script + "wait"]
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
        wait_until(lambda process=process: below(process.pid))
        time.sleep(random.uniform(0, 0.04))
        process.kill()
        process.wait()
        wait_until(lambda: not still_running(tmp_path / "lock"))
        wait_until(lambda number=number: living(number) == [])


def test_a_fork_bomb_that_changes_sessions_is_ended(tmp_path: Path) -> None:
    number = str(next(NUMBERS))
    bomb = f"import os, time\nfor _ in range(5):\n if os.fork() == 0: os.setsid()\ntime.sleep({number})"

    async def main() -> Finished:
        own = Spawner()
        async with asyncio.timeout(60):
            ended = await own.run(f"{sys.executable} -c '{bomb}'", cwd="/", timeout=0.5, grace=0.05)
            assert [pid for pid in living(number) if pid not in {os.getpid()}] == []
            await own.close()
        return ended

    assert asyncio.run(main()).timed_out


def test_two_spawners_leave_each_others_children_alone(tmp_path: Path) -> None:
    first_number, second_number = str(next(NUMBERS)), str(next(NUMBERS))

    async def main() -> None:
        first, second = Spawner(), Spawner()
        async with asyncio.timeout(60):
            await first.run(f"sleep {first_number} & setsid -f sleep {first_number}", cwd="/")
            await second.run(f"sleep {second_number} & setsid -f sleep {second_number}", cwd="/")
            await first.kill_all()
            await first.close()
            assert living(first_number) == []
            assert len(living(second_number)) == 2
            await second.close()
            assert living(second_number) == []

    asyncio.run(main())


@pytest.mark.parametrize("role", ["guard", "worker"])
def test_a_spawner_killed_in_the_middle(tmp_path: Path, role: str) -> None:
    """The command's outcome is unknown and said so, all of it is dead by then, and the next command works."""
    number = str(next(NUMBERS))

    async def main() -> None:
        own, capture = Spawner(lock_path=tmp_path / "lock"), Capture()
        async with asyncio.timeout(60):
            task = asyncio.create_task(
                own.run(f"echo half; setsid sleep {number} & sleep {number}", cwd="/", capture=capture)
            )
            await asyncio.to_thread(
                wait_until, lambda: capture.total == 5 and len([p for p in living(number) if named(p) == "sleep"]) == 2
            )
            (guard,) = own.guards
            worker = worker_of(guard)
            os.kill({"guard": guard, "worker": worker}[role], signal.SIGKILL)
            ended = await task
            assert living(number) == []
            assert (ended.exit_status, ended.signal, ended.timed_out) == (None, "", False)
            assert "killed or failed" in ended.unknown
            assert ended.head == b"half\n"
            ended = await own.run("echo next", cwd="/")
            assert (ended.head, ended.unknown) == (b"next\n", "")
            assert own.guards != (guard,)
            await own.close()

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(main())
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_command_that_kills_its_spawner(tmp_path: Path) -> None:
    async def main() -> None:
        own = Spawner()
        async with asyncio.timeout(60):
            ended = await own.run("kill -9 $PPID; sleep 30", cwd="/")
            assert ended.unknown
            results = await asyncio.gather(*(own.run("kill -9 $PPID; sleep 30", cwd="/") for _ in range(3)))
            assert all(each.unknown for each in results)
            assert (await own.run("echo on", cwd="/")).head == b"on\n"
            await own.close()

    asyncio.run(main())


def test_a_worker_that_hangs_is_given_up(tmp_path: Path) -> None:
    """A child stops the worker: the deadline is ours as well, and what it had started dies with it."""
    number = str(next(NUMBERS))

    async def main() -> None:
        own = Spawner()
        async with asyncio.timeout(60):
            ended = await own.run(
                f"setsid sleep {number} & kill -STOP $PPID; sleep {number}", cwd="/", timeout=0.1, grace=0
            )
            assert "did not answer" in ended.unknown
            assert living(number) == []
            assert (await own.run("echo on", cwd="/")).head == b"on\n"
            await own.close()

    asyncio.run(main())
