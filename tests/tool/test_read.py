"""`read`, `list` and `grep`: what they show, what they say about what they do not show, and what they refuse."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchstep.core.message import Image, Text
from latchstep.errors import ToolError
from latchstep.tool import grep as grep_module
from latchstep.tool.base import Output, Tool
from latchstep.tool.define import render
from latchstep.tool.grep import grep_tool
from latchstep.tool.list import MAX_ROWS, list_tool
from latchstep.tool.picture import pixels_of
from latchstep.tool.preset import file_tools
from latchstep.tool.read import MAX_CHARACTERS, MAX_IMAGE_BYTES, MAX_LINE, read_tool
from latchstep.tool.seen import Seen
from latchstep.tool.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    root = tmp_path / "ws"
    root.mkdir()
    with Workspace(root) as opened:
        yield opened


def call(tool: Tool, **arguments: Any) -> Output:
    return render(tool.function(**tool.validate(arguments)))


def text_of(output: Output) -> str:
    if isinstance(output.content, str):
        return output.content
    return "\n".join(part.text for part in output.content if isinstance(part, Text))


def test_the_tools_and_their_traits(workspace: Workspace) -> None:
    tools = file_tools(workspace, Seen())
    assert [(t.name, t.effect, t.replay) for t in tools] == [
        ("read", "read", "safe"),
        ("list", "read", "safe"),
        ("find", "read", "safe"),
        ("grep", "read", "safe"),
        ("write", "write", "never"),
        ("edit", "write", "never"),
        ("apply_patch", "write", "never"),
    ]
    for each in tools:
        assert each.description
        assert all("description" in part or part["type"] == "boolean" for part in each.schema["properties"].values())
        assert (each.settle is not None) == (each.prepare is not None) == (each.effect == "write")


# read


def test_read_shows_the_text_as_it_is(workspace: Workspace) -> None:
    data = b"\tdef f():\r\n\n    return 1\n"
    (workspace.root / "f.py").write_bytes(data)
    seen = Seen()
    output = call(read_tool(workspace, seen), path="f.py")
    assert output.content == "\tdef f():\n\n    return 1\n"
    digest = hashlib.sha256(data).hexdigest()
    assert output.details == {"path": "f.py", "sha256": digest, "lines": 3, "from": 1, "to": 3}
    assert seen.get("f.py") == digest


def test_read_shows_ranges_with_a_notice_of_its_own(workspace: Workspace) -> None:
    (workspace.root / "f").write_text("".join(f"line {n}\n" for n in range(1, 61)))
    read = read_tool(workspace, Seen())
    assert call(read, path="f", limit=2).content == (
        Text("line 1\nline 2"),
        Text("[Showing lines 1-2 of 60. Use offset=3 to read on.]"),
    )
    assert call(read, path="f", offset=59).content == (Text("line 59\nline 60\n"), Text("[Showing lines 59-60 of 60.]"))
    with pytest.raises(ToolError, match=r"has 60 lines; offset 61"):
        call(read, path="f", offset=61)
    for wrong in ({"offset": 0}, {"limit": 0}, {"limit": 5001}, {"offset": -1}):
        with pytest.raises(ValueError, match="expected integer"):
            call(read, path="f", **wrong)


def test_read_is_bounded_in_lines_and_characters(workspace: Workspace) -> None:
    (workspace.root / "long").write_text("x" * 1_000_000 + "\nshort\n")
    read = read_tool(workspace, Seen())
    output = call(read, path="long")
    assert isinstance(output.content, tuple)
    assert output.content[0] == Text("x" * MAX_LINE + "\nshort\n")
    assert f"Only the first {MAX_LINE} characters are shown of lines 1." in text_of(output)
    (workspace.root / "many").write_text("y" * 99 + "\n" + "z\n" * 300_000)
    output = call(read, path="many", limit=5000)
    assert len(text_of(output)) < MAX_CHARACTERS + 200
    assert output.details["to"] == 5000
    (workspace.root / "wide").write_text(("w" * 999 + "\n") * 200)
    output = call(read, path="wide")
    assert output.details["to"] == MAX_CHARACTERS // 1000
    assert "Use offset=51 to read on." in text_of(output)


def test_read_says_what_cannot_be_shown(workspace: Workspace) -> None:
    root = workspace.root
    (root / "empty").write_text("")
    (root / "blank").write_text("\n \n")
    (root / "controls").write_text("a\x1b[31mb\x0cc\n")
    (root / "damaged").write_bytes("é".encode() + b"\xff\n")
    (root / "binary").write_bytes(bytes(100))
    read = read_tool(workspace, Seen())
    assert call(read, path="empty").content == "[The file is empty.]"
    assert call(read, path="blank").content == "\n \n[The 2 lines shown are blank.]"
    assert call(read, path="controls").content == (
        Text("abc\n"),
        Text("[Control characters in this text are not shown.]"),
    )
    assert "not valid UTF-8" in text_of(call(read, path="damaged"))
    with pytest.raises(ToolError, match=r"binary is binary \(100 B\)"):
        call(read, path="binary")


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")


JPEG = b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0\0\x08\x08\0\2\0\1\1\xff\xda\0\2abc\xff\xd9"
WEBP = base64.b64decode("UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA")
WEBP_L = base64.b64decode("UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA==")
WEBP_X = base64.b64decode(
    "UklGRkoAAABXRUJQVlA4WAoAAAAQAAAAAAAAAAAAQUxQSAwAAAARBxAR/Q9ERP8DAABWUDggGAAAABQBAJ0BKgEAAQAAAP4AAA3AAP7mtQAAAA=="
)
GIF = b"GIF89a\1\0\2\0\0\0\0,\0\0\0\0\1\0\2\0\0\2\2L\1\0;"
PICTURES = [
    (png(3, 4), "image/png", "3 x 4"),
    (JPEG, "image/jpeg", "1 x 2"),
    (GIF, "image/gif", "1 x 2"),
    (WEBP, "image/webp", "1 x 1"),
    (WEBP_L, "image/webp", "1 x 1"),
    (WEBP_X, "image/webp", "1 x 1"),
]


@pytest.mark.parametrize(("data", "media_type", "pixels"), PICTURES)
def test_read_gives_pictures_as_pictures(workspace: Workspace, data: bytes, media_type: str, pixels: str) -> None:
    (workspace.root / "picture").write_bytes(data)
    output = call(read_tool(workspace, Seen()), path="picture")
    assert isinstance(output.content, tuple)
    assert output.content[0] == Text(f"[picture: {media_type}, {pixels} pixels, {len(data)} B]")
    assert output.content[1] == Image(media_type, base64.b64encode(data).decode())
    assert output.details == {"path": "picture", "sha256": hashlib.sha256(data).hexdigest()}
    with (workspace.root / "picture").open("ab") as file:
        file.truncate(MAX_IMAGE_BYTES + 1)
    with pytest.raises(ToolError, match="MAX_IMAGE_BYTES"):
        call(read_tool(workspace, Seen()), path="picture")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        *((data[:end], "broken picture") for data, _, _ in PICTURES for end in (12, len(data) - 3)),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "broken picture"),
        (b"\xff\xd8\xff\xe0" + bytes(50), "broken picture"),
        (png(0, 4), "broken picture"),
        (png(8001, 1), r"8001 x 1 pixels; the limit is 8000 \(MAX_SIDE\)"),
    ],
)
def test_a_picture_that_every_later_request_would_fail_by_is_not_shown(
    workspace: Workspace, data: bytes, words: str
) -> None:
    (workspace.root / "picture").write_bytes(data)
    with pytest.raises(ToolError, match=words):
        call(read_tool(workspace, Seen()), path="picture")


def test_what_is_called_a_picture_and_is_text_is_read_as_text(workspace: Workspace) -> None:
    (workspace.root / "x.svg").write_text("<svg/>\n")
    (workspace.root / "x.png").write_text("hello\n")
    read = read_tool(workspace, Seen())
    assert call(read, path="x.svg").content == "<svg/>\n"
    assert call(read, path="x.png").content == "hello\n"


@given(st.binary(max_size=60), st.sampled_from(PICTURES), st.integers(0, 200))
def test_any_bytes_are_a_picture_or_none(data: bytes, picture: tuple[bytes, str, str], at: int) -> None:
    whole, media_type, _ = picture
    for each in (whole[:12] + data, whole[:at] + data + whole[at + 1 :]):
        found = pixels_of(each, media_type)
        assert found is None or min(found) > 0


def test_read_points_to_what_was_meant(workspace: Workspace) -> None:
    (workspace.root / "src").mkdir()
    (workspace.root / "src" / "Main.py").write_text("x")
    read = read_tool(workspace, Seen())
    with pytest.raises(ToolError, match=r"src/man\.py does not exist\. Did you mean src/Main\.py\?"):
        call(read, path="src/man.py")
    with pytest.raises(ToolError, match="nor does its folder"):
        call(read, path="lib/main.py")
    with pytest.raises(ToolError, match="src is a folder; use list"):
        call(read, path="src")
    with pytest.raises(ToolError, match="leads out"):
        call(read, path="../x")


# list


def make_tree(root: Path) -> None:
    for path in (
        "src/a.py",
        "src/deep/er/b.py",
        "docs/x.md",
        "build/out.o",
        "build/x.log",
        "src/skip.log",
        ".git/HEAD",
        "z",
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("needle " + path + "\n")
    (root / ".gitignore").write_text("build/\n*.log\n")
    (root / "src" / ".gitignore").write_text("!skip.log\n/deep/er/b.py\n")
    (root / "out").symlink_to("/etc")
    (root / "alias").symlink_to("src")


def test_list_shows_paths_in_order_and_counts_what_it_leaves_out(workspace: Workspace) -> None:
    make_tree(workspace.root)
    assert str(call(list_tool(workspace)).content).split("\n") == [
        ".gitignore  (13 B)",
        "alias -> src",
        "docs/",
        "docs/x.md  (17 B)",
        "out -> /etc",
        "src/",
        "src/.gitignore  (24 B)",
        "src/a.py  (16 B)",
        "src/deep/",
        "src/skip.log  (20 B)",
        "z  (9 B)",
        "[6 files, 3 folders, 2 links, 2 levels deep; 1 left out by .gitignore]",
    ]
    assert "src/deep/er/\nsrc/skip.log" in text_of(call(list_tool(workspace), path="src", depth=5))
    assert "src/a.py" in text_of(call(list_tool(workspace), path="alias"))
    assert str(call(list_tool(workspace), path="build").content).startswith(
        "build/out.o  (19 B)\nbuild/x.log  (19 B)\n["
    )


def test_list_does_not_leave_the_workspace(workspace: Workspace) -> None:
    make_tree(workspace.root)
    for path in ("out", "..", "/etc", "out/ssh"):
        with pytest.raises(ToolError, match=r"leads out|outside"):
            call(list_tool(workspace), path=path)
    with pytest.raises(ToolError, match="z is a file; use read"):
        call(list_tool(workspace), path="z")
    with pytest.raises(ToolError, match="Did you mean docs"):
        call(list_tool(workspace), path="doc")
    assert "ssh" not in text_of(call(list_tool(workspace), depth=5))


def test_list_is_bounded_and_names_cannot_forge_rows(workspace: Workspace) -> None:
    (workspace.root / "a\n[0 files]\x1b[2J").write_text("")
    for number in range(MAX_ROWS + 10):
        (workspace.root / f"f{number:05}").touch()
    text = text_of(call(list_tool(workspace)))
    assert text.startswith("a\\n[0 files]\\x1b[2J  (0 B)\n")
    assert len(text.split("\n")) == MAX_ROWS + 1
    assert "11 further entries are not shown (MAX_ROWS 1000)" in text


def test_list_of_an_empty_folder_says_so(workspace: Workspace) -> None:
    assert call(list_tool(workspace), depth=1).content == "[empty folder, 1 level deep]"


# grep


def test_grep_gives_path_line_and_text(workspace: Workspace) -> None:
    make_tree(workspace.root)
    grep = grep_tool(workspace)
    output = call(grep, pattern="needle")
    assert str(output.content).split("\n") == [
        "docs/x.md:1: needle docs/x.md",
        "src/a.py:1: needle src/a.py",
        "src/skip.log:1: needle src/skip.log",
        "z:1: needle z",
    ]
    assert output.details == {"matches": 4, "files": 4}
    assert call(grep, pattern="NEEDLE", ignore_case=True, glob="*.py").content == "src/a.py:1: needle src/a.py"
    assert call(grep, pattern="needle", path="src", glob="*.{md,log}").content == "src/skip.log:1: needle src/skip.log"
    assert call(grep, pattern="needle", path="z").content == "z:1: needle z"
    assert call(grep, pattern="nothing").content == "[no line matches in 6 files]"
    with pytest.raises(ToolError, match="does not exist"):
        call(grep, pattern="x", path="nowhere")
    with pytest.raises(ToolError, match="not a regular expression"):
        call(grep, pattern="(")


def test_grep_shows_context_once_and_separates_groups(workspace: Workspace) -> None:
    (workspace.root / "f").write_text("".join(f"{n} {'hit' if n in (2, 3, 9) else ''}\n" for n in range(1, 11)))
    (workspace.root / "g").write_text("hit")
    assert str(call(grep_tool(workspace), pattern="hit", context=1).content).split("\n") == [
        "f-1- 1 ",
        "f:2: 2 hit",
        "f:3: 3 hit",
        "f-4- 4 ",
        "--",
        "f-8- 8 ",
        "f:9: 9 hit",
        "f-10- 10 ",
        "--",
        "g:1: hit",
    ]


def test_grep_is_bounded_and_says_so(workspace: Workspace) -> None:
    root = workspace.root
    (root / "many").write_text("hit\n" * 500)
    (root / "long").write_text("a" * 100_000 + "hit" + "b" * 100_000 + "\n" + "x" * 4000 + "hit" + "y" * 900)
    (root / "binary").write_bytes(b"hit\0" * 100)
    os.mkfifo(root / "fifo")
    grep = grep_tool(workspace)
    text = text_of(call(grep, pattern="hit", limit=20))
    assert text.count("many:") == 20 - text.count("long:")
    assert "there are more than 20 matching lines" in text
    text = text_of(call(grep, pattern="hit", path="long"))
    assert "1 lines over 5000 characters were not searched" in text
    assert "long:2: …" in text
    assert "hit" in text.split("\n")[0]
    assert len(text) < 500
    assert call(grep, pattern="hit", glob="{binary,fifo}").content == "[no line matches in 0 files]"
    (root / "wide").write_text(("w" * 290 + "\n") * 500)
    text = text_of(call(grep, pattern="w+", path="wide", limit=1000))
    assert len(text) < grep_module.MAX_CHARACTERS + 1000
    assert "MAX_CHARACTERS" in text


def test_grep_with_a_hostile_pattern_does_not_hang(workspace: Workspace) -> None:
    (workspace.root / "f").write_text(("a" * 3000 + "!\n") * 10)
    grep = grep_tool(workspace)
    start = time.process_time()
    with pytest.raises(ToolError, match="exponential"):
        call(grep, pattern="(a+)+$")
    text = text_of(call(grep, pattern=".*a.*a.*$x"))
    assert "10 lines over" in text
    assert "a pattern with fewer repeats reaches longer lines" in text
    assert time.process_time() - start < 5


def test_grep_stops_at_its_deadline_and_says_so(workspace: Workspace) -> None:
    (workspace.root / "f").write_text("hit\n" * 1000)
    search = grep_module.Search(*grep_module.compile_pattern("hit", False), context=0, limit=10**6, deadline=0.0)
    grep_module.search_file(workspace, "f", search)
    assert search.matches < 1000
    assert "MAX_SECONDS" in search.end


def test_grep_reads_every_encoding_and_line_end(workspace: Workspace) -> None:
    (workspace.root / "utf16").write_bytes(b"\xff\xfe" + "eins\r\nzwei ü\r\n".encode("utf-16-le"))
    (workspace.root / "latin").write_bytes(b"eins\rzwei \xfc\r")
    (workspace.root / "bom").write_bytes(b"\xef\xbb\xbfzwei \xc3\xbc")
    text = text_of(call(grep_tool(workspace), pattern="^zwei ü$"))
    assert text.split("\n") == ["bom:1: zwei ü", "latin:2: zwei ü", "utf16:2: zwei ü"]


def test_a_deep_tree_is_walked_to_its_bound(workspace: Workspace) -> None:
    folder = workspace.root
    for _ in range(80):
        folder = folder / "d"
        folder.mkdir()
        (folder / "f").write_text("hit\n")
    text = text_of(call(grep_tool(workspace), pattern="hit", limit=1000))
    assert text.count("hit") == 63
    assert "too deep" in text
