"""What "always" offers and takes: this call again, and no key to everything."""

from __future__ import annotations

import pytest

from latchstep.core.message import ToolCall
from latchstep.errors import DefinitionError
from latchstep.policy.gate import decide
from latchstep.policy.grants import grant, offer
from tests.policy.lines import CLEAR, UNCLEAR
from tests.policy.test_gate import B70


def bash(command: str) -> ToolCall:
    return ToolCall("c", "bash", {"command": command})


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("git status", "allow bash: git status"),
        ("make  'a b'", "allow bash: make 'a b'"),
        ("python x.py", "allow bash: python x.py"),
        ("python -m pytest -x", "allow bash: python -m pytest -x"),
        ("git status && rm -rf ~", 'allow bash = "git status && rm -rf ~"'),
        ("env make", 'allow bash = "env make"'),
        ("X=1 make", 'allow bash = "X=1 make"'),
        ("make > x", 'allow bash = "make > x"'),
        ("python", 'allow bash = "python"'),
        ("python3.11 -", 'allow bash = "python3.11 -"'),
        ("python - <<'E'\nx\nE", "allow bash = \"python - <<'E'\\nx\\nE\""),
        ("bash x.sh", "allow bash: bash x.sh"),
        ("ls *.py", 'allow bash = "ls *.py"'),
        ("a '*'", "allow bash: a '*'"),
        ("a `b`", 'allow bash = "a `b`"'),
        ("a 'b\nc'", "allow bash = \"a 'b\\nc'\""),
    ],
)
def test_what_is_offered(command: str, rule: str) -> None:
    assert str(offer(bash(command))) == rule


@pytest.mark.parametrize("command", [*B70, *UNCLEAR, *(line for line, _ in CLEAR), "git status"])
def test_b71_always_lets_this_run_again_and_nothing_else(command: str) -> None:
    rule = offer(bash(command))
    assert rule is not None
    assert decide([rule], bash(command)).says == "allow"
    for other in (
        "git push",
        "rm y",
        "cat <<'E' | sh\nx\nE",
        f"{command}; rm y",
        f"{command} && rm y",
        f"env {command} y",
    ):
        if other != command:
            assert decide([rule], bash(other)).says == decide([], bash(other)).says, other


def test_other_tools() -> None:
    assert str(offer(ToolCall("c", "write", {"path": "./src/../a.py"}))) == "allow write: a.py"
    assert str(offer(ToolCall("c", "edit", {"path": "/ws/a.py"}), "/ws")) == "allow edit: a.py"
    assert offer(ToolCall("c", "write", {"path": "*"})) is None
    assert offer(ToolCall("c", "write", {"path": "/etc/x"}), "/ws") is None
    assert offer(ToolCall("c", "write", {"path": "../x"}), "/ws") is None
    assert offer(ToolCall("c", "other", {})) is None
    assert offer(bash("x" * 5000)) is None


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("git push origin x", "allow bash: git push origin *"),
        ("git push origin x", "allow bash: git push *"),
        ("pytest -x a", "allow bash: pytest *"),
        ("python -m pytest a", "allow bash: python -m pytest *"),
        ("python x.py a", "allow bash: python x.py *"),
        ("npm run build", "allow bash: npm run build"),
        ("rm x", 'allow bash = "rm x"'),
    ],
)
def test_a_rule_may_be_edited(command: str, text: str) -> None:
    assert str(grant(text, bash(command))) == text


@pytest.mark.parametrize(
    ("command", "text", "why"),
    [
        ("git push", "allow bash: git pull", "would not have allowed"),
        ("git push", "allow bash", "every call"),
        ("git push", "deny bash: git push", "allows nothing"),
        ("git push", "allow bash: git push, npm *", "would not have allowed"),
        ("git push", "allow bash: git *\nallow bash: npm *", "is no rule"),
        ("git push", "allow bash: *", "any program"),
        ("git push", "allow bash: git *", "anything that git"),
        ("git push", "allow write: **", "would not have allowed"),
        ("python x.py", "allow bash: python *", "anything that python"),
        ("python3 x.py", "allow bash: python3 *", "anything that python3"),
        ("/usr/bin/python3.12 x.py", "allow bash: /usr/bin/python3.12 *", "anything that python3.12"),
        ("python -c 'x'", "allow bash: python -c *", "anything that python"),
        ("python -m x", "allow bash: python -m *", "anything that python"),
        ("python", "allow bash: python", "anything that python"),
        ("bash x.sh", "allow bash: bash *", "anything that bash"),
        ("bash x.sh", "allow bash: bash x.sh *", "anything that bash"),
        ("npx tsc", "allow bash: npx *", "anything that npx"),
        ("npm run x", "allow bash: npm run *", "anything that npm"),
        ("uv run x", "allow bash: uv run *", "anything that uv"),
        ("ssh host x", "allow bash: ssh host *", "anything that ssh"),
        ("sudo make", "allow bash: sudo *", "would not have allowed"),
        ("X=1 python x.py", "allow bash: X=1 python *", "anything that python"),
        ("ls x", "allow bash: ls x; rm y", "would not have allowed"),
        ("find .", "allow bash: find *", "anything that find"),
    ],
)  # fmt: skip
def test_a_key_to_everything_cannot_be_granted(command: str, text: str, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        grant(text, bash(command))


@pytest.mark.parametrize("text", ["allow write: **", "allow write: *", "allow write: **/a.py", "allow write"])
def test_files_anywhere_cannot_be_granted(text: str) -> None:
    with pytest.raises(DefinitionError):
        grant(text, ToolCall("c", "write", {"path": "a.py"}))
    assert grant("allow write: src/**", ToolCall("c", "write", {"path": "src/a.py"}))
