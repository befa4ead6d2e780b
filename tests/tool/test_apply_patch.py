"""`apply_patch`: every part of it or nothing, other bytes identical, and clear where it does not fit."""

from __future__ import annotations

import difflib
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchstep.errors import ToolError
from latchstep.tool import beneath
from latchstep.tool.encoding import decode, to_lf
from latchstep.tool.patch import parse_patch, patched

from .test_write import Files, files

__all__ = ["files"]


def envelope(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


MANY = envelope(
    "*** Update File: a.txt",
    "@@",
    " one",
    "-two",
    "+2",
    " three",
    "*** Add File: new/b.txt",
    "+hello",
    "+",
    "*** Delete File: old.txt",
    "*** Update File: tool.sh",
    "*** Move to: bin/tool",
    "-echo a",
    "+echo b",
)


def lay(root: Path) -> None:
    (root / "a.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    (root / "old.txt").write_text("old\n")
    (root / "tool.sh").write_text("echo a\n")
    (root / "tool.sh").chmod(0o755)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_many_files_at_once(files: Files) -> None:
    lay(files.root)
    output = files.do("apply_patch", patch=MANY)
    assert str(output.content).split("\n") == [
        "Changed a.txt.",
        "Created new/b.txt.",
        "Moved tool.sh to bin/tool.",
        "Deleted old.txt.",
    ]
    assert tree(files.root) == {
        "a.txt": b"one\r\n2\r\nthree\r\n",
        "new/b.txt": b"hello\n\n",
        "bin/tool": b"echo b\n",
    }
    assert os.access(files.root / "bin/tool", os.X_OK)


def test_what_is_asked_about_is_what_will_be_done(files: Files) -> None:
    lay(files.root)
    _, _, found = files.prepare("apply_patch", patch=MANY)
    assert "-two\n+2" in found["diff"]
    assert "(tool.sh is moved to bin/tool)" in found["diff"]
    assert "(old.txt is deleted)" in found["diff"]
    assert [file["path"] for file in found["files"]] == ["a.txt", "new/b.txt", "bin/tool", "old.txt", "tool.sh"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["*** Update File: a.txt", " one", "-nine", "+9"], "does not fit a.txt from line 1 on"),
        (["*** Update File: none.txt", "-a", "+b"], "does not exist"),
        (["*** Add File: old.txt", "+x"], "exists already"),
        (["*** Update File: tool.sh", "*** Move to: old.txt", "-echo a", "+b"], "exists already"),
        (["*** Add File: ../out", "+x"], "leads out of"),
        (["*** Add File: .git/hooks/x", "+x"], "never written"),
        (["*** Delete File: .git/config"], "never written"),
        (["*** Add File: x", "no plus"], "line 5 of the patch"),
        (["*** Delete File: old.txt", "*** Update File: old.txt", "-old", "+new"], "named twice"),
        (["*** Update File: old.txt", " old"], "changes nothing"),
        (["*** Frobnicate File: x"], "begins with"),
    ],
)
def test_one_wrong_part_leaves_everything_as_it_was(files: Files, lines: list[str], words: str) -> None:
    lay(files.root)
    (files.root / ".git").mkdir()
    (files.root / ".git" / "config").write_text("[core]\n")
    before = tree(files.root)
    with pytest.raises(ToolError) as caught:
        files.do("apply_patch", patch=envelope("*** Add File: first", "+x", *lines))
    assert words in str(caught.value)
    assert tree(files.root) == before


def test_a_write_that_fails_puts_back_what_was_written_before_it(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(files.root)
    before = tree(files.root)
    prepared = files.prepare("apply_patch", patch=MANY)
    monkeypatch.setattr(files.workspace, "rename", fail)
    with pytest.raises(ToolError, match=r"no room\. Nothing was changed in the end"):
        files.finish(prepared)
    assert tree(files.root) == before


@pytest.mark.parametrize("count", [1, 2, 3, 4, 0])  # the write that fails; 0: the removal behind them
def test_the_disk_may_fill_at_any_write_and_nothing_is_left_of_the_patch(
    files: Files, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Neither a folder, nor a file that was moved before its new bytes could be written."""
    lay(files.root)
    for name in ("b.txt", "c.txt"):
        (files.root / name).write_text("one\n")
    before, folders = tree(files.root), sorted(files.root.rglob("*"))
    parts = ["*** Add File: new/er/b", "+x", "*** Update File: b.txt", "*** Move to: q/r/b", "-one", "+1"]
    parts += ["*** Update File: c.txt", "*** Move to: a/c", "-one", "+1", "*** Update File: a.txt", "-one", "+1"]
    files.do("read", path="b.txt")
    files.do("read", path="a.txt")
    prepared = files.prepare("apply_patch", patch=envelope(*parts, "*** Delete File: old.txt"))
    written = 0
    replace = beneath.replace

    def full(*arguments: Any, **options: Any) -> None:
        nonlocal written
        written += 1
        if written == count:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(*arguments, **options)

    def forbidden(path: str, **options: Any) -> None:
        if path == "old.txt" and not count:
            raise OSError(errno.EACCES, "Permission denied")
        unlink(path, **options)

    unlink = os.unlink
    monkeypatch.setattr(os, "unlink", forbidden)
    monkeypatch.setattr(beneath, "replace", full)
    with pytest.raises(ToolError, match="Nothing was changed in the end"):
        files.finish(prepared)
    assert tree(files.root) == before
    assert sorted(files.root.rglob("*")) == folders
    count = written = -1
    for name in ("a.txt", "b.txt"):
        files.do("write", path=name, content="the model still knows what stands there\n")
    assert (files.root / "tool.sh").stat().st_mode & 0o777 == 0o755


def test_a_deleted_file_that_comes_back_is_as_private_as_it_was(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, mode in (("a", 0o700), ("b", 0o600)):
        (files.root / name).write_text("one\n")
        (files.root / name).chmod(mode)
    unlink = os.unlink

    def forbidden(path: str, **options: Any) -> None:
        if path == "c":
            raise OSError(errno.EACCES, "Permission denied")
        unlink(path, **options)

    (files.root / "c").write_text("one\n")
    monkeypatch.setattr(os, "unlink", forbidden)
    with pytest.raises(ToolError, match="Nothing was changed in the end"):
        files.do("apply_patch", patch=envelope(*[f"*** Delete File: {name}" for name in "abc"]))
    assert [(files.root / name).stat().st_mode & 0o777 for name in "ab"] == [0o700, 0o600]


def fail(*_: object) -> str:
    raise ToolError("no room")


def test_a_file_changed_in_between_is_not_overwritten(files: Files) -> None:
    lay(files.root)
    prepared = files.prepare("apply_patch", patch=MANY)
    (files.root / "a.txt").write_text("one\ntwo\nthree\nfour\n")
    with pytest.raises(ToolError, match="changed after this change was prepared"):
        files.finish(prepared)
    assert (files.root / "old.txt").exists()
    files.do("read", path="old.txt")
    (files.root / "old.txt").write_text("somebody else's\n")
    with pytest.raises(ToolError, match="changed since it was read"):
        files.prepare("apply_patch", patch=envelope("*** Delete File: old.txt"))


def test_after_a_crash_the_bytes_on_disk_tell(files: Files) -> None:
    lay(files.root)
    tool, kwargs, found = files.prepare("apply_patch", patch=MANY)
    assert tool.settle is not None
    assert tool.settle(kwargs, found, None) == "not_done"  # type: ignore[arg-type]
    (files.root / "old.txt").unlink()
    assert tool.settle(kwargs, found, None) == "unknown"  # type: ignore[arg-type]
    (files.root / "old.txt").write_text("old\n")
    files.finish((tool, kwargs, found))
    assert tool.settle(kwargs, found, None) == "done"  # type: ignore[arg-type]


def test_what_it_wrote_is_known_and_survives_a_resume(files: Files) -> None:
    lay(files.root)
    files.do("apply_patch", patch=MANY)
    files.resume()
    files.build()
    files.do("write", path="new/b.txt", content="again\n")  # it made the file, so it need not read it


def test_moving_a_file_is_not_reading_it_and_what_was_read_stays_known(files: Files) -> None:
    for name in ("unread", "read", "part"):
        (files.root / name).write_text("one\ntwo\n")
    files.do("read", path="read")
    files.do("read", path="part", limit=1)
    for name in ("unread", "read", "part"):
        parts = [f"*** Update File: {name}", f"*** Move to: new/{name}", "-one", "+1"]
        files.do("apply_patch", patch=envelope(*parts))
    for name, words in (("unread", "was not read yet"), ("part", "only a part")):
        with pytest.raises(ToolError, match=words):
            files.prepare("write", path=f"new/{name}", content="x\n")
    files.do("write", path="new/read", content="x\n")
    files.resume()
    with pytest.raises(ToolError, match="was not read yet"):
        files.prepare("write", path="new/unread", content="x\n")


# -- where a hunk fits ----------------------------------------------------------------------------------------

PLACES = "def a():\n    x = 1\n    return x\n\n\ndef b():\n    x = 1\n    return x\n"


def once(text: str, *lines: str) -> str:
    (file,) = parse_patch(envelope("*** Update File: f", *lines))
    decoded = decode(text.encode())
    assert decoded is not None
    return patched("f", decoded, file.hunks).decode()


def test_a_hunk_that_fits_twice_needs_a_line_to_start_from() -> None:
    with pytest.raises(ToolError, match="fits f at lines 2, 7"):
        once(PLACES, "-    x = 1", "+    x = 2")
    assert once(PLACES, "@@ def b():", "-    x = 1", "+    x = 2") == PLACES[:40] + PLACES[40:].replace(
        "x = 1", "x = 2"
    )
    assert once(PLACES, "@@ def a():", "-    x = 1", "+    x = 2") == PLACES.replace("x = 1", "x = 2", 1)
    with pytest.raises(ToolError, match="no line like '@@ def c"):
        once(PLACES, "@@ def c():", "-    x = 1", "+    x = 2")


def test_hunks_come_in_order_and_at_the_end_where_it_says_so() -> None:
    assert once("a\nb\na\nb\n", " b", "-a", "+c", "@@", "-b", "+d", "*** End of File") == "a\nb\nc\nd\n"
    assert once("a\nb\n", "@@", "+c", "*** End of File") == "a\nb\nc\n"
    assert once("a\nb", " b", "+c") == "a\nb\nc"
    assert once("", "+a") == "a\n"


def test_blanks_at_line_ends_need_not_agree_and_stay() -> None:
    assert once("a  \nb\nc\t\n", " a", "-b", "+B", " c") == "a  \nB\nc\t\n"


rows = st.lists(
    st.sampled_from(["a", "b", "", "  c", "é", "-x", "+y", "@@", "*** End Patch", "*** Add File: z"]), max_size=12
)
ends = st.sampled_from(["\n", "\r\n"])


@settings(max_examples=500, deadline=None)
@given(rows, rows, ends, st.booleans(), st.booleans())
def test_a_patch_made_from_two_texts_gives_the_second(
    before: list[str], after: list[str], end: str, ended: bool, mark: bool
) -> None:
    """Whole-file context, so that it fits once; line ends, byte order mark and the end of the file stay its own."""
    text = end.join(before) + (end if ended and before else "")
    data = (b"\xef\xbb\xbf" if mark else b"") + text.encode()
    lines = [(" " if row[0] == " " else row[0]) + row[2:] for row in difflib.ndiff(before, after) if row[0] in " -+"]
    if before == after or not before or not after or before[-1] == "" or after[-1] == "":
        return
    (file,) = parse_patch(envelope("*** Update File: f", "@@", *lines))
    decoded = decode(data)
    assert decoded is not None
    made = patched("f", decoded, file.hunks)
    result = decode(made)
    assert result is not None
    assert result.mark == decoded.mark
    assert result.text == "\n".join(after) + ("\n" if ended else "")
    if end == "\r\n" and len(before) > 1:
        assert "\n" not in result.raw.replace("\r\n", "")
    assert to_lf(result.raw) == result.text


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=200)
    | st.lists(
        st.sampled_from(
            [
                "*** Begin Patch",
                "*** Update File: f",
                "@@ a",
                "-a",
                "+b",
                " a",
                "*** End Patch",
                "*** End of File",
                "*** Move to: g",
                "x",
            ]
        ),
        max_size=12,
    ).map("\n".join)
)
def test_any_text_is_a_patch_or_is_refused(text: str) -> None:
    try:
        (file, *_) = parse_patch(text)
        decoded = decode(b"a\nb\na\n")
        assert decoded is not None
        patched("f", decoded, file.hunks)
    except ToolError:
        pass


# -- what models write ----------------------------------------------------------------------------------------

TWO = "class A:\n    def f(self):\n        return 1\n\nclass B:\n    def f(self):\n        return 1\n"
CHANGE = ["*** Update File: a.txt", "@@", " one", "-two", "+2"]
CHANGED = "one\n2\nthree\nfour\nfive\n"


@pytest.mark.parametrize(
    "patch",
    [
        "```\n" + envelope(*CHANGE) + "\n```",
        "```diff\n" + envelope(*CHANGE) + "\n```\n",
        "apply_patch <<'EOF'\n" + envelope(*CHANGE) + "\nEOF",
        "<<PATCH\n" + envelope(*CHANGE) + "\nPATCH\n",
        envelope(*CHANGE).replace("Patch", "Patch ***"),
        envelope(*CHANGE, "").replace("\n", "\r\n"),
        envelope(*CHANGE, "", ""),
        envelope("*** Update File: a.txt", "", *CHANGE[1:]),
        envelope("*** Update File: a.txt", "@@ -7,3 +7,3 @@ def other():", *CHANGE[2:]),
        envelope("*** Update File: a.txt", "@@ one @@", *CHANGE[3:]),
    ],
    ids=[
        "fence",
        "diff",
        "heredoc",
        "bare heredoc",
        "stars",
        "crlf",
        "blank lines",
        "blank",
        "ranges",
        "closed anchor",
    ],
)
def test_what_wraps_and_decorates_a_patch_counts_for_nothing(files: Files, patch: str) -> None:
    (files.root / "a.txt").write_text("one\ntwo\nthree\nfour\nfive\n")
    assert files.do("apply_patch", patch=patch).content == "Changed a.txt."
    assert (files.root / "a.txt").read_text() == CHANGED


@pytest.mark.parametrize(
    ("rows", "result"),
    [
        (["@@", " one", "-two", "+2", "", "@@", " four", "-five", "+5"], "one\n2\nthree\nfour\n5\n"),
        (["@@", " one", "-two", "+2", " three", "@@", " three", "-four", "+4"], "one\n2\nthree\n4\nfive\n"),
        (["@@", "-one", "+1", " two", " three", "@@", " two", "-three", "+3"], "1\ntwo\n3\nfour\nfive\n"),
        (["@@ two", "+2.5"], "one\ntwo\n2.5\nthree\nfour\nfive\n"),
    ],
    ids=["blank between", "shared context", "context of the change before", "behind its anchor"],
)
def test_hunks_may_share_context(files: Files, rows: list[str], result: str) -> None:
    (files.root / "a.txt").write_text("one\ntwo\nthree\nfour\nfive\n")
    files.do("apply_patch", patch=envelope("*** Update File: a.txt", *rows))
    assert (files.root / "a.txt").read_text() == result


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["@@     def f(self):", "-        return 1", "+        return 2"], "at lines 3, 7"),
        (["@@     def f(self):", "+        x"], "at lines 3, 7"),
        (["@@ class", "     def f(self):", "-        return 1", "+        return 2"], "at lines 2, 6"),
        (["@@", "-class B:", "+class C:", "@@", "-class A:", "+class D:"], "it fits at line 1, but hunks come in the"),
        (["@@", "-class A:", "+class C:", "*** End of File"], "does not fit c.py at its end"),
        (["@@", "-class A:", "+class A:"], "changes nothing"),
        (["@@", "-  class A:", "+class C:"], "blanks differ"),
        (["@@", " class  A:", "+    x = 1"], "Nothing was changed. The same words are there"),
    ],
)
def test_a_hunk_that_may_mean_two_places_or_none_is_refused_in_true_words(
    files: Files, rows: list[str], words: str
) -> None:
    (files.root / "c.py").write_text(TWO)
    with pytest.raises(ToolError, match=words):
        files.prepare("apply_patch", patch=envelope("*** Update File: c.py", *rows))


def test_anchors_that_stand_everywhere_take_linear_time() -> None:
    file = decode(b"x = 1\n" * 100_000)
    assert file is not None
    patch = envelope("*** Update File: f", *["@@ x = 1"] * 10, "-x = 1", "+y")
    with pytest.raises(ToolError, match="give more context"):
        patched("f", file, parse_patch(patch)[0].hunks)


def test_two_anchors_name_one_place(files: Files) -> None:
    (files.root / "c.py").write_text(TWO)
    rows = ["@@ class B:", "@@     def f(self):", "-        return 1", "+        return 2"]
    files.do("apply_patch", patch=envelope("*** Update File: c.py", *rows))
    assert (files.root / "c.py").read_text() == TWO[:-2] + "2\n"


@pytest.mark.parametrize(
    "lines",
    [
        ["*** Update File: a.txt", "-one", "+1", "*** Update File: ./a.txt", "-two", "+2"],
        ["*** Update File: a.txt", "-one", "+1", "*** Update File: link", "-two", "+2"],
        ["*** Add File: q/b", "+x", "*** Add File: q", "+x"],
        ["*** Update File: a.txt", "*** Move to: q", "*** Add File: d/../q", "+x"],
    ],
    ids=["spelling", "link", "folder", "move"],
)
def test_one_file_named_twice_is_refused_before_anyone_is_asked(files: Files, lines: list[str]) -> None:
    (files.root / "a.txt").write_text("one\ntwo\n")
    (files.root / "d").mkdir()
    (files.root / "link").symlink_to("a.txt")
    with pytest.raises(ToolError, match="named twice"):
        files.prepare("apply_patch", patch=envelope(*lines))


def test_a_file_that_is_no_text_is_deleted_and_moved(files: Files) -> None:
    data = bytes(range(256))
    for name in ("a.bin", "b.bin"):
        (files.root / name).write_bytes(data)
    files.do("apply_patch", patch=envelope("*** Delete File: a.bin", "*** Update File: b.bin", "*** Move to: c.bin"))
    assert tree(files.root) == {"c.bin": data}
    with pytest.raises(ToolError, match="binary"):
        files.prepare("apply_patch", patch=envelope("*** Update File: c.bin", "-x", "+y"))


def test_a_link_is_neither_deleted_nor_moved_in_place_of_its_target(files: Files) -> None:
    (files.root / "d").mkdir()
    (files.root / "d" / "a.txt").write_text("one\n")
    (files.root / "link").symlink_to("d/a.txt")
    for lines in (["*** Delete File: link"], ["*** Update File: link", "*** Move to: b.txt"]):
        with pytest.raises(ToolError, match=r"link is a link to d/a\.txt; name that file"):
            files.prepare("apply_patch", patch=envelope(*lines))
    files.do("apply_patch", patch=envelope("*** Update File: link", "-one", "+two"))
    assert (files.root / "link").is_symlink()
    assert (files.root / "d" / "a.txt").read_text() == "two\n"
