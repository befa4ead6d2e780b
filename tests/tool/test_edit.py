"""`edit`: exact, all other bytes identical, and helpful where nothing matches."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latchstep.errors import ToolError
from latchstep.tool.encoding import Decoded, decode, to_lf
from latchstep.tool.replace import Change, replace_texts

from .test_write import Files, files, sha256

__all__ = ["files"]


def replace_text(path: str, file: Decoded, old: str, new: str, every: bool = False) -> tuple[bytes, list[int]]:
    done = replace_texts(path, file, [Change(old, new, every)])
    return done.data, done.lines


def edited(data: bytes, old: str, new: str, every: bool = False) -> bytes:
    decoded = decode(data)
    assert decoded is not None
    return replace_text("f", decoded, old, new, every)[0]


B64 = b"\xef\xbb\xbfdef f():\r\n    return 1\r\n\r\ndef g():\n\treturn 2"


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ("def f():\n    return 1", "def f():\n    return 3", B64.replace(b"return 1", b"return 3")),
        ("def f():\r\n    return 1", "def f():\r\n    return 3", B64.replace(b"return 1", b"return 3")),
        ("def f():", "def F():", B64.replace(b"f()", b"F()")),
        ("\ufeffdef f():", "\ufeffdef F():", B64.replace(b"f()", b"F()")),
        (
            "return 1\n",
            "a = 1\n    b = 2\n    return 1\n",
            B64.replace(b"return 1", b"a = 1\r\n    b = 2\r\n    return 1"),
        ),
        ("def g():\n", "def g():\n\tx = 1\n\ty = 2\n", B64.replace(b"\treturn 2", b"\tx = 1\n\ty = 2\n\treturn 2")),
        ("\treturn 2\n", "\treturn 4\n", B64.replace(b"return 2", b"return 4")),
        ("\treturn 2", "\treturn 4\n", B64.replace(b"return 2", b"return 4")),
        ("\n\ndef g", "\ndef g", B64.replace(b"\r\n\r\ndef g", b"\r\ndef g")),
    ],
)
def test_b64_only_the_edited_bytes_change(old: str, new: str, result: bytes) -> None:
    assert edited(B64, old, new) == result


@pytest.mark.parametrize(
    ("data", "old", "new", "result"),
    [
        (b"a\nb\n", "b\n", "c", b"a\nc\n"),
        (b"a\nb\n", "b", "", b"a\n\n"),
        (b"a\nb\n", "b\n", "", b"a\n"),
        (b"a\nb", "\nb", "", b"a"),
        (b"a\nb\n", "\nb\n", "", b"a\n"),
        (b"a\nb", "b", "c\n", b"a\nc"),
        (b"a\n", "a\n", "", b""),
        (b"x", "x", "", b""),
        (b"a b a\n", "a", r"\d C:\new \1 \g<0>", rb"\d C:\new \1 \g<0> b \d C:\new \1 \g<0>" + b"\n"),
        (b"aaa\n", "a", "aa", b"aaaaaa\n"),
        (b"a\r\na\na", "a", "b\nc", b"b\r\nc\r\nb\nc\nb\nc"),
        (b"caf\xe9 x", "x", "é", b"caf\xe9 \xe9"),
        (b"\xc3\xa9\xff x", "x", "y", b"\xc3\xa9\xff y"),
        (b"\xff\xfea\0\r\0\n\0b\0", "b", "c\nd", b"\xff\xfea\0\r\0\n\0c\0\r\0\n\0d\0"),
        ("a\u2028b\x0cc\x85d".encode(), "b", "B", "a\u2028B\x0cc\x85d".encode()),
    ],
)
def test_x08_replacing_is_plain_and_the_end_of_the_file_stays(data: bytes, old: str, new: str, result: bytes) -> None:
    assert edited(data, old, new, every=True) == result


@pytest.mark.parametrize(
    ("data", "old", "new", "words"),
    [
        (b"a\n", "", "b", "old is empty"),
        (b"a\n", "a", "a", "old and new are the same"),
        (b"a\r\n", "a\r\n", "a\n", "old and new are the same"),
        (b"a\na\n", "a", "b", r"old occurs 2 times in f \(lines 1, 2\)"),
        (b"aaa", "aa", "b", "old occurs 2 times"),
        (b"a", "a", "a\n", "keeps the end of a file"),
        (b"a\n", "a\n", "a", "keeps the end of a file"),
        (b"a\rb\nc", "b", "", "would join two"),
        (b"a", "a", "[Showing lines 1-2 of 60. Use offset=3 to read on.]", "which a reader adds"),
        (b"a", "\n", "b\n", "not found"),
        (b"a" * 200_000, "a", "b", "MAX_PLACES"),
    ],
)
def test_what_cannot_be_done_is_refused(data: bytes, old: str, new: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        edited(data, old, new)


FILE = b"""import os

def first(value):
\tif value:
\t\treturn "one"
\treturn None


def second(value):
    return 'two' - 1
"""


@pytest.mark.parametrize(
    ("old", "words"),
    [
        (
            "def first(value):\n    if  value:",
            ["blanks differ", "Nearest text, lines 3-4:", "     4| \tif value:", "-    if  value:", "+\tif value:"],
        ),
        ("    return ‘two’ – 1", ["quotes, dashes", "    10|     return 'two' - 1"]),
        ("DEF SECOND(VALUE):", ["letter case"]),
        ("     1\timport os\n     2\t", ["line numbers on"]),
        ("import os\\n\\ndef first", ["It holds escapes"]),
        ("def third(value):", ["Nearest text, line", "def "]),
        ("@@@@@@@@@@@@@@@@@@", ["No line of the file is like it."]),
    ],
)
def test_a_miss_says_why_and_shows_the_nearest_text(old: str, words: list[str]) -> None:
    with pytest.raises(ToolError, match=r"^old was not found in f\. Nothing was changed\.") as caught:
        edited(FILE, old, "something else")
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 6000


@pytest.mark.parametrize(
    ("data", "old", "words"),
    [
        (b"a\x1b[31mred\x1b[0m\n", "ared", "control characters, escape sequences or damaged bytes"),
        (b"one\x0ctwo\n", "onetwo", "control characters"),
        (b"h\xc3\xa9 \xff x\n", "h\u00e9 \ufffd x", "damaged bytes"),
        ("a\u200bb = 1\n".encode(), "ab = 1", r"cannot be seen \(U\+200B\)"),
        (b"ab = 1\n", "a\u2060b = 1", r"cannot be seen \(U\+2060\)"),
        ("cafe\u0301 \u00e9\n".encode(), "cafe\u0301 e\u0301", "Unicode forms"),
    ],
)
def test_a_miss_by_what_is_not_shown_says_so(data: bytes, old: str, words: str) -> None:
    with pytest.raises(ToolError, match=words) as caught:
        edited(data, old, "something else")
    assert "No line of the file is like it" not in str(caught.value)


def test_what_stands_for_damaged_bytes_is_never_written_over_them(files: Files) -> None:
    path = files.root / "f"
    path.write_bytes(b"h\xc3\xa9\xff x\nline\n")
    files.do("read", path="f")
    calls: list[tuple[str, dict[str, str]]] = [
        ("write", {"path": "f", "content": "h\u00e9\ufffd y\nline\n"}),
        ("edit", {"path": "f", "old": "line", "new": "\ufffd"}),
        ("apply_patch", {"patch": "*** Begin Patch\n*** Update File: f\n-line\n+\ufffd\n*** End Patch"}),
    ]
    for name, arguments in calls:
        with pytest.raises(ToolError, match="bytes that are not UTF-8"):
            files.prepare(name, **arguments)
    files.do("edit", path="f", old="x", new="y")
    assert path.read_bytes() == b"h\xc3\xa9\xff y\nline\n"


def test_a_miss_after_the_edit_was_made_says_so() -> None:
    with pytest.raises(ToolError, match="The new text is already there"):
        edited(FILE, "import sys, os", "import os")


def test_a_miss_in_a_huge_file_is_told_in_bounded_time() -> None:
    import time

    data = b"some line of code with words\n" * 100_000
    start = time.process_time()
    with pytest.raises(ToolError, match="not found"):
        edited(data, "some lime of coed with wodrs\n" * 50, "x")
    assert time.process_time() - start < 5


def test_the_tool_edits_a_file_and_tells_where(files: Files) -> None:
    (files.root / "f").write_bytes(B64)
    (files.root / "f").chmod(0o750)
    (files.root / "link").symlink_to("f")
    output = files.do("edit", path="link", old="return 1", new="return 3")
    assert output.content == "Replaced 1 occurrence in f (line 2)."
    result = B64.replace(b"return 1", b"return 3")
    assert (files.root / "f").read_bytes() == result
    assert (files.root / "link").is_symlink()
    assert (files.root / "f").stat().st_mode & 0o777 == 0o750
    assert output.details["sha256"] == sha256(result)
    assert output.details["replaced"] == sha256(B64)
    assert files.do("edit", path="f", old="return", new="yield", all=True).content == (
        "Replaced 2 occurrences in f (line 2, 5)."
    )


def test_prepare_refuses_what_cannot_be_done_and_finds_what_will(files: Files) -> None:
    (files.root / "f").write_text("one\n")
    (files.root / "fig.txt").write_bytes(bytes(100))
    for arguments, words in (
        ({"path": "f", "old": "two", "new": "x"}, "not found"),
        ({"path": "g", "old": "two", "new": "x"}, r"g does not exist"),
        ({"path": "fg.txt", "old": "two", "new": "x"}, r"Did you mean fig\.txt"),
        ({"path": "fig.txt", "old": "two", "new": "x"}, "is binary"),
    ):
        with pytest.raises(ToolError, match=words):
            files.prepare("edit", **arguments)
    prepared = files.prepare("edit", path="f", old="one", new="two")
    assert prepared[2]["path"] == "f"
    assert (prepared[2]["old_sha256"], prepared[2]["new_sha256"]) == (sha256(b"one\n"), sha256(b"two\n"))
    assert "-one\n+two" in prepared[2]["diff"]
    assert files.settle(prepared) == "not_done"
    files.finish(prepared)
    assert files.settle(prepared) == "done"
    with pytest.raises(ToolError, match=r"changed after|not found"):
        files.finish(prepared)


def test_all_on_many_places_takes_linear_time() -> None:
    import time

    times = []
    for count in (5_000, 80_000):
        data = b"word\r\n" * count
        start = time.process_time()
        assert edited(data, "word", "longer\nword", every=True) == b"longer\r\nword\r\n" * count
        times.append(time.process_time() - start)
    assert times[1] < 80 * max(times[0], 0.005)


# Against a naive reference

pieces = st.sampled_from(
    [b"a", b"b", b"ab", b"\r\n", b"\n", b"\r", b"\xc3\xa9", b"\xff", b"\t", b" ", b"\x0c", b"\xe2\x80\xa8"]
)
contents = st.lists(pieces, max_size=14).map(b"".join)
texts = st.lists(st.sampled_from(["a", "b", "é", "\n", "\r\n", " ", "\\1"]), max_size=5).map("".join)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([b"", b"\xef\xbb\xbf"]), contents, st.data(), texts, st.booleans())
def test_every_byte_outside_the_change_is_identical(
    mark: bytes, body: bytes, data: st.DataObject, new: str, every: bool
) -> None:
    decoded = decode(mark + body)
    assert decoded is not None
    text = decoded.text
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, min(len(text), first + 6)))
    old = text[first:last]
    check_edit(mark + body, old, new, every)


@example(b"a\r\nb\nc", "b", "x\ny", False)
@example(b"\n\n", "\n", "", True)
@settings(max_examples=300, deadline=None)
@given(contents, texts, texts, st.booleans())
def test_arbitrary_edits_do_what_they_say_or_refuse(body: bytes, old: str, new: str, every: bool) -> None:
    check_edit(body, old, new, every)


def check_edit(data: bytes, old: str, new: str, every: bool) -> None:
    """The naive way: replace in LF space; around the changed places compare the bytes themselves."""
    decoded = decode(data)
    assert decoded is not None
    try:
        done = replace_texts("f", decoded, [Change(old, new, every)])
    except ToolError:
        return
    if done.notes:
        return  # a near match, which is judged by tests of its own
    result = done.data
    after = decode(result)
    text, old, new = decoded.text, to_lf(old), to_lf(new)
    if old not in text:
        old, new = old[:-1], new[:-1]
    first = text.index(old)
    last = text.rindex(old) + len(old)
    if not every:
        assert text.count(old) == 1
    wanted = text.replace(old, new) if every or text.count(old) == 1 else text[:first] + new + text[last:]
    if after is not None and after.encoding == decoded.encoding and after.damaged == decoded.damaged:
        assert after.mark == decoded.mark
        assert after.text.rstrip("\n") == wanted.rstrip("\n")
        assert after.text == wanted or last == len(text)
        if after.text and text and new.strip("\n"):
            assert after.text.endswith("\n") == text.endswith("\n") or after.text == wanted
    head, tail = naive_bytes(data, len(decoded.mark), text, (first, last))
    assert result.startswith(head)
    assert result.endswith(tail)


def naive_bytes(data: bytes, skip: int, text: str, span: tuple[int, int]) -> tuple[bytes, bytes]:
    """The bytes before the first place and behind the last of LF space, counted one at a time."""
    decoded = decode(data)
    assert decoded is not None
    raw, at, place = decoded.raw, 0, 0
    places = [0]
    while at < len(raw):
        at += 2 if raw[at : at + 2] == "\r\n" else 1
        place += 1
        places.append(at)
    assert place == len(text)
    head = decoded.encode(raw[: places[span[0]]])
    tail = decoded.encode(raw[places[span[1]] :])[skip:]
    return head, tail


def test_the_reference_itself_is_not_blind(tmp_path: Path) -> None:
    """A text-mode round trip, the naive mistake, is told from a right edit by its bytes."""
    path = tmp_path / "f"
    path.write_bytes(B64)
    text = path.read_text(encoding="utf-8-sig")
    path.write_text(text.replace("return 1", "return 3"))
    assert path.read_bytes() != edited(B64, "return 1", "return 3")


# Many at once


def test_many_edits_are_matched_against_the_file_as_it_was(files: Files) -> None:
    (files.root / "f").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    edits = [{"old": "three", "new": "one"}, {"old": "one", "new": "three"}, {"old": "two\n", "new": "2\nand\n"}]
    output = files.do("edit", path="f", edits=edits)
    assert output.content == "Replaced 3 occurrences in f (line 1, 2, 3)."
    assert (files.root / "f").read_bytes() == b"three\r\n2\r\nand\r\none\r\n"


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ([{"old": "one", "new": "1"}, {"old": "nine", "new": "9"}], "edits[1]: old was not found"),
        ([{"old": "one\ntwo", "new": "x"}, {"old": "two\nthree", "new": "y"}], "same text of f (line 2)"),
        ([{"old": "one", "new": "x"}, {"old": "one", "new": "y"}], "same text of f (line 1)"),
        ([{"old": "e", "new": "x"}, {"old": "two", "new": "2"}], "edits[0]: old occurs"),
    ],
)
def test_one_that_cannot_be_made_leaves_all_unmade(files: Files, edits: list[dict[str, str]], words: str) -> None:
    (files.root / "f").write_text("one\ntwo\nthree\n")
    with pytest.raises(ToolError) as caught:
        files.prepare("edit", path="f", edits=edits)
    assert words in str(caught.value)
    assert (files.root / "f").read_text() == "one\ntwo\nthree\n"


def test_b68_numbers_of_a_reader_are_not_put_into_a_file(files: Files) -> None:
    (files.root / "f").write_text("def f():\n    return 1\n")
    for new in ("1\tdef f():\n2\t    return 2\n3\t    return 1", "     1| def f():\n     2|     return 1"):
        with pytest.raises(ToolError, match=r"line numbers on \d of \d lines, which a reader adds"):
            files.prepare("edit", path="f", old="    return 1", new=new)
    files.do("edit", path="f", old="    return 1", new="    return 2\n1\ta\n2\tb\n3\tc")


def test_both_forms_in_one_call_are_refused(files: Files) -> None:
    (files.root / "f").write_text("a b")
    with pytest.raises(ToolError, match="not both"):
        files.prepare("edit", path="f", old="a", new="b", edits=[{"old": "b", "new": "c"}])


def test_all_beside_edits_is_refused_since_each_has_its_own(files: Files) -> None:
    (files.root / "f").write_text("a a\n")
    with pytest.raises(ToolError, match="each with its own"):
        files.prepare("edit", path="f", all=True, edits=[{"old": "a", "new": "b"}])
    files.do("edit", path="f", edits=[{"old": "a", "new": "b", "all": True}])
    assert (files.root / "f").read_text() == "b b\n"


@settings(max_examples=200, deadline=None)
@given(contents, st.data())
def test_many_edits_equal_a_naive_rebuild(body: bytes, data: st.DataObject) -> None:
    """Spans of the text are replaced by others; whatever is made is what putting the pieces together by hand gives."""
    decoded = decode(body)
    assert decoded is not None
    text = decoded.text
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6, unique=True)))
    wanted, pieces, at = [], [], 0
    for first, last in zip(cuts[::2], cuts[1::2], strict=False):
        new = data.draw(texts.map(to_lf))
        wanted.append(Change(text[first:last], new))
        pieces += [text[at:first], new]
        at = last
    try:
        done = replace_texts("f", decoded, wanted)
    except ToolError:
        return
    if all(text.count(change.old) == 1 for change in wanted) and at < len(text):
        after = decode(done.data)
        if after is not None and after.encoding == decoded.encoding and after.damaged == decoded.damaged:
            assert after.text == "".join([*pieces, text[at:]])


# Nearly


@pytest.mark.parametrize(
    ("data", "change", "result", "note"),
    [
        ("say(“hi”)\n", ('say("hi")', 'say("hello")'), "say(“hello”)\n", "quotes"),
        ("a\u00a0b c\n", ("a b c", "a b d"), "a\u00a0b d\n", "no-break"),
        ("cafe\u0301 a\n", ("caf\u00e9 a", "caf\u00e9 \u00e4"), "cafe\u0301 a\u0308\n", "NFD"),
        ("caf\u00e9 a\n", ("cafe\u0301 a", "cafe\u0301 b"), "caf\u00e9 b\n", "NFC"),
        (
            "if x:\n\ta()\n\t\tb()\n",
            ("    a()\n        b()\n", "    a()\n        2\n"),
            "if x:\n\ta()\n\t\t2\n",
            "indentation",
        ),
        ("a  \nb\t\nc\n", ("a\nb\nc", "a\nB\nc"), "a  \nB\nc\n", "blanks at line ends"),
        ("a\nb\nc  \nd", ("b \nc\n", "b \n"), "a\nb\nd", "blanks at line ends"),
        ("x  \ny\nx\ny\n", ("x\ny\nx \ny", "z"), "z\n", "blanks at line ends"),
        ("a\r\nb \r\n", ("a\nb\n", "a\nc\n"), "a\nc\n", "blanks at line ends"),
        ("  f():\n    pass\n", ("f():\n  pass", "f():\n  go"), "  f():\n    go\n", "indentation"),
        ("    a()\n    b()\n", ("a()\nb()\n", "a()\nif c:\n  b()\n"), "    a()\n    if c:\n      b()\n", "indentation"),
    ],
)
def test_what_can_mean_only_one_place_is_made_there_and_said(
    files: Files, data: str, change: tuple[str, str], result: str, note: str
) -> None:
    old, new = change
    (files.root / "f").write_text(data)
    output = files.do("edit", path="f", old=old, new=new)
    assert "Note: " in str(output.content)
    assert note in str(output.content)
    assert (files.root / "f").read_text() == result


@pytest.mark.parametrize(
    ("data", "old"),
    [
        ("“a”\n‘a’ “a”\n", '"a"'),  # two places
        ("\tone()\n  one()\n", "    one()"),
        ("\tone()\n   two()\n", "    one()\n    two()"),  # no one rule for both lines
        ("a – b\n", "a - b"),  # a dash is no quote
        ("a \nb\na\t\nb\n", "a\nb"),  # two places
        ("e\u0301\ne\u0301\n", "\u00e9"),
        (" a \nb\n", "a\nb"),  # indented otherwise, too
        ("x = 'a  b'\ny\n", "x = 'a b'\ny"),  # blanks in a line may mean something
    ],
)
def test_what_could_mean_more_or_other_is_refused(data: str, old: str) -> None:
    with pytest.raises(ToolError, match="not found"):
        edited(data.encode(), old, "something")


indents = st.sampled_from(["", "  ", "    ", "\t", "\t\t", "        "])
rows = st.lists(st.tuples(indents, st.sampled_from(["a()", "b()", "c “x”", ""])), min_size=1, max_size=6)


@settings(max_examples=300, deadline=None)
@given(rows, st.data())
def test_tolerance_never_touches_other_lines(lines: list[tuple[str, str]], data: st.DataObject) -> None:
    text = "\n".join(lead + word for lead, word in lines) + "\n"
    first = data.draw(st.integers(0, len(lines) - 1))
    last = data.draw(st.integers(first + 1, len(lines)))
    lead = data.draw(indents)
    same = data.draw(st.booleans())  # the file's own indentation, and other blanks at line ends
    end = data.draw(st.sampled_from([" ", "\t"])) if same else ""
    old = "\n".join(
        own + word + end if same else lead + word.replace("“", '"').replace("”", '"') for own, word in lines[first:last]
    )
    if old in text or not old.split("\n")[-1].strip():
        return  # an exact match, or one that ends in the indentation of the line behind
    try:
        after = edited(text.encode(), old, old.removesuffix(end) + "z" + end).decode()
    except ToolError:
        return
    before, now = text.split("\n"), after.split("\n")
    assert len(before) == len(now)
    changed = [number for number, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    assert len(changed) == 1
    assert now[changed[0]].strip() == before[changed[0]].strip() + "z"
