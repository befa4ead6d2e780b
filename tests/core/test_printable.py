"""What is shown cannot hide, reorder or imitate."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchstep.core.printable import one_line, printable

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
