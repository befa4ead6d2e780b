"""Is every byte of a line where the grammar says it is? Finds what the parser forgives, skips or joins. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from .line import WORDS
from .words import Doubt

_OPENERS = re.compile(rb"`|\$\[|\$\(\(|\$\(|\$\{|<\(|>\(|<<<|<<|\(\(")
_STARTS = {
    b"$((": "arithmetic_expansion", b"$(": "command_substitution", b"${": "expansion", b"<(": "process_substitution",
    b">(": "process_substitution", b"<<<": "herestring_redirect", b"<<": "heredoc_redirect",
}  # fmt: skip

MAX_HEREDOCS = 20

_TIGHT = frozenset({"concatenation", "variable_assignment", "simple_expansion", "expansion", "command_name", "number"})
_ON_A_LINE = frozenset(
    {
        "command", "redirected_statement", "file_redirect", "herestring_redirect", "heredoc_redirect",
        "negated_command", "variable_assignments", "declaration_command", "test_command", "unary_expression",
        "binary_expression", "parenthesized_expression",
    }
)  # fmt: skip
_SEPARATED = frozenset({"command", "declaration_command", "variable_assignments"})
_AFTER_ITS_LINE = frozenset({"|", "|&", "&&", "||", ";", "&"})

_REDIRECTIONS = frozenset({"file_redirect", "herestring_redirect", "heredoc_redirect"})
_DESCRIPTOR = re.compile(rb"(?:^|[\s;&|()])\d+\Z|\}\Z")
"""What touches a redirection from the left and is a part of it to bash: `2>`, `{name}>`."""

_APART = (b" ", b"\t", b"\n", b";", b"(", b"|", b"&", b")")

_BLANK = re.compile(rb"(?:[ \t]|(?<=[ \t])\\\n)*")
_BLANK_LINES = re.compile(rb"(?:[ \t\n]|(?<=[ \t])\\\n)*")
_DELIMITER = re.compile(r"'([A-Za-z_]\w*)'|\"([A-Za-z_]\w*)\"|([A-Za-z_]\w*)")


def check(root: Any, text: bytes) -> None:
    """Raises Doubt."""
    nodes = list(_all(root))
    masked = bytearray(text)
    taken = _heredocs(nodes, text)
    for start, end in taken:
        masked[start:end] = b" " * (end - start)
    for node in nodes:
        if node.type == "comment" and not any(start <= node.start_byte < end for start, end in taken):
            _comment(node, text)
            masked[node.start_byte : node.end_byte] = b" " * (node.end_byte - node.start_byte)
        if node.type in _REDIRECTIONS and _DESCRIPTOR.search(text[: node.start_byte][-12:]):
            raise Doubt("a redirection of another descriptor than it seems")
        apart = text[: node.start_byte][-1:] in (b"", *_APART)
        if node.type == "file_descriptor" and not (apart and node.text.isdigit()):
            raise Doubt("a redirection that is not understood")
    _gaps(root, bytes(masked), 0, len(text))
    _openers(nodes, masked)


def _all(node: Any) -> Iterator[Any]:
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        if node.is_missing or node.is_error:
            raise Doubt("its syntax is not understood")
        if node.type != "heredoc_body":
            stack.extend(node.children)


def _comment(node: Any, text: bytes) -> None:
    before, after = text[: node.start_byte][-1:], text[node.end_byte :][:1]
    body = node.text
    if before not in (b"", *_APART) or after not in (b"", b"\n") or body[:1] != b"#":
        raise Doubt("a comment whose bounds are not clear")
    if b"\n" in body or body.endswith(b"\\"):
        raise Doubt("a comment whose bounds are not clear")


def _heredocs(nodes: list[Any], text: bytes) -> list[tuple[int, int]]:
    """Where the bodies of here-documents lie, from the end of their line to the end of their delimiter."""
    taken: list[tuple[int, int]] = []
    for node in nodes:
        if node.type != "heredoc_redirect":
            continue
        parts = {child.type: child for child in node.children}
        if "heredoc_start" not in parts or "heredoc_end" not in parts:
            raise Doubt("a here-document without an end")
        start, end = parts["heredoc_start"], parts["heredoc_end"]
        named = _DELIMITER.fullmatch(start.text.decode())
        line_end = text.find(b"\n", start.end_byte)
        if named is None or line_end < 0 or text[start.end_byte : start.end_byte + 1] not in b" \t\n;|&>":
            raise Doubt("a here-document whose delimiter is not clear")
        at, word = line_end + 1, next(group for group in named.groups() if group).encode()
        while True:
            stop = text.find(b"\n", at)
            stop = len(text) if stop < 0 else stop
            line = text[at:stop].lstrip(b"\t") if "<<-" in parts else text[at:stop]
            if line == word:
                break
            if stop == len(text):
                raise Doubt("a here-document without an end")
            at = stop + 1
        if end.end_byte != stop or end.text.strip() != word:
            raise Doubt("a here-document whose end is not clear")
        if named[3] and re.search(rb"[$`\\]", text[line_end:at]):
            raise Doubt("a here-document with expansions")
        taken.append((line_end, stop))
    ranges = sorted(taken)
    if len(ranges) > MAX_HEREDOCS:
        raise Doubt(f"{len(ranges)} here-documents; {MAX_HEREDOCS} are read")
    if any(left[1] > right[0] for left, right in pairwise(ranges)):
        raise Doubt("here-documents in one another")
    for node in nodes:
        if node.child_count == 0 and not node.type.startswith("heredoc_"):
            for begin, stop in ranges:
                if node.start_byte < stop and node.end_byte > begin and node.start_byte != node.end_byte:
                    raise Doubt("something stands in a here-document")
    return ranges


def _gaps(node: Any, text: bytes, start: int, end: int) -> None:
    """Between the parts of a node there are blanks only, and of the right sort."""
    if node.type in ("string", "heredoc_body"):
        for child in node.children:
            if child.is_named and child.type != "string_content":
                _gaps(child, text, child.start_byte, child.end_byte)
        return
    if node.child_count == 0:
        return
    tight = node.type in _TIGHT
    blank = _BLANK if tight or node.type in _ON_A_LINE else _BLANK_LINES
    at, before = start, None  # type: int, Any
    for child in node.children:
        if child.type in ("heredoc_body", "heredoc_end"):
            continue
        gap = text[at : child.start_byte]  # by itself: a blank before it may be escaped, and then belongs to a word
        if child.start_byte < at or not blank.fullmatch(gap):
            raise Doubt("something between the words is not understood")
        if gap and tight:
            raise Doubt("a word that is torn")
        if child.type in _AFTER_ITS_LINE and b"\n" in gap.replace(b"\\\n", b""):
            raise Doubt(f"{child.type} on a line of its own")
        if before is not None and not gap and not tight:
            if before.type in WORDS and child.type in WORDS:
                raise Doubt("words that are not apart")
            if node.type in _SEPARATED and not _redirects(before, child):
                raise Doubt("words that are not apart")
        _gaps(child, text, child.start_byte, child.end_byte)
        at, before = max(at, child.end_byte), child
    if not blank.fullmatch(text[at:end]):
        raise Doubt("something between the words is not understood")


def _redirects(left: Any, right: Any) -> bool:
    return right.type in ("file_redirect", "herestring_redirect") or left.type == "herestring_redirect"


def _openers(nodes: list[Any], text: bytearray) -> None:
    """Each `$(`, `${`, `<(`, `<<` and backtick outside quotes begins a node of its kind."""
    starts: set[tuple[str, int]] = set()
    for node in nodes:
        starts.add((node.type, node.start_byte))
        if node.type in ("raw_string", "ansi_c_string", "string"):
            at = node.start_byte
            for child in node.children:
                if child.is_named and child.type != "string_content":
                    _quiet(text, at, child.start_byte)
                    at = child.end_byte
            _quiet(text, at, node.end_byte)
        elif node.type in ("heredoc_redirect", "herestring_redirect"):
            for child in node.children:
                if child.type in ("<<", "<<-", "<<<"):
                    starts.add((node.type, child.start_byte))
    for found in _OPENERS.finditer(bytes(text)):
        kind = _STARTS.get(found[0])
        if kind is None or (kind, found.start()) not in starts:
            raise Doubt(f"{found[0].decode()} is not understood here")


def _quiet(text: bytearray, start: int, end: int) -> None:
    for at in range(start, end):
        if text[at] not in b"\n":
            text[at] = ord("x")
