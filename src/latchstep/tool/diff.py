"""Differences for people and for a model whose text did not match: bounded in time and in length.

Pure. Works on lines in LF space; a common head and tail are set aside before anything is compared.
"""

from __future__ import annotations

from .text import cut

MAX_DIFF_LINES = 400
"""Lines of a diff that are shown."""
MAX_LINE = 400
"""Characters of a line that are shown in a diff."""
MAX_COMPARED = 1500
"""Lines on either side that are compared; more are shown as one block replaced by another."""
CONTEXT_LINES = 3

MAX_NEAR_LINES = 20_000
"""Lines of a file that are searched for the nearest text."""
MAX_NEAR_WORK = 4_000_000
"""Character comparisons, at most, that the search may cost."""
MAX_NEAR_SHOWN = 30


def unified(path: str, old: str, new: str) -> str:
    """A unified diff of two texts, cut to `MAX_DIFF_LINES` with a last line that says so. "" where they agree."""
    if old == new:
        return ""
    left, right = old.split("\n"), new.split("\n")
    head = 0
    while head < min(len(left), len(right)) and left[head] == right[head]:
        head += 1
    tail = 0
    while tail < min(len(left), len(right)) - head and left[-1 - tail] == right[-1 - tail]:
        tail += 1
    first = max(0, head - CONTEXT_LINES)
    left_part = left[first : min(len(left), len(left) - tail + CONTEXT_LINES)]
    right_part = right[first : min(len(right), len(right) - tail + CONTEXT_LINES)]
    rows = _rows(left_part, right_part, first)
    if len(rows) > MAX_DIFF_LINES:
        rows[MAX_DIFF_LINES:] = [f"… {len(rows) - MAX_DIFF_LINES} more lines of the diff are not shown"]
    return "\n".join([f"--- {path}", f"+++ {path}", *(cut(row, MAX_LINE) for row in rows)])


def _rows(left: list[str], right: list[str], first: int) -> list[str]:
    if max(len(left), len(right)) > MAX_COMPARED:
        header = f"@@ -{first + 1},{len(left)} +{first + 1},{len(right)} @@"
        half = MAX_DIFF_LINES // 2
        rows = [header]
        for sign, lines in (("-", left), ("+", right)):
            rows += [sign + line for line in lines[: half - 2]]
            if len(lines) > half - 2:
                rows.append(f"{sign}… {len(lines) - half + 2} more lines")
        return rows
    from difflib import SequenceMatcher

    rows = []
    for group in SequenceMatcher(None, left, right).get_grouped_opcodes(CONTEXT_LINES):
        _, start, _, right_start, _ = group[0]
        _, _, end, _, right_end = group[-1]
        rows.append(f"@@ -{first + start + 1},{end - start} +{first + right_start + 1},{right_end - right_start} @@")
        for tag, i, j, m, n in group:
            if tag == "equal":
                rows += [" " + line for line in left[i:j]]
                continue
            rows += ["-" + line for line in left[i:j]]
            rows += ["+" + line for line in right[m:n]]
    return rows


def nearest(text: str, wanted: str) -> tuple[int, list[str]] | None:
    """The lines of a text most like the wanted ones: number of the first (from 1) and the lines. None if none are."""
    from difflib import SequenceMatcher

    lines = text.split("\n")[:MAX_NEAR_LINES]
    sought = wanted.strip("\n").split("\n")[:MAX_NEAR_SHOWN]
    key_at = max(range(len(sought)), key=lambda i: len(sought[i].strip()))
    key = sought[key_at].strip()[:200]
    if not key:
        return None
    matcher = SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(key)
    best, place, work = 0.5, -1, 0
    for number, line in enumerate(lines):
        candidate = line.strip()[:200]
        matcher.set_seq1(candidate)
        if matcher.real_quick_ratio() <= best or matcher.quick_ratio() <= best:
            continue
        work += len(candidate) * len(key)
        if work > MAX_NEAR_WORK:
            break
        ratio = matcher.ratio()
        if ratio > best:
            best, place = ratio, number
            if best == 1.0:
                break
    if place < 0:
        return None
    first = max(0, place - key_at)
    return first + 1, lines[first : first + len(sought)]
