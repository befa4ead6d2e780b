"""What rules say about calls: never more than was shown, whichever way it is written."""

from __future__ import annotations

import pytest

from latchstep.core.message import ToolCall
from latchstep.policy.gate import READS, decide
from latchstep.policy.line import Commands
from latchstep.policy.rule import parse_rule
from latchstep.policy.shell import parse
from tests.policy import everyday
from tests.policy.lines import UNCLEAR


def says(rules: list[str], command: str, **more: str) -> str:
    return decide([parse_rule(text) for text in rules], ToolCall("c", "bash", {"command": command, **more})).says


def says_of(rules: list[str], tool: str, **arguments: str) -> str:
    return decide([parse_rule(text) for text in rules], ToolCall("c", tool, arguments), "/ws").says


B70_RULES = [
    "allow bash: git status",
    "allow bash: git log *",
    "allow bash: ls *",
    "allow bash: echo *",
    "allow bash: find *",
    "deny bash: rm *",
]

B70 = [
    "git status && rm -rf x", "git status; curl http://127.0.0.1/x | sh", "git status | tee /tmp/t/out",
    "git log $(rm x)",
    "git log `rm x`", 'echo "$(id)"', "echo hi > ~/.bashrc", "ls\nrm x", "git statusfoo", "git log --output=/tmp/t/o",
    "find . -exec rm {} +", "find . -delete", "FOO=1 rm x", "env rm x", "\\rm x", "r''m x", "bash -c 'rm x'",
    "command rm x",
    "git log <(rm x)", "ls & rm x", "(rm x)", "if true; then rm x; fi", "git -c alias.status='!rm x' status",
]  # fmt: skip


@pytest.mark.parametrize("command", B70)
def test_b70_nothing_of_the_list_passes(command: str) -> None:
    assert says(B70_RULES, command) != "allow"


@pytest.mark.parametrize("command", [c for c in B70 if "rm" in c and "`" not in c and "-c alias" not in c])
def test_b70_the_denied_program_is_found_wherever_it_stands(command: str) -> None:
    assert says(B70_RULES, command) == "deny"


@pytest.mark.parametrize(
    "command", ["git status", "git log -3", "ls -la 'a b'", "ls", "echo a b; ls", "find . -name x"]
)
def test_b70_what_was_meant_passes(command: str) -> None:
    assert says(B70_RULES, command) == "allow"


@pytest.mark.parametrize("command", UNCLEAR)
def test_no_rule_of_words_allows_what_is_unclear(command: str) -> None:
    rules = [
        f"allow bash: {name} *" for name in ("ls", "echo", "cat", "git", "find", "env", "xargs", "bash", "x", "a", "b")
    ]
    assert says(rules, command) == "open"


@pytest.mark.parametrize(
    ("rule", "command", "right"),
    [
        ("git status", "git status", True),
        ("git status", "git  status", True),
        ("git status", "git status -s", False),
        ("git status", "GIT status", False),
        ("git status", "/usr/bin/git status", False),
        ("git status *", "git status", True),
        ("git status *", "git status -s --porcelain x", True),
        ("git * x", "git status x", True),
        ("git * x", "git x", False),
        ("git * x", "git a b x", False),
        ("git log *", "git log -p -o x", False),
        ("git log *", "git log --outpu=x", False),
        ("git log *", "git log --ext-diff", False),
        ("git log --output=x", "git log --output=x", True),
        ("git *", "git --exec-path=x log", False),
        ("find *", "find . -fprint x", False),
        ("sort *", "sort a -ro b", False),
        ("sort *", "sort a -r b", True),
        ("make *", "make -f x", False),
        ("make *", "make -Cx", False),
        ("make *", "make SHELL=x", False),
        ("make *", "make 'X=$(shell rm y)'", False),
        ("make *", "make -j4 test", True),
        ("pytest *", "pytest -x tests", True),
        ("pytest *", 'pytest "$x"', False),
        ("pytest *", "pytest $(a)", False),
        ("pytest *", "pytest tests/*.py", True),
        ("pytest *", "pytest *.py", False),
        ("pytest *", "X=1 pytest", False),
        ("X=1 pytest *", "X=1 pytest a", True),
        ("X=1 pytest *", "X=2 pytest a", False),
        ("X=1 pytest *", "pytest a", False),
        ("X=1 *", "X=1 pytest a", False),
        ("pytest *", "timeout 9 pytest -x", True),
        ("pytest *", "sudo pytest -x", False),
        ("pytest *", "pytest | tee x", False),
        ("pytest *", "pytest > x", False),
        ("pytest *", "pytest > /dev/null 2>&1", True),
        ("pytest *", "pytest > /dev/null/../x", False),
        ("pytest *", "pytest < ../x", False),
        ("'a b' *", "'a b' c", True),
        ("a '*'", "a b", False),
        ("a '*'", "a '*'", True),
        ("a *", "a", True),
    ],
)
def test_an_allowing_rule_covers_what_it_says(rule: str, command: str, right: bool) -> None:
    assert (says([f"allow bash: {rule}"], command) == "allow") is right


@pytest.mark.parametrize(
    "command",
    [
        "git clone -u 'rm x' y", "git bisect run rm x", "git submodule foreach rm", "git filter-branch --msg-filter rm",
        "git config alias.x '!rm y'", "git -P config core.pager rm", "git mergetool -y", "git hook run x",
        "git send-email --sendmail-cmd=rm x", "git format-patch --output-dir=/x", "git apply --unsafe-paths x",
        "/usr/bin/git log --output=x", "tar xPf x", "tar xfC x /", "tar cFf rm x y", "curl --data-binary @/x y",
        "curl -D /x y", "curl -c/x y", "curl -w '%output{/x}' y", "curl --trace-a /x y", "wget -o /x y", "wget -a/x y",
        "wget --save-cook=/x y", "less +!rm x", "more '+!rm' x", "zip -TT rm x y",
        "uniq a b", "uniq -c a b", "xxd -p a b", "shuf -o x y", "iconv x -o y", "split --filter=rm x",
        "scp -o ProxyCommand=rm a b", "scp -S rm a b", "rsync --write-batch=/x a b", "go vet -vettool=rm",
        "npm exec rm", "npm --yes exec rm", "npm exec", "npm config set script-shell x", "gh alias set x '!rm'",
        "make CC=./x", "make --eva=x", "export PATH=.", "export LD_PRELOAD=./x", "setarch x86_64 rm x", "pkexec rm x",
        "sed 's/a/rm x/e' y", "sed -n '1e rm' y", "sed -e p -e 'e rm' x", "sed p x -e 'w y'", "sed 's/x/y/;e' z",
        "sed 's,a,b,gw x' y", "sed '1W x' y", "sed 'r /x' y", "sed -s 's|a|b|\ne' x", "sed p x -i", "sed -f x y",
        "sed 's/[/]/x/;s/]/e/' y", "sed 's/[^]/]/e/' y", "sed -n '/a/e rm' x", "sed --expression=1e x", "sed src/*.py",
        "sed '{e\n}' x", "sed '\\,x,e rm' y", "sed 's/a/b\\/;e/' y; sed 'y/a/b/;e' x", "sed -E 's/(a)/b/e' x",
        "awk 'BEGIN{system(\"rm\")}'", "awk '{print > \"x\"}' y", "awk '{print | \"sh\"}' y", "gawk '@load \"x\"'",
        "awk '{\"rm\" | getline}' x", "awk -f x y", "gawk -i inplace 1 x", "gawk -e 'BEGIN{system(1)}'", "awk -v",
        "awk -F : -f x", "uniq a*", "npm e* rm", "npm --yes [e]xec rm", "make CC*", "make all a*", "gh a* set x '!rm'",
    ],
)  # fmt: skip
def test_the_star_stands_for_nothing_that_runs_or_writes_more(command: str) -> None:
    program = command.split(maxsplit=1)[0]
    assert says([f"allow bash: {program} *"], command) == "open"


@pytest.mark.parametrize(
    "command",
    [
        "git add -u", "git push -u origin main", "git diff -u", "git submodule update", "git bisect good",
        "tar tvf x.tar", "tar -xzf x.tgz", "curl -sS http://x/y", "wget -q http://x/y", "less x", "split -l 5 x",
        "rsync -av a b", "uniq -c x", "uniq", "xxd -p x",
        "npm test src/*.ts", "git add src/*.py", "git bisect good v1 v*",
        "npm test", "npm run build", "gh pr list", "go vet ./...", "export a=1",
        "sed -n '10,40p' a.py", "sed 's/foo/bar/g' a", "sed -e 's/a/b/' -e 's|x/y|z|2g' a b", "sed '/^#/d;/^$/d' a",
        "sed -n '/def main/,/^def/p' a.py", "sed -n '$p' x", "sed 5q x", "sed -E 's/(a|b)c?/[\\1]/I' x", "sed '$!d' x",
        "sed 's/[a-z]*$//' src/*.py", "awk '{print $1}' x", "awk -F: '{print $2}' x", "awk -F , -v n=2 'NR==n' x",
    ],
)  # fmt: skip
def test_the_star_stands_for_what_is_done_every_day(command: str) -> None:
    assert says([f"allow bash: {command.split(maxsplit=1)[0]} *"], command) == "allow"


@pytest.mark.parametrize(
    ("rule", "command", "right"),
    [
        ("rm *", "/bin/rm x", True),
        ("rm *", "X=1 sudo -n rm x", True),
        ("rm *", "xargs rm", True),
        ("rm important", 'rm "$x"', True),
        ("rm important", "rm $x", True),
        ("rm important", "rm imp*", True),
        ("rm important", "rm other", False),
        ("rm *", "ls rm", False),
        ("git push *", "git push", True),
        ("git push *", "git pull", False),
        ("* --force *", "git push --force", False),
        ("* push *", "git push --force", True),
        ("git push *", "git --no-pager push", True),
        ("X=1 rm *", "rm x", True),
        ("rm -rf *", "rm -fr x", True),
        ("rm -rf *", "rm -r -f x", True),
        ("rm -rf *", "rm x -vRf", True),
        ("rm -rf *", "rm --recursive --force x", True),
        ("rm -rf *", "rm --rec --fo x", True),
        ("rm -rf *", "rm -rfvvvvvv x", True),
        ("git reset --hard *", "git reset --har", True),
        ("rm -rf *", "rm -f x", False),
        ("rm -rf *", "rm --recursive x", False),
        ("rm -rf *", "ls -rf x", False),
        ("git push --force *", "git push origin --force", True),
        ("git push --force *", "git push -f origin main", True),
        ("git push --force *", "git push -vf", True),
        ("git push --force *", "git push origin main", False),
        ("git push --force *", "git push --force-with-lease", False),
        ("git push --force *", "git fetch --force", False),
        ("curl --output=x *", "curl y --output=x", True),
        ("find . -delete", "find . -name -type", False),
    ],
)
def test_a_denying_rule_speaks_of_whatever_may_be_meant(rule: str, command: str, right: bool) -> None:
    assert (says([f"deny bash: {rule}"], command) == "deny") is right


def test_deny_beats_ask_beats_allow_and_the_most_specific_is_named() -> None:
    rules = [
        parse_rule(text)
        for text in (
            "allow bash",
            "allow bash: git *",
            "allow bash: git push *",
            "ask bash: git push * main",
            "deny bash: git push --force *",
        )
    ]

    def named(command: str) -> tuple[str, str]:
        decision = decide(rules, ToolCall("c", "bash", {"command": command}))
        return decision.says, decision.rule

    assert named("git log") == ("allow", "allow bash: git *")
    assert named("git push origin") == ("allow", "allow bash: git push *")
    assert named("git push origin main") == ("ask", "ask bash: git push * main")
    assert named("git push --force x") == ("deny", "deny bash: git push --force *")
    assert named("git log; git push x") == ("allow", "allow bash: git *; allow bash: git push *")
    assert named("ls 'x") == ("open", "")


def test_an_exact_rule_is_that_text_and_gives_way_to_deny() -> None:
    assert says(['allow bash = "a `b` > c"'], "a `b` > c") == "allow"
    assert says(['allow bash = "a `b` > c"'], "a `b` >  c") == "open"
    assert says(['allow bash = "a; rm x"'], "a; rm x") == "allow"
    assert says(['allow bash = "a; rm x"', "deny bash: rm *"], "a; rm x") == "deny"
    assert says(['allow bash = "a > .env"', "deny write: **/.env"], "a > .env") == "deny"
    assert says(['allow bash = "a `b`"', "deny bash: rm *"], "a `b`") == "open"  # nobody can say that b is not rm
    assert says(['deny bash = "a `b`"'], "a `b`") == "deny"


@pytest.mark.parametrize(
    ("rules", "command", "right"),
    [
        (["allow bash: a"], "a > out/x", "open"),
        (["allow bash: a", "allow write: out/**"], "a > out/x", "allow"),
        (["allow bash: a", "allow write: out/**"], "a > out/../x", "open"),
        (["allow bash: a", "allow write: out/**"], "a > ./out//x", "allow"),
        (["allow bash: a", "allow write: out/**"], "a > out/$x", "open"),
        (["allow bash: a", "allow write: out/**"], "a > out/*", "open"),
        (["allow bash: a", "allow write: out/**"], "cd b && a > out/x", "open"),
        (["allow bash: a", "deny write: **/.env"], "a > b/.env", "deny"),
        (["allow bash: a", "deny write: **/.env"], "a > $x", "deny"),
        (["allow bash: a", "deny read: secret"], "a < secret", "deny"),
        (["allow bash: a"], "a < x", "allow"),
        (["allow bash: a"], "a < /etc/shadow", "open"),
        (["allow bash: a", "allow edit: x"], "a > x", "open"),
        (["allow bash", "deny read: **/.env"], "cat a/.env", "deny"),
        (["allow bash", "deny read: **/.env"], "cd b; head -n 3 ./.env | wc -l", "deny"),
        (["allow bash", "deny read: **/.env"], "cp .env x", "deny"),
        (["allow bash", "deny read: **/.env"], "sudo /bin/cat x .env", "deny"),
        (["allow bash: cat *", "ask read: secret/**"], "cat a secret/b", "ask"),
        (["allow bash", "deny read: **/.env"], "cat a.env; git add .env", "allow"),
        (["allow bash", "deny write: **/.env"], "cat .env", "allow"),
        (["allow bash", "deny read: **/*token*"], "grep -rn token src", "allow"),
        (["allow bash", "deny read: **/*token*"], "grep -rn x src/token.txt", "deny"),
        (["allow bash", "deny read: **/*token*"], "sed -n 1p token", "deny"),
    ],
)
def test_redirections_are_writes_and_reads(rules: list[str], command: str, right: str) -> None:
    assert says(rules, command) == right


def test_the_folder_of_the_call_counts() -> None:
    rules = ["allow bash: a", "allow write: out/**"]
    assert says(rules, "a > x", cwd="out") == "allow"
    assert says(rules, "a > ../x", cwd="out") == "open"
    assert says(rules, "a > out/x", cwd="b") == "open"


PATCH = """*** Begin Patch\r\n*** Update File: {}\n*** Move to: d/c\n@@\n-x\n+y\n*** Add File:{} \n+x\n*** End Patch"""


@pytest.mark.parametrize(
    ("rules", "tool", "arguments", "right"),
    [
        (["deny write: **/.env"], "write", {"path": ".env"}, "deny"),
        (["deny write: **/.env"], "write", {"path": "a/b/.env"}, "deny"),
        (["deny write: **/.env"], "edit", {"path": "./a/../.env"}, "deny"),
        (["deny write: **/.env"], "write", {"path": "/ws/a/.env"}, "deny"),
        (["deny write: **/.env"], "write", {"path": "a.env"}, "open"),
        (["deny edit: x"], "write", {"path": "x"}, "open"),
        (["deny write: **/.env"], "apply_patch", {"patch": PATCH.format("a", "x/.env")}, "deny"),
        (["deny write: **/.env"], "apply_patch", {"patch": PATCH.format("x/.env", "a")}, "deny"),
        (["deny write: **/.env"], "apply_patch", {"patch": PATCH.format("a", "b").replace("d/c", ".env")}, "deny"),
        (["deny write: **/.env"], "apply_patch", {"patch": "nothing"}, "deny"),
        (["deny write: **/.env"], "apply_patch", {"patch": PATCH.format("a", "b")}, "open"),
        (["allow write: d/**"], "apply_patch", {"patch": PATCH.format("d/a", "d/b")}, "allow"),
        (["allow write: d/**"], "apply_patch", {"patch": PATCH.format("d/a", "b")}, "open"),
        (["allow write: src/*.py"], "write", {"path": "src/a.py"}, "allow"),
        (["allow write: src/*.py"], "write", {"path": "src/a/b.py"}, "open"),
        (["allow write: src/**"], "write", {"path": "src/a/b.py"}, "allow"),
        (["allow write: src/**"], "write", {"path": "src/../x"}, "open"),
        (["allow write: src/**"], "write", {"path": "/etc/src/x"}, "open"),
        (["allow write: **"], "write", {"path": "../x"}, "open"),
        (["allow write: **"], "write", {"path": "/x"}, "open"),
        (["allow write: /tmp/**"], "write", {"path": "/tmp/x"}, "allow"),
        (["deny write: **/.env"], "write", {"path": "/etc/.env"}, "deny"),
        (["allow write: x?"], "write", {"path": "xy"}, "allow"),
        (["allow write: x[a]"], "write", {"path": "xa"}, "open"),
        (["deny *: secret/**"], "read", {"path": "secret/x"}, "deny"),
        (["deny *"], "anything", {}, "deny"),
        (["ask list: *"], "list", {}, "ask"),
        (["ask fetch: *.example.com"], "fetch", {"url": "https://a.b.example.com/x"}, "ask"),
        (["allow fetch: *.example.com"], "fetch", {"url": "https://example.com/x"}, "open"),
        (["allow fetch: *.example.com"], "fetch", {"url": "https://evil.com/a.example.com"}, "open"),
        (["allow fetch: *.example.com"], "fetch", {"url": "https://a.example.com@evil.com/"}, "open"),
        (["allow fetch: *.example.com"], "fetch", {"url": "https://evilexample.com/"}, "open"),
        (["allow fetch: example.com"], "fetch", {"url": "https://EXAMPLE.com.:443/"}, "allow"),
        (["allow fetch: example.com"], "fetch", {"url": "https://ex\u0430mple.com/"}, "open"),
    ],
)
def test_paths_and_hosts(rules: list[str], tool: str, arguments: dict[str, str], right: str) -> None:
    assert says_of(rules, tool, **arguments) == right


# -- what runs without a rule -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", everyday.READ)
def test_what_only_reads_runs_unasked(command: str) -> None:
    decision = decide([], ToolCall("c", "bash", {"command": command}))
    assert (decision.says, decision.rule) == ("allow", READS), decision.reason


@pytest.mark.parametrize("command", everyday.OTHER)
def test_anything_else_is_asked_about(command: str) -> None:
    assert says([], command) == "open"


def test_what_only_reads_is_asked_about_where_a_rule_guards_what_may_be_read() -> None:
    assert says(["deny read: secret"], "cat x") == "open"
    assert says(["ask *: secret/**"], "ls | wc -l") == "open"
    assert says(["deny read: secret"], "echo x; pwd") == "allow"


def test_everyday_commands_are_understood() -> None:
    """Understood: a rule can speak of them. Asking about one in twenty would be felt."""
    lines = [*everyday.READ, *everyday.OTHER]
    unclear = [line for line in lines if not isinstance(parse(line), Commands)]
    assert len(lines) >= 100
    assert len(unclear) <= 5, unclear


@pytest.mark.parametrize(
    "command",
    [
        "cat /etc/passwd", "cat ../x", "cat a/../../x", "cat ~/.ssh/id_rsa", "cat ~root/x", 'cat "$x"', "cat $x",
        "cat $(a)",
        "cat < /etc/passwd", "cat a > b", "head -n 5 /x", "head --lines=5 ../x", "grep -f /etc/passwd a",
        "grep -rf x a",
        "grep -R x .", "grep x /etc/passwd", "grep -e x -e y /etc/passwd", "grep --file=x a", "grep -r x -- ../y",
        "rg --pre x y",
        "rg -z x", "rg x ..", "rg -f x y", "rg -L x", "sort -o x y", "sort --output=x y", "sort --outp=x y",
        "sort -T x y", "sort *",
        "sort --compress-program=x y", "uniq a b", "uniq -c a b", "uniq *", "tail -f x", "tail -F x", "tee x", "ls /",
        "ls ..",
        "du /", "diff a /etc/passwd", "diff -l a b", "X=1 ls", "LC_ALL=C ls", "env ls -x $y", "cd / && ls",
        "cd .. && cat x",
        "cd && cat x", "cd - && ls", "cd $x && ls", "cd ~ && ls", "command cat /x", "sudo ls", "xargs cat",
        "ls | xargs cat",
        "find . -exec cat {} +", "git status", "git log", "find .", "sed -n 1p x", "awk 1 x", "printenv", "env", "set",
        "jq . x",
        "which -x a", "ls --unknown", "cat -x", "wc --files0-from=x", "stat -L/x", "date -s x", "file -C x",
        "tree -o x",
        "less x", "man x", "vim x", "hostname x", "./ls", "/bin/ls", "dd if=x", "f() { cat \"$1\"; }; f /x",
        "test -f /x",
        "for f in /etc/*; do cat $f; done", "cat <(a)", "wc -l {a,/etc/x}", "nl /x", "seq 1 2 > x", "mkfifo x",
        "yes", "cat .*/x", "ls src/.*",
        # operands that are paths, whatever stands first
        "rg --files /etc", "rg /etc --files", "rg -0e x /etc/passwd", "rg /etc/passwd -e x", "grep /etc/passwd -e x",
        "grep /etc/passwd --regexp=x", "grep --colour x /etc/passwd", "diff --unified /etc/passwd a",
        "diff a --context /etc/passwd", "xargs -a /etc/passwd", "xargs --arg-file=/etc/passwd echo",
        # quotes in a glob
        'cat "/etc"/*', "cat '/'etc/*", 'cat ".."/*', "cat \\/etc/*", "cat .\\./*", "cat a/'.'./*", "cat ''/etc/*",
        'cat a*"/.."/x', "cat 'a'/.''*/x",
        # a program of the workspace that is called like a wrapper
        "./env ls", "bin/timeout 5 cat x", "/tmp/nice ls", "./command ls", "./xargs", "./bash -c ls", "./exec ls",
        # a program of many names, as another of them
        "exec -a rm ls x", "exec -c bash -c ls", "env -i bash -c ls", "env -u PATH nice bash -c ls",
    ],
)  # fmt: skip
def test_what_might_do_more_does_not(command: str) -> None:
    assert says([], command) == "open"
