"""sed and awk, which are told what to do in languages of their own: does a call only read and print? Pure.

By forms that are known to do no more. What is not of them may run a program (`1e`, `system`) or write (`w`, `>`).
"""

from __future__ import annotations

import re

from .words import Word

AWKS = frozenset({"awk", "gawk", "mawk", "nawk"})
SEDS = frozenset({"sed", "gsed"})

_MARKS = r"/|,#:@!"
_BRACKET = rf"\[\^?[^\]\[\\\n\^{_MARKS}][^\]\[\\\n{_MARKS}]*\]"
"""Of characters that could not be taken for the end of it, or of the expression."""
_ADDRESS = rf"(?:\d+|\$|/(?:\\[^\n]|{_BRACKET}|[^\\\n\[/])*/I?)"
_SOUGHT = rf"(?:\\[^\n]|{_BRACKET}|(?!(?P=mark))[^\\\n\[])*(?P=mark)"
_PUT = r"(?:\\[^\n]|(?!(?P=mark))[^\\\n])*(?P=mark)"
_STEP = re.compile(
    rf"[ \t]*(?:{_ADDRESS}(?:,(?:{_ADDRESS}|\+\d+))?)?[ \t]*!?[ \t]*"
    rf"(?:[pdqPDNnhHgGxl=]|s(?P<mark>[{_MARKS}]){_SOUGHT}{_PUT}[gpiI0-9]*)[ \t]*(?:[;\n]|\Z)"
)
_SED_OPTION = re.compile(r"-[nErsuz]+|--(?:quiet|silent|regexp-extended|separate|null-data|posix)")
_AWK_RUNS = re.compile(r"^-|system|getline|[|>@]")


def only_prints(words: tuple[Word, ...]) -> bool:
    """A call of sed or awk that runs nothing and writes no file; True for any other program."""
    program = words[0].text.rpartition("/")[2]
    if program in SEDS:
        return _sed(words[1:])
    return program not in AWKS or _awk(words[1:])


def _sed(given: tuple[Word, ...]) -> bool:
    """Options count wherever they stand. The script is what `-e` says, else the first operand."""
    scripts, operands, at = list[Word](), list[Word](), 0
    while at < len(given):
        word = given[at]
        at += 1
        if not word.literal or not word.text.startswith("-") or word.text == "-":
            operands.append(word)
        elif re.fullmatch(r"-[nErsuz]*e", word.text) and at < len(given):
            scripts.append(given[at])
            at += 1
        elif not _SED_OPTION.fullmatch(word.text):
            return False
    return all(word.literal and _steps(word.text) for word in scripts or operands[:1])


def _steps(script: str) -> bool:
    at = 0
    while at < len(script):
        found = _STEP.match(script, at)
        if found is None:
            return False
        at = found.end()
    return True


def _awk(given: tuple[Word, ...]) -> bool:
    """Options end before the program, which is the first operand."""
    at = 0
    while at < len(given) and given[at].literal and re.match(r"-[Fv]", given[at].text):
        at += 1 + (len(given[at].text) == 2)
    program = given[at] if at < len(given) else None
    return program is not None and program.literal and not _AWK_RUNS.search(program.text)
