"""Builtins of bash: which of them only do what their words say. Those that evaluate what they are given are doubted.

Pure. `x[$(cmd)]` runs a command wherever bash expects a name or a number: in `-v`, `-eq`, `let`, `read`, `unset`.
"""

from __future__ import annotations

import re

from .words import Doubt, Word

NAME = re.compile(r"(?!npm_)[a-z][a-z0-9_]*(?<!_proxy)")
"""A variable that may be set by a line: nothing that other programs heed is spelled so."""

_SETS = re.compile(r"%[^A-Za-z%]*[hjlLqtz]*n")
"""`%n` of printf sets the variable that is named for it, PATH too."""

PLAIN = frozenset({":", "echo", "cd", "pwd", "true", "false", "exit", "return", "break", "continue", "kill", "umask"})
"""Builtins whose words are only text."""

DOUBTED = frozenset(
    """. alias bg bind caller compgen complete compopt coproc declare dirs disown enable eval export fc fg getopts hash
    help history jobs let local logout mapfile popd pushd readarray readonly shift shopt source suspend times trap
    typeset ulimit unalias unset""".split()
)

_UNARY = frozenset(f"-{letter}" for letter in "abcdefghkLnNOGprsStuwxz")
_BINARY = frozenset({"=", "==", "!=", "-nt", "-ot", "-ef"})
_NUMERIC = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


def judge_builtin(words: tuple[Word, ...]) -> None:
    """Raises Doubt where a builtin could evaluate what it is given."""
    name, given = words[0].text, words[1:]
    texts = [word.text if word.literal else "?" for word in given]
    if name in DOUBTED:
        raise Doubt(f"{name} can do more than its words say")
    match name:
        case "[" | "test":
            judge_test([Word("["), *(given[:-1] if name == "[" else given), Word("]")])
        case "printf" if not texts or texts[0].startswith("-") or not given[0].literal:
            raise Doubt("printf with an option, or a format nobody knows")
        case "printf" if _SETS.search(texts[0].replace("%%", "")):
            raise Doubt("printf with %n sets a variable")
        case "read" if not all(text == "-r" or NAME.fullmatch(text) for text in texts):
            raise Doubt("read with more than -r and plain names")
        case "set" if (
            not re.fullmatch(r"(-[eu]+ )*(-[eu]*o pipefail )?(-[eu]+ )*", " ".join([*texts, ""])) or not texts
        ):
            raise Doubt("set with more than -e, -u and -o pipefail")
        case "wait" | "type" if any(not word.literal or word.text.startswith("-") for word in given):
            raise Doubt(f"{name} with options")


def judge_test(row: list[Word]) -> None:
    """A row of words from `[` or `[[` to its end. Raises Doubt unless each part is a comparison of plain words."""
    double = row[0].text == "[["
    if row[0].text not in ("[", "[[") or row[-1].text != ("]]" if double else "]"):
        raise Doubt("a test that is not understood")
    pending: list[Word] = []
    for word in row[1:-1]:
        if double and word.literal and word.text in ("&&", "||", "(", ")"):
            _part(pending, double)
            pending = []
        else:
            pending.append(word)
    _part(pending, double)


def _part(words: list[Word], double: bool) -> None:
    while words and words[0].literal and words[0].text == "!":
        words = words[1:]
    if not double and not all(word.single for word in words):
        raise Doubt("a test of words nobody can count")
    match words:
        case [] | [_]:
            return
        case [Word(kind="literal") as sign, _] if sign.text in _UNARY:
            return
        case [_, Word(kind="literal") as sign, _] if sign.text in _BINARY or (double and sign.text in ("=~", "<", ">")):
            return
        case [_, Word(kind="literal") as sign, _] if sign.text in _NUMERIC and not double:
            return
        case [left, Word(kind="literal") as sign, right] if sign.text in _NUMERIC:
            if left.literal and right.literal and left.text.isdigit() and right.text.isdigit():
                return
    raise Doubt("a test that is not understood")
