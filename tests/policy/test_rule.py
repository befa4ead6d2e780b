"""The text of a rule: what it says is what it is, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchstep.errors import DefinitionError
from latchstep.policy.rule import Rule, normal_path, parse_rule, path_matches, rule_for

TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z")) | st.sampled_from(list(" '\"\\*?$`;|&()#~{}=")),
    min_size=1,
)
WORDS = st.lists(
    st.none() | st.text(st.characters(codec="utf-8", exclude_categories=("C", "Zs", "Zl", "Zp")) | st.just(" ")),
    min_size=1,
)


@given(says=st.sampled_from(["allow", "ask", "deny"]), words=WORDS)
def test_a_rule_about_words_round_trips(says: str, words: list[str | None]) -> None:
    if words[0] is None and says == "allow":
        words = ["x", *words]
    rule = Rule(says, "bash", tuple(words))  # type: ignore[arg-type]
    assert parse_rule(str(rule)) == rule


@given(command=st.text(min_size=1))
def test_a_rule_about_a_text_round_trips(command: str) -> None:
    command = command.encode("utf-8", "replace").decode()
    rule = Rule("allow", "bash", command, True)
    assert str(rule).isprintable()
    assert parse_rule(str(rule)) == rule


@pytest.mark.parametrize(
    "text",
    [
        "deny write: **/.env",
        "allow edit: src/a b.py",
        "ask fetch: *.example.com",
        "allow mytool",
        "deny *",
        "ask *: a/**",
    ],
)
def test_other_rules_round_trip(text: str) -> None:
    assert str(parse_rule(text)) == text
    assert parse_rule(f"  {text} ") == parse_rule(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no rule"),
        ("allow", "is no rule"),
        ("permit bash: ls", "is no rule"),
        ("allow bash:ls", "is no rule"),
        ("allow bash: ", "no rule|no subject"),
        ("allow bash: ls\nallow bash: rm", "is no rule"),
        ("allow bash: l\u200bs", "is no rule"),
        ("allow bash: 'ls", "quote a word"),
        ("allow bash: a\\b", "quote a word"),
        ("allow bash: *", "any program"),
        ("allow bash: * x", "any program"),
        ("allow *", "any tool"),
        ("allow *: x", "any tool"),
        ("allow bash = ls", "JSON string"),
        ('allow bash = ""', "JSON string"),
        ('allow write = "x"', "command of bash"),
        ("allow fetch: https://x", "a host is"),
        ("allow fetch: a*.com", "a host is"),
    ],
)
def test_what_is_no_rule_is_said(text: str, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        parse_rule(text)


def test_a_quoted_star_is_a_star() -> None:
    assert parse_rule("allow bash: ls '*' *").subject == ("ls", "*", None)


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("a", "a"), ("./a", "a"), ("a//b/", "a/b"), ("a/../b", "b"), ("../a", "../a"), ("/ws/a", "a"), ("/ws", "."),
        ("/wsx", "/wsx"),
        ("//ws/a", "a"), ("/ws/../etc", "/etc"), ("", "."), ("e\u0301", "\u00e9"),
    ],
)  # fmt: skip
def test_paths_are_normal(path: str, normal: str) -> None:
    assert normal_path(path, "/ws") == normal


@given(path=st.lists(st.sampled_from(["a", "b", ".env"]), min_size=1, max_size=4).map("/".join))
def test_globs(path: str) -> None:
    parts = path.split("/")
    assert path_matches("**", path)
    assert path_matches(path, path)
    assert path_matches("**/.env", path) is (parts[-1] == ".env")
    assert path_matches("a/**", path) is (parts[0] == "a")
    assert path_matches("*", path) is (len(parts) == 1)
    assert path_matches("a/**/b", path) is (parts[0] == "a" and parts[-1] == "b" and len(parts) > 1)


def test_what_is_given_to_allow_ask_and_deny() -> None:
    for says in ("allow", "ask", "deny"):
        with pytest.raises(DefinitionError, match="is empty"):
            rule_for(says, " ")  # type: ignore[arg-type]
    assert rule_for("allow", "git status") == Rule("allow", "bash", "git status", True)
    assert rule_for("allow", "bash: git status *") == parse_rule("allow bash: git status *")
    assert rule_for("deny", "rm *") == parse_rule("deny bash: rm *")
    assert rule_for("ask", "write: **/.env") == parse_rule("ask write: **/.env")
    assert rule_for("deny", "*: secret") == parse_rule("deny *: secret")
