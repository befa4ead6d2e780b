"""Cleaning of output, decoding of files, ignore rules and the work of a pattern: the pure parts of the file tools."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.errors import ToolError
from latchstep.tool.diff import MAX_DIFF, MAX_DIFF_LINES, nearest, unified
from latchstep.tool.encoding import Span, decode, line_end, raw_positions, splice, to_lf
from latchstep.tool.ignore import glob_rules, parse_rules
from latchstep.tool.regex import MAX_LINE, compile_pattern
from latchstep.tool.text import clean_output, cut, is_binary, shown, size_of

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        (b"caf\xc3\xa9 \xff", "café \ufffd"),
        ("a\0b\x01c\x7fd\x85e", "abcde"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[1;38;5;200mx\x1b[?25l\x1b[2K", "x"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;QQ==\x07x", "x"),
        ("\x1b]never ended\nnext", "never ended\nnext"),
        ("\x1bPq#0;2\x1b\\x", "x"),
        ("\x1b(Bx\x1b=y\x1bcz", "xyz"),
        ("10%\r50%\r100%\ndone", "100%\ndone"),
        ("10%\r50%\r", "50%"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("50%\r\x1b[K", "50%"),
        ("N\x08NA\x08AM\x08M _\x08X", "NAM X"),
        ("|\x08/\x08-\x08done", "done"),
        ("a\ud800b\udfff", "a\ufffdb\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("", ""),
    ],
)
def test_b56_output_is_cleaned(output: str | bytes, text: str) -> None:
    assert clean_output(output) == text


def test_b56_the_vector(tmp_path: Path) -> None:
    script = r"""head -c 4096 /bin/ls; printf '\0\0x\033[31mred\033[0m\033]52;c;QQ==\007\r\b'"""
    data = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
    text = clean_output(data)
    assert not CONTROLS.search(text)
    assert "red" in text
    assert is_binary(data)


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("\x00\x07\x08\x0a\x0d\x1b[]P\\;?0mKx\x9b\x9c\x9d\ud800é")) | st.binary())
def test_cleaned_text_holds_no_controls_and_stays_as_it_is(output: str | bytes) -> None:
    text = clean_output(output)
    assert not CONTROLS.search(text)
    text.encode()
    assert clean_output(text) == text


@pytest.mark.parametrize(
    "piece", ["\x1b]", "\x1b[", "\x1bP", "\x1b]a", "\x1b[0", "\x1b[ ", "\r", "\x08", "x\x08", "\x1b", "\x9b0", "\x9d"]
)
def test_cleaning_takes_linear_time(piece: str) -> None:
    """CPU for 16 times the text is nearer to 16 times than to 256 times."""
    times = []
    for count in (20_000, 320_000):
        text = piece * count
        start = time.process_time()
        clean_output(text)
        times.append(time.process_time() - start)
    assert times[1] < 80 * max(times[0], 0.002)


@pytest.mark.parametrize(
    ("data", "binary"),
    [
        (b"", False),
        (b"text\r\n\t\f\x1b[0m", False),
        ("Привет, мир".encode("cp1251"), False),
        ("日本語".encode("shift-jis"), False),
        ("日本語".encode(), False),
        (b"\x7fELF\x02\x01\x01" + bytes(9), True),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", True),
        (bytes(range(256)) * 4, True),
        (b"a" * 8000 + b"\0", False),
    ],
)
def test_binary_is_told_from_text(data: bytes, binary: bool) -> None:
    assert is_binary(data) is binary


def test_small_helpers() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcdef", 3) == "abc… (+3 characters)"
    assert shown("a b ü") == "a b ü"
    assert shown("a\nb\x1b[0m\u202e\ud800") == "a\\nb\\x1b[0m\\u202e\\ud800"
    assert [size_of(n) for n in (0, 1023, 1024, 1536 * 1024)] == ["0 B", "1023 B", "1.0 KiB", "1.5 MiB"]


# Encodings and line ends


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        (b"", "utf-8", ""),
        (b"a\r\nb\rc\n", "utf-8", "a\nb\nc\n"),
        (b"\xef\xbb\xbfa", "utf-8", "a"),
        ("a→\r\n".encode("utf-16-le"), None, None),
        (b"\xff\xfe" + "a→\r\n".encode("utf-16-le"), "utf-16-le", "a→\n"),
        (b"\xfe\xff" + "a→".encode("utf-16-be"), "utf-16-be", "a→"),
        (b"\xff\xfe\0\0" + "a".encode("utf-32-le"), "utf-32-le", "a"),
        (b"caf\xe9", "cp1252", "café"),
        (b"\x81\x8d", "latin-1", "\x81\x8d"),
        (b"caf\xc3\xa9 \xff", "utf-8", "café \udcff"),
        (b"\0\1\2", None, None),
        (b"\xff\xfea", "cp1252", "ÿþa"),
    ],
)
def test_files_are_decoded_and_given_back(data: bytes, encoding: str | None, text: str | None) -> None:
    decoded = decode(data)
    if decoded is None:
        assert encoding is None
        return
    assert (decoded.encoding, decoded.text) == (encoding, text)
    assert decoded.encode(decoded.raw) == data


@settings(max_examples=200, deadline=None)
@given(st.binary())
def test_whatever_is_decoded_gives_its_bytes_back(data: bytes) -> None:
    decoded = decode(data)
    assert decoded is None or decoded.encode(decoded.raw) == data


raw_text = st.text(st.sampled_from("ab\r\n"), max_size=12)


@settings(max_examples=200, deadline=None)
@given(raw_text)
def test_positions_map_back_to_the_raw_text(raw: str) -> None:
    text = to_lf(raw)
    places = raw_positions(raw, list(range(len(text) + 1)))
    assert places == sorted(places)
    for position in range(len(text) + 1):
        assert to_lf(raw[: places[position]]) == text[:position]


def test_the_line_end_of_a_text() -> None:
    assert [line_end(raw) for raw in ("", "a\r\n", "a\r\nb\n", "a\rb\r", "\n")] == ["\n", "\r\n", "\n", "\r", "\n"]


@pytest.mark.parametrize(
    ("raw", "start", "old", "new", "result"),
    [
        ("a\r\nb\r\n", 0, "a", "x\ny", "x\r\ny\r\nb\r\n"),
        ("a\nb\r\nc", 2, "b\nc", "b\nd\nc", "a\nb\r\nd\r\nc"),
        ("a\r\nb\nc\n", 0, "a\nb\nc", "x\ny\nz", "x\r\ny\nz\n"),
        ("a\r\nb", 2, "b", "c\nd", "a\r\nc\r\nd"),
        ("a", 0, "a", "b\nc", "b\nc"),
        ("a\rb", 0, "a", "x\ny", "x\ry\rb"),
        ("a\r\nb\nc", 0, "a\nb", "a\nb\nX", "a\r\nb\nX\nc"),
        ("a\r\nb\nc", 0, "a\nb\nc", "a\nB\nc", "a\r\nB\nc"),
    ],
)
def test_new_text_takes_the_line_ends_it_replaces(raw: str, start: int, old: str, new: str, result: str) -> None:
    assert splice(raw, [Span(start, old, new)]) == result


# Ignore rules


@pytest.mark.parametrize(
    ("rules", "path", "folder", "ignored"),
    [
        ("*.pyc", "a/b.pyc", False, True),
        ("*.pyc", "a/b.py", False, False),
        ("build/", "build", True, True),
        ("build/", "build", False, False),
        ("/build", "a/build", True, False),
        ("/build", "build", False, True),
        ("a/b", "a/b", False, True),
        ("a/b", "x/a/b", False, False),
        ("**/b", "x/y/b", False, True),
        ("**/b", "b", False, True),
        ("a/**", "a/b/c", False, True),
        ("a/**", "a", True, False),
        ("a/**/c", "a/c", False, True),
        ("a/**/c", "a/x/y/c", False, True),
        ("a/**/c", "a/x/y/d", False, False),
        ("*.log\n!keep.log", "keep.log", False, False),
        ("!keep.log\n*.log", "keep.log", False, True),
        ("# c\n\n  ", "# c", False, False),
        ("\\#c", "#c", False, True),
        ("\\!c", "!c", False, True),
        ("a\\ ", "a ", False, True),
        ("a  ", "a", False, True),
        ("a?c", "abc", False, True),
        ("a?c", "a/c", False, False),
        ("[ab].txt", "a.txt", False, True),
        ("[!ab].txt", "a.txt", False, False),
        ("[a-c]x", "bx", False, True),
        ("[", "[", False, True),
        ("a[]]b", "a]b", False, True),
        ("foo*bar*baz", "fooXbarYbaz", False, True),
        ("foo*bar*baz", "foobaz", False, False),
        ("*", "anything", False, True),
        ("a*", "a", False, True),
        ("**", "x/y", False, True),
        ("/", "x", False, False),
        ("x\r", "x", False, True),
    ],
)
def test_ignore_rules(rules: str, path: str, folder: bool, ignored: bool) -> None:
    parts = path.split("/")
    found = next((rule for rule in parse_rules(rules) if rule.matches(parts, folder)), None)
    assert (found is not None and not found.negated) is ignored


def test_ignore_rules_agree_with_git(tmp_path: Path) -> None:
    """git itself says which of many small paths it would ignore."""
    if subprocess.run(["sh", "-c", "command -v git"], capture_output=True, check=False).returncode:
        pytest.skip("no git here")
    rules = ["a*b", "x/", "/top", "d/**/e", "!d/q/e", "**/deep/*.c", "[!x-z]1", "m/n", "t\\*", "*.tmp", "!ok.tmp"]
    names = [
        "a",
        "ab",
        "axxb",
        "x",
        "top",
        "d",
        "e",
        "q",
        "deep",
        "f.c",
        "w1",
        "x1",
        "m",
        "n",
        "t*",
        "tt",
        "u.tmp",
        "ok.tmp",
    ]
    paths = [*names, *(f"{a}/{b}" for a in names[:13] for b in names), *(f"d/{a}/{b}" for a in "qe" for b in names)]
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True, env=env)
    (tmp_path / ".gitignore").write_text("\n".join(rules))
    asked = subprocess.run(
        ["git", "check-ignore", "--no-index", "-z", "--stdin"],
        cwd=tmp_path,
        input="\0".join(paths),
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    by_git = set(asked.stdout.split("\0")) - {""}
    parsed = parse_rules("\n".join(rules))

    def ignored(path: str) -> bool:
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            hit = next((rule for rule in parsed if rule.matches(parts[:end], end < len(parts))), None)
            if hit is not None and not hit.negated:
                return True
        return False

    assert {path for path in paths if ignored(path)} == by_git


def test_hostile_rules_match_in_bounded_time() -> None:
    start = time.process_time()
    rules = parse_rules("*a" * 300 + "b\n" + "**/a/" * 150 + "b")
    for rule in rules:
        assert not rule.matches(["a" * 255] if not rule.anchored else ["a"] * 60, False)
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("*.py", "a/b.py", True),
        ("*.{ts,tsx}", "a/b.tsx", True),
        ("*.{ts,tsx}", "a/b.js", False),
        ("src/**/*.py", "src/a/b.py", True),
        ("src/**/*.py", "lib/a.py", False),
        ("src/", "src/a/b", True),
        ("{a,b}/{c,d}.x", "b/c.x", True),
        ("!x", "!x", True),
        ("#x", "#x", True),
    ],
)
def test_globs(glob: str, path: str, matches: bool) -> None:
    assert any(rule.matches(path.split("/"), False) for rule in glob_rules(glob)) is matches


def test_a_glob_cannot_grow_without_bound() -> None:
    assert len(glob_rules("{a,b,c,d,e,f,g,h}" * 10)) <= 64


# The work of a pattern


@pytest.mark.parametrize(
    "pattern",
    [
        "word",
        r"def \w+\(.*\):",
        r"class\s+\w+\(.*\):$",
        r"^\s*import (\w+, )*\w+",
        r'"([^"\\]|\\.)*"',
        r"(foo|bar)+baz",
        r"\bTODO\b.*",
        r"[A-Za-z0-9_]+@[a-z]+\.com",
        r"(?i)hello\s+world",
        r"x{3,5}y",
        r"a*b*c*d*",
        r"",
    ],
)
def test_ordinary_patterns_reach_ordinary_lines(pattern: str) -> None:
    assert compile_pattern(pattern, False)[1] >= 400


HOSTILE = [
    r"(a+)+$",
    r"(a*)*b",
    r"(a|a)*b",
    r"(a|aa)+$",
    r"(?:a?){60}a{60}",
    r"(.*)*x",
    r"(\w+\s?)*$",
    r"((a{0,9}){0,9}){0,9}b",
    r"(?=(a+)+b)a",
    r"([a-z]+)*\d",
    r"(x+x+)+y",
]


@pytest.mark.parametrize("pattern", HOSTILE)
def test_exponential_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ToolError, match="exponential"):
        compile_pattern(pattern, False)


@pytest.mark.parametrize("pattern", ["(", "a**", "[z-a]", "(?P<n>a", "\\", "a{2,1}", "(?<=a*)b"])
def test_patterns_that_are_none_are_explained(pattern: str) -> None:
    with pytest.raises(ToolError, match="not a regular expression"):
        compile_pattern(pattern, False)
    with pytest.raises(ToolError, match="MAX_PATTERN"):
        compile_pattern("a" * 1001, False)


@pytest.mark.parametrize(
    "pattern",
    [r".*x", r".*.*x", r".*.*.*x", r".*a.*a.*a.*ax", r"\w+\w+x", r"a*a*a*b", r"(?i)[a-z]+[A-Z]+\d", r"(a|b).*b.*c"],
)
def test_within_its_longest_line_a_pattern_takes_bounded_time(pattern: str) -> None:
    compiled, longest = compile_pattern(pattern, False)
    assert longest <= MAX_LINE
    start = time.process_time()
    compiled.search("a" * longest)
    assert time.process_time() - start < 10


# Differences


def test_a_diff_is_unified_and_bounded() -> None:
    old = "\n".join(map(str, range(1, 21)))
    assert unified("f", old, old) == ""
    assert unified("f", old, old.replace("\n10\n", "\nten\n")).split("\n") == [
        "--- f",
        "+++ f",
        "@@ -7,7 +7,7 @@",
        " 7",
        " 8",
        " 9",
        "-10",
        "+ten",
        " 11",
        " 12",
        " 13",
    ]
    huge = unified("f", "a\n" * 100_000, "b\n" * 100_000)
    assert len(huge.split("\n")) <= MAX_DIFF_LINES + 3
    assert "more lines" in huge
    assert len(unified("f", "x" * 10**6, "y" * 10**6)) < 2000
    assert len(unified("f", ("x" * 300 + "\n") * 1000, ("y" * 300 + "\n") * 1000)) < MAX_DIFF + 200


def test_a_diff_applies_with_patch(tmp_path: Path) -> None:
    if subprocess.run(["sh", "-c", "command -v patch"], capture_output=True, check=False).returncode:
        pytest.skip("no patch here")
    old = "\n".join(f"line {n}" for n in range(100)) + "\n"
    new = old.replace("line 5\n", "").replace("line 50\n", "line 50\nand more\n").replace("line 98", "last")
    (tmp_path / "f").write_text(old)
    subprocess.run(["patch", "-s", "f"], cwd=tmp_path, input=unified("f", old, new) + "\n", text=True, check=True)
    assert (tmp_path / "f").read_text() == new


def test_the_nearest_text_is_found() -> None:
    text = "def f():\n    return 1\n\ndef g():\n    return 22\n"
    assert nearest(text, "def g():\n  return 22") == (4, ["def g():", "    return 22"])
    assert nearest(text, "\n\n") is None
    assert nearest("", "zzzz") is None
    assert nearest("abc\n" * 30_000, "nothing like it at all") is None
