"""What a line of shell can run: every line by hand, held against a real bash, and mutated; nothing is missed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from latchstep.policy.line import Commands, Unclear
from latchstep.policy.shell import MAX_LINE, parse
from tests.policy.lines import CLEAR, UNCLEAR
from tests.policy.tracing import STUBS, UNSAFE, Tracer, surprises

FUZZED = int(os.environ.get("LATCHSTEP_FUZZ", "150"))
"""Mutated lines; `make fuzz` tries many more."""


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    """In a folder that a user without rights can reach."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        yield Tracer(Path(folder))


@pytest.mark.parametrize(("line", "commands"), CLEAR, ids=[line for line, _ in CLEAR])
def test_each_command_of_a_line_is_found(line: str, commands: list[str]) -> None:
    parsed = parse(line)
    assert isinstance(parsed, Commands), parsed
    found = [" ".join(word.text for word in (*one.assigns, *one.words)) for one in parsed.commands]
    assert Counter(found) == Counter(commands)


@pytest.mark.parametrize("line", UNCLEAR)
def test_what_is_not_understood_is_unclear(line: str) -> None:
    assert isinstance(parse(line), Unclear), parse(line)


def test_there_are_enough_of_them() -> None:
    assert len(CLEAR) >= 150
    assert len(UNCLEAR) >= 200
    assert len({*UNCLEAR, *(line for line, _ in CLEAR)}) == len(CLEAR) + len(UNCLEAR)


@pytest.mark.parametrize(
    ("line", "writes", "reads"),
    [
        ("a > b", ["b"], []),
        ("a >> 'b c' < d", ["b c"], ["d"]),
        ("a &> b 2>/dev/null", ["b"], []),
        ("a 2>&1 | b > c", ["c"], []),
        ("{ a > b; } > c", ["c", "b"], []),
        ("x=$(a > b)", ["b"], []),
        ("f() { a; } > b", ["b"], []),
        ("cat > b <<'E'\nx\nE", ["b"], []),
        ("a > $b", ["$b"], []),
        ("bash -c 'a > b'", ["b"], []),
        ("echo $(< b)", [], ["b"]),
    ],
)
def test_redirections_are_files_that_are_written_and_read(line: str, writes: list[str], reads: list[str]) -> None:
    parsed = parse(line)
    assert isinstance(parsed, Commands), parsed
    assert sorted(word.text for word in parsed.writes) == sorted(writes)
    assert [word.text for word in parsed.reads] == reads


def test_one_plain_command_is_told_from_anything_more() -> None:
    plain = {line for line, _ in CLEAR if isinstance(parsed := parse(line), Commands) and parsed.plain}
    assert {"ls", "ls -la 'a b'", "\\rm x", "git --no-pager log"} <= plain
    more = {"ls & rm x", "FOO=1 rm x", "env rm x", "cat <<< 'hi'", "python - <<'E'\nimport os\nE", "echo hi > f"}
    more |= {"bash -c 'rm x'", "find . -exec rm {} +", 'echo "$(id)"', "xargs", "f() ( rm x )"}
    assert not more & plain


@pytest.mark.parametrize(
    "line",
    ["a " * MAX_LINE, "(" * 500 + "ls" + ")" * 500, "$(" * 70 + "ls" + ")" * 70, "ls \ud800", "cat <<A\nA\n" * 30],
)
def test_what_is_too_much_is_unclear(line: str) -> None:
    assert isinstance(parse(line), Unclear)


def test_without_the_grammar_every_line_is_unclear() -> None:
    code = (
        "import sys; sys.modules['tree_sitter_bash'] = None\n"
        "from latchstep.policy.shell import parse\nfrom latchstep.policy.line import Unclear\n"
        "assert isinstance(parse('ls'), Unclear)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_grammar_is_loaded_with_the_first_line() -> None:
    code = "import latchstep.policy.preset, sys; assert 'tree_sitter' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# -- held against bash -----------------------------------------------------------------------------------


def test_the_tracer_sees_what_runs(tracer: Tracer) -> None:
    """The witness itself: it must be able to accuse."""
    ran, made = tracer.run("ls 'a b' ''; { rm x & } > f; env git log")
    assert sorted(ran) == [["git", "log"], ["ls", "a b", ""], ["rm", "x"]]
    assert made == {"f"}
    ls = parse("ls")
    assert isinstance(ls, Commands)
    assert surprises(tracer, "ls; rm x", ls) == ["ran ['rm', 'x']"]
    assert surprises(tracer, "ls > f", ls) == ["made f"]


def test_bash_runs_nothing_that_was_not_said(tracer: Tracer) -> None:
    tried = 0
    for line, _ in CLEAR:
        parsed = parse(line)
        if isinstance(parsed, Commands) and not UNSAFE.search(line):
            tried += 1
            assert surprises(tracer, line, parsed) == [], line
    assert tried > 100


BITS = [
    *"abxy \t\n;&|<>()$`\"'\\{}[]!#*?=-+,:@%^0123_", "$(", ")", "&&", "||", "<<", "<<<", "${", "$((", "))", "<(", ">(",
    ">>", "2>&1", "rm x", "\nrm x\n", "; rm x", "`rm x`", "$(rm x)", "\\\n", " \\\n", "$'", "EOF\n", "<<EOF\n",
    "<<'a'\n", "if ", "then ", "fi ", "do ", "done ", "case ", "esac ", "in ", "{ ", "; }", "function ", "time ", "! ",
    "a=", "a+=", "a[0]=", "((", "[[ ", " ]]", "[ ", " ]", "eval ", "{a,b}", "{1..2}", "é", "=~", "&>", "|&", ">|",
    "\\;", "xargs ", "env ", "-exec ", "{} ", "bash -c ", "-I{} ", " - ", "2>", "EOF",
]  # fmt: skip


def mutated(line: str, lines: list[str], chance: random.Random) -> str:
    for _ in range(chance.choice([1, 1, 1, 2, 2, 3, 5])):
        at = chance.randrange(len(line) + 1)
        match chance.randrange(5):
            case 0 | 1:
                line = line[:at] + chance.choice(BITS) + line[at:]
            case 2:
                line = line[:at] + line[at + chance.choice([1, 1, 2, 4]) :]
            case 3:
                other = chance.choice(lines)
                start = chance.randrange(len(other) + 1)
                line = line[:at] + other[start : chance.randrange(start, len(other) + 1)] + line[at:]
            case _:
                line += chance.choice([";", " && ", " | ", "\n", " "]) + chance.choice(lines)
    return line


def test_mutated_lines(tracer: Tracer) -> None:
    """Any line at all: whatever bash ran was said, or the line was unclear."""
    lines = [line for line in (*(line for line, _ in CLEAR), *UNCLEAR) if not UNSAFE.search(line) and "\0" not in line]
    seed = int(os.environ.get("LATCHSTEP_FUZZ_SEED", "1"))
    chance, clear = random.Random(seed), 0
    for at in range(FUZZED):
        line = mutated(chance.choice(lines), lines, chance)
        parsed = parse(line)
        if isinstance(parsed, Commands) and not UNSAFE.search(line):
            clear += 1
            assert surprises(tracer, line, parsed) == [], f"line {at} of seed {seed}: {line!r}"
    print(f"{FUZZED} lines, {clear} of them clear and run")
    assert clear > FUZZED // 10


WORD = st.one_of(
    st.sampled_from(
        ["a", "-l", "'b c'", '"d"', "e\\ f", '"$x"', "$y", "{1,2}", "*", "[ab]", "''", "g=h", "2", "-", "{}"]
    ),
    st.sampled_from(STUBS),
)
SIMPLE = st.builds(lambda name, words: " ".join([name, *words]), st.sampled_from(STUBS), st.lists(WORD, max_size=3))
REDIRECTION = st.sampled_from(["", " > f", " 2>&1", " >> g", " < a", " &> h", " <<< i"])
WRAPPED = st.builds(
    "{} {}".format,
    st.sampled_from(["env", "env A=1", "nice", "nohup", "timeout 5", "command", "xargs", "stdbuf -oL", "!"]),
    SIMPLE,
)


def _deeper(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("{}{}{}".format, inner, st.sampled_from([" && ", " || ", "; ", " | ", " & ", "\n", " |& "]), inner),
        st.builds("({})".format, inner),
        st.builds("{{ {}; }}{}".format, inner, REDIRECTION),
        st.builds("if {}; then {}; else {}; fi".format, inner, inner, inner),
        st.builds("for i in a b; do {}; done".format, inner),
        st.builds("case a in b) {};; *) {};; esac".format, inner, inner),
        st.builds("f() {{ {}; }}; f".format, inner),
        st.builds("echo $({})".format, inner),
        st.builds('ls "$({})" b'.format, inner),
        st.builds("cat <({})".format, inner),
        st.builds("a=$({})".format, inner),
        st.builds("cat <<'E'\n{}\nE\n".format, inner),
        inner.filter(lambda line: "'" not in line).map("bash -c '{}'".format),
    )


LINE = st.recursive(st.builds("{}{}".format, st.one_of(SIMPLE, WRAPPED), REDIRECTION), _deeper, max_leaves=5)


@settings(max_examples=max(40, FUZZED // 4), deadline=None, suppress_health_check=list(HealthCheck))
@given(line=LINE)
def test_lines_made_of_the_grammar(tracer: Tracer, line: str) -> None:
    parsed = parse(line)
    if isinstance(parsed, Commands) and not UNSAFE.search(line):
        assert surprises(tracer, line, parsed) == [], line


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(BITS), max_size=12).map("".join))
def test_anything_is_clear_or_unclear(line: str) -> None:
    assert isinstance(parse(line), Commands | Unclear)
