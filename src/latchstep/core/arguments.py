"""The argument text of a tool call becomes one JSON object, or a flaw in words for the model.

Rule: one parse, whose result is what the gate sees, the journal keeps and the tool gets. Nothing ambiguous is
guessed: what cannot be read in one way only is a flaw, and no text raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from latchstep.core.message import clean_json

CUT = "the arguments were cut off"

_BLANK = " \t\r\n\ufeff"
_EMPTY = re.compile(r"(?:\{\s*+\}\s*+)+(?=\{)")
_SECOND = re.compile(r'\{\s*+["}]')
_WORD_OR_NUMBER = re.compile(r"[-+.\\\w]{0,8}")  # begun: a literal, a number, an escape
_KINDS = {list: "an array", str: "a string", bool: "true or false", int: "a number", float: "a number"}


def parse_arguments(text: str, *, whole: bool = True) -> tuple[dict[str, Any], str, bool]:
    """(arguments, flaw, cut). Linear in the length of the text.

    whole: the answer ended by itself, so that blank text means no arguments; otherwise it means that they are
        missing. cut: the text stops in the middle of a value, which means that the answer was cut.
    A string that holds an object is unwrapped once. An empty object before another is dropped: some servers begin
    with one. What follows a complete object is dropped, unless it begins another; the same once more is one.
    """
    value, flaw, cut = _read(text)
    if flaw:
        return {}, flaw, cut
    if isinstance(value, str) and value.strip(_BLANK):
        value, flaw, inner_cut = _read(value)
        if flaw or inner_cut:
            return {}, f"the arguments are a JSON string that does not hold one object: {flaw or CUT}", False
    if value is None or value == "":
        return ({}, "", False) if whole else ({}, f"{CUT} before they began", True)
    if not isinstance(value, dict):
        return {}, f"the arguments are {_KINDS.get(type(value), 'no object')}, not a JSON object", False
    try:
        return clean_json(value), "", False
    except ValueError as error:
        return {}, f"the arguments are not plain JSON: {error}", False


def parse_pieces(pieces: Sequence[str], *, whole: bool = True) -> tuple[dict[str, Any], str, bool]:
    """As `parse_arguments` of the pieces joined. Where that cannot be read, a piece that begins with all before it
    stands in their place: some servers send each time what they have so far. No JSON text goes on with its own
    beginning, so nothing else is taken for that.
    """
    found = parse_arguments("".join(pieces), whole=whole)
    if not found[1]:
        return found
    kept: list[str] = []
    size = 0
    for piece in pieces:
        if len(piece) >= size and piece.startswith("".join(kept)):
            kept, size = [], 0
        kept.append(piece)
        size += len(piece)
    return parse_arguments("".join(kept), whole=whole)


def _read(text: str) -> tuple[Any, str, bool]:
    """(value, flaw, cut) of the first JSON value in `text`; blank text is None."""
    text = text.strip(_BLANK)
    if begun := _EMPTY.match(text):
        text = text[begun.end() :]
    if not text:
        return None, "", False
    value, flaws, error = _parse(text)
    if error is not None and error.msg == "Extra data":
        rest = text[error.pos :]
        value, flaws, error = _parse(text[: error.pos])
        more = rest.strip(_BLANK + "}],;")
        if (more.startswith(("{", "[")) or _SECOND.search(more)) and not _same(value, _parse(rest)[0]):
            return None, "the arguments hold more than one JSON object; send one per call", False
    if error is not None and _stops_short(text, error):
        return None, f"{CUT} after {len(text)} characters", True
    if error is not None:
        return None, f"the arguments are not valid JSON: {error.msg} at character {error.pos}", False
    if flaws:
        return None, f"the arguments are not plain JSON: {flaws[0]}", False
    return value, "", False


def _parse(text: str) -> tuple[Any, list[str], json.JSONDecodeError | None]:
    flaws: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            flaws.append("a key occurs twice in one object")
        return found

    def integer(digits: str) -> int:
        if len(digits) <= 20:
            return int(digits)
        flaws.append(f"an integer of {len(digits)} digits does not fit in 64 bits")
        return 0

    def constant(word: str) -> None:
        flaws.append(f"{word} is not JSON")

    try:
        # strict=False: models put raw line breaks into strings, and those can be read in one way only
        value = json.loads(text, strict=False, object_pairs_hook=pairs, parse_int=integer, parse_constant=constant)
    except json.JSONDecodeError as error:
        return None, flaws, error
    except RecursionError:
        return None, ["nested too deeply"], None
    return value, flaws, None


def _same(value: Any, other: Any) -> bool:
    try:
        return json.dumps(value) == json.dumps(other)
    except RecursionError:
        return False


def _stops_short(text: str, error: json.JSONDecodeError) -> bool:
    """Whether the parser ran out of text, which is not the same as bad text before the end."""
    tail = text[error.pos :]
    if error.msg.startswith("Unterminated string"):
        return True
    return text[0] in '{["' and _WORD_OR_NUMBER.fullmatch(tail) is not None
