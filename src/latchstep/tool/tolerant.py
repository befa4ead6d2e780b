"""A text that is nearly in a file: with other quotes or blanks, in another Unicode form, or indented otherwise.

Pure. Only a match that is the only one of its kind counts; the file's own characters stay where nothing is changed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

from .encoding import Span, common

LOOKALIKES = str.maketrans("‘’‚‛“”„‟\u00a0\u2007\u2009\u202f", "''''\"\"\"\"    ")
"""Each stands for one character, so that places are the same before and after."""

Rule = Callable[[str], str | None]
"""How a given line becomes one of the file; None where it cannot."""
RuleOf = Callable[[list[str], list[str]], Rule | None]

_WIDTHS = (2, 3, 4, 8)
"""Blanks that one tab may stand for."""


def nearly(text: str, old: str, new: str) -> tuple[Span, str] | None:
    """The one place that `old` can mean, what would be put there, and what differs, in words; None where there is
    none, or more than one."""
    if found := _lookalike(text, old, new) or _other_form(text, old, new):
        return found
    for bare, rule_of, note in (
        (lambda line: line.rstrip(" \t"), _as_given, "blanks at line ends differed from the file's"),
        (lambda line: line.lstrip(" \t"), _rule, "the indentation differed from the file's, which was followed"),
    ):
        if change := _by_lines(text, (old, new), bare, rule_of):
            return change, note
    return None


def _lookalike(text: str, old: str, new: str) -> tuple[Span, str] | None:
    plain, sought = text.translate(LOOKALIKES), old.translate(LOOKALIKES)
    start = plain.find(sought)
    if start < 0 or plain.find(sought, start + 1) >= 0:
        return None
    there = text[start : start + len(old)]
    head = common(old, new)
    tail = common(old[head:][::-1], new[head:][::-1])
    kept = there[:head] + new[head : len(new) - tail] + there[len(there) - tail :]
    return Span(start, there, kept), "quotes or no-break blanks differed from the file's, which were kept"


def _other_form(text: str, old: str, new: str) -> tuple[Span, str] | None:
    """The same text composed or decomposed, as the file has it: é as one character, or as two."""
    for form in ("NFC", "NFD"):
        sought = unicodedata.normalize(form, old)
        if sought != old and text.count(sought) == 1:
            put = unicodedata.normalize(form, new)
            return Span(text.find(sought), sought, put), f"the file's Unicode form ({form}) was followed"
    return None


def _by_lines(text: str, change: tuple[str, str], bare_of: Callable[[str], str], rule_of: RuleOf) -> Span | None:
    """Whole lines that differ in some blanks alone, by the same rule on every line, which the new lines follow."""
    old, new = change
    sought = old.removesuffix("\n").split("\n")
    lines = text.split("\n")
    if not any(line.strip() for line in sought):
        return None
    bare, stripped = [bare_of(line) for line in sought], [bare_of(line) for line in lines]
    places = [at for at in _places(stripped, bare) if rule_of(lines[at : at + len(bare)], sought) is not None]
    if len(places) != 1:
        return None
    at = places[0]
    ours = lines[at : at + len(bare)]
    rule = rule_of(ours, sought)
    assert rule is not None
    wanted = new.removesuffix("\n").split("\n")
    head = _same(sought, wanted)
    tail = _same(sought[head:][::-1], wanted[head:][::-1])
    fresh = [rule(line) for line in wanted[head : len(wanted) - tail]]
    made = [line for line in fresh if line is not None]
    if len(made) < len(fresh):
        return None
    start = sum(len(line) + 1 for line in lines[:at])
    end = "\n" if old.endswith("\n") and at + len(bare) < len(lines) else ""
    put = "\n".join([*ours[:head], *made, *ours[len(ours) - tail :]]) if new else ""
    return Span(start, "\n".join(ours) + end, put + (end if new.endswith("\n") else ""))


def _same(left: list[str], right: list[str]) -> int:
    """How many lines two texts have in common at their beginning."""
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _places(lines: list[str], sought: list[str]) -> list[int]:
    """Where lines stand one after another."""
    return [
        at
        for at, line in enumerate(lines[: len(lines) - len(sought) + 1])
        if line == sought[0] and lines[at : at + len(sought)] == sought
    ]


def _as_given(there: list[str], given: list[str]) -> Rule:
    return lambda line: line


def _rule(there: list[str], given: list[str]) -> Rule | None:
    """How each given line becomes the file's: one lead exchanged for another, or blanks for tabs. None: by no rule."""
    pairs = [(_lead(a), _lead(b)) for a, b in zip(there, given, strict=True) if b.strip()]
    ours, theirs = pairs[0]
    shared = common(ours[::-1], theirs[::-1])
    new_lead, old_lead = ours[: len(ours) - shared], theirs[: len(theirs) - shared]

    def exchanged(line: str) -> str | None:
        if not line.strip():
            return line
        return new_lead + line[len(old_lead) :] if line.startswith(old_lead) else None

    def tabbed(width: int) -> Callable[[str], str | None]:
        def rule(line: str) -> str | None:
            blanks = len(_lead(line))
            if "\t" in _lead(line) or blanks % width:
                return None
            return "\t" * (blanks // width) + line[blanks:]

        return rule

    rules = [exchanged, *(tabbed(width) for width in _WIDTHS)]
    fitting = [rule for rule in rules if all(rule(b + "x") == a + "x" for a, b in pairs)]
    return fitting[0] if fitting else None


def _lead(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
