"""Which files a `.gitignore` leaves out, and globs in the same language.

Pure. The rules of gitignore(5): the last match wins, `!` takes back, a trailing `/` means folders, a `/`
elsewhere anchors. Matching is linear per part, however many `*` a hostile repository writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_RULES = 2000
"""Rules read from one file; further ones are passed over."""
MAX_RULE = 1000
"""Characters of a rule; a longer one is passed over."""
MAX_ALTERNATIVES = 64
"""Globs that one glob with `{a,b}` may stand for; further ones are passed over."""

_ANY = None
"""Stands for `**`: any number of folders."""


@dataclass(frozen=True, slots=True)
class Rule:
    parts: tuple[re.Pattern[str] | None, ...]
    anchored: bool
    folders_only: bool
    negated: bool

    def matches(self, path: Sequence[str], folder: bool) -> bool:
        """`path` is relative to the folder that the rule stands in."""
        if self.folders_only and not folder:
            return False
        return match_parts(self.parts, path if self.anchored else path[-1:])


Rules = tuple[tuple[int, tuple[Rule, ...]], ...]
"""(parts of the folder that rules stand in, the rules), the nearest folder first."""


def ignored(rules: Rules, path: tuple[str, ...], folder: bool) -> bool:
    """The last rule that matches decides, and rules of a folder further down come after those above."""
    for depth, group in rules:
        below = path[depth:]
        for rule in group:
            if rule.matches(below, folder):
                return not rule.negated
    return False


_END = re.compile("(?!)")
"""Where a pattern has no part left: matches nothing."""


def parse_rules(text: str) -> tuple[Rule, ...]:
    """The rules of a `.gitignore`, last first, as they are tried."""
    rules = (parse_rule(line) for line in text.split("\n")[:MAX_RULES])
    return tuple(rule for rule in rules if rule is not None)[::-1]


def parse_rule(line: str) -> Rule | None:
    """One rule; None for blank lines, comments and patterns that match nothing."""
    line = line.rstrip("\r")
    if not line or len(line) > MAX_RULE or line.startswith("#"):
        return None
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    negated = line.startswith("!")
    line = line[1:] if negated else line
    folders_only = line.endswith("/")
    line = line.rstrip("/") if folders_only else line
    anchored = "/" in line
    names = [name for name in line.split("/") if name]
    if not names:
        return None
    return Rule(parse_glob(names), anchored, folders_only, negated)


def parse_glob(names: Sequence[str]) -> tuple[re.Pattern[str] | None, ...]:
    """A glob split at `/`, each part compiled, `**` as None."""
    parts: list[re.Pattern[str] | None] = []
    for name in names:
        if name != "**":
            parts.append(_part(name))
        elif not parts or parts[-1] is not _ANY:
            parts.append(_ANY)
    if len(parts) > 1 and parts[-1] is _ANY:
        parts.append(_part("*"))  # `a/**` is what lies in a, not a itself
    return tuple(parts)


def glob_rules(glob: str) -> tuple[Rule, ...]:
    """A glob for files: by name where it has no `/`, else by the path relative to the folder that is searched.

    `{a,b}` gives one rule each, at most `MAX_ALTERNATIVES`; any of them matching is a match.
    """
    globs = alternatives(glob + "**" if glob.endswith("/") else glob)
    rules = (parse_rule("\\" + one if one.startswith(("!", "#")) else one) for one in globs)
    return tuple(rule for rule in rules if rule is not None)


def alternatives(glob: str) -> list[str]:
    """The globs without `{a,b}` that one stands for, at most `MAX_ALTERNATIVES`; `./` at the beginning anchors them."""
    globs = [glob]
    for _ in range(4):
        globs = [each for one in globs for each in _alternatives(one)][:MAX_ALTERNATIVES]
    return [one[1:] if one.startswith("./") else one for one in globs]


def _alternatives(glob: str) -> list[str]:
    match = re.search(r"\{([^{}]*,[^{}]*)\}", glob)
    return [glob[: match.start()] + each + glob[match.end() :] for each in match[1].split(",")] if match else [glob]


def literal(name: str) -> str:
    """A name as a glob that matches it alone."""
    return re.sub(r"([\\*?\[\]{}!# ])", r"\\\1", name)


def match_parts(parts: Sequence[re.Pattern[str] | None], path: Sequence[str]) -> bool:
    """Match part by part; at a mismatch only the last `**` takes one more, so the work is parts times path."""
    at = place = 0
    retry_at, retry_place = -1, 0
    while place < len(path):
        part = parts[at] if at < len(parts) else _END
        if part is _ANY:
            retry_at, retry_place = at, place
            at += 1
        elif part is not None and part.fullmatch(path[place]):
            at += 1
            place += 1
        elif retry_at >= 0:
            retry_place += 1
            at, place = retry_at + 1, retry_place
        else:
            return False
    return all(part is None for part in parts[at:])


def _part(glob: str) -> re.Pattern[str]:
    """One part as a regular expression. Each `*` with what follows it is atomic: it never backtracks."""
    pieces: list[list[str]] = [[]]
    index = 0
    while index < len(glob):
        char = glob[index]
        index += 1
        if char == "*":
            if pieces[-1] or len(pieces) == 1:
                pieces.append([])
        elif char == "?":
            pieces[-1].append(".")
        elif char == "[" and (found := _class(glob, index)):
            text, index = found
            pieces[-1].append(text)
        else:
            if char == "\\" and index < len(glob):
                char = glob[index]
                index += 1
            pieces[-1].append(re.escape(char))
    fixed = ["".join(piece) for piece in pieces]
    if len(fixed) == 1:
        return re.compile(fixed[0], re.DOTALL)
    middle = "".join(f"(?>.*?{piece})" for piece in fixed[1:-1])
    return re.compile(f"{fixed[0]}{middle}.*{fixed[-1]}", re.DOTALL)


def _class(glob: str, start: int) -> tuple[str, int] | None:
    """A bracket expression from after its `[`: its regular expression and where it ends; None if it does not."""
    end = start + 1 if glob[start : start + 1] in ("!", "^") else start
    end = glob.find("]", end + 1)
    if end < 0:
        return None
    body = glob[start:end]
    negated = body[:1] in ("!", "^")
    body = body[1:] if negated else body
    ranges = []
    index = 0
    while index < len(body):
        if body[index + 1 : index + 2] == "-" and index + 2 < len(body):
            low, high = body[index], body[index + 2]
            if low <= high:
                ranges.append(f"{re.escape(low)}-{re.escape(high)}")
            index += 3
        else:
            ranges.append(re.escape(body[index]))
            index += 1
    inner = "".join(ranges)
    if not inner:
        return ("." if negated else "(?!)"), end + 1
    return f"[{'^' if negated else ''}{inner}]", end + 1
