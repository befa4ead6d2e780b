"""Programs that run other programs: which, by an exact table of each one's options. Pure.

An option that is not in the table raises Doubt: nobody can say where the command behind it begins.
"""

from __future__ import annotations

import re
from itertools import takewhile

import msgspec

from .words import ANY, Doubt, Word

Words = tuple[Word, ...]


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """What a wrapper starts. itself: it needs a rule of its own too. assigns: words `NAME=value` before the command
    are its environment. scripts: lines that a shell of it runs."""

    commands: tuple[Words, ...] = ()
    scripts: tuple[str, ...] = ()
    itself: bool = False
    assigns: bool = False


class _Table(msgspec.Struct, frozen=True):
    """flags: letters of options without a value. valued: letters with one. long: long options, with `=` where they
    have a value. skip: words before the command that are not part of it. itself: see Started."""

    flags: str = ""
    valued: str = ""
    long: frozenset[str] = frozenset()
    skip: int = 0
    itself: bool = False
    assigns: bool = False


def _table(flags: str = "", valued: str = "", long: str = "", **more: bool | int) -> _Table:
    return _Table(flags, valued, frozenset(long.split()), **more)  # type: ignore[arg-type]


TABLES = {
    "env": _table("i0v", "u", "ignore-environment unset=", assigns=True),
    "nice": _table("", "n", "adjustment="),
    "nohup": _table(),
    "setsid": _table("cfw", "", "ctty fork wait"),
    "stdbuf": _table("", "ioe", "input= output= error="),
    "timeout": _table("v", "ks", "foreground preserve-status verbose kill-after= signal=", skip=1),
    "time": _table("p"),
    "builtin": _table(),
    "xargs": _table("0rtx", "nPLsdE", "null no-run-if-empty verbose max-args= max-procs= max-lines= delimiter="),
    "sudo": _table("nEHS", "ugCp", "non-interactive preserve-env login user= group=", itself=True, assigns=True),
    "doas": _table("n", "u", itself=True),
    "ionice": _table("t", "cn", "class= classdata= ignore"),
}

_ITS_OWN = re.compile(r"((/usr)?/bin/)?[^/]+")
"""What is surely the wrapper of its name: any other path may lead to a program of the workspace."""

SHELLS = frozenset({"sh", "bash", "dash", "ash"})
"""Shells whose grammar is that of bash, or less."""
_MORE = re.compile(r"\$['\"]|\[\[|&>|\|&|<<<|[<>]\(|;&|\bfunction\b")
"""What of bash is something else to a lesser shell: `$'\\'; rm x #'` is one word to bash, and two commands to dash."""

NEVER = frozenset(
    "parallel busybox toybox su runuser script expect watch chroot nsenter unshare flock rlwrap strace ltrace gdb entr "
    "perf systemd-run at batch crontab start-stop-daemon chrt taskset numactl proxychains torsocks fakeroot firejail "
    "bwrap setpriv capsh unbuffer chpst softlimit catchsegv valgrind ssh-agent dbus-run-session xvfb-run ld.so setarch "
    "linux32 linux64 i386 x86_64 prlimit pkexec sg runcon eatmydata faketime hyperfine watchexec sshpass aa-exec gosu "
    "su-exec tini dumb-init chronic torify socat".split()
)
"""Programs that start others in ways no table here describes."""


def unwrap(words: Words) -> Started | None:
    """What this command starts beside itself; None for one that is no wrapper. Raises Doubt."""
    name = words[0].text.rpartition("/")[2]
    own, words = _ITS_OWN.fullmatch(words[0].text), (Word(name), *words[1:])
    if name in NEVER or re.match(r"ld-(linux|musl)", name):
        raise Doubt(f"what {name} starts cannot be known")
    started = None
    if name in SHELLS:
        started = _shell(words)
    elif name in _SPECIAL:
        started = _SPECIAL[name](words)
    elif name in TABLES:
        started = _plain(words, TABLES[name])
    return started if own or started is None else msgspec.structs.replace(started, itself=True)


def _text(word: Word) -> str:
    if not word.literal:
        raise Doubt(f"what {word.text[:40]} is cannot be known, and it may be an option")
    return word.text


def _behind(words: Words, table: _Table) -> tuple[Words, dict[str, Word | None]]:
    """What stands behind the options of a command, and the options."""
    at, given = 1, dict[str, Word | None]()
    while at < len(words):
        text = _text(words[at])
        if text == "--":
            return words[at + 1 :], given
        if not text.startswith("-") or text == "-":
            break
        at += 1
        if text.startswith("--"):
            name, has_value, value = text[2:].partition("=")
            if has_value and f"{name}=" in table.long:
                given[name] = Word(value)
            elif not has_value and name in table.long:
                given[name] = None
            else:
                raise Doubt(f"{words[0].text} {text} is not understood")
            continue
        for place, letter in enumerate(text[1:], 1):
            if letter in table.flags:
                given[letter] = None
            elif letter in table.valued:
                given[letter] = Word(text[place + 1 :]) if text[place + 1 :] else _next(words, at)
                at += not text[place + 1 :]
                break
            else:
                raise Doubt(f"{words[0].text} {text} is not understood")
    return words[at:], given


def _next(words: Words, at: int) -> Word:
    if at >= len(words) or not words[at].single:
        raise Doubt(f"{words[0].text} {words[at - 1].text} lacks its value")
    return words[at]


def _plain(words: Words, table: _Table) -> Started | None:
    inner, given = _behind(words, table)
    for _ in range(table.skip):
        if inner and not inner[0].single:
            raise Doubt(f"what {words[0].text} starts cannot be known")
        inner = inner[1:]
    if words[0].text == "nice" and inner and re.fullmatch(r"[-+]?\d+", inner[0].text):
        raise Doubt("nice with an old option")
    name = words[0].text
    for word in takewhile(lambda word: table.assigns and "=" in word.text, inner):
        if not re.match(r"[A-Za-z_]\w*=", word.text):  # env takes any word with = for an assignment
            raise Doubt(f"{name} {word.text[:40]} is not understood")
    if inner and inner[0].text.startswith("-"):
        raise Doubt(f"{name} {inner[0].text} is not understood")
    if name == "xargs":
        inner = (*(inner or (Word("echo"),)), ANY)
    if name == "env" and given.keys() - {"v"} and any(word.text.rpartition("/")[2] in SHELLS for word in inner):
        raise Doubt("a shell in an environment that is changed")  # without PATH some look into the workspace
    bare = not inner or (table.assigns and all(re.match(r"[A-Za-z_]\w*=", word.text) for word in inner))
    if bare:
        return None if name != "sudo" or not given else Started(itself=True)
    return Started(commands=(inner,), itself=table.itself, assigns=table.assigns)


def _shell(words: Words) -> Started | None:
    """`sh -c SCRIPT`. A shell that reads a file, or what is piped to it, is a command like others."""
    at, script = 1, False
    while at < len(words) and _text(words[at])[:1] in "-+" and words[at].text not in ("-", "--"):
        text = words[at].text
        if not re.fullmatch(r"[-+][ceux]*o?", text) or len(text) < 2:
            raise Doubt(f"{words[0].text} {text} is not understood")
        script = script or ("c" in text and text[0] == "-")
        at += 1
        if text.endswith("o"):
            if at >= len(words) or words[at].text not in ("pipefail", "errexit", "nounset"):
                raise Doubt(f"{words[0].text} {text} is not understood")
            at += 1
    if not script:
        return None
    if at < len(words) and words[at].text in ("-", "--"):  # both end the options
        at += 1
    if at >= len(words) or not words[at].literal:
        raise Doubt(f"what {words[0].text} -c runs cannot be known")
    if words[0].text != "bash" and (other := _MORE.search(words[at].text)):
        raise Doubt(f"{words[0].text} reads {other[0]} otherwise than bash")
    return Started(scripts=(words[at].text,))


def _command(words: Words) -> Started | None:
    """`command NAME` runs it; `command -v NAME` only looks it up."""
    if len(words) > 1 and words[1].literal and words[1].text in ("-v", "-V"):
        return None
    return _plain(words, _table("p"))


def _exec(words: Words) -> Started | None:
    if len(words) < 2:
        raise Doubt("exec without a command changes what follows")
    return _plain(words, _table())  # of the name -a gives it, a program of many names makes which one it is


_EXEC = frozenset({"-exec", "-execdir", "-ok", "-okdir"})


def _find(words: Words) -> Started:
    """`find` itself, and each command of `-exec`."""
    commands: list[Words] = []
    at = 1
    while at < len(words):
        if words[at].kind in ("one", "any", "glob"):
            raise Doubt(f"what {words[at].text[:40]} is cannot be known, and find may run it")
        at += 1
        if words[at - 1].text not in _EXEC or not words[at - 1].literal:
            continue
        start = at
        while at < len(words) and words[at].text != ";" and not (words[at].text == "+" and words[at - 1].text == "{}"):
            at += 1
        if at == len(words) or at == start:
            raise Doubt("find -exec without an end")
        inner = tuple(Word("{}", "any") if "{}" in word.text else word for word in words[start:at])
        commands.append(inner)
        at += 1
    return Started(commands=tuple(commands), itself=True)


def _xargs(words: Words) -> Started | None:
    """With -I the input stands wherever the mark does; without, behind the command."""
    for at, word in enumerate(words[1:], 1):
        if re.fullmatch(r"-[0rtx]+|-[nPLs]\d+", word.text):
            continue
        if not word.literal or not word.text.startswith("-I"):
            break
        mark, behind = (word.text[2:], at + 1) if len(word.text) > 2 else (_next(words, at + 1).text, at + 2)
        inner, _ = _behind((words[0], *words[1:at], *words[behind:]), TABLES["xargs"])
        if inner:
            return Started(commands=(tuple(Word(w.text, "any") if mark in w.text else w for w in inner),))
    return _plain(words, TABLES["xargs"])


def _git(words: Words) -> None:
    """`git` is no wrapper, unless what stands before its verb makes it one."""
    for word in words[1:]:
        if not word.literal:
            raise Doubt(f"what {word.text[:40]} is cannot be known, and git may run it")
        if not word.text.startswith("-"):
            return
        if word.text not in ("--no-pager", "--version", "--no-optional-locks", "-P"):
            raise Doubt(f"git {word.text} can make git run other programs, or elsewhere")


_SPECIAL = {"command": _command, "exec": _exec, "find": _find, "xargs": _xargs, "git": _git}
