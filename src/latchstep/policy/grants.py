"""What "always" may grant: the narrowest rule that lets this call run again, and never a key to everything. Pure."""

from __future__ import annotations

import re

from latchstep.core.message import ToolCall
from latchstep.errors import DefinitionError

from .builtins import DOUBTED
from .gate import decide
from .line import Commands
from .rule import SHELLS, Rule, normal_path, parse_rule
from .shell import parse
from .wrappers import NEVER, TABLES
from .wrappers import SHELLS as SHELL_PROGRAMS

MAX_OFFER = 2_000
"""Characters of a command beyond which no rule is offered for it."""

_INTERPRETERS = frozenset(
    "python pypy perl ruby node nodejs deno bun php lua luajit tclsh expect awk gawk mawk sed jq "
    "osascript pwsh zsh ksh fish csh tcsh irb ghci java jshell scala R Rscript julia elixir erl vim vi emacs ed ex "
    "less more man psql mysql mariadb sqlite3 gdb lldb bc dc m4 gnuplot octave nc ncat nmap ftp sftp".split()
)
_MANY_VERBS = frozenset(
    "git hg svn npm npx pnpm pnpx yarn pip pip3 pipx uv uvx poetry pdm hatch tox nox cargo rustup go gradle mvn dotnet "
    "docker podman kubectl helm terraform ansible make just task rake bundle gem composer apt apt-get dnf brew "
    "systemctl ssh scp rsync tar find xargs env curl wget aws gcloud az gh glab bunx pipenv conda mamba direnv mise "
    "asdf rbenv pyenv volta nodemon nix-shell nix zip split ip export".split()
)
_RUN = frozenset("run exec x dlx foreach start shell".split())
"""Verbs behind which stands a program."""
_RUNNERS = _INTERPRETERS | _MANY_VERBS | SHELL_PROGRAMS | NEVER | DOUBTED | frozenset(TABLES)


def offer(call: ToolCall, root: str = "") -> Rule | None:
    """The narrowest useful rule for this call, or None. What is more than one plain command is offered as its text."""
    command, path = call.arguments.get("command"), call.arguments.get("path")
    if call.name in SHELLS and isinstance(command, str) and len(command) <= MAX_OFFER:
        parsed = parse(command)
        exact = Rule("allow", call.name, command, True)
        if not isinstance(parsed, Commands) or not parsed.plain:
            return exact
        words = Rule("allow", call.name, tuple(word.text for word in parsed.commands[0].words))
        return words if not _wide(words) and _readable(words) and _holds(words, call, root) else exact
    if call.name in ("write", "edit") and isinstance(path, str):
        rule = Rule("allow", call.name, normal_path(path, root))
        return rule if _readable(rule) and _holds(rule, call, root) and not _wide(rule) else None
    return None


def grant(text: str, call: ToolCall, root: str = "") -> Rule:
    """The rule that a person typed for this call. Raises DefinitionError that says why it cannot be granted."""
    rule = parse_rule(text)
    if rule.says != "allow":
        raise DefinitionError(f"{rule} allows nothing; a grant begins with allow")
    if not _holds(rule, call, root):
        raise DefinitionError(f"{rule} would not have allowed this call")
    if problem := _wide(rule):
        raise DefinitionError(f"{rule} {problem}")
    return rule


def _readable(rule: Rule) -> bool:
    try:
        return parse_rule(str(rule)) == rule
    except DefinitionError:
        return False


def _holds(rule: Rule, call: ToolCall, root: str) -> bool:
    decision = decide([rule], call, root)
    return decision.says == "allow" and decision.rule == str(rule)


def _wide(rule: Rule) -> str:
    """Why this rule is a key to more than can be shown; "" if it is not."""
    if rule.exact:
        return ""
    if rule.subject is None:
        return "would allow every call of the tool"
    if isinstance(rule.subject, str):
        wild = re.match(r"[*?/]|\.\.", rule.subject)
        return "would allow files anywhere; begin with a folder" if wild else ""
    words = [word for word in rule.subject if word is None or not re.match(r"[A-Za-z_]\w*=", word)]
    program = (words[0] or "").rpartition("/")[2] if words else ""
    base = re.sub(r"[\d.]+$", "", program)
    if program not in _RUNNERS and base not in _RUNNERS:
        return ""
    fixed = words[1 : words.index(None)] if None in words else words[1:]
    verbs = [word for word in fixed if word and not word.startswith("-")]
    if not verbs and (None in words or program not in _MANY_VERBS):
        return f"would allow anything that {program} can run"
    code = {"-c", "-e", "-E", "-r", "--eval", "-exec", "-"} & {word for word in fixed if word}
    starts = code or (fixed[-1:] and fixed[-1] in _RUN) or program in (*NEVER, *SHELL_PROGRAMS, *TABLES, "ssh")
    if None in words and starts:
        return f"would allow anything that {program} can run"
    return ""
