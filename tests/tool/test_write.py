"""`write`: what it refuses to overwrite, what it keeps, and what is known of it after a crash."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from latchstep.errors import ToolError
from latchstep.tool.apply_patch import apply_patch_tool
from latchstep.tool.base import Context, Output, Tool
from latchstep.tool.change import reader_marks
from latchstep.tool.define import render
from latchstep.tool.edit import edit_tool
from latchstep.tool.read import read_tool
from latchstep.tool.seen import Seen
from latchstep.tool.show import show_pieces
from latchstep.tool.workspace import Workspace
from latchstep.tool.write import _new_bytes, write_tool


class Files:
    """The tools of one workspace, called as the session does: validate, prepare, then run with what was found."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.workspace = Workspace(root)
        self.seen = Seen()
        self.details: list[Any] = []
        self.tools: dict[str, Tool] = {}
        self.build()

    def build(self) -> None:
        makers = (read_tool, write_tool, edit_tool, apply_patch_tool)
        self.tools = {tool.name: tool for tool in (make(self.workspace, self.seen) for make in makers)}

    def prepare(self, name: str, **arguments: Any) -> tuple[Tool, dict[str, Any], Any]:
        tool = self.tools[name]
        kwargs = tool.validate(arguments)
        found = tool.prepare(kwargs, Context()) if tool.prepare else None
        return tool, kwargs, json.loads(json.dumps(found))

    def finish(self, prepared: tuple[Tool, dict[str, Any], Any]) -> Output:
        tool, kwargs, found = prepared
        given = {tool.context: Context(found=found)} if tool.context else {}
        output = render(tool.function(**kwargs, **given))
        self.details.append(json.loads(json.dumps(output.details)))
        return output

    def do(self, name: str, **arguments: Any) -> Output:
        return self.finish(self.prepare(name, **arguments))

    def resume(self) -> None:
        """As after a crash: `seen` is made anew from what the journal holds."""
        self.seen = Seen()
        for details in self.details:
            self.seen.restore(details)
        self.build()

    def settle(self, prepared: tuple[Tool, dict[str, Any], Any]) -> str:
        tool, kwargs, found = prepared
        assert tool.settle is not None
        return tool.settle(kwargs, found, Context())


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    root = tmp_path / "ws"
    root.mkdir()
    made = Files(root)
    yield made
    made.workspace.close()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_new_file_is_made_with_its_folders(files: Files) -> None:
    output = files.do("write", path="a/b/c.txt", content="one\ntwo\n")
    assert output.content == "Created a/b/c.txt (2 lines, 8 B)."
    assert (files.root / "a/b/c.txt").read_bytes() == b"one\ntwo\n"
    assert output.details == {
        "path": "a/b/c.txt",
        "sha256": sha256(b"one\ntwo\n"),
        "replaced": None,
    }
    assert files.do("write", path="empty", content="").content == "Created empty (0 lines, 0 B)."


def test_what_prepare_finds_is_what_the_run_does(files: Files) -> None:
    prepared = files.prepare("write", path="./x/../f", content="new") if (files.root / "x").mkdir() is None else None
    assert prepared is not None
    assert prepared[2]["path"] == "f"
    assert prepared[2]["old_sha256"] is None
    assert prepared[2]["new_sha256"] == sha256(b"new")
    assert "+new" in prepared[2]["diff"]
    assert not (files.root / "f").exists()
    files.finish(prepared)
    assert (files.root / "f").read_bytes() == b"new"


def test_b66_a_file_that_was_not_read_is_not_overwritten(files: Files) -> None:
    (files.root / "f").write_text("theirs")
    with pytest.raises(ToolError, match="exists and was not read yet"):
        files.prepare("write", path="f", content="ours")
    files.do("read", path="f")
    assert files.do("write", path="f", content="ours").content == "Replaced f (1 line, 4 B)."


def test_b66_a_change_since_the_read_is_not_lost(files: Files) -> None:
    (files.root / "f").write_text("old")
    files.do("read", path="f")
    (files.root / "f").write_text("new")
    with pytest.raises(ToolError, match="changed since it was read; read it again"):
        files.prepare("write", path="f", content="ours")
    with pytest.raises(ToolError, match="changed since it was read; read it again"):
        files.prepare("edit", path="f", old="new", new="ours")
    assert (files.root / "f").read_text() == "new"


def test_b66_touch_and_own_writes_do_not_trip(files: Files) -> None:
    (files.root / "f").write_text("old")
    files.do("read", path="f")
    os.utime(files.root / "f", (1, 1))
    files.do("write", path="f", content="one")
    files.do("write", path="f", content="two")
    files.do("edit", path="f", old="two", new="three")
    files.do("write", path="f", content="four")
    assert (files.root / "f").read_text() == "four"
    assert files.do("write", path="f", content="four").content == "Unchanged: f (1 line, 4 B)."


def test_b66_two_edits_judged_together_are_both_there(files: Files) -> None:
    (files.root / "f").write_text("one\ntwo\nthree\n")
    files.do("read", path="f")
    first = files.prepare("edit", path="f", old="one", new="ONE")
    second = files.prepare("edit", path="f", old="three", new="THREE")
    files.finish(first)
    files.finish(second)
    assert (files.root / "f").read_text() == "ONE\ntwo\nTHREE\n"


def test_b66_edits_of_one_batch_that_run_at_once_are_all_there(files: Files) -> None:
    (files.root / "f").write_text("".join(f"line {n};\n" for n in range(8)))
    files.do("read", path="f")
    batch = [files.prepare("edit", path="f", old=f"line {n};", new=f"LINE {n};") for n in range(8)]
    refused: list[ToolError] = []

    def run(prepared: Any) -> None:
        try:
            files.finish(prepared)
        except ToolError as error:
            refused.append(error)

    threads = [threading.Thread(target=run, args=(prepared,)) for prepared in batch]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == []
    assert (files.root / "f").read_text() == "".join(f"LINE {n};\n" for n in range(8))


def test_b66_a_change_of_someone_else_between_judging_and_running_is_refused(files: Files) -> None:
    (files.root / "f").write_text("one\ntwo\n")
    files.do("read", path="f")
    edit = files.prepare("edit", path="f", old="one", new="ONE")
    write = files.prepare("write", path="f", content="ours")
    new = files.prepare("write", path="new", content="ours")
    (files.root / "f").write_text("one\ntwo\nthree\n")
    (files.root / "new").write_text("theirs")
    for prepared in (edit, write, new):
        with pytest.raises(ToolError, match="changed after this change was prepared"):
            files.finish(prepared)
    assert (files.root / "f").read_text() == "one\ntwo\nthree\n"
    assert (files.root / "new").read_text() == "theirs"


def test_b66_the_guard_survives_a_resume(files: Files) -> None:
    for name in ("same", "changed", "edited"):
        (files.root / name).write_text("old")
        files.do("read", path=name)
    files.do("edit", path="edited", old="old", new="mine")
    (files.root / "changed").write_text("theirs")
    files.resume()
    files.do("write", path="same", content="ours")
    files.do("write", path="edited", content="ours")
    with pytest.raises(ToolError, match="changed since it was read"):
        files.do("write", path="changed", content="ours")


def test_an_edit_of_an_unread_file_does_not_count_as_reading_it(files: Files) -> None:
    (files.root / "f").write_text("one\ntwo\n")
    files.do("edit", path="f", old="one", new="ONE")
    files.resume()
    with pytest.raises(ToolError, match="was not read yet"):
        files.do("write", path="f", content="all mine")


def test_attack_46_a_path_that_leads_elsewhere_at_the_run_is_refused(files: Files) -> None:
    """The folder that was judged is swapped for a link to another place inside."""
    (files.root / "a").mkdir()
    (files.root / "b").mkdir()
    prepared = files.prepare("write", path="a/f", content="x")
    (files.root / "a").rmdir()
    (files.root / "a").symlink_to("b")
    with pytest.raises(ToolError, match="is not the file that was looked at"):
        files.finish(prepared)
    assert not os.listdir(files.root / "b")


def test_settle_tells_by_the_hash(files: Files) -> None:
    created = files.prepare("write", path="f", content="new")
    assert files.settle(created) == "not_done"
    files.finish(created)
    assert files.settle(created) == "done"
    replaced = files.prepare("write", path="f", content="newer")
    assert files.settle(replaced) == "not_done"
    (files.root / "f").write_text("other")
    assert files.settle(replaced) == "unknown"
    (files.root / "f").unlink()
    assert files.settle(replaced) == "unknown"
    (files.root / "f").mkdir()
    assert files.settle(replaced) == "unknown"
    tool, kwargs, _ = replaced
    for found in (None, {}, {"path": "f"}, {"path": 5, "new_sha256": "x"}, {"path": "\0", "new_sha256": "x"}, "x"):
        assert files.settle((tool, kwargs, found)) == "unknown"


def test_b67_encoding_mark_and_line_ends_of_the_file_stay(files: Files) -> None:
    cases = {
        "dos": (b"a\r\nb\r\n", "x\ny\n", b"x\r\ny\r\n"),
        "dos2": (b"a\r\nb\r\n", "x\r\ny\r\n", b"x\r\ny\r\n"),
        "mark": (b"\xef\xbb\xbfa\n", "x\n", b"\xef\xbb\xbfx\n"),
        "mark2": (b"\xef\xbb\xbfa\n", "\ufeffx\n", b"\xef\xbb\xbfx\n"),
        "wide": (b"\xff\xfea\0\r\0\n\0", "é\n", b"\xff\xfe\xe9\0\r\0\n\0"),
        "latin": (b"caf\xe9\n", "th\u00e9\n", b"th\xe9\n"),
        "mixed": (b"a\r\nb\n", "x\ny\n", b"x\ny\n"),
        "unix": (b"a\n", "x\r\n", b"x\r\n"),
        "none": (b"a", "x", b"x"),
    }
    for name, (old, content, new) in cases.items():
        (files.root / name).write_bytes(old)
        files.do("read", path=name)
        files.do("write", path=name, content=content)
        assert (files.root / name).read_bytes() == new, name


def test_b67_what_cannot_be_encoded_changes_nothing(files: Files) -> None:
    (files.root / "f").write_bytes(b"caf\xe9\n")
    files.do("read", path="f")
    with pytest.raises(ToolError, match="cp1252, which has no '☃'"):
        files.prepare("write", path="f", content="snow ☃\n")
    with pytest.raises(ToolError, match="cp1252, which has no '☃'"):
        files.prepare("edit", path="f", old="caf", new="☃")
    with pytest.raises(ToolError, match="nothing was written"):
        _new_bytes("new", "\ud800", False, None, files.seen)
    assert (files.root / "f").read_bytes() == b"caf\xe9\n"


B68 = "1\tdef f():\n2\t    return 1\n[Showing lines 1-2 of 60. Use offset=3]\n"


@pytest.mark.parametrize(
    "content",
    [
        B68,
        "text\n[Showing lines 1-2 of 60. Use offset=3 to read on.]\n",
        "[Only the first 2000 characters are shown of lines 5.]",
        "1\tdef f():\n2\t    return 1\n",
        "     1→a\n     2→b\n     3→c\n",
        "src/a.py:3: def f():\nsrc/a.py:7: return\n",
    ],
)
def test_b68_what_a_reader_added_is_not_written(files: Files, content: str) -> None:
    with pytest.raises(ToolError, match="which a reader adds"):
        files.prepare("write", path="f", content=content)
    assert not (files.root / "f").exists()
    files.do("write", path="f", content=content, verbatim=True)
    assert (files.root / "f").read_text() == content


@pytest.mark.parametrize(
    "content",
    [
        "",
        "1\tone\n",
        "one\n2\ttwo\nthree\nfour\n",
        '{\n    1: "a",\n    2: "b",\n}\n',
        "3\tc\n1\ta\n2\tb\n",
        "Showing lines 1-2 of 60\n",
        "1. one\n2. two\n",
        "12:30:00: started\n12:29:00: not rising\n",
        "12:30: started\n12:31: rising, but no path\n",
    ],
)
def test_text_that_only_looks_a_little_like_it_is_written(content: str) -> None:
    assert reader_marks(content) == ""


def test_what_read_shows_is_what_write_refuses(files: Files) -> None:
    """The reader's own notice, whatever it says today, is caught when it comes back."""
    (files.root / "f").write_text("".join(f"line {n}\n" for n in range(60)) + "x" * 3000)
    for options in ({"limit": 5}, {"offset": 55}):
        content = files.do("read", path="f", **options).content
        assert isinstance(content, tuple)
        for notice in content[1].text.split("\n"):  # type: ignore[union-attr]
            with pytest.raises(ToolError, match="which a reader adds"):
                files.prepare("write", path="f", content="line\n" + notice)


@pytest.mark.parametrize(
    "row",
    [
        "[Control characters in this text are not shown.]",
        "[Some bytes are not valid UTF-8; they are shown as \ufffd.]",
        "[The file is empty.]",
        "[The 2 lines shown are blank.]",
        "[1,234 lines (56,789 bytes) left out here, of 2,000 lines (99,999 bytes); no file keeps it]",
        "[… 12345 characters left out (max_result is 100000); all of it is in outputs/x.txt …]",
        "begin […1,234 characters of this line left out…] end",
    ],
)
def test_b68_what_bounds_an_output_is_not_written_in_place_of_the_rest(files: Files, row: str) -> None:
    with pytest.raises(ToolError, match="which a reader adds"):
        files.prepare("write", path="f", content=f"one\n{row}\ntwo\n")
    files.do("write", path="f", content=f"one\n{row}\ntwo\n", verbatim=True)


def test_what_show_leaves_out_is_what_write_refuses(files: Files) -> None:
    for output in (b"line\n" * 20_000, b"x" * 5_000):
        shown = show_pieces(output[:30_000], output[-30_000:], len(output), 20_000, lambda: "no file keeps it")
        if len(output) == 5_000:
            shown = show_pieces(output, b"", len(output), 1, lambda: "no file keeps it")
        with pytest.raises(ToolError, match="which a reader adds"):
            files.prepare("write", path="f", content=shown)


def test_a_file_that_was_read_in_part_is_not_replaced_whole(files: Files) -> None:
    (files.root / "f").write_text("".join(f"line {n}\n" for n in range(1, 31)))

    def refused(offset: int) -> None:
        with pytest.raises(ToolError, match=f"only a part of f was read.* from offset={offset} on"):
            files.prepare("write", path="f", content="short\n")

    files.do("read", path="f", offset=21)
    refused(1)
    files.do("read", path="f", limit=10)
    refused(11)
    files.do("edit", path="f", old="line 30", new="line thirty")
    refused(11)
    files.resume()
    refused(11)
    files.do("read", path="f", offset=11)
    files.do("read", path="f", limit=2)  # what was shown once is known
    files.do("write", path="f", content="short\n")
    (files.root / "f").write_text("other\n" * 30)
    files.do("read", path="f", limit=2)
    refused(3)


def test_a_path_that_ends_in_a_slash_makes_no_file(files: Files) -> None:
    (files.root / "f").write_text("x")
    for path in ("new/", "f/", "new/er/"):
        with pytest.raises(ToolError, match="names a folder"):
            files.prepare("write", path=path, content="y")
    assert os.listdir(files.root) == ["f"]


@pytest.mark.parametrize("path", ["~/x", "~", "~root/x", "$HOME/x", "${HOME}/x"])
def test_no_folder_is_called_like_a_home_that_was_not_expanded(files: Files, path: str) -> None:
    with pytest.raises(ToolError, match="not expanded here"):
        files.prepare("write", path=path, content="y")
    assert os.listdir(files.root) == []
    files.do("write", path="~x", content="y")
    files.do("edit", path="./~x", old="y", new="z")
    files.do("write", path="$HOMER/x", content="y")


def test_a_write_of_more_than_the_limit_is_refused(files: Files) -> None:
    with pytest.raises(ToolError, match="MAX_FILE_BYTES"):
        files.do("write", path="f", content="x" * (64 * 1024 * 1024 + 1))
    assert not (files.root / "f").exists()


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", "out/x", "../x", "~/x", "a\0b", "dir", "", "."])
def test_paths_that_must_not_be_written_are_refused_before_anyone_is_asked(files: Files, path: str) -> None:
    (files.root / "dir").mkdir()
    (files.root / "out").symlink_to("/tmp")
    for name, arguments in (("write", {"content": "x"}), ("edit", {"old": "a", "new": "b"})):
        with pytest.raises(ToolError):
            files.prepare(name, path=path, **arguments)
    assert set(os.listdir(files.root)) == {"dir", "out"}


def test_a_name_that_is_not_utf8_harms_nothing(files: Files) -> None:
    (files.root / os.fsdecode(b"caf\xe9")).mkdir()
    (files.root / "link").symlink_to(os.fsdecode(b"caf\xe9"))
    output = files.do("write", path="link/f", content="x")
    json.dumps(output.details).encode()
    assert (files.root / "link" / "f").read_text() == "x"
    files.resume()
    with pytest.raises(ToolError, match="not read yet"):
        files.do("write", path="link/f", content="y")


def test_seen_takes_only_details_it_knows() -> None:
    seen = Seen()
    for details in (None, 5, [], {}, {"path": "f"}, {"path": 1, "sha256": "x"}, {"path": "f", "sha256": None}):
        seen.restore(details)
    assert seen.get("f") is None
    seen.wrote("f", "a", "b")
    seen.wrote("f", "b", "a")
    assert seen.is_own("f", "b", "a")
    assert not seen.is_own("f", "b", "elsewhere")
    assert seen.get("f") is None
