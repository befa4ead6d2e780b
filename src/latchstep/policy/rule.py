"""Rules `allow|ask|deny TOOL: SUBJECT`: their text, and whether one covers a call, a command, a path or a host. Pure.

In a command `*` stands for one word, and at the end for any number of them, or none. It never stands for an option
or a script that makes a known program run others or write elsewhere. In a path `*` stays within a name, and `**` does
not.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import unicodedata
from itertools import dropwhile
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from latchstep.errors import DefinitionError

from .builtins import NAME
from .line import Command
from .scripts import only_prints
from .words import Word

Says = Literal["allow", "ask", "deny"]

SHELLS = frozenset({"bash"})
HOSTS = frozenset({"fetch"})
EDITING = frozenset({"write", "edit", "apply_patch"})
"""Tools whose subject is a command, a host, and a file that they change. The subject of any other is a path."""

_FORM = re.compile(r"(allow|ask|deny) ([A-Za-z_][\w-]*|\*)(?:(: | = )(.*))?")
_WORD = re.compile(r"(?:[^\s'\"\\]|'[^']*'|\"[^\"\\$`]*\")+")


class Rule(msgspec.Struct, frozen=True):
    """subject: words (None for `*`), a glob of paths, or a host; None for every call of the tool. exact: the subject
    is the whole text of the command, and nothing else is covered. tool: `*` for any (deny and ask only)."""

    says: Says
    tool: str
    subject: tuple[str | None, ...] | str | None = None
    exact: bool = False

    def __str__(self) -> str:
        head = f"{self.says} {self.tool}"
        if self.subject is None:
            return head
        if self.exact:
            return f"{head} = {json.dumps(self.subject)}"
        if isinstance(self.subject, str):
            return f"{head}: {self.subject}"
        return f"{head}: " + " ".join("*" if word is None else _spelled(word) for word in self.subject)


def parse_rule(text: str) -> Rule:
    """The rule that a text says. Raises DefinitionError that says what would be right."""
    found = _FORM.fullmatch(text.strip())
    if found is None or not text.isprintable():
        raise DefinitionError(
            f"{text!r} is no rule; a rule is one line such as: allow bash: git status *   deny write: **/.env   "
            'ask fetch: *.example.com   allow bash = "make && make install"'
        )
    says, tool, mark, rest = found.groups()
    if tool == "*" and says == "allow":
        raise DefinitionError(f"{text!r} would allow any tool; name one")
    if mark is None:
        return Rule(says, tool)  # type: ignore[arg-type]
    if mark == " = ":
        try:
            whole = json.loads(rest)
        except ValueError:
            whole = None
        if not isinstance(whole, str) or not whole or tool not in SHELLS:
            raise DefinitionError(f"{text!r}: behind = stands one command of bash, as a JSON string")
        return Rule(says, tool, whole, True)  # type: ignore[arg-type]
    if not (rest := rest.strip()):
        raise DefinitionError(f"{text!r} has no subject; without one it is: {says} {tool}")
    return Rule(says, tool, _subject(text, says, tool, rest))  # type: ignore[arg-type]


def rule_for(says: Says, text: str) -> Rule:
    """What is given to `--allow`, `--ask` or `--deny`: `TOOL: SUBJECT`, or a command of bash, which is allowed exactly
    as it stands, but asked about and denied by its words. Raises DefinitionError."""
    if not text.strip():
        raise DefinitionError(f"a rule to {says} is empty; give a command, or a rule such as 'bash: git status *'")
    if re.match(r"([A-Za-z_][\w-]*|\*)(: | = )", text):
        return parse_rule(f"{says} {text}")
    return Rule(says, "bash", text, True) if says == "allow" else parse_rule(f"{says} bash: {text}")


def _subject(text: str, says: str, tool: str, rest: str) -> tuple[str | None, ...] | str:
    if tool not in SHELLS:
        if tool in HOSTS and not re.fullmatch(r"(\*\.)?[a-z0-9.-]+|\*", rest):
            raise DefinitionError(f"{text!r}: a host is such as example.com, or *.example.com for those beneath it")
        return rest if tool in HOSTS else unicodedata.normalize("NFC", rest).removeprefix("./")
    tokens = _WORD.findall(rest)
    if _WORD.sub("", rest).strip():
        raise DefinitionError(f"{text!r}: quote a word by '…'; nothing else is special but *")
    words = tuple(None if token == "*" else re.sub(r"'([^']*)'|\"([^\"]*)\"", r"\1\2", token) for token in tokens)
    if words[0] is None and says == "allow":
        raise DefinitionError(f"{text!r} would allow any program; name one")
    return words


def _spelled(word: str) -> str:
    return word if re.fullmatch(r"[\w@%+=:,./{}\[\]^~!?-]+", word) and word.isascii() else shlex.quote(word)


def speaks_of(rule: Rule, tool: str) -> bool:
    """Rules on `write` hold for whatever changes a file."""
    return rule.tool in (tool, "*") or (rule.tool == "write" and tool in EDITING)


def weight(rule: Rule) -> tuple[int, ...]:
    """The more specific a rule is, the greater."""
    if rule.exact:
        return (3,)
    if rule.subject is None:
        return (0, rule.tool != "*")
    if isinstance(rule.subject, tuple):
        fixed = sum(word is not None for word in rule.subject)
        return (1, fixed, -len(rule.subject))
    return (1, len(rule.subject.replace("*", "")), -rule.subject.count("*"), rule.tool != "*")


# -- commands --------------------------------------------------------------------------------------------

_ESCAPES: dict[str, str] = {
    "git": "-c --config-env --exec-path -C --git-dir --work-tree --output -o --upload-pack --receive-pack --exec -x "
    "--ext-diff --textconv -O --open-files-in-pager --template --separate-git-dir --config --extcmd --no-index -F "
    "--file --output-directory --unsafe-paths --contents --sendmail-cmd --to-cmd --cc-cmd config filter-branch "
    "difftool mergetool hook for-each-repo send-email daemon instaweb credential maintenance",
    "git clone": "-u",
    "git bisect": "run",
    "git submodule": "foreach",
    "find": "-delete -fprint -fprint0 -fprintf -fls",
    "sort": "-o --output --compress-program -T --temporary-directory",
    "rg": "--pre --hostname-bin -z --search-zip",
    "tar": "-I --use-compress-program --to-command --checkpoint-action -F --info-script --new-volume-script "
    "--rsh-command --rmt-command -C --directory -P --absolute-names --index-file --one-top-level",
    "curl": "-o --output -O --remote-name -K --config -T --upload-file -d --data --data-ascii --data-binary --data-raw "
    "--data-urlencode --json -F --form --form-string --output-dir -x --proxy --proxy1.0 --preproxy --socks4 --socks4a "
    "--socks5 --socks5-hostname -c --cookie-jar -D --dump-header --trace --trace-ascii --libcurl --stderr --etag-save "
    "--hsts --alt-svc -w --write-out --unix-socket --abstract-unix-socket --engine",
    "wget": "-O --output-document -P --directory-prefix --use-askpass -i --input-file --post-file --body-file -e "
    "--execute -o --output-file -a --append-output --config --warc-file --save-cookies --rejected-log --hsts-file",
    "rsync": "-e --rsh --rsync-path --daemon --config --write-batch --only-write-batch --log-file -M --remote-option "
    "-T --temp-dir --backup-dir --partial-dir",
    "ssh": "-o -F -E -w -L -R -D",
    "scp": "-o -F -S -D",
    "sftp": "-o -F -S -D -b",
    "make": "-f --file --makefile -C --directory -E --eval -I --include-dir =",
    "tree": "-o",
    "shuf": "-o --output",
    "iconv": "-o --output",
    "split": "--filter",
    "zip": "-T --test --unzip-command",
    "man": "-P --pager -H --html",
    "less": "-o -O --log-file -k --lesskey-file --lesskey-src +",
    "more": "+",
    "go": "-exec -toolexec -vettool -overlay -C",
    "cargo": "--config -C --manifest-path",
    "npm": "--prefix -C --script-shell exec explore config",
    "gh": "alias extension extensions ext",
    "docker": "-v --volume --mount --privileged -H --host --pid --network",
}  # fmt: skip
"""Options, and verbs, by which a program runs others, or reads and writes elsewhere than it seems: by its name, or by
its name and verb. `*` does not stand for them. `=` is any word that holds one, `+` any that begins with one."""


_WRITES_SECOND = frozenset({"uniq", "xxd"})
"""Programs whose second operand is a file that they write."""


def _escapes(words: tuple[Word, ...], at: int) -> bool:
    """This word may be such an option or verb: options also in their abbreviated, glued and clustered forms, and verbs
    and assignments where names of files take their place."""
    program, text = posixpath.basename(words[0].text), words[at].text
    if program == "export":
        return not NAME.fullmatch(text.partition("=")[0])
    if program == "tar" and at == 1 and not text.startswith("-"):
        text = f"-{text}"
    verb = next((place for place, word in enumerate(words) if place and not word.text.startswith("-")), 0)
    if program in _WRITES_SECOND and (at > verb or not words[at].literal) and not text.startswith("-"):
        return True
    option = text.partition("=")[0]
    own, more = (_ESCAPES.get(name, "").split() for name in (program, f"{program} {words[verb].text}"))
    for known in own + more:
        if known in ("=", "+"):
            found = text.startswith(known) or (known == "=" and (known in text or not words[at].literal))
        elif known.startswith("--"):
            found = len(option) > 2 and known.startswith(option)
        elif not known.startswith("-"):
            maybe = not words[at].literal and at <= verb + (known in more)
            found = (text == known and at <= verb + 1) or maybe
        elif len(known) > 2:  # find and go write long options with one dash
            found = option in (known, f"-{known}")
        else:
            found = text.startswith("-") and text[:2] != "--" and program != "find" and known[1] in option
        if found:
            return True
    return False


def covers(rule: Rule, command: Command) -> bool:
    """An allowing rule covers this command, with all it was given: what is not known is covered by nothing."""
    assert isinstance(rule.subject, tuple)
    given = (*command.assigns, *command.words)
    if not all(word.literal for word in command.assigns):
        return False
    pattern, first = rule.subject, len(command.assigns)
    open_end = pattern[-1] is None
    fixed = pattern[:-1] if open_end else pattern
    if len(given) < len(fixed) or (len(given) > len(fixed) and not open_end):
        return False
    for at, want in enumerate((*fixed, *[None] * (len(given) - len(fixed)))):
        if want is None:
            if at <= first or given[at].kind not in ("literal", "paths") or _escapes(command.words, at - first):
                return False
        elif not given[at].literal or given[at].text != want:
            return False
    return None not in pattern or only_prints(command.words)


def touches(rule: Rule, command: Command) -> bool:
    """A rule that asks or denies speaks of this command: however its program is spelled, with whatever options before
    its verb, and whatever is not known."""
    assert isinstance(rule.subject, tuple)
    pattern = tuple(dropwhile(lambda want: want is not None and re.match(r"[A-Za-z_]\w*=", want), rule.subject))
    program, *given = command.words
    behind = tuple(dropwhile(lambda word: word.literal and word.text.startswith("-"), given))
    return _may_be(pattern, command.words) or _may_be(pattern, (program, *behind)) or _anyhow(pattern, command.words)


_LETTERS = re.compile(r"-([A-Za-z]+)")
_CLUSTER = re.compile(r"-[A-Za-z]{1,5}")
"""What a rule means by letters, and not by a name behind one dash."""
_SHORT = {"--force": "f", "--recursive": "r"}


def _anyhow(pattern: tuple[str | None, ...], words: tuple[Word, ...]) -> bool:
    """The same options in another order or cluster, among operands or behind them: `rm -fr x` for `rm -rf *`."""
    wanted = [want for want in pattern if want is not None and want.startswith("-")]
    if not wanted or pattern[0] is None or posixpath.basename(words[0].text) in ("find", "go"):
        return False  # the last two write long options with one dash
    given = [word.text for word in words if word.literal and word.text.startswith("-")]
    letters = _letters(given)
    for want in wanted:
        split = _CLUSTER.fullmatch(want)
        same = any(text == want or _means(text, want) for text in given) or _SHORT.get(want, "-") in letters
        if not (same or (split is not None and _letters([want]) <= letters)):
            return False
    rest = tuple(want for want in pattern if want is None or not want.startswith("-"))
    return _may_be(rest, tuple(word for word in words if not (word.literal and word.text.startswith("-"))))


def _letters(options: list[str]) -> set[str]:
    """Of all options of one letter; `-R` is what `-r` is."""
    found = [match[1] for text in options if (match := _LETTERS.fullmatch(text))]
    found += [letter for text in options for name, letter in _SHORT.items() if _means(text, name)]
    return set("".join(found).replace("R", "r"))


def _means(text: str, name: str) -> bool:
    """An option with or without a value, or the beginning of a long one, which most programs take for it."""
    option = text.partition("=")[0]
    return option == name or (len(option) > 2 and option.startswith("--") and name.startswith(option))


def _may_be(pattern: tuple[str | None, ...], words: tuple[Word, ...]) -> bool:
    open_end = bool(pattern) and pattern[-1] is None
    fixed = pattern[:-1] if open_end else pattern
    for at, want in enumerate(fixed):
        if at >= len(words):
            return False
        word = words[at]
        if not word.single:
            return True
        same = want is None or not word.literal or want == word.text
        if not (same or (at == 0 and want == posixpath.basename(word.text))):
            return False
    return open_end or len(words) == len(fixed) or any(not word.single for word in words[len(fixed) :])


# -- paths and hosts -------------------------------------------------------------------------------------


def normal_path(path: str, root: str = "") -> str:
    """As rules see it: relative to the workspace where it lies beneath it, else absolute or beginning with `..`."""
    plain = posixpath.normpath(unicodedata.normalize("NFC", path) or ".")
    if not plain.startswith("/"):
        return plain
    plain, top = "/" + plain.lstrip("/"), posixpath.normpath(root).rstrip("/")
    return (plain[len(top) + 1 :] or ".") if root and f"{plain}/".startswith(f"{top}/") else plain


def path_matches(glob: str, path: str) -> bool:
    """A normal path, against a glob."""
    pieces = []
    for piece in re.findall(r"\*\*/|/\*\*$|\*\*|\*|\?|[^*?/]+|/", glob):
        match piece:
            case "**/":
                pieces.append("(?:.*/)?")
            case "/**":
                pieces.append("(?:/.*)?")
            case "**":
                pieces.append(".*")
            case "*":
                pieces.append("[^/]*")
            case "?":
                pieces.append("[^/]")
            case _:
                pieces.append(re.escape(piece))
    return re.fullmatch("".join(pieces), path, re.DOTALL) is not None


def host_matches(pattern: str, url: str) -> bool:
    """`example.com` is that host, `*.example.com` those beneath it, `*` any."""
    try:
        host = (urlsplit(url if "//" in url else f"//{url}").hostname or "").rstrip(".").lower()
    except ValueError:
        return False
    if not re.fullmatch(r"[a-z0-9.:-]+", host):
        return False
    return pattern in ("*", host) or (pattern.startswith("*.") and host.endswith(pattern[1:]))
