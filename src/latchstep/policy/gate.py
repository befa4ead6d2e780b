"""What the rules say about a call. Deny beats ask beats allow, and what no rule covers stays open. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from latchstep.core.message import ToolCall

from . import rule as r
from .line import Command, Commands, Unclear
from .readers import READERS, inside, only_reads
from .rule import Rule
from .shell import parse

READS = "built in: it only reads"

SHOWING = {name: reader.free for name, reader in READERS.items() if reader.free >= 0}
SHOWING |= dict.fromkeys("less more cp base64 xxd od strings tac rev".split(), 0) | dict.fromkeys(
    "sed awk jq".split(), 1
)
"""Programs whose operands are files that they show, or copy: all behind so many."""

_ORDER = ("allow", "open", "ask", "deny")


class Decision(msgspec.Struct, frozen=True):
    """rule: which one said so, the most specific of those that do; of each command of a line. reason: why it is
    open. unclear: nobody can say what would run."""

    says: Literal["allow", "open", "ask", "deny"]
    rule: str = ""
    reason: str = ""
    unclear: bool = False


def decide(rules: Sequence[Rule], call: ToolCall, root: str = "") -> Decision:
    """root: the workspace, so that a path may be given absolutely."""
    about = [rule for rule in rules if r.speaks_of(rule, call.name)]
    if call.name in r.SHELLS:
        command, cwd = call.arguments.get("command"), call.arguments.get("cwd", ".")
        if not isinstance(command, str) or not isinstance(cwd, str):
            return Decision("open", reason="it has no command", unclear=True)
        return _line(rules, about, command, r.normal_path(cwd, root))
    if call.name in r.HOSTS:
        url = str(call.arguments.get("url", ""))
        return _strongest(
            rule for rule in about if not isinstance(rule.subject, str) or r.host_matches(rule.subject, url)
        )
    return _worst([_path(about, r.normal_path(path, root) if path else None) for path in paths_of(call)])


def paths_of(call: ToolCall) -> list[str]:
    """The paths that a call of a file tool names; "" for one that cannot be told."""
    if call.name == "apply_patch":
        lines = re.split(r"\r\n|\r|\n", str(call.arguments.get("patch", "")))
        found = [_PATCHED.match(line) for line in lines]
        return [match[1].strip() for match in found if match] or [""]
    path = call.arguments.get("path", ".")
    return [path if isinstance(path, str) else ""]


_PATCHED = re.compile(r"\s*\*\*\* (?:\w+ File|Move to):(.*)")
"""Any line of a patch that could name a file: one too many asks, one too few would not."""


def _strongest(matching: Iterable[Rule], reason: str = "no rule covers it") -> Decision:
    best = max(matching, key=lambda rule: (_ORDER.index(rule.says), r.weight(rule)), default=None)
    return Decision("open", reason=reason) if best is None else Decision(best.says, str(best))


def _path(about: Iterable[Rule], path: str | None) -> Decision:
    return _strongest(rule for rule in about if not isinstance(rule.subject, str) or _speaks_of_path(rule, path))


def _speaks_of_path(rule: Rule, path: str | None) -> bool:
    """Of a path nobody knows (None), what asks or denies does. `**` allows nothing outside the workspace."""
    glob = str(rule.subject)
    if path is None:
        return rule.says != "allow"
    if rule.says == "allow" and path.startswith(("/", "..")) and not glob.startswith(("/", "..")):
        return False
    return r.path_matches(glob, path)


def _line(rules: Sequence[Rule], about: list[Rule], command: str, cwd: str) -> Decision:
    """A line of shell: allowed if each of its commands and redirections is, or if that very text is."""
    whole = [rule for rule in about if rule.subject is None or (rule.exact and rule.subject == command)]
    by_text = _strongest(whole)
    parsed = parse(command)
    if isinstance(parsed, Unclear):
        if by_text.says == "allow" and all(rule.says == "allow" for rule in rules):
            return by_text
        if by_text.says in ("ask", "deny"):
            return by_text
        return Decision("open", reason=f"what it runs is not clear: {parsed.reason}", unclear=True)
    at_home = all(only_reads(one) for one in parsed.commands if one.words[0].text == "cd")
    at_home &= not any(rule.says != "allow" and r.speaks_of(rule, "read") for rule in rules)  # it might read just that
    judged = [_command(about, whole, one, at_home) for one in parsed.commands]
    judged += _redirections(rules, parsed, cwd, at_home)
    judged += [one for one in _named(rules, parsed, cwd) if one.says in ("ask", "deny")]
    if by_text.says != "open":
        judged = [by_text if one.says == "open" else one for one in judged] or [by_text]
        judged += [by_text] if by_text.says != "allow" else []
    if not judged:
        return Decision("allow", READS)
    return _worst(judged)


def _worst(judged: list[Decision]) -> Decision:
    """Of the parts of a call: denied if one is, allowed if all are. Names the rule of each part that decided."""
    says = max((one.says for one in judged), key=_ORDER.index)
    same = [one for one in judged if one.says == says]
    return Decision(says, "; ".join(dict.fromkeys(one.rule for one in same)), same[0].reason)


def _command(about: list[Rule], whole: list[Rule], command: Command, at_home: bool) -> Decision:
    """Of `about` those that speak of the words, and the rules that speak of the line as a whole."""
    matching = [rule for rule in about if isinstance(rule.subject, tuple) and _speaks(rule, command)]
    decision = _strongest([*whole, *matching], f"no rule covers {_shown(command)}")
    if decision.says == "open" and only_reads(command, at_home):
        return Decision("allow", READS)
    return decision


def _speaks(rule: Rule, command: Command) -> bool:
    return r.covers(rule, command) if rule.says == "allow" else r.touches(rule, command)


def _shown(command: Command) -> str:
    text = " ".join(word.text for word in (*command.assigns, *command.words))
    return text if len(text) <= 200 else f"{text[:200]} …"


def _named(rules: Sequence[Rule], parsed: Commands, cwd: str) -> Iterable[Decision]:
    """What rules on `read` say of the files that programs which show files are given by name."""
    about = [rule for rule in rules if r.speaks_of(rule, "read") and isinstance(rule.subject, str)]
    for command in parsed.commands if about else ():
        free = SHOWING.get(posixpath.basename(command.words[0].text))
        operands = [word.text for word in command.words[1:] if word.literal and not word.text.startswith("-")]
        for text in operands[free:] if free is not None else ():
            yield _path(about, r.normal_path(posixpath.join(cwd, text)))


def _redirections(rules: Sequence[Rule], parsed: Commands, cwd: str, at_home: bool) -> Iterable[Decision]:
    """A file that a line writes is judged as a `write` of it, one it reads as a `read`."""
    moved = any(one.words[0].text == "cd" for one in parsed.commands)
    for tool, words in (("write", parsed.writes), ("read", parsed.reads)):
        about = [rule for rule in rules if r.speaks_of(rule, tool)]
        for word in words:
            path = None if moved or not word.literal else r.normal_path(posixpath.join(cwd, word.text))
            decision = _path(about, path)
            if decision.says == "open" and tool == "read" and at_home and inside(word):
                decision = Decision("allow", READS)
            yield decision if decision.rule else Decision("open", reason=f"no rule covers > {word.text}")
