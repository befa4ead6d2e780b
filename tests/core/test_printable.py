"""What is shown cannot hide, reorder or imitate."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchstep.core.printable import one_line, printable, suspicions

SPOOFS = [
    "ls \u202e\u2066# harmless\u2069\u2066; rm -rf x\x1b[2K\x1b[1A\rls",
    "ls" + " " * 500 + "; rm x",
    "l\u200bs; rm",
    "ls\u00a0\u3000; rm",
    "tag \U000e0041; rm",
    "\ud83d; rm",
    "\x9b31m; rm",
]


@pytest.mark.parametrize("text", SPOOFS)
def test_b73_every_spoof_is_visible(text: str) -> None:
    shown = printable(text)
    assert "rm" in shown
    for char in shown:
        assert char == "\n" or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}, hex(
            ord(char)
        )
    assert len(shown) < 200


def test_ordinary_text_is_left_alone() -> None:
    assert printable("Grüße, 世界! 🦀 → ok\n  indented") == "Grüße, 世界! 🦀 → ok\n  indented"


@given(st.text(st.characters()))
def test_nothing_hidden_comes_through(text: str) -> None:
    for char in printable(text):
        assert char == "\n" or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@given(st.text(), st.integers(30, 200))
def test_one_line_is_one_line(text: str, width: int) -> None:
    line = one_line(text, width)
    assert "\n" not in line
    assert len(line) <= width


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ls \u202e\u2066# harmless\u2069; rm", ["3 characters that cannot be seen"]),
        ("l\u200bs", ["1 characters that cannot be seen"]),
        ("a\ufe0fb", ["1 characters that cannot be seen"]),
        ("a\U000e0041", ["1 characters that cannot be seen"]),
        ("ls" + " " * 500 + "; rm", ["500 blanks in a row"]),
        ("\u0441\u043e\u0440\u0443 a b", ["is all Cyrillic"]),
        ("curl https://\u0430\u0440\u0440\u04cf\u0435.com", ["is all Cyrillic"]),
        ("curl https://\u0445.com", ["is all Cyrillic"]),
        ("src/\u0441\u0441", ["is all Cyrillic"]),
        ("\u03bf\u03c1 x", ["is all Greek"]),
        ("\u0578\u0585 -rf x", ["is all Armenian"]),
        ("ls x; \u0455\u0455\u04bb \u0441\u0430\u0440", ["; "]),
        ("\u0261it status", ["latin small letter script g"]),
        ("cur\u04cf x", ["mixes Cyrillic and Latin"]),
        ("\u0440ip install", ["mixes Cyrillic and Latin"]),
        ("a \u2215etc", ["division slash"]),
        ("a\uff1brm", ["fullwidth semicolon"]),
        ("x \u2212rf", ["minus sign"]),
        ("a\u037eb", ["greek question mark"]),
    ],
)
def test_what_may_look_like_something_else_is_told(text: str, words: list[str]) -> None:
    found = suspicions(text)
    assert len(found) == len(words)
    for word, warning in zip(words, found, strict=True):
        assert word in warning
        assert printable(warning) == warning


@pytest.mark.parametrize(
    "text",
    [
        "ls -la", "echo \u043f\u0440\u0438\u0432\u0435\u0442", "caf\u00e9 \u65e5\u672c\u8a9e", "a\tb\nc", "\U0001f600",
        "git commit -m 'Исправить ошибку с путём: а не о том, что все у нас'", "echo 'Все тесты проходят'",
        "git commit -m 'fix с API'", "grep -n 'как есть' файл.txt", "обновление commit'а в базе", "Он сам, а мы нет",
        "echo 'Το ποσό και οι τιμές είναι σωστά'", "echo 'η γάτα είναι εδώ'", "plot α", "echo 'Բարեւ ձեզ, սա լավ է'",
        "python -m pytest -k 'тест or проверка'", "cat отчёт/сводка.csv", "У меня есть вопрос", "К сожалению, не вышло",
    ],
)  # fmt: skip
def test_honest_text_raises_no_suspicion(text: str) -> None:
    assert suspicions(text) == []


BIDI_CONTROL = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def test_all_of_bidi_control_tags_selectors_and_odd_blanks_are_escaped() -> None:
    odd = "\u00a0\u1680\u2000\u2007\u202f\u205f\u3000\u180e\ufeff\u00ad\u034f\u2060"
    tags = "".join(map(chr, range(0xE0000, 0xE0080)))
    selectors = "".join(map(chr, (*range(0xFE00, 0xFE10), 0xE0100, 0xE01EF)))
    for char in BIDI_CONTROL + odd + tags + selectors:
        shown = printable(f"a{char}b")
        assert shown.isascii(), hex(ord(char))
        assert shown.startswith("a\\")
