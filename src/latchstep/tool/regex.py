"""How long a line may be for a regular expression to be searched in it with bounded work.

Pure. Python's matcher backtracks while it holds the interpreter's lock, so a hostile pattern cannot be
stopped once it runs. Its work is bounded beforehand instead: the number of ways a pattern can match, by its parts.
"""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

from latchstep.errors import ToolError

MAX_PATTERN = 1000
"""Characters of a pattern."""
MAX_LINE = 10_000
"""Characters of the longest line that is searched with any pattern."""
MIN_LINE = 40
"""A pattern that could not be searched in lines of this length is refused."""
WORK_BITS = 27
"""Work allowed for one line, as a power of two of matcher steps: about a second at worst."""

_STRANGERS = "\u00a0\u00e9\u00df\u0130\u0663\u2028\u4e2d\U0001f600"
"""Characters beyond ASCII of several kinds, to tell whether two character classes overlap there."""

_Chars = frozenset[str]


def compile_pattern(pattern: str, ignore_case: bool) -> tuple[re.Pattern[str], int]:
    """The compiled pattern, and the longest line it may be searched in. Raises ToolError."""
    if len(pattern) > MAX_PATTERN:
        raise ToolError(f"the pattern has {len(pattern)} characters; the limit is {MAX_PATTERN} (MAX_PATTERN)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
            longest = longest_line(pattern, compiled.flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolError(
            f"the pattern is not a regular expression ({error}); escape special characters with \\"
        ) from error
    if longest < MIN_LINE:
        raise ToolError(
            "the pattern could take exponential time, since it repeats what is itself repeated or optional; "
            "write it without nested repeats, or search for a plain part of it"
        )
    return compiled, longest


def longest_line(pattern: str, flags: int) -> int:
    """The longest line, up to `MAX_LINE`, for which the matcher's work stays within `WORK_BITS`."""
    parser: Any = __import__("re")._parser
    items = list(parser.parse(pattern, flags))
    universe = _universe(items)
    low, high = 0, MAX_LINE
    while low < high:
        middle = (low + high + 1) // 2
        if _Work(middle, universe).bits(items) <= WORK_BITS:
            low = middle
        else:
            high = middle - 1
    return low


def _universe(items: Any) -> _Chars:
    """Characters enough to tell whether two classes of this pattern overlap: ASCII, strangers, and its own."""
    found: set[str] = set(map(chr, range(128))) | set(_STRANGERS)

    def visit(node: Any) -> None:
        if isinstance(node, int) and not isinstance(node, bool) and 0 <= node < 0x110000:
            found.add(chr(node))
        elif isinstance(node, list | tuple) or hasattr(node, "data"):
            for inner in getattr(node, "data", node):
                visit(inner)

    visit(items)
    return frozenset(found | {c.swapcase() for c in found if len(c.swapcase()) == 1})


class _Work:
    """The work of a pattern on one line length, in bits (logarithms), so that exponential stays countable."""

    def __init__(self, length: int, universe: _Chars) -> None:
        self.size = math.log2(length + 1)
        self.length = length
        self.universe = universe
        self.repeats = False

    def bits(self, items: Any) -> float:
        """Starts times ways; a pattern that repeats at all may read the rest of the line from each start."""
        ways = self.sequence(items, frozenset())
        return self.size + max(ways, self.size if self.repeats else 0.0)

    def sequence(self, items: Any, follow: _Chars) -> float:
        """Ways to match items one after the other, before something that begins with `follow`."""
        total = 0.0
        for item in reversed(list(items)):
            total += self.ways(item, follow)
            first, empty = self.first([item])
            follow = first | follow if empty else first
        return total

    def ways(self, item: Any, follow: _Chars) -> float:
        name, value = str(item[0]), item[1]
        match name:
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                return self.repeat(value[0], value[1], value[2], follow)
            case "SUBPATTERN":
                return self.sequence(value[-1], follow)
            case "ATOMIC_GROUP":
                return self.sequence(value, follow)
            case "ASSERT" | "ASSERT_NOT":
                return self.sequence(value[1], frozenset())
            case "BRANCH":
                return self.branch(value[1], follow)
            case "GROUPREF_EXISTS":
                return self.branch([part for part in value[1:] if part is not None], follow)
        return 0.0

    def branch(self, alternatives: Any, follow: _Chars) -> float:
        """Alternatives that cannot begin alike are decided by one character; others all have to be tried."""
        ways = max(self.sequence(each, follow) for each in alternatives)
        taken: set[str] = set()
        for each in alternatives:
            first, empty = self.first(each)
            first = first | follow if empty else first
            if taken & first:
                return ways + math.log2(len(alternatives))
            taken |= first
        return ways

    def repeat(self, least: int, most: int, body: Any, follow: _Chars) -> float:
        """How often to repeat is a choice only where the body can begin like what follows."""
        most = min(int(most), self.length)
        least = min(int(least), most)
        if most > 1:
            self.repeats = True
        first, empty = self.first(body)
        inner = self.sequence(body, first | follow if most > 1 else follow)
        count = math.log2(max(1, most - least + 1)) if first & follow or empty else 0.0
        return inner * max(1, most) + count

    def first(self, items: Any) -> tuple[_Chars, bool]:
        """Characters that items can begin with, and whether they can match nothing at all."""
        found: _Chars = frozenset()
        for item in items:
            chars, empty = self.first_of(str(item[0]), item[1])
            found |= chars
            if not empty:
                return found, False
        return found, True

    def first_of(self, name: str, value: Any) -> tuple[_Chars, bool]:
        match name:
            case "LITERAL":
                return self.folded({chr(value)}), False
            case "NOT_LITERAL":
                return self.folded(self.universe - {chr(value)}), False
            case "IN":
                return self.folded(self.members(value)), False
            case "SUBPATTERN":
                return self.first(value[-1])
            case "ATOMIC_GROUP":
                return self.first(value)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                chars, empty = self.first(value[2])
                return chars, empty or value[0] == 0
            case "BRANCH":
                parts = [self.first(each) for each in value[1]]
                return frozenset().union(*(chars for chars, _ in parts)), any(empty for _, empty in parts)
        # Any character, an anchor that may fail, an assertion, a reference: they can refuse whatever stood before.
        return self.universe, name in ("GROUPREF", "GROUPREF_EXISTS")

    def members(self, items: Any) -> set[str]:
        negated = bool(items) and str(items[0][0]) == "NEGATE"
        chars: set[str] = set()
        for kind, value in items:
            match str(kind):
                case "LITERAL":
                    chars.add(chr(value))
                case "RANGE":
                    chars |= {c for c in self.universe if value[0] <= ord(c) <= value[1]}
                case "CATEGORY":
                    chars |= {c for c in self.universe if _in_category(c, str(value))}
        return set(self.universe) - chars if negated else chars

    def folded(self, chars: set[str] | _Chars) -> _Chars:
        return frozenset(chars) | {c.swapcase() for c in chars if len(c.swapcase()) == 1}


def _in_category(char: str, category: str) -> bool:
    kind = category.removeprefix("CATEGORY_").removeprefix("NOT_")
    found = (
        char.isdecimal() if kind == "DIGIT" else char.isspace() if kind == "SPACE" else char.isalnum() or char == "_"
    )
    return found != ("_NOT_" in category)
