"""Bad input and bad machines: one clear line, the right exit status, and nothing lost."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from latchstep.cli.running import read_task
from latchstep.errors import DefinitionError
from tests.cli.cli_kit import Done, Home, bash, begun, edit, ended, refused
from tests.model.strict_chat import StrictChat, text_answer

Popen = subprocess.Popen[bytes]

NOWHERE = "http://127.0.0.1:9/v1"

LIMITED = (
    "from resource import *; import os, sys; setrlimit(RLIMIT_FSIZE, (16384,) * 2); os.execv(sys.argv[1], sys.argv[1:])"
)
"""A disk on which no file can grow over 16 KiB."""


FAILING: dict[str, tuple[Any, str]] = {
    "unreachable": (None, "network"),
    "not json": ("what?\n", "protocol"),
    "cut": (begun("Half an ans", "#EOF"), "protocol"),
    "broken": (begun("Half an ans", "#RST"), "network"),
}


@pytest.fixture(scope="module", autouse=True)
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[str, Home, Popen]]]:
    """Runs against servers that fail, begun before the other tests here: each waits between its attempts."""
    with ExitStack() as stack:
        running = []
        for name, (script, kind) in FAILING.items():
            home = Home(tmp_path_factory.mktemp(name.replace(" ", "-")))
            url = stack.enter_context(StrictChat([script] * 4)).url if script is not None else NOWHERE
            running.append((kind, home, stack.enter_context(home.start("run", "go", "--base-url", url))))
        yield running


MISTAKES: list[tuple[list[str | bytes], list[str]]] = [
    (["run", "go"], ["--model", "LATCHSTEP_MODEL", "latchstep models"]),
    (["run", "go", "--model", "openai-chat:gpt"], ["OPENAI_API_KEY"]),
    (["run", "go", "--model", "gpt"], ["OPENAI_API_KEY", "without provider"]),
    (["run", "go", "--model", "groq:x"], ["GROQ_API_KEY"]),
    (["run", "go", "--model", "nobody:x"], ["nobody:x", "PROVIDER:MODEL"]),
    (["run", "go", "--base-url", "localhost:80"], ["base_url"]),
    (["run", " \n\t ", "--base-url", NOWHERE], ["blank"]),
    (["run", b"caf\xe9", "--base-url", NOWHERE], ["not UTF-8", "0xe9", "position 3"]),
    (["run", "go", "--base-url", NOWHERE, "--check", b"\xff"], ["--check", "not UTF-8"]),
    (["resume"], ["no session of", "latchstep run"]),
    (["resume", "--session", "nope"], ["nope"]),
    (["show", "nope"], ["nope"]),
    (["show"], ["no session of", "latchstep run"]),
    (["run", "go", "--base-url", NOWHERE, "--check", ""], ["a check is a command"]),
    (["show", "\x1b[31mx\ny"], ["\\x1b[31mx"]),
    (["run", "go", "--base-url", NOWHERE, "--cwd", "two\nlines"], ["two\\nlines", "does not exist"]),
]


def test_a_mistake_is_one_line_and_leaves_no_session(home: Home) -> None:
    started = [(home.start(*args), words) for args, words in MISTAKES]
    for process, words in started:
        refused(ended(process), 2, *words)
    assert home.sessions() == []


def test_what_click_refuses_is_usage_too(home: Home) -> None:
    wrong = (["run"], ["run", "go", "--mode", "yolo"], ["run", "go", "--max-steps", "0"], ["fly"])
    for process in [home.start(*args) for args in wrong]:
        done = ended(process)
        assert done.status == 2, done
        assert "Usage:" in done.err
        assert done.raw == b""


def test_standard_input_is_checked_like_an_argument(home: Home) -> None:
    refused(home.run("run", "-", "--base-url", NOWHERE, stdin=b"a\0b"), 2, "NUL", "position 1")
    refused(
        home.run("run", "-", "--base-url", NOWHERE, stdin=b"x" * 10_000_000), 2, "10,000,000", "max_prompt", "4,000,000"
    )
    refused(home.run("run", "-", "--base-url", NOWHERE, stdin=b"x" * 17_000_000), 2, "max_prompt")
    assert home.sessions() == []


def test_an_argument_is_read_as_utf_8_whatever_the_locale_says() -> None:
    assert read_task(os.fsdecode("grüß dich".encode())) == "grüß dich"
    with pytest.raises(DefinitionError, match="position 2"):
        read_task("ab\udc80")


def test_a_web_page_is_not_asked_again(home: Home) -> None:
    for script in ("<html>Welcome</html>", ["#STATUS 200 content-type=text/html", "<!doctype html>"]):
        with StrictChat([script]) as server:
            done = home.run("run", "go", "--base-url", server.url)
        assert done.status == 1, done
        assert "web page" in done.out
        assert "asking again" not in done.out


def test_a_workspace_that_is_deleted_during_the_run_is_said_and_nothing_breaks(home: Home) -> None:
    scripts = [bash("rm -rf ../ws"), bash("pwd", "call-2"), edit("a", "x", "call-3"), *[text_answer("It is gone.")] * 4]
    with StrictChat(scripts) as server:
        done = home.run("run", "go", "--base-url", server.url, "--mode", "unconfined", "--check", "true")
    assert done.status == 4, done
    assert done.out.count("no longer exists") == 2 + 4, "the command, the write and each round of the check"
    refused(home.run("resume", "on", "--session", home.session().name, cwd=home.folder), 2, "does not exist", "--cwd")


def test_a_current_folder_that_is_gone_is_said(home: Home) -> None:
    script = f"mkdir gone && cd gone && rmdir ../gone && exec {sys.executable} -m latchstep run x --base-url {NOWHERE}"
    done = subprocess.run(["sh", "-c", script], cwd=home.workspace, env=home.env(), capture_output=True, check=False)
    refused(Done(done.returncode, done.stdout, done.stderr), 2, "--cwd DIR")


@pytest.mark.parametrize("where", ["a file", "beneath a file", "/proc"])
def test_where_sessions_cannot_be_kept_is_one_line(home: Home, where: str) -> None:
    (home.folder / "file").write_text("")
    place = {"a file": home.folder / "file", "beneath a file": home.folder / "file" / "state", "/proc": Path("/proc/x")}
    refused(
        home.run("run", "go", "--base-url", NOWHERE, env={"LATCHSTEP_HOME": str(place[where])}), 5, str(place[where])
    )


def test_without_a_home_folder_it_is_said_what_to_set(home: Home) -> None:
    done = home.run("run", "x", "--base-url", NOWHERE, env={"LATCHSTEP_HOME": "~nobody-of-that-name/x"})
    refused(done, 2, "LATCHSTEP_HOME")
    done = home.run("show", "nope", env={"LATCHSTEP_HOME": "~/x", "HOME": ""})
    refused(done, 2, f" in {Path(pwd.getpwuid(os.getuid()).pw_dir) / 'x' / 'sessions'}")


def test_a_folder_for_sessions_may_have_blanks_and_be_relative(home: Home) -> None:
    with StrictChat([text_answer("Hi."), text_answer("Hi.")]) as server:
        for place in ("../my state – ü", "../rel"):
            done = home.run("run", "hi", "--base-url", server.url, env={"LATCHSTEP_HOME": place})
            assert done.status == 0, done
            assert len(list((home.workspace / place / "sessions").iterdir())) == 1


def test_a_full_disk_ends_the_run_and_what_was_acknowledged_is_still_there(home: Home) -> None:
    scripts = [bash("seq 4000", f"call-{at}") for at in range(1, 9)]
    with StrictChat([*scripts, text_answer("Resumed.")]) as server:
        url = ("--base-url", server.url)
        command = [sys.executable, "-c", LIMITED, sys.executable, "-m", "latchstep", "run", "go", *url]
        limited = subprocess.run(
            [*command, "--allow", "seq 4000"], cwd=home.workspace, env=home.env(), capture_output=True, check=False
        )
        done = Done(limited.returncode, limited.stdout, limited.stderr)
        assert done.status == 1, done
        assert "JOURNAL: " in done.out
        assert "File too large" in done.out
        assert home.events()[-1]["type"] != "run.finished"
        server.scripts = [text_answer("Resumed.")]
        again = home.run("resume")
    assert again.status == 0, again
    assert "Resumed." in again.out
    assert home.ending()["status"] == "completed"


def test_output_that_is_binary_invalid_or_very_long_is_shown_on_one_line(home: Home) -> None:
    commands = ["head -c 3000 /dev/urandom", r"printf '\377\376 and \033[2J'", "yes no | head -c 30000000; exit 3"]
    scripts = [bash(command, f"call-{at}") for at, command in enumerate(commands, 1)]
    with StrictChat([*scripts, text_answer("Seen.")]) as server:
        done = home.run("run", "go", "--base-url", server.url, "--mode", "unconfined")
    assert done.status == 0, done
    assert b"\x1b" not in done.raw
    assert "[exit status 3]" in done.out
    assert all(len(line) < 400 for line in done.out.splitlines())
    assert sum(path.stat().st_size for path in home.session().rglob("*") if path.is_file()) < 40_000_000


def test_hostile_text_is_shown_escaped_wherever_it_comes_from(home: Home) -> None:
    evil = "a\x1b]52;c;ZXZpbA==\x07\u202egpj\u2066" + " " * 500 + "; rm -rf x\x9b2J"
    pieces = [{"choices": [{"index": 0, "delta": {"content": evil[at : at + 3]}}]} for at in range(0, len(evil), 3)]
    call = [
        {
            "index": 0,
            "id": "call-1",
            "function": {"name": "ba\x1b[31msh\u202e", "arguments": f'{{"x": "{chr(0x202E)}"}}'},
        }
    ]
    answer = [
        *pieces,
        {"choices": [{"index": 0, "delta": {"tool_calls": call}, "finish_reason": "tool_calls"}]},
        "[DONE]",
    ]
    second = bash(evil, "call-2")
    with StrictChat([answer, second, text_answer("\x1b[2Jend")], strict=False) as server:
        done = home.run("run", "go", "--base-url", server.url)
        listed = home.run("sessions", "--all")
        shown = home.run("show", home.session().name)
    assert done.status == 0, done
    for text in (done.out, shown.out, listed.out):
        assert not set(text) & set("\x1b\x07\x9b\u202e\u2066"), text
    assert "[500 blanks]" in done.out
    assert "\\x1b]52;c;" in done.out
    assert "ba\\x1b[31msh\\u202e" in done.out


@pytest.mark.parametrize("python", [(), ("-X", "utf8=0")])
def test_a_locale_without_unicode_costs_marks_and_nothing_else(home: Home, python: tuple[str, ...]) -> None:
    (home.workspace / "notes.txt").write_text("ü ▸\n")
    scripts = [bash("cat notes.txt"), text_answer("Grüße → 你好\n")]
    env: dict[str, str | None] = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LANG": None}
    with StrictChat(scripts) as server:
        done = home.run(
            "run", "sag grüße", "--base-url", server.url, "--allow", "cat notes.txt", python=python, env=env
        )
        assert server.requests[0]["messages"][-1]["content"] == "sag grüße"
        assert "ü ▸" in server.requests[1]["messages"][-1]["content"]
        told = home.run("show", home.session().name, python=python, env=env)
    assert done.status == 0, done
    assert done.raw.isascii()
    assert "> bash cat notes.txt" in done.out
    assert "Gr??e" in done.out
    assert told.status == 0
    for args in (["doctor"], ["--help"], ["sessions"], ["run", "\N{SNOWMAN}", "--base-url", NOWHERE, "--cwd", "ü"]):
        assert b"Traceback" not in home.run(*args, python=python, env=env).raw_err


def test_servers_that_fail_are_asked_again_and_then_said(failing: list[tuple[str, Home, Popen]]) -> None:
    for kind, home, process in failing:
        done = ended(process)
        assert done.status == 1, done
        assert done.out.count(f"! model: {kind}: ") == 3, done
        assert done.out.count("; asking again in ") == 3, done
        assert f"\nMODEL_{kind.upper()}" in done.out, done
        assert home.ending()["status"] == "failed"
