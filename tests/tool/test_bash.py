"""The bash tool against real processes, by the ids of the public bug reports it must not repeat."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.errors import ToolError
from latchstep.tool import proctable
from latchstep.tool.base import Context, Output, Tool
from latchstep.tool.bash import PROGRESS_EAGER, bash_tool
from latchstep.tool.capture import FILE_LIMIT, Capture
from latchstep.tool.show import LINE_LIMIT, OUTPUT_LIMIT, show
from latchstep.tool.spawner import Spawner

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")
NOT_FOUND = "[exit status 127 (as when a command is not found)]"
NOTES = 600
"""Room for the notes in brackets beside the output."""

Call = Callable[..., Awaitable[Output]]


def with_bash(root: Path, work: Callable[[Call], Awaitable[None]], **options: Any) -> None:
    """Run `work` with a caller of the tool; each call must come back within seconds, and nothing may be left."""

    async def main() -> None:
        spawner = Spawner(**options)
        tool = bash_tool(spawner, root)

        async def call(command: str, context: Context | None = None, **arguments: Any) -> Output:
            async with asyncio.timeout(20):
                result = await tool(**tool.validate({"command": command, **arguments}), context=context or Context())
            assert isinstance(result, Output)
            assert not CONTROLS.search(text(result))
            return result

        tasks = asyncio.all_tasks()
        try:
            await work(call)
        finally:
            await spawner.close(grace=0.1)
        assert asyncio.all_tasks() == tasks

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(main())
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def text(result: Output) -> str:
    assert isinstance(result.content, str)
    return result.content


def living(number: str) -> list[int]:
    return [
        pid for pid in proctable.walk() if number.encode() in proctable.read_file(f"/proc/{pid}/cmdline").split(b"\0")
    ]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("sleep 74001 & echo done", "done"),
        ("(while :; do echo tick; sleep 0.1; done) & echo started", "started"),
        ("setsid sleep 74001 >/dev/null & echo $!", ""),
        ("sleep 74001 </dev/null >/dev/null 2>&1 & disown; echo quiet", "quiet"),
    ],
)
def test_b57_background_children_do_not_hold_the_call(tmp_path: Path, command: str, shown: str) -> None:
    async def work(call: Call) -> None:
        result = await call(command)
        assert shown in text(result)
        assert result.outcome == "ok"
        pid = re.search(r"still running in the background: .*?\(pid (\d+)\)", text(result))
        assert pid
        assert int(pid[1]) in proctable.walk()
        assert "exit status 0" in text(result)

    with_bash(tmp_path, work)
    assert living("74001") == []


def test_b58_a_deadline_leaves_no_grandchild(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    child = f"import time; time.sleep(1); open({str(canary)!r},'w')"
    (tmp_path / "parent.py").write_text(
        f"import subprocess,sys,time\nsubprocess.Popen([sys.executable,'-c',{child!r}])\nprint('begun')\ntime.sleep(30)"
    )

    async def work(call: Call) -> None:
        result = await call(f"{sys.executable} parent.py", timeout=0.5)
        assert result.outcome == "timed_out"
        assert result.is_error
        assert "begun" in text(result)
        assert "timed out after 0.5 s" in text(result)
        assert result.details["timed_out"] is True
        result = await call("trap '' TERM; sleep 74002", timeout=0.2)
        assert result.outcome == "timed_out"
        assert living("74002") == []
        await asyncio.sleep(1.2)  # the canary would have sung by now
        assert not canary.exists()

    with_bash(tmp_path, work)


def test_x11_a_waiting_shell(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        assert (await call("sleep 74003 & wait", timeout=0.2)).outcome == "timed_out"
        assert living("74003") == []

    with_bash(tmp_path, work)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "file").write_text("one")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    (tmp_path / "file").write_text("two")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "cat",
        "read x </dev/tty; echo rc=$?",
        "git commit -a",
        "git log | less",
        "sudo -k true",
        "python3",
        "git log",
    ],
)
def test_b59_nothing_waits_for_a_person(repository: Path, command: str) -> None:
    async def work(call: Call) -> None:
        result = await call(command, timeout=15)
        assert result.outcome == "ok", text(result)
        if "tty" in command:
            assert "rc=1" in text(result)
            assert "No such device or address" in text(result)

    with_bash(repository, work, extra={"PAGER": "less", "GIT_EDITOR": "vi", "EDITOR": "vi"})


def test_b60_a_long_output_is_head_and_tail_with_exact_counts(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        context = Context(call_id="call/../1", outputs=tmp_path / "outputs")
        result = await call('seq 1 200000; echo "E: real error"; exit 3', context)
        lines = text(result).split("\n")
        assert lines[0] == "1"
        assert lines[-2:] == ["E: real error", "[exit status 3]"]
        assert not result.is_error
        assert len(text(result).encode()) <= OUTPUT_LIMIT + NOTES
        (note,) = (line for line in lines if "left out" in line)
        found = re.match(
            r"\[([\d,]+) lines \(([\d,]+) bytes\) left out here, of ([\d,]+) lines \(([\d,]+) bytes\)", note
        )
        assert found
        left, left_bytes, all_lines, all_bytes = (int(each.replace(",", "")) for each in found.groups())
        shown = [line for line in lines[:-1] if line != note]
        assert len(shown) + left == all_lines == result.details["lines"] == 200_001
        assert sum(len(line) + 1 for line in shown) + left_bytes == all_bytes == result.details["bytes"]
        whole = tmp_path / "outputs" / result.output
        assert str(whole) in note
        assert whole.read_bytes() == b"".join(b"%d\n" % n for n in range(1, 200_001)) + b"E: real error\n"
        assert whole.stat().st_mode & 0o777 == 0o600
        again = await call("seq 1 200000", context)
        assert again.output not in ("", result.output)

    with_bash(tmp_path, work)


def test_b60_a_flood(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        result = await call("yes | head -c 200000000", Context(outputs=tmp_path / "o"))
        assert result.details["bytes"] == 200_000_000
        assert result.details["lines"] == 100_000_000
        assert f"only the first {FILE_LIMIT:,} bytes are kept" in text(result)
        assert len(text(result).encode()) <= OUTPUT_LIMIT + NOTES
        assert (tmp_path / "o" / result.output).stat().st_size == FILE_LIMIT

    with_bash(tmp_path, work)


def test_b60_one_long_line(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        for size in (120_000, 3_000_000):
            result = await call(f"python3 -c \"print('needle ' + 'x' * {size} + ' end')\"")
            assert text(result).startswith("needle xxx")
            assert " end\n" in text(result)
            assert len(text(result).encode()) <= 2 * LINE_LIMIT + NOTES
            assert "not kept" in text(result)

    with_bash(tmp_path, work)


def test_b56_control_bytes_never_reach_the_text(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        tail = r"printf '\0\0x\033[31mred\033[0m\033]52;c;QQ==\007\r\b'"
        context = Context(call_id="c1", outputs=tmp_path / "outputs")
        result = await call(f"head -c 4096 /bin/ls; {tail}", context)
        assert text(result).startswith("(binary, 4,1")
        assert "red" in text(result)
        assert str(tmp_path / "outputs" / "c1.txt") in text(result)
        assert (tmp_path / "outputs" / result.output).stat().st_size == result.details["bytes"]
        result = await call(tail)
        assert "red" in text(result)
        result = await call(r"printf 'a\rb\033[31mred\033[0m\033]52;c;QQ==\007 \302\233\n'; printf 'latin \344\377'")
        assert "red" in text(result)
        assert "QQ==" not in text(result)

    with_bash(tmp_path, work)


def test_b62_no_keys_in_the_environment(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
from latchstep.tool.base import Context
from latchstep.tool.bash import bash_tool
from latchstep.tool.spawner import Spawner
async def main():
    spawner = Spawner(lock_path=Path({str(tmp_path)!r}) / "lock")
    tool = bash_tool(spawner, Path({str(tmp_path)!r}))
    for command in sys.argv[1:]:
        print((await tool(command, context=Context())).content)
    await spawner.close()
asyncio.run(main())
"""
    keys = {"ANTHROPIC_API_KEY": "sk-ant-test", "OPENAI_API_KEY": "x", "GH_TOKEN": "y", "AGENT_FOO": "z"}
    commands = [
        "env | grep -c -E 'API_KEY|TOKEN|SECRET|FOO'",
        "{ tr '\\0' '\\n' < /proc/$PPID/environ; } 2>/dev/null | grep -c API_KEY",
        "echo $HOME",
    ]
    done = subprocess.run(
        [sys.executable, "-c", program, *commands],
        env={**keys, "PATH": os.environ["PATH"], "HOME": "/home-of-mine"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "0\n[exit status 1]\n0\n[exit status 1]\n/home-of-mine\n[exit status 0]\n"


@pytest.mark.parametrize(
    ("command", "exit", "signal", "shown"),
    [
        ("grep zzz /etc/hostname", 1, "", "(no output)\n[exit status 1]"),
        ("true", 0, "", "(no output)\n[exit status 0]"),
        ("sh -c 'kill -SEGV $$'", None, "SIGSEGV", "(no output)\n[ended by signal SIGSEGV]"),
        ("false | cat", 0, "", "(no output)\n[exit status 0]"),
        ("bash -c 'exit 300'", 44, "", "(no output)\n[exit status 44]"),
        ("printf out; printf err >&2; exit 7", 7, "", "outerr\n[exit status 7]"),
        ("no-such-command-here", 127, "", "command not found\n" + NOT_FOUND),
        ("sh -c 'kill -SEGV $$'; exit $?", 139, "", "ends by signal SIGSEGV)]"),
        ("printf '\\n\\n'", 0, "", "(nothing visible, 2 bytes)\n[exit status 0]"),
        ("-no-such-command-here", 127, "", "-no-such-command-here: command not found\n" + NOT_FOUND),
        ("+x", 127, "", "+x: command not found\n" + NOT_FOUND),
    ],
)
def test_b63_the_exit_status_is_data(tmp_path: Path, command: str, exit: int | None, signal: str, shown: str) -> None:
    async def work(call: Call) -> None:
        result = await call(command)
        assert (result.outcome, result.is_error) == ("ok", False)
        assert (result.details["exit"], result.details["signal"]) == (exit, signal)
        assert text(result).endswith(shown)
        assert set(result.details) == {"exit", "signal", "timed_out", "duration", "bytes", "lines"}

    with_bash(tmp_path, work)


def test_the_kept_output_cannot_be_forged_through_the_descriptor(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        forge = "echo real; : > /proc/self/fd/1; truncate -s 0 /proc/self/fd/1; ls -l /proc/self/fd; seq 1 50000"
        result = await call(forge, Context(call_id="c", outputs=tmp_path / "outputs"))
        whole = (tmp_path / "outputs" / result.output).read_text()
        assert whole.startswith("real\n")
        assert whole.endswith("49999\n50000\n")
        assert "outputs" not in whole
        assert set(re.findall(r" (\d+) -> ", whole)) == {"0", "1", "2", "3"}  # 3 is what `ls` reads

    with_bash(tmp_path, work)


def test_b02_a_cancelled_command_leaves_what_it_had_written(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        context = Context()
        out = tmp_path / "out"
        task = asyncio.create_task(
            call(f"echo so far; printf half > {out}; sleep 74004; printf done >> {out}", context)
        )
        while not living("74004"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert context.captured == "so far"
        assert out.read_text() == "half"
        assert living("74004") == []

    with_bash(tmp_path, work)


def test_b08_nothing_is_said_after_a_cancel(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        said: list[str] = []
        context = Context(progress=said.append)
        task = asyncio.create_task(call("while :; do echo tick; sleep 0.01; done", context))
        while len(said) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        count = len(said)
        await call("sleep 0.05")
        assert len(said) == count

    with_bash(tmp_path, work)


def test_x06_nul_and_half_surrogates_are_refused(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        with pytest.raises(ToolError, match="NUL"):
            await call("echo a\0b")
        with pytest.raises(ToolError, match="surrogate"):
            await call("echo \ud800")
        assert text(await call("echo 'é → 😀'")).startswith("é → 😀\n")

    with_bash(tmp_path, work)


def test_x05_a_long_command(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        result = await call("cat <<'END' | wc -c\n" + "x" * 200_000 + "\nEND\n")
        assert text(result).startswith("200001\n")

    with_bash(tmp_path, work)


def test_x09_an_ascii_locale(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from pathlib import Path
from latchstep.tool.base import Context
from latchstep.tool.bash import bash_tool
from latchstep.tool.spawner import Spawner
async def main():
    spawner = Spawner()
    root = Path(sys.argv[1])
    result = await bash_tool(spawner, root)("mkdir é; cd é; pwd; echo → ", context=Context(outputs=root / "ö"))
    again = await bash_tool(spawner, root)("seq 1 99999; pwd", cwd="\\u00e9", context=Context(outputs=root / "ö"))
    print(ascii(result.content), ascii(again.content[-200:]))
    await spawner.close()
asyncio.run(main())
"""
    environment = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-X", "utf8=1", "-c", program, str(tmp_path)],
        env=environment,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.count(b"/\\xe9\\n") == 2
    assert b"\\u2192" in done.stdout


def test_the_folder_must_lie_beneath_the_workspace(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    (root / "sub").mkdir(parents=True)
    (root / "file").touch()
    (root / "out").symlink_to(tmp_path)
    (root / "loop").symlink_to("loop")
    (root / "in").symlink_to(root / "sub")

    async def work(call: Call) -> None:
        for cwd in (
            "..",
            "/",
            "sub/../..",
            "out",
            "/etc",
            str(tmp_path),
            "file",
            "missing",
            "loop",
            "a\0b",
            "x" * 5000,
        ):
            with pytest.raises(ToolError, match="cwd"):
                await call("pwd", cwd=cwd)
        for cwd in ("sub", "in", "sub/.", str(root / "sub"), "../workspace/sub"):
            assert text(await call("pwd", cwd=cwd)).startswith(f"{root / 'sub'}\n")
        assert text(await call("pwd")).startswith(f"{root}\n")

    with_bash(root, work)


def test_a_character_that_comes_in_two_pieces_is_not_shown_as_none(tmp_path: Path) -> None:
    told: list[str] = []

    async def work(call: Call) -> None:
        script = "printf 'up \\342'; until [ -e go ]; do sleep 0.02; done; printf '\\200\\224 end'"

        def tell(text: str) -> None:
            told.append(text)
            (tmp_path / "go").touch()

        assert text(await call(script, Context(progress=tell))).startswith("up \N{EM DASH} end\n")

    with_bash(tmp_path, work)
    assert told == ["up ", " end"]


def test_a_locale_that_is_not_installed_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LC_ALL": "xx_YY.UTF-8", "LC_CTYPE": "UTF-8", "LANG": "C.UTF-8", "LC_TIME": "POSIX"}.items():
        monkeypatch.setenv(name, value)

    async def work(call: Call) -> None:
        shown = text(await call("bash -c true; env | grep -E '^(LC_|LANG)' | sort"))
        assert shown == "LANG=C.UTF-8\nLC_TIME=POSIX\n[exit status 0]"

    with_bash(tmp_path, work)


def test_progress_is_bounded_and_clean(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        said: list[str] = []
        await call("printf 'a\\033[31m1\\n'; sleep 0.05; printf '2\\n'", Context(progress=said.append))
        assert said == ["a1", "2"]
        said.clear()
        await call("yes 123456789 | head -c 50000000", Context(progress=said.append))
        assert PROGRESS_EAGER <= len(said) <= PROGRESS_EAGER + 250
        assert max(map(len, said)) <= 2_000

    with_bash(tmp_path, work)


def test_a_spawner_that_dies_is_an_unknown_outcome(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        result = await call("echo half; kill -9 $PPID; sleep 74005")
        assert (result.outcome, result.is_error) == ("interrupted", True)
        assert text(result).startswith("half\n[outcome unknown: ")
        assert text(await call("echo next")).startswith("next\n")

    with_bash(tmp_path, work)


def tool_of(root: Path) -> Tool:
    return bash_tool(Spawner(), root)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"command": ""}, {"command": 1}, {"command": "a", "timeout": "9"}, {"command": "a", "timeout": 0},
     {"command": "a", "timeout": 3601}, {"command": "a", "shell": "zsh"}, {"command": "a", "cwd": None}],
)  # fmt: skip
def test_invalid_arguments_are_refused_with_what_would_be_valid(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Expected|missing|unknown"):
        tool_of(tmp_path).validate(arguments)


def test_how_it_is_declared(tmp_path: Path) -> None:
    tool = tool_of(tmp_path)
    assert (tool.name, tool.effect, tool.replay, tool.context) == ("bash", "write", "never", "context")
    assert tool.timeout is not None
    assert tool.timeout > 3600
    assert set(tool.schema["properties"]) == set(tool.validate({"command": "x"}))
    assert tool.validate({"command": "x"}) == {"command": "x", "timeout": 120.0, "cwd": "."}


pieces = st.sampled_from(
    [b"line\n", b"\n", b"\r", b"x" * 3000 + b"\n", b"\x1b[31m", b"\xff\xfe", "é😀\n".encode(), b"\0", b"word "]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(pieces, st.integers(1, 4000)), max_size=8))
def test_what_is_shown_is_clean_and_bounded_whatever_came(parts: list[tuple[bytes, int]]) -> None:
    capture = Capture()
    for piece, times in parts:
        for at in range(0, times, 500):
            capture.feed(piece * min(500, times - at))
    shown = show(capture)
    assert not CONTROLS.search(shown)
    assert len(shown.encode()) <= OUTPUT_LIMIT + NOTES
    assert shown.strip()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.text("ab é", max_size=300), st.integers(1, 900)), max_size=8), st.booleans())
def test_counts_add_up(parts: list[tuple[str, int]], newline: bool) -> None:
    whole = "".join((line + "\n") * times for line, times in parts).encode()
    whole = whole if newline else whole[:-1]
    capture = Capture()
    capture.feed(whole)
    lines = show(capture).split("\n")
    notes = [line for line in lines if "left out here" in line]
    if not notes:
        assert len(whole) <= OUTPUT_LIMIT + 1
        return
    left, left_bytes, all_lines, all_bytes = (int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", notes[0])[:4])
    shown = [line for line in lines if line != notes[0]]
    assert (len(shown) + left, all_bytes) == (all_lines, len(whole))
    assert sum(len(line.encode()) + 1 for line in shown) - (not whole.endswith(b"\n")) + left_bytes == len(whole)
