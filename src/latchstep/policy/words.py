"""One word of a shell line: what it will be when the command runs, or how much of that can be known.

Pure. What is not understood raises Doubt; nothing here guesses.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

Kind = Literal["literal", "paths", "glob", "one", "any"]


class Word(msgspec.Struct, frozen=True):
    """literal: exactly `text`. paths: one or more words, none of which begins with a dash. glob: names of files, any of
    them. one: a single word nobody knows. any: any number of words nobody knows. Where it is not literal, `text` is
    the source."""

    text: str
    kind: Kind = "literal"

    @property
    def literal(self) -> bool:
        return self.kind == "literal"

    @property
    def single(self) -> bool:
        return self.kind in ("literal", "one")


class Doubt(Exception):
    """This is not understood, so it is not allowed."""


ANY = Word("…", "any")

_PLAIN = r"[^\s;&|<>()$`\"'\\]"
_BARE = re.compile(rf"(?:{_PLAIN}|\\[^\n])+")
_QUOTED = re.compile(r"(?:[^\"\\$`]|\\[^`]|\$(?=[ \t\n\"/.,:;%^+=)\]}~-]|\Z))*")
_ANSI = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)
_NUMBERS = re.compile(r"\$\(\([\d\s+*/%()-]*\)\)")
_VARIABLE = re.compile(
    r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])|\$\{(?:[A-Za-z_]\w*(?::?[-+][\w./:@%+-]*)?|#?[A-Za-z_]\w*|\d+)\}"
)
_RANGE = re.compile(r"\{-?\w+\.\.-?\w+\}")


DASH = "\ue000"
"""Stands for a word that is a single dash, which the grammar would drop."""


def source(node: Any) -> str:
    return str(node.text.decode()).replace(DASH, "-")


def bare(text: str) -> Word:
    """An unquoted piece: escapes resolved, globs and tildes seen."""
    if not _BARE.fullmatch(text):
        raise Doubt(f"a word that is not understood: {text}")
    open_text = re.sub(r"\\.", "", text)
    if re.search(r"[{}]", open_text) and re.search(r",|\.\.", text):
        return Word(text, "any")
    value = re.sub(r"\\(.)", r"\1", text)
    if re.search(r"[*?\[]", open_text):
        return Word(text, "glob" if text[0] in "*?[\\-" else "paths")
    return Word(text, "paths") if text.startswith("~") else Word(value)


def quoted(node: Any, inner: Any) -> Word:
    """A double-quoted string. `inner` reads an expansion in it."""
    text = node.text
    if len(text) < 2 or text[:1] != b'"' or text[-1:] != b'"':
        raise Doubt("a string whose end is not clear")
    value, at, known = "", node.start_byte + 1, True
    for child in node.children:
        if child.type in ('"', "$", "string_content"):
            continue
        value += _unquoted(text[at - node.start_byte : child.start_byte - node.start_byte])
        inner(child)
        at, known = child.end_byte, False
    value += _unquoted(text[at - node.start_byte : -1])
    return (
        Word(value) if known else Word(source(node), "any" if "$@" in source(node) or "[@]" in source(node) else "one")
    )


def _unquoted(piece: bytes) -> str:
    text = piece.decode().replace(DASH, "-")
    if not _QUOTED.fullmatch(text):
        raise Doubt(f"a string that is not understood: {text}")
    return re.sub(r'\\([$"\\\n])', lambda found: "" if found[1] == "\n" else found[1], text)


def leaf(node: Any) -> Word | None:
    """A word that holds no command; None where it is of another sort."""
    text = source(node)
    match node.type:
        case "word":
            return bare(text)
        case "number" if re.fullmatch(r"-?\w+", text):
            return Word(text)
        case "raw_string" if len(text) >= 2 and text.find("'", 1) == len(text) - 1:
            return Word(text[1:-1])
        case "ansi_c_string" if _ANSI.fullmatch(text):
            return Word(text, "one")
        case "simple_expansion" if text in ("$?", "$#", "$$", "$!"):
            return Word(text, "one")
        case "simple_expansion" | "expansion" if _VARIABLE.fullmatch(text):
            return Word(text, "any")
        case "arithmetic_expansion" if _NUMBERS.fullmatch(text):
            return Word(text, "any")
        case "brace_expression" if _RANGE.fullmatch(text):
            return Word(text, "any")
        case _:
            return None


def joined(text: str, parts: list[Word]) -> Word:
    """Pieces that stand without a blank between them."""
    if _BARE.fullmatch(text):
        return bare(text)
    if re.search(r"[{}]", text) and re.search(r",|\.\.", text):
        return Word(text, "any")
    if all(part.literal for part in parts):
        return Word("".join(part.text for part in parts))
    kinds = {part.kind for part in parts}
    if kinds <= {"literal", "one"}:
        return Word(text, "one")
    head = parts[0]
    fixed = head.kind == "paths" or (head.literal and head.text[:1] not in ("", "-"))
    if kinds <= {"literal", "paths", "glob"}:
        return Word(text, "paths" if fixed else "glob")
    return Word(text, "any")
