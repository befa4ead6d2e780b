"""The modes over the rules."""

from __future__ import annotations

import pytest

from latchstep.core.message import ToolCall
from latchstep.core.rules import Traits
from latchstep.errors import DefinitionError
from latchstep.policy.preset import preset
from latchstep.policy.rule import Rule, parse_rule

READ, WRITE = Traits("read", "safe"), Traits()


def bash(command: str) -> ToolCall:
    return ToolCall("c", "bash", {"command": command})


def rules(*texts: str) -> list[Rule]:
    return [parse_rule(text) for text in texts]


@pytest.mark.parametrize(
    ("mode", "read", "edit", "looking", "command"),
    [
        ("plan", "run", "refuse", "run", "refuse"),
        ("ask", "run", "ask", "run", "ask"),
        ("edits", "run", "run", "run", "ask"),
        ("auto", "run", "run", "run", "run"),
        ("unconfined", "run", "run", "run", "run"),
    ],
)
def test_each_mode(mode: str, read: str, edit: str, looking: str, command: str) -> None:
    policy = preset(mode, sandboxed=True)  # type: ignore[arg-type]
    assert policy(ToolCall("c", "read", {"path": "x"}), READ).kind == read
    assert policy(ToolCall("c", "edit", {"path": "x"}), WRITE).kind == edit
    assert policy(bash("ls"), WRITE).kind == looking
    assert policy(bash("make"), WRITE).kind == command
    assert policy(bash("make `x`"), WRITE).kind == command
    assert policy(ToolCall("c", "other", {}), WRITE).kind == command


@pytest.mark.parametrize("mode", ["ask", "edits", "auto", "unconfined"])
def test_a_rule_that_denies_holds_in_every_mode(mode: str) -> None:
    policy = preset(mode, rules("deny bash: rm *", "deny *: secret/**"), sandboxed=True)  # type: ignore[arg-type]
    refused = policy(bash("ls && rm x"), WRITE)
    assert (refused.kind, refused.rule) == ("refuse", "deny bash: rm *")
    assert policy(ToolCall("c", "read", {"path": "secret/x"}), READ).kind == "refuse"
    assert policy(ToolCall("c", "edit", {"path": "secret/x"}), WRITE).kind == "refuse"


def test_auto_asks_where_a_rule_might_forbid_what_is_unclear() -> None:
    policy = preset("auto", rules("deny bash: rm *"), sandboxed=True)
    assert policy(bash("make `x`"), WRITE).kind == "ask"
    assert policy(bash("make"), WRITE).kind == "run"
    assert preset("auto", rules("allow bash: x"), sandboxed=True)(bash("make `x`"), WRITE).kind == "run"


def test_a_rule_that_asks() -> None:
    for mode, kind in (("ask", "ask"), ("edits", "ask"), ("auto", "ask"), ("plan", "refuse"), ("unconfined", "run")):
        policy = preset(mode, rules("ask bash: git push *", "allow bash: git *"), sandboxed=True)  # type: ignore[arg-type]
        assert policy(bash("git push"), WRITE).kind == kind
    policy = preset("ask", rules("ask read: secret"))
    assert policy(ToolCall("c", "read", {"path": "secret"}), READ).kind == "ask"


def test_auto_refuses_to_start_without_a_sandbox() -> None:
    with pytest.raises(DefinitionError, match="sandbox"):
        preset("auto")


def test_an_unknown_mode_is_named() -> None:
    with pytest.raises(DefinitionError, match="yolo"):
        preset("yolo")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "command",
    ["git status && rm -rf x", "git status; rm x", "git status\nrm x", "git statusfoo", "git push", " git status "],
)
def test_b70_an_allowed_command_is_that_string_and_nothing_else(command: str) -> None:
    policy = preset("ask", [Rule("allow", "bash", "git status", True)])
    allowed = policy(bash("git status"), WRITE)
    assert (allowed.kind, allowed.rule) == ("run", 'allow bash = "git status"')
    assert policy(bash(command), WRITE).kind == "ask"


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("ls; grep -rn x src | head -5", "run"),
        ("cat x > /dev/null", "run"),
        ("make", "refuse"),
        ("ls; make", "refuse"),
        ("ls > x", "refuse"),
        ("cat /etc/passwd", "refuse"),
        ("ls $(make)", "refuse"),
        ("ls `make`", "refuse"),
        ("git log", "refuse"),
        ("cat secret/x", "refuse"),
    ],
)
def test_plan_mode_runs_what_only_reads_and_not_even_an_allowed_command(command: str, kind: str) -> None:
    policy = preset("plan", rules("allow bash: make", "allow bash: git *", "allow write: **"), sandboxed=True)
    guarded = preset("plan", rules("allow bash: cat *", "deny read: secret/**"), sandboxed=True)
    assert (guarded if "secret" in command else policy)(bash(command), WRITE).kind == kind
    assert "known to read in the workspace" in policy(bash("git log"), WRITE).text, "git log reads, too"
    assert policy(ToolCall("c", "write", {}), WRITE).text.startswith("mode 'plan' only reads; --mode")
    assert preset("plan", rules("ask bash: ls *"), sandboxed=True)(bash("ls"), WRITE).kind == "refuse"


def test_where_no_sandbox_holds_it_nothing_runs_unasked_but_by_a_rule() -> None:
    """A link in the workspace may lead to any file of the person's."""
    asked = preset("ask")(bash("cat link"), WRITE)
    assert (asked.kind, asked.text) == ("ask", "no sandbox holds it")
    assert preset("plan")(bash("cat link"), WRITE).kind == "refuse"
    assert "no sandbox" in preset("plan")(bash("cat link"), WRITE).text
    assert preset("ask", asks=False)(bash("cat link"), WRITE).kind == "refuse"
    policy = preset("edits", rules("allow bash: cat *", 'allow bash = "make && ls"'))
    assert policy(bash("cat link"), WRITE).kind == policy(bash("make && ls"), WRITE).kind == "run"
    assert policy(bash("cat link | head -1"), WRITE).kind == "ask"
    assert preset("unconfined")(bash("cat link"), WRITE).kind == "run"


def test_a_rule_granted_meanwhile_holds() -> None:
    living = rules()
    policy = preset("ask", living)
    assert policy(bash("make"), WRITE).kind == "ask"
    living.append(parse_rule("allow bash: make"))
    assert policy(bash("make"), WRITE).kind == "run"


def test_a_question_says_why() -> None:
    policy = preset("ask", rules("ask bash: git push *"))
    assert policy(bash("ls; make x"), WRITE).text == "no rule covers make x"
    assert "not clear" in policy(bash("make `x`"), WRITE).text
    assert "ask bash: git push *" in policy(bash("git push"), WRITE).text


def test_where_nobody_can_be_asked_the_refusal_says_what_would_have_allowed_it() -> None:
    policy = preset("ask", asks=False)
    refused = policy(bash("make test"), WRITE)
    assert refused.kind == "refuse"
    assert "--allow 'make test'" in refused.text
    assert "--mode edits" in policy(ToolCall("c", "write", {}), WRITE).text
    assert "unconfined" in policy(ToolCall("c", "other", {}), WRITE).text
