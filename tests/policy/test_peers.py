"""What gates of other agents were caught at, by their public issues and advisories: none of it passes here."""

from __future__ import annotations

import pytest

from latchstep.core.message import ToolCall
from latchstep.core.rules import Traits
from latchstep.policy.preset import preset
from latchstep.policy.rule import parse_rule

BROAD = [
    parse_rule(f"allow bash: {name} *")
    for name in (
        "ls echo cat git sort head npm find sed awk xargs env timeout nice time command exec test read printf export cd"
    ).split()
]

LISTS = [
    "cd x && python3 script.py", "echo test && ls; rm x", "npm test; rm x", "npm test\nrm x", "git status&rm x",
    "ls|rm x", "cat <<'EOF' | some-script\nx\nEOF", "sort <<'EOF' | some-script\nEOF", "head -1 <<'EOF' && rm x\nEOF",
    "ls -- ; rm x", "cat <<'EOF' | sh\nrm x\nEOF", "echo x >(tee /tmp/malicious.sh)", "echo {a,$(rm x)}",
    "echo ${x:-$(rm y)}", "case a in a) rm x;; esac", "ls() { rm x; }; ls", "cat() (rm x); cat y",
    "[() { rm x; }; [ a ]", "function ls { rm x; }; ls", "if ls; then rm x; fi", "while ls; do rm x; break; done",
    "ls ;\\\nrm x", "echo a # b \\\nrm x", "{ ls; rm x; }",
]  # fmt: skip

SPELLINGS = [
    "$'\\x72m' x", "$\"rm\" x", "r$@m x", "r$*m x", "r${u}m x", "${a+rm} x", "${PATH:0:1}bin${PATH:0:1}rm x",
    "IFS=,;rm,x", "IFS=_ rm_x", "a=rm;$a x", "set -- rm x; $@", "?m x", "[r]m x", "/???/r? x", "{rm,x}", "$0 x",
    "$_ x", "$SHELL -c x", "!!", "^ls^rm", "ls$IFS;rm x", "echo ${|rm x;}", "echo ${ rm x; }", "echo @(a|$(rm x))",
    "echo {1..$(rm x)}",
]  # fmt: skip

EVALUATED = [
    "[[ -v a[$(rm x)] ]]", "[[ 'a[$(rm x)]' -gt 0 ]]", "test -v 'a[$(rm x)]'", "printf -v 'a[$(rm x)]' y",
    "read 'a[$(rm x)]'", "printf '%(x)T' y > z", "((a[$(rm x)]))", "echo $((a[$(rm x)]))",
    "for ((;a[$(rm x)];)); do ls; done", "trap 'rm x' EXIT", "unset 'a[$(rm x)]'", "mapfile -C 'rm x' -c 1 a",
    "coproc rm x", "hash -p ./evil ls; ls", "enable -f ./x.so y", "eval ls", "export PATH=.:/bin; ls",
    "export PROMPT_COMMAND='rm x'", "export 'PATH=.' && ls", "printf %n PATH; ls", "source ./ls",
]  # fmt: skip

ENVIRONMENTS = [
    "PATH=. ls", "LD_PRELOAD=./x ls", "GIT_SSH_COMMAND='rm x' git fetch", "GIT_PAGER=x git log",
    "EDITOR='rm x' git commit", "NODE_OPTIONS='-r ./x' npm test", "CI=true git commit", "BASH_ENV=x ls",
    "FOO=$(rm x) ls", "A[$(rm x)]=1 ls", "env PATH=. ls",
    "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.pager GIT_CONFIG_VALUE_0=x git log", "CDPATH=/ cd x", "command -p rm x",
]  # fmt: skip

FILES = [
    "echo x > .git/hooks/pre-commit", "echo x >> ~/.bashrc", "echo x > .latchstep/settings.toml", "cat < /dev/tcp/h/1",
    "exec 3<>/dev/tcp/h/1", "echo x &>/tmp/x", "ls 2>x", "echo x >|x", "echo x <> x", "echo x > $HOME/x",
    "cat 0</etc/passwd", "echo x > >(rm y)", "echo x >$(rm y)", "cat < $'/dev/tcp/h/1'", "cat <<< $(rm x)",
    "git status .. > x",
]  # fmt: skip

CHARACTERS = [
    "ls\r;rm x", "ls\x0brm", "ls\x0crm x", "ls\u2029rm x", "ls\u00ad x", "ls \U000e0072\U000e006d", "ls \ud800x",
    "ls\u3000x", "\u2000ls", "ls\x1b[8m;rm x", "ls;\x08\x08rm", "echo \u2066;rm x\u2069", "ls\u037erm x",
    "ls\uff1brm x", "l\u0455 x", "l\uff53 x", "echo " + "a" * 10_000 + " ; rm x", "ls" + " " * 500 + "; rm x",
    "ls" + "\n" * 500 + "rm x", "echo " + "a" * 30_000,
]  # fmt: skip


@pytest.mark.parametrize("command", [*LISTS, *SPELLINGS, *EVALUATED, *ENVIRONMENTS, *FILES, *CHARACTERS], ids=repr)
@pytest.mark.parametrize("mode", ["plan", "ask", "edits"])
def test_nothing_of_it_runs_under_broad_rules(mode: str, command: str) -> None:
    policy = preset(mode, BROAD, sandboxed=True)  # type: ignore[arg-type]
    call = ToolCall("c", "bash", {"command": command})
    assert policy(call, Traits()).kind == ("refuse" if mode == "plan" else "ask")


@pytest.mark.parametrize(
    "command",
    [
        "git pushx", "git push x", "git push-x", "git push;rm x", "git push --force", "npm testx", "npm test | sh",
        "npm test $(rm x)", "GIT push", "./git push", "/tmp/git push", "git -c x=y push", "git push 2>x",
        "cd .. && git push", "git\tpush\tx", "git push\\\n x", "gi\u200bt push", "X=1 git push", "sudo git push",
    ],
)  # fmt: skip
def test_a_rule_ends_where_its_words_end(command: str) -> None:
    policy = preset("ask", [parse_rule("allow bash: git push"), parse_rule("allow bash: npm test *")], sandboxed=True)
    assert policy(ToolCall("c", "bash", {"command": command}), Traits()).kind == "ask"
