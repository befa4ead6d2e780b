"""Untrusted text → text that is safe to show anywhere: a terminal, a log, a question for approval.

One function for every surface: what could move a cursor, hide, reorder or imitate is shown as an escape.
"""

from __future__ import annotations

import re
import unicodedata

_PLAIN = re.compile(r"[\x20-\x7e\n\t]*")
_BLANKS = re.compile(r"[ \t]{40,}")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK_LETTERS = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)
"""Letters, marks and symbols by category, and nothing to see: Hangul fillers, joiners, variation selectors, the empty
Braille pattern."""

_SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "GEORGIAN")
"""Scripts whose letters pass for one another's."""
_WORD = re.compile(r"[^\W\d_]+")
_MASKS = {"\u2044": "/", "\u2215": "/", "\u29f8": "/", "\u2236": ":", "\ua789": ":", "\u2010": "-", "\u2011": "-",
          "\u2012": "-", "\u2013": "-", "\u2014": "-", "\u2212": "-", "\u2223": "|", "\u2018": "'", "\u2019": "'",
          "\u201c": '"', "\u201d": '"', "\u02cb": "`", "\u2024": ".", "\u2217": "*", "\u2227": "&",
          "\u0251": "a", "\u0261": "g"}  # fmt: skip
"""Marks and Latin letters that pass for one of ASCII, where no normal form says so."""
_TWINS = frozenset(
    "\u0430\u0441\u0435\u043e\u0440\u0443\u0445\u04bb\u0456\u0458\u0455\u0501\u051b\u051d\u04cf\u0410\u0412\u0415\u041a"
    "\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0405\u0406\u0408\u050c\u051a\u051c\u04ae"  # Cyrillic
    "\u03b1\u03b9\u03bf\u03c1\u03c5\u03bd\u03b3\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1"
    "\u03a4\u03a5\u03a7\u03f2\u03f3"  # Greek
    "\u0585\u057d\u0578\u0570\u0581\u0566\u0584\u0575\u0582\u056c\u0561\u054f\u0555\u054d\u053c"  # Armenian
    "\u13a0\u13a1\u13a2\u13a5\u13aa\u13ab\u13ac\u13b3\u13b7\u13bb\u13c0\u13c3\u13cf\u13d2\u13d9\u13da\u13de\u13df\u13e2\u13e6"
)
"""Letters of other scripts that pass for one of ASCII."""


def printable(text: str) -> str:
    """The text with every control, format, bidi, surrogate, private and unassigned character escaped.

    Newlines stay, tabs become four blanks, blanks that are not U+0020 and letters that look like one are escaped,
    and a run of 40 blanks or more is shown as its length, so that nothing can be pushed out of sight.
    """
    if not _PLAIN.fullmatch(text):
        text = "".join(_visible(char) for char in text)
    return _BLANKS.sub(lambda run: f" [{len(run[0])} blanks] ", text).replace("\t", "    ")


def _visible(char: str) -> str:
    if char in "\n\t" or " " <= char <= "~":
        return char
    category = unicodedata.category(char)
    if category in _HIDDEN or category == "Zs" or char in _BLANK_LETTERS:
        code = ord(char)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return char


def one_line(text: str, width: int = 100) -> str:
    """The text on one line of at most `width` characters; what is cut is counted."""
    flat = printable(text).replace("\n", "⏎ ").strip()
    if len(flat) <= width:
        return flat
    tail = f" … (+{len(flat) - width + 12})"
    return flat[: width - len(tail)] + tail


def suspicions(text: str) -> list[str]:
    """What a person should be told of a text before agreeing to it, in words that are safe to show."""
    found = []
    if hidden := sum(1 for char in text if char not in "\n\t" and _visible(char) != char):
        found.append(f"{hidden} characters that cannot be seen, or move others, are shown as \\u… escapes")
    if runs := _BLANKS.findall(text):
        found.append(f"{max(map(len, runs))} blanks in a row: something may stand far to the right")
    mixed = [word for word in _WORD.findall(text) if not word.isascii() and len(_scripts(word)) > 1]
    masked = sorted({char for char in text if char > "~" and _looks_ascii(char)})
    names = [f"{one_line(word, 30)} mixes {' and '.join(sorted(_scripts(word)))}" for word in dict.fromkeys(mixed)]
    names += [f"{one_line(word, 30)} is all {' and '.join(_scripts(word))}" for word in dict.fromkeys(_disguised(text))]
    names += [f"{char} is {unicodedata.name(char, 'no ASCII').lower()}" for char in masked if _visible(char) == char]
    if names:
        more = f", and {len(names) - 5} more" if len(names) > 5 else ""
        found.append(f"characters that look like others: {'; '.join(names[:5])}{more}")
    return found


def _disguised(text: str) -> list[str]:
    """Words that could be read as ASCII letter by letter, where no word beside them shows that the script is meant. One
    letter is a word in many languages, and told only where it is a part of something longer."""
    found = []
    for line in text.split("\n"):
        words = list(_WORD.finditer(line))
        meant = [not word[0].isascii() and not _TWINS.issuperset(word[0]) for word in words]
        for at, word in enumerate(words):
            apart = not line[word.start() - 1 : word.start()].strip() and not line[word.end() :][:1].strip()
            alone = len(word[0]) == 1 and (apart or len(words) == 1)
            if _TWINS.issuperset(word[0]) and not alone and not any(meant[max(0, at - 1) : at + 2]):
                found.append(word[0])
    return found


def _scripts(word: str) -> set[str]:
    heads = (unicodedata.name(char, "").partition(" ")[0] for char in word)
    return {head.capitalize() for head in heads if head in _SCRIPTS}


def _looks_ascii(char: str) -> bool:
    plain = unicodedata.normalize("NFKC", char)
    return char in _MASKS or (len(plain) == 1 and plain.isascii() and plain.isprintable())
