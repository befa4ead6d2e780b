"""The spawner as its caller sees it: results, deadlines, cancels, output, lock and environment, with real processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.errors import ToolError
from latchstep.tool import capture as capturing
from latchstep.tool import environment, proctable, spawner
from latchstep.tool import link as linking
from latchstep.tool.capture import Capture
from latchstep.tool.environment import DEFAULT_PATH, FORCED, UTF8, child_environment
from latchstep.tool.outcome import Finished, Left, Report, parse_report
from latchstep.tool.spawner import Spawner, still_running, wait_until_quiet


def with_spawner(work: Callable[[Spawner], Awaitable[None]], **options: object) -> None:
    """Run `work` with a spawner, and see that closing it leaves no task, descriptor or child."""

    async def main() -> None:
        tasks = asyncio.all_tasks()
        own = Spawner(**options)  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            try:
                await work(own)
            finally:
                await own.close(grace=0.1)
        assert own.guards == ()
        assert asyncio.all_tasks() == tasks

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(main())
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        await asyncio.sleep(0.01)


def living(number: str) -> list[int]:
    """Processes with this number among their arguments; zombies have none."""
    found = []
    for pid in proctable.walk():
        if number.encode() in proctable.read_file(f"/proc/{pid}/cmdline").split(b"\0"):
            found.append(pid)
    return found


def worker_of(own: Spawner) -> int:
    table = proctable.walk()
    (worker,) = (
        pid
        for pid in proctable.descendants(table, own.guards[-1])
        if table[pid][0] == own.guards[-1] and proctable.name_of(pid) == b"latchstep-spawn"
    )
    return worker


def test_exit_status_and_output_in_order_of_arrival(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        ended = await own.run("echo out; echo err >&2; echo more; exit 7", cwd=tmp_path)
        assert (ended.exit_status, ended.signal, ended.timed_out, ended.unknown) == (7, "", False, "")
        assert (ended.head, ended.tail, ended.total, ended.lines) == (b"out\nerr\nmore\n", b"", 13, 3)
        assert ended.left == ()
        assert ended.output is None
        ended = await own.run("pwd; kill -SEGV $$", cwd=tmp_path)
        assert (ended.exit_status, ended.signal) == (None, "SIGSEGV")
        assert ended.head.decode() == f"{tmp_path}\n"

    with_spawner(work)


def test_one_program_serves_many_commands_also_at_once(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        results = await asyncio.gather(*(own.run(f"sleep 0.0{n % 3}; echo {n}", cwd=tmp_path) for n in range(40)))
        assert [int(ended.head) for ended in results] == list(range(40))
        assert not any(ended.left for ended in results)
        assert len(own.guards) == 1

    with_spawner(work)


def test_concurrent_floods_do_not_mix_and_a_cancel_ends_only_its_own(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        floods = [asyncio.create_task(own.run(f"yes {n} | head -c 2000000", cwd=tmp_path)) for n in range(4)]
        slow = asyncio.create_task(own.run("sleep 71001 & setsid sleep 71001 & wait", cwd=tmp_path))
        other = asyncio.create_task(own.run("sleep 71002", cwd=tmp_path))
        await until(lambda: len(living("71001")) == 2 and living("71002"))
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert living("71001") == []
        assert len(living("71002")) == 1
        for n, flood in enumerate(floods):
            ended = await flood
            assert ended.total == 2_000_000
            assert set(ended.head) == set(f"{n}\n".encode())
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other

    with_spawner(work)


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        with pytest.raises(ToolError, match="No such file or directory"):
            await own.run("true", cwd=tmp_path / "missing")
        with pytest.raises(ToolError, match="Argument list too long"):
            await own.run("true", cwd=tmp_path, env={"BIG": "x" * 200_000})
        with pytest.raises(ValueError, match="NUL"):
            await own.run("echo a\0b", cwd=tmp_path)
        with pytest.raises(ValueError, match="surrogate"):
            await own.run("echo \ud800", cwd=tmp_path)
        with pytest.raises(ValueError, match=r"1,048,577 bytes; at most 1,048,576 .*MAX_COMMAND"):
            await own.run("#" * (spawner.MAX_COMMAND + 1), cwd=tmp_path)
        for timeout in (0, -1, 3601, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="MAX_TIMEOUT"):
                await own.run("true", cwd=tmp_path, timeout=timeout)
        for env in ({"A=B": "x"}, {"": "x"}, {"A": "x\0y"}):
            with pytest.raises(ValueError, match="cannot be set"):
                await own.run("true", cwd=tmp_path, env=env)
        assert (await own.run("echo fine", cwd=tmp_path)).head == b"fine\n"

    with_spawner(work)


@pytest.mark.parametrize("size", [59_000, 61_500, 99_999, 100_001, 131_072, 200_000, 1_000_000])
def test_x05_commands_of_any_size(tmp_path: Path, size: int) -> None:
    async def work(own: Spawner) -> None:
        end = "\nread line; echo stdin=$line; echo 'é ok'; exit 5"
        command = ": " + "x" * (size - len(end.encode()) - 2) + end
        ended = await own.run(command, cwd=tmp_path)
        assert (ended.exit_status, ended.head.decode()) == (5, "stdin=\né ok\n")

    with_spawner(work)


def test_a_command_reads_what_it_is_given_and_no_more(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        for data in (b"one\n\xff\0two", b"x" * 3_000_000):
            ended = await own.run("cat; exit 3", cwd=tmp_path, stdin=data, capture=Capture(tmp_path / f"o{len(data)}"))
            assert (ended.exit_status, ended.total) == (3, len(data))
            assert ended.head == data[: len(ended.head)]
        assert (await own.run("cat", cwd=tmp_path)).total == 0
        with pytest.raises(ValueError, match="a command with input"):
            await own.run("#" * 200_000, cwd=tmp_path, stdin=b"x")

    with_spawner(work)


def test_many_large_requests_at_once_wait_for_room(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        command = ": " + "x" * 50_000 + "\necho ok"
        ended = await asyncio.gather(*(own.run(command, cwd=tmp_path) for _ in range(30)))
        assert [each.head for each in ended] == [b"ok\n"] * 30

    with_spawner(work)


def test_a_deadline_ends_the_whole_tree_and_keeps_what_came(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        command = (
            "echo begun; trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 71010; sleep 71010' & sleep 71010; echo no"
        )
        ended = await own.run(command, cwd=tmp_path, timeout=0.3, grace=0.1)
        assert ended.timed_out
        assert ended.head == b"begun\n"
        assert living("71010") == []

    with_spawner(work)


def test_sigterm_comes_first_and_once(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        command = "trap 'echo tidy' TERM; echo ready; sleep 71014; for n in 1 2 3 4 5; do sleep 0.01; done; exit 9"
        ended = await own.run(command, cwd=tmp_path, timeout=0.3, grace=10)
        assert ended.head.count(b"tidy") == 1
        assert (ended.exit_status, ended.timed_out) == (9, True)

    with_spawner(work)


def test_a_stopped_tree_ends_too(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        ended = await own.run("sleep 71011 & kill -STOP $! $$", cwd=tmp_path, timeout=0.3, grace=0.1)
        assert ended.timed_out
        assert living("71011") == []

    with_spawner(work)


def test_a_cancel_keeps_what_came_and_a_second_one_kills_at_once(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        capture = Capture()
        command = "trap '' TERM; echo half; while :; do sleep 71012; done"
        task = asyncio.create_task(own.run(command, cwd=tmp_path, capture=capture, grace=1000))
        await until(lambda: capture.total == 5 and living("71012"))
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert capture.head == b"half\n"
        assert living("71012") == []

    with_spawner(work)


def test_a_cancel_that_meets_the_end(tmp_path: Path) -> None:
    """The request to end a command that has just ended gets no second answer."""

    async def work(own: Spawner) -> None:
        await own.run("true", cwd=tmp_path)
        (guard,) = own.guards
        for _ in range(20):
            task = asyncio.create_task(own.run("true", cwd=tmp_path))
            await asyncio.sleep(0)
            time.sleep(0.02)  # noqa: ASYNC251 (the answer is there, and nobody has read it)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await own.run("echo on", cwd=tmp_path)).head == b"on\n"
        assert own.guards == (guard,)

    with_spawner(work)


def test_a_cancel_before_the_first_step_starts_nothing(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        task = asyncio.create_task(own.run("touch made", cwd=tmp_path))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert own.guards == ()
        assert not (tmp_path / "made").exists()

    with_spawner(work)


@settings(max_examples=15, deadline=None)
@given(delays=st.lists(st.floats(0, 0.02), min_size=1, max_size=4))
def test_a_cancel_at_any_moment_leaves_nothing(delays: list[float]) -> None:
    async def work(own: Spawner) -> None:
        for delay in delays:
            task = asyncio.create_task(own.run("sleep 71013 & echo x; sleep 71013", cwd="/"))
            await asyncio.sleep(delay)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert living("71013") == []

    with_spawner(work)


def test_background_processes_are_named_live_on_and_end_with_the_session(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        ended = await own.run(
            "sleep 71020 & setsid -f sleep 71020; env -i setsid -f sleep 71020; echo ok", cwd=tmp_path
        )
        assert ended.head == b"ok\n"
        assert {left.name for left in ended.left} == {"sleep"}
        assert sorted(left.pid for left in ended.left) == sorted(living("71020"))
        assert ended.left_count == 3
        # A later command that is killed takes none of them along, though one carries neither mark nor session.
        await own.run("sleep 71021", cwd=tmp_path, timeout=0.05, grace=0)
        assert len(living("71020")) == 3
        assert living("71021") == []
        later = await own.run("true", cwd=tmp_path)
        assert later.left == ()
        await own.kill_all(grace=0.1)
        assert living("71020") == []
        assert (await own.run("echo on", cwd=tmp_path)).head == b"on\n"
        await own.run("sleep 71020 &", cwd=tmp_path)

    with_spawner(work)
    assert living("71020") == []


def test_kill_all_ends_running_commands_and_they_say_so(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        task = asyncio.create_task(own.run("sleep 71022", cwd=tmp_path))
        await until(lambda: living("71022"))
        await own.kill_all()
        assert (await task).signal == "SIGTERM"

    with_spawner(work)


def test_a_noisy_background_process_neither_blocks_nor_dies(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        script = "import os\nfor n in range(40):\n os.write(1, b'x' * 65536)\nopen('all-written', 'w').close()"
        (tmp_path / "noisy.py").write_text(script)
        ended = await own.run(f"(sleep 0.2; exec {sys.executable} noisy.py) & echo started", cwd=tmp_path)
        assert ended.head == b"started\n"
        assert ended.left_count >= 1
        await until((tmp_path / "all-written").exists)

    with_spawner(work)


def test_a_short_lived_background_process_is_not_reported(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        ended = await own.run("(sleep 0.02; echo late) & echo early", cwd=tmp_path)
        assert ended.head == b"early\nlate\n"
        assert ended.left == ()

    with_spawner(work)


def test_no_zombie_is_left(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        await own.run("for n in 1 2 3 4 5; do (sleep 0.01 &); done; sleep 0.05", cwd=tmp_path)
        worker = worker_of(own)

        def children() -> list[bytes]:
            stats = [proctable.read_file(f"/proc/{pid}/stat") for pid in os.listdir("/proc") if pid.isdecimal()]
            return [stat for stat in stats if stat.rpartition(b")")[2].split()[1:2] == [b"%d" % worker]]

        await until(lambda: children() == [])

    with_spawner(work)


def test_output_callback_and_a_broken_one(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        seen: list[bytes] = []
        await own.run("echo a; echo b", cwd=tmp_path, on_output=seen.append)
        assert b"".join(seen) == b"a\nb\n"
        said: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: said.append(what["exception"]))

        def broken(_: bytes) -> None:
            raise RuntimeError("broken watcher")

        ended = await own.run("echo a; sleep 0.05; echo b", cwd=tmp_path, on_output=broken)
        assert ended.head == b"a\nb\n"
        assert [str(each) for each in said] == ["broken watcher"]

    with_spawner(work)


def test_a_flood_stays_out_of_memory_and_goes_to_a_private_file(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        capture = Capture(tmp_path / "outputs" / "flood.txt")
        ended = await own.run("yes 0123456 | head -c 100000000; echo end", cwd=tmp_path, capture=capture)
        assert (ended.total, ended.lines) == (100_000_004, 12_500_001)
        assert ended.output == tmp_path / "outputs" / "flood.txt"
        assert ended.output.stat().st_size == capturing.FILE_LIMIT == capture.kept
        assert ended.output.stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "outputs").stat().st_mode & 0o777 == 0o700
        assert "only the first 67,108,864 bytes are kept" in ended.output_problem
        assert len(ended.head) + len(ended.tail) <= 3 * capturing.KEEP
        assert ended.tail.endswith(b"0123456\nend\n")

    with_spawner(work)


def test_memory_stays_flat_under_a_flood(tmp_path: Path) -> None:
    """B60 with 300 MB; the peak is that of a process that does nothing else."""
    program = """
import asyncio, resource, sys
from latchstep.tool.spawner import Spawner
async def main():
    own = Spawner()
    await own.run("yes | head -c 1000000", cwd="/")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ended = await own.run("yes | head -c 300000000", cwd="/")
    await own.close()
    print(ended.total, ended.lines, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    total, lines, growth = map(int, done.stdout.split())
    assert (total, lines) == (300_000_000, 150_000_000)
    assert growth < 20_000  # KiB


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=90_000).map(lambda piece: piece * 3), max_size=8))
def test_capture_counts_exactly_and_keeps_both_ends(pieces: list[bytes]) -> None:
    capture, whole = Capture(), b"".join(pieces)
    for piece in pieces:
        capture.feed(piece)
    assert capture.total == len(whole)
    assert capture.lines == len(whole.split(b"\n")) - (whole.endswith(b"\n") or not whole)
    assert whole.startswith(capture.head)
    assert whole.endswith(capture.tail)
    assert len(capture.head) + capture.missing + len(capture.tail) == len(whole)
    assert len(capture.head) == min(len(whole), capturing.KEEP)
    assert capture.missing == 0 or len(capture.tail) >= capturing.KEEP
    assert len(capture.tail) <= 2 * capturing.KEEP


def test_a_file_that_cannot_be_written_is_said_and_nothing_is_lost_in_memory(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    capture = Capture(tmp_path / "taken")
    capture.feed(b"x" * 1_000_000)
    assert (tmp_path / "taken").read_text() == "mine"
    assert "File exists" in capture.problem
    assert capture.total == 1_000_000


def test_the_lock_tells_whether_anything_lives(tmp_path: Path) -> None:
    lock = tmp_path / "tools.lock"
    assert not still_running(lock)

    async def work(own: Spawner) -> None:
        await own.run("true", cwd=tmp_path)
        assert still_running(lock)
        # A child that unlocks whatever it inherited frees nothing.
        script = "for fd in $(ls /proc/$$/fd); do flock -u $fd 2>/dev/null; done; echo unlocked; sleep 71030"
        task = asyncio.create_task(own.run(script, cwd=tmp_path, capture=(capture := Capture())))
        await until(lambda: capture.head == b"unlocked\n")
        assert still_running(lock)
        assert not await wait_until_quiet(lock, 0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        held = await own.run("readlink /proc/self/fd/97", cwd=tmp_path)
        assert held.head.decode().strip() == str(lock)
        await own.close()
        assert await wait_until_quiet(lock, 5)

    with_spawner(work, lock_path=lock)
    assert lock.stat().st_mode & 0o777 == 0o600


def test_a_spawner_that_cannot_start_says_why(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        with pytest.raises(ToolError, match=r"did not start: .*No such file or directory"):
            await own.run("true", cwd=tmp_path)

    with_spawner(work, lock_path=tmp_path / "missing" / "tools.lock")


def test_the_environment_is_a_list_and_keys_are_not_on_it() -> None:
    source = {"PATH": "/bin", "HOME": "/h", "LC_TIME": "C", "ANTHROPIC_API_KEY": "sk", "PYTHONPATH": "x", "MINE": "1"}
    made = child_environment({**source, "PAGER": "less"}, keep=["MINE"], extra={"GIT_PAGER": "less", "NEW": "2"})
    assert made == {"PATH": "/bin", "HOME": "/h", "LC_TIME": "C", "MINE": "1", "NEW": "2", **FORCED}
    assert child_environment({})["PATH"] == child_environment({"PATH": ""})["PATH"] == DEFAULT_PATH
    assert child_environment({"PATH": ".:/a/bin::node_modules/.bin:/b"})["PATH"] == "/a/bin:/b"
    assert child_environment({"PATH": "."})["PATH"] == DEFAULT_PATH


@pytest.mark.parametrize(
    ("locale", "changed"),
    [
        ({"LANG": "zh_CN.GBK"}, True),
        ({"LANG": "de_DE.UTF-8", "LC_CTYPE": "ja_JP.SJIS"}, True),
        ({"LC_ALL": "zh_TW.BIG5", "LANG": "C"}, True),
        ({"LANG": "de_DE"}, True),
        ({"LANG": "de_DE.utf8"}, False),
        ({"LC_ALL": "C.UTF-8", "LANG": "zh_CN.GBK"}, False),
        ({"LANG": "C", "LC_TIME": "de_DE"}, False),
        ({}, False),
    ],
)
def test_a_command_is_read_as_utf_8(locale: dict[str, str], changed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In GBK the backslash of `echo 中\\;rm x` is the second byte of a character, and the semicolon ends a command."""
    monkeypatch.setattr(environment, "_is_known", lambda locale: True)  # whatever is installed here
    made = child_environment({"PATH": "/bin", **locale})
    assert made == {"PATH": "/bin", **locale, **({"LC_ALL": UTF8} if changed else {}), **FORCED}


@pytest.mark.skipif(shutil.which("localedef") is None, reason="no locale can be made")
def test_a_shell_reads_no_other_characters_than_were_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "zh_CN.GBK"
    subprocess.run(["localedef", "-f", "GBK", "-i", "zh_CN", made], capture_output=True, check=False)
    if not made.is_dir():
        pytest.skip("the locale is not to be had")
    monkeypatch.setenv("LC_ALL", "zh_CN.GBK")
    own = Spawner(extra={"LOCPATH": str(tmp_path)})

    async def main() -> bytes:
        ended = await own.run("echo 中\\;echo ran", cwd=tmp_path)
        await own.close()
        return ended.head

    assert asyncio.run(main()).decode() == "中;echo ran\n"


def test_it_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    own = Spawner()
    ended = asyncio.run(own.run("sleep 71040 & echo 1", cwd=tmp_path))
    guards = own.guards
    assert asyncio.run(own.run("echo 2", cwd=tmp_path)).head == b"2\n"
    assert own.guards == guards
    assert living("71040") == [ended.left[0].pid]
    asyncio.run(own.close())
    assert living("71040") == []
    asyncio.run(own.close())


def test_an_idle_spawner_ends_unless_something_of_it_lives(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        await own.run("true", cwd=tmp_path)
        own._retire()  # what the timer does after IDLE seconds
        await until(lambda: own.guards == ())
        await own.run("sleep 71041 &", cwd=tmp_path)
        (guard,) = own.guards
        own._retire()
        assert (await own.run("echo meanwhile", cwd=tmp_path)).head == b"meanwhile\n"
        await own.run("true", cwd=tmp_path)
        assert guard in own.guards
        assert living("71041")

    with_spawner(work)
    assert living("71041") == []


# ---------------------------------------------------------------- what the spawner says is not believed


def as_report(raw: bytes) -> Report | None:
    try:
        return parse_report(raw)
    except ValueError:
        return None


@given(
    st.binary(max_size=80)
    | st.lists(st.sampled_from([b"0", b"1", b"-9", b"?", b"x", b"99999999999999"])).map(b"\0".join)
)
def test_any_bytes_are_a_report_or_refused(raw: bytes) -> None:
    report = as_report(raw)
    assert report is None or (report.status is None or -1000 < report.status < 1000)


def test_reports() -> None:
    assert as_report(b"-9\x001\x00250\x002\x00123\x00sl\x1b[31meep") == Report(
        status=-9, timed_out=True, duration=0.25, left=(Left(123, "sleep"),), left_count=2
    )
    for raw in (
        b"",
        b"0",
        b"0\x002\x001\x000",
        b"0\x000\x001\x000\x00",
        b"1000000\x000\x001\x000",
        b"0\x000\x001\x001\x00x\x00y",
    ):
        assert as_report(raw) is None


@pytest.mark.parametrize(
    "said",
    [
        b"nonsense",
        b"ended",
        b"ended\x00999\x000\x000\x001\x000",
        b"ended\x001\x00x",
        b"\xff\xfe",
        b"ended\x00\xff\x000\x000\x001\x000",
    ],
)
def test_nonsense_from_the_worker_ends_its_use(said: bytes) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        alive, life = os.pipe()
        guard = subprocess.Popen(["cat"], stdin=alive)  # noqa: ASYNC220 (ends when `life` is closed)
        os.close(alive)
        link = linking.Link("t" * 24, ours, life, os.memfd_create("log"), guard.pid, loop)
        job = link.jobs["1"] = linking.Job("1", loop.create_future(), Capture())
        theirs.send(said)
        async with asyncio.timeout(20):
            report = await job.done
        assert report.failed.endswith("it answered nonsense")
        assert "it answered nonsense" in report.lost
        theirs.close()
        guard.returncode = 0  # reaped by the link

    asyncio.run(main())


def test_finished_holds_no_two_endings(tmp_path: Path) -> None:
    async def work(own: Spawner) -> None:
        for command in ("true", "exit 3", "kill -9 $$", "sleep 9"):
            ended: Finished = await own.run(command, cwd=tmp_path, timeout=0.2, grace=0)
            assert (ended.exit_status is None) != (ended.signal == "")

    with_spawner(work)
