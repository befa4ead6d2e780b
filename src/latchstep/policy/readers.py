"""Commands that only read, and only beneath the workspace: by an exact table of their options. Pure.

Programs that can run others, write, or are told what to do in a language of their own (git, find, sed, awk, tar) are
not here, and never will be by their name alone.
"""

from __future__ import annotations

import re

import msgspec

from .line import Command
from .words import Word


class _Reader(msgspec.Struct, frozen=True):
    """flags, valued: letters of options without and with a value, none of which is a path. long: the same as words,
    with `=` where they have one, and without where they need none. free: the first operands, which are no paths (-1:
    none is). most: operands at most."""

    flags: str = ""
    valued: str = ""
    long: frozenset[str] = frozenset()
    free: int = 0
    most: int = 1_000_000


def _reader(flags: str = "", valued: str = "", long: str = "", free: int = 0, most: int = 1_000_000) -> _Reader:
    return _Reader(flags, valued, frozenset(long.split()), free, most)


_GREP = _reader(
    "EFGPivwxcLlqsbHhnoTZarUzy",
    "mABCe",
    "recursive ignore-case no-ignore-case invert-match word-regexp line-regexp count files-with-matches quiet silent "
    "files-without-match no-messages with-filename no-filename line-number only-matching extended-regexp fixed-strings "
    "perl-regexp text null max-count= after-context= before-context= context= regexp= include= exclude= exclude-dir= "
    "color= color colour= colour binary-files=",
    1,
)

READERS = {
    "ls": _reader(
        "aAbBcCdfFgGhiklmnNopqQrRsStuUvxXZ1",
        "IwT",
        "all almost-all human-readable recursive reverse directory size inode color= color sort= time= full-time "
        "group-directories-first time-style= ignore= hide=",
    ),
    "cat": _reader("AbeEnstTuv", "", "number number-nonblank show-all show-ends show-tabs squeeze-blank"),
    "head": _reader("qvz", "nc", "lines= bytes= quiet verbose"),
    "tail": _reader("qvz", "nc", "lines= bytes= quiet verbose"),
    "wc": _reader("clLmw", "", "lines words bytes chars max-line-length"),
    "nl": _reader("p", "bdfhilnsvw", ""),
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "rg": _reader(
        "acFHiIlnNopPqsSUvwx0u",
        "eABCmgtTjMd",
        "ignore-case smart-case case-sensitive fixed-strings word-regexp line-regexp invert-match count count-matches "
        "files-with-matches files-without-match line-number no-line-number with-filename no-filename heading "
        "no-heading hidden no-ignore multiline only-matching quiet glob= iglob= type= type-not= max-count= max-depth= "
        "after-context= before-context= context= regexp= sort= color= stats json column trim vimgrep no-config files",
        1,
    ),
    "sort": _reader("bdfgiMhnRrVcCmsuz", "kt", "reverse unique numeric-sort human-numeric-sort version-sort key="),
    "cut": _reader("nsz", "bcdf", "delimiter= fields= bytes= characters= only-delimited complement output-delimiter="),
    "tr": _reader("cCdst", "", "delete squeeze-repeats complement truncate-set1", -1),
    "stat": _reader("ft", "c", "terse format="),
    "uniq": _reader("cdDiuz", "fsw", "count repeated unique ignore-case skip-fields=", 0, 1),
    "du": _reader("abcDhHkmsSx0", "d", "all bytes human-readable summarize max-depth= total apparent-size"),
    "basename": _reader("az", "s", "multiple suffix= zero", -1),
    "dirname": _reader("z", "", "zero", -1),
    "md5sum": _reader("bct", ""),
    "sha1sum": _reader("bct", ""),
    "sha256sum": _reader("bct", ""),
    "diff": _reader(
        "abBdeEHiNnpqrstTuwyZ",
        "UCxWL",
        "unified= unified context= context brief recursive side-by-side ignore-all-space color= color",
    ),
    "cmp": _reader("bls", "in", "print-bytes silent quiet verbose"),
    "comm": _reader("123z", ""),
    "which": _reader("as", "", "all", -1),
    "whoami": _reader(),
    "uname": _reader("asnrvmpio"),
    "seq": _reader("w", "fs", "", -1),
    "sleep": _reader("", "", "", -1),
    "nproc": _reader("", "", "all"),
}

_TEXT = frozenset(
    {"echo", ":", "true", "false", "exit", "return", "break", "continue", "pwd", "wait", "type", "set", "read"}
)
"""Builtins of the shell that touch nothing but the shell: `shell` has judged their words."""

_CAN_WRITE = frozenset({"sort", "rg"})
"""Readers that have options outside their table that write or run something: no word of theirs may be unknown."""

_OUTSIDE = re.compile(r"^[/~]|(?:^|/)\.\.(?:/|$)")
_DOTS = re.compile(r"(?:^|/)\\?\.[^/]*[*?\[]")
"""A glob that matches `..` in bash before 5.2."""
_NO_FREE = re.compile(r"-\w*e|--regexp(?:=|$)|--files$")
"""Options, wherever they stand, that make all operands of grep and rg paths."""


def only_reads(command: Command, at_home: bool = True) -> bool:
    """This command reads files of the workspace, or prints, and nothing else. at_home: the shell is still in it."""
    if command.assigns or not command.words:
        return False
    name, given = command.words[0].text, command.words[1:]
    if name in _TEXT:
        return True
    if name == "printf":
        return True
    if not at_home:
        return False
    if name in ("[", "test"):
        return not any(_OUTSIDE.search(word.text) for word in given)
    if name == "cd":
        return len(given) == 1 and given[0].literal and not re.match(r"-|$", given[0].text) and inside(given[0])
    if name == "command":
        return True  # `command -v`: any other is what it runs
    reader = READERS.get(name)
    return reader is not None and _by_table(name, reader, given)


def inside(word: Word) -> bool:
    """A path of the workspace, as far as its text can tell."""
    if word.kind in ("one", "any"):
        return False
    text = word.text if word.literal else re.sub(r"[\\'\"]", "", word.text)  # its source: quotes part no names
    if not word.literal and _DOTS.search(text):
        return False
    return not _OUTSIDE.search(text) and not text.startswith(("<(", ">(")) and "\0" not in text


def _by_table(name: str, reader: _Reader, given: tuple[Word, ...]) -> bool:
    at, free, left, options = 0, reader.free, reader.most, True
    if any(free == 1 and _NO_FREE.match(word.text) for word in given):
        free = 0
    while at < len(given):
        word = given[at]
        at += 1
        if not word.literal or not options or not word.text.startswith("-") or word.text == "-":
            if (not word.literal or not free) and not inside(word):
                return False
            if word.kind == "glob" and options and name in _CAN_WRITE:
                return False
            left -= 1 if word.literal else 2
            free -= free > 0
            if left < 0:
                return False
        elif word.text == "--":
            options = False
        elif not (name in ("head", "tail", "grep") and re.fullmatch(r"-\d+", word.text)):
            takes = _option(reader, word.text)
            if takes is None or (takes and (at >= len(given) or not given[at].single)):
                return False
            at += takes
    return True


def _option(reader: _Reader, text: str) -> int | None:
    """How many of the words behind an option are its value; None for one that is not in the table."""
    if text.startswith("--"):
        option, equals, _ = text[2:].partition("=")
        if option + equals in reader.long:
            return 0
        return 1 if not equals and f"{option}=" in reader.long else None
    for place, letter in enumerate(text[1:], 1):
        if letter in reader.valued:
            return int(place == len(text) - 1)
        if letter not in reader.flags:
            return None
    return 0
