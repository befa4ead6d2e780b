"""`latchstep doctor` says what it tried, and its status says whether anything needed is broken."""

from __future__ import annotations

import re

from tests.cli.cli_kit import Home, Terminal
from tests.model.strict_chat import StrictChat


def finding(shown: str, title: str) -> tuple[str, str]:
    found = re.search(rf"^(.) {title} +(.*)$", shown, re.M)
    assert found is not None, shown
    return found[1], found[2]


def test_each_finding_is_true_here(home: Home) -> None:
    done = home.run("doctor")
    assert done.status == 0, done
    assert finding(done.out, "state")[0] == "✓"
    assert str(home.state) in finding(done.out, "state")[1]
    assert finding(done.out, "shell")[0] == "✓"
    assert finding(done.out, "gate")[0] == "✓"
    assert finding(done.out, "git")[1].startswith("git version")
    mark, words = finding(done.out, "sandbox")
    assert mark == ("✓" if words.startswith("bubblewrap: ") else "!")
    assert "Not covered: " in words or words.startswith("none: ")
    assert finding(done.out, "terminal") == (
        "!", "stdin is not a terminal: nobody can be asked, so what needs a question is declined",
    )  # fmt: skip
    assert list(home.state.iterdir()) == []  # the trial left nothing


def test_a_key_is_named_and_never_shown(home: Home) -> None:
    done = home.run("doctor", env={"GROQ_API_KEY": "gsk-secret"})
    assert "GROQ_API_KEY is set" in finding(done.out, "models")[1]
    assert "not tried" in finding(done.out, "models")[1]
    assert "gsk-secret" not in done.out


def test_what_is_broken_is_said_and_is_the_status(home: Home) -> None:
    (home.folder / "file").write_text("")
    done = home.run("doctor", env={"LATCHSTEP_HOME": str(home.folder / "file")})
    assert done.status == 1
    assert finding(done.out, "state")[0] == "✗"
    tools = home.folder / "bin"
    tools.mkdir()
    without_git = home.run("doctor", env={"PATH": str(tools)})
    assert without_git.status == 0
    assert finding(without_git.out, "git")[0] == "!"


def test_at_a_terminal_questions_can_be_asked(home: Home) -> None:
    with StrictChat(), Terminal(home, "doctor", NO_COLOR="1") as it:
        assert it.end() == 0
    assert finding(it.shown, "terminal") == ("✓", "a terminal (xterm-256color); questions can be asked")
