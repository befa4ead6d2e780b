"""Sessions under one root: made, listed, found, forked, verified, salvaged."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from latchstep.core.event import RunStarted, SessionOpened, ToolFinished
from latchstep.errors import JournalDamaged, JournalError, JournalLocked, SessionError
from latchstep.journal.blob import read_blob
from latchstep.journal.file import FileJournal
from latchstep.journal.listing import HEAD_BYTES, MAX_PROMPT, TAIL_BYTES
from latchstep.journal.reader import read_journal
from latchstep.journal.store import Store, default_root
from latchstep.testing.disk import Died, SimDisk
from tests.journal.journal_kit import HEADER, CountingDisk, clock, finished, prompt, raw_journal, snapshot, sync


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "root")


def lines_of(directory: Path) -> list[bytes]:
    return (directory / "journal.jsonl").read_bytes().splitlines(keepends=True)


def spoil(directory: Path, line: int) -> None:
    lines = lines_of(directory)
    lines[line] = lines[line].replace(b'"type"', b'"tYpe"')
    (directory / "journal.jsonl").write_bytes(b"".join(lines))


def test_the_root(tmp_path: Path) -> None:
    saved = {name: os.environ.pop(name, None) for name in ("LATCHSTEP_HOME", "XDG_STATE_HOME")}
    try:
        assert default_root() == Path.home() / ".local" / "state" / "latchstep"
        os.environ["XDG_STATE_HOME"] = "relative/is/ignored"
        assert default_root() == Path.home() / ".local" / "state" / "latchstep"
        os.environ["XDG_STATE_HOME"] = str(tmp_path)
        assert default_root() == tmp_path / "latchstep"
        os.environ["LATCHSTEP_HOME"] = str(tmp_path / "own")
        assert default_root() == tmp_path / "own"
    finally:
        for name, value in saved.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def test_created_and_opened(store: Store, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "link").symlink_to("work")
    with store.create("s1", time=7.5, workspace=str(tmp_path / "link"), program="p 1") as journal:
        assert journal.directory == store.sessions / "s1" == store.directory("s1")
        with pytest.raises(JournalLocked):
            store.open("s1")
    header = json.loads(lines_of(store.directory("s1"))[0])
    assert (header["session_id"], header["time"], header["program"]) == ("s1", 7.5, "p 1")
    assert header["workspace"] == str((tmp_path / "work").resolve())
    store.open("s1").close()
    with pytest.raises(SessionError, match="already"):
        store.create("s1", time=1.0)


@pytest.mark.parametrize("bad", ["", ".", "..", ".part", "../x", "a/b", "a\0b", "a b", "é", "x" * 101, "-rf"])
def test_ids_are_names_of_folders_and_nothing_else(store: Store, bad: str) -> None:
    with pytest.raises(SessionError):
        store.create(bad, time=1.0)
    with pytest.raises(SessionError):
        store.open(bad)
    with pytest.raises(SessionError):
        store.find(bad)
    assert not store.root.exists()


def test_found_by_unique_prefix(store: Store) -> None:
    for name in ("abc1", "abc2", "abd", "abd-long", *(f"many{i:02}" for i in range(15))):
        store.create(name, time=1.0).close()
    assert store.find("abc1") == "abc1"
    assert store.find("abd") == "abd"  # exact beats longer ones
    assert store.find("abd-") == "abd-long"
    with pytest.raises(SessionError, match="2 sessions begin with 'abc': abc2, abc1"):
        store.find("abc")
    with pytest.raises(SessionError, match=r"15 sessions.*many05, …"):
        store.find("many")
    with pytest.raises(SessionError, match="no session begins with 'z'"):
        store.find("z")


class TestList:
    def test_newest_first_with_what_a_person_needs(self, store: Store, tmp_path: Path) -> None:
        with store.create("old", time=10.0, workspace=str(tmp_path)) as journal:
            journal.append([SessionOpened(epoch=1, time=10.0), prompt("do\nit " + "x" * 500, time=11.0)])
            journal.append([finished(time=12.0), SessionOpened(epoch=2, time=13.0)])
        with store.create("new", time=20.0, workspace=str(tmp_path / "other")) as journal:
            journal.append([prompt("first", time=21.0), prompt("second", time=22.0)])
        store.create("empty", time=15.0).close()
        new, empty, old = store.list()
        assert (new.id, new.created, new.last, new.prompt, new.status) == ("new", 20.0, 22.0, "first", "unfinished")
        assert (empty.id, empty.last, empty.prompt, empty.status, empty.damaged) == ("empty", 15.0, "", "empty", "")
        assert (old.id, old.last, old.status) == ("old", 13.0, "completed")
        assert old.prompt == ("do\nit " + "x" * 500)[:MAX_PROMPT]
        assert old.directory == str(store.directory("old"))
        assert store.last(str(tmp_path)) == "old"
        assert store.last(str(tmp_path / "." / "nowhere" / "..")) == "old"
        assert store.last("/nowhere") is None

    def test_reads_a_bounded_part_of_each(self, tmp_path: Path) -> None:
        disk = CountingDisk()
        store = Store(tmp_path, disk=disk)
        with store.create("s", time=1.0) as journal:
            journal.append([prompt("hello")])
            for i in range(100):
                journal.append([clock(i, 10_000)])
            journal.append([finished()])
        disk.bytes_read = 0
        [entry] = store.list()
        assert (entry.prompt, entry.status) == ("hello", "completed")
        assert disk.bytes_read < 100_000

    @pytest.mark.parametrize("size", [HEAD_BYTES - 300, HEAD_BYTES, 60_000, 400_000])
    def test_long_prompts_and_last_lines(self, store: Store, size: int) -> None:
        with store.create("s", time=1.0) as journal:
            journal.append([prompt("p" * size), clock(1), finished(9.0, "f" * size)])
        [entry] = store.list()
        assert (entry.prompt, entry.status, entry.last) == ("p" * MAX_PROMPT, "completed", 9.0)

    def test_what_is_too_long_is_left_out_not_guessed(self, store: Store) -> None:
        with store.create("s", time=1.0) as journal:
            journal.append([prompt("p" * 2_000_000), finished(9.0, "f" * 2_000_000)])
        [entry] = store.list()
        assert (entry.prompt, entry.status, entry.damaged) == ("", "unknown", "")

    def test_damage_is_said_and_never_raised(self, store: Store) -> None:
        for name in ("fine", "head", "tail", "torn", "group", "new", "void", "moved"):
            with store.create(name, time=1.0, workspace=f"/{name}") as journal:
                sync(journal)
                journal.append([prompt("hi"), finished()])
                sync(journal)
                journal.append([SessionOpened(epoch=2)])
        spoil(store.directory("head"), 0)
        spoil(store.directory("tail"), 2)
        path = store.directory("tail") / "journal.jsonl"
        path.write_bytes(path.read_bytes() + b"torn\n")  # so that its end is looked at
        path = store.directory("torn") / "journal.jsonl"
        path.write_bytes(path.read_bytes() + b'{"n":4,"b"')
        path = store.directory("group") / "journal.jsonl"
        path.write_bytes(path.read_bytes() + b"\0" * 30 + b"\n" + b"\0" * TAIL_BYTES + b"\n")
        path = store.directory("new") / "journal.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"session_id"', b'"format":9,"session_id"', 1))
        (store.directory("void") / "journal.jsonl").unlink()
        store.directory("moved").rename(store.sessions / "moved-away")
        (store.sessions / "stray-file").write_bytes(b"")
        (store.sessions / ".hidden").mkdir()
        entries = {entry.id: entry for entry in store.list()}
        assert set(entries) == {"fine", "head", "tail", "torn", "group", "new", "void", "moved-away", "stray-file"}
        for name in ("fine", "torn", "group"):
            assert (entries[name].damaged, entries[name].status) == ("", "completed")
        assert "damaged at line 0" in entries["head"].damaged
        assert "damaged at line 2" in entries["tail"].damaged
        assert (entries["tail"].workspace, store.last("/tail")) == ("/tail", "tail")
        assert "format 9" in entries["new"].damaged
        assert "holds no session" in entries["void"].damaged
        assert "belongs to moved" in entries["moved-away"].damaged
        assert entries["stray-file"].damaged

    def test_a_session_of_a_later_version_is_still_of_its_folder(self, store: Store) -> None:
        for time, name in ((1.0, "old"), (2.0, "new")):
            with store.create(name, time=time, workspace="/w") as journal:
                sync(journal)
        path = store.directory("new") / "journal.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"session_id"', b'"format":9,"session_id"', 1))
        assert store.last("/w") == "new", "opening it says what is wrong; a silent turn to an older one would not"
        (entry,) = [entry for entry in store.list() if entry.id == "new"]
        assert (entry.workspace, entry.created, entry.status) == ("/w", 2.0, "newer")
        path.write_bytes(path.read_bytes().replace(b'"time":2.0', b'"time":"noon"', 1))
        (entry,) = [entry for entry in store.list() if entry.id == "new"]
        assert (entry.workspace, entry.status) == ("", "newer")

    def test_a_copied_folder_is_no_second_session_of_the_same_id(self, store: Store) -> None:
        with store.create("one", time=1.0) as journal:
            journal.append([prompt("hi")])
            sync(journal)
        shutil.copytree(store.directory("one"), store.sessions / "two")
        with pytest.raises(SessionError, match=r"belongs to one.*latchstep fork --session two"):
            store.open("two")
        store.fork("two", 1, "three", time=2.0)
        assert store.open("three").head == 1
        store.open("one").close()


def session_with_everything(store: Store) -> tuple[Path, str, str]:
    with store.create("src", time=1.0, workspace="/w", program="p") as journal:
        sync(journal)
        used, unused = journal.put_blob(b"used"), journal.put_blob(b"unused")
        (journal.outputs() / "out-1.txt").write_bytes(b"full output")
        (journal.outputs() / "out-2.txt").write_bytes(b"named later")
        journal.append([prompt(f"see {used}"), clock(2)])
        sync(journal)
        journal.append([ToolFinished(call_id="c", name="t", outcome="ok", content="cut", output="out-1.txt")])
        journal.append([snapshot(2), clock(5)])
        sync(journal)
        journal.append([ToolFinished(call_id="d", name="t", outcome="ok", content=unused, output="out-2.txt")])
    return store.directory("src"), used, unused


class TestFork:
    def test_every_line_can_be_forked_at(self, store: Store) -> None:
        source, used, unused = session_with_everything(store)
        before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
        events = list(read_journal(source))
        for seq in range(len(events)):
            made = store.fork("src", seq, f"fork{seq}", time=50.0)
            found = list(read_journal(made))
            assert found[1:] == events[1 : seq + 1]
            header = json.loads(lines_of(made)[0])
            assert (header["session_id"], header["parent"], header["parent_seq"]) == (f"fork{seq}", "src", seq)
            assert (header["workspace"], header["program"], header["time"]) == ("/w", "p", 50.0)
            with store.open(f"fork{seq}") as journal:
                assert journal.head == seq
                assert journal.recovered is None
                journal.append([clock(1)])
            assert store.verify(f"fork{seq}").sound
        assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before
        assert [path.name for path in (store.sessions / "fork5" / "blobs").iterdir()] == [used]
        assert [path.name for path in (store.sessions / "fork5" / "outputs").iterdir()] == ["out-1.txt"]
        assert read_blob(store.sessions / "fork6", unused) == b"unused"
        assert not (store.sessions / "fork0" / "blobs").exists()
        for bad in (-1, 7):
            with pytest.raises(SessionError, match="there is no line"):
                store.fork("src", bad, "no", time=1.0)
        with pytest.raises(SessionError, match="already"):
            store.fork("src", 1, "fork1", time=1.0)

    def test_bytes_are_copied_not_understood(self, store: Store) -> None:
        """Unknown types, unknown fields, odd spacing and number forms come through; of the header too."""
        home = store.sessions / "odd"
        store.sessions.mkdir(parents=True)
        bodies = (
            b'"type":"moon.landed","x":[1.00,  2e0],"x":2',
            b'"type":"clock.passed","limit":"\\u00e9","seconds":1,"new":{"b":1}',
        )
        raw_journal(home, b'"type":"session.created","session_id":"odd","git":"abc","later":{"k":[1]}', *bodies)
        made = store.fork("odd", 2, "copy", time=9.0)
        lines = lines_of(made)
        for line, content in zip(lines[1:], bodies, strict=True):
            assert content in line
        header = json.loads(lines[0])
        assert (header["git"], header["later"], header["session_id"]) == ("abc", {"k": [1]}, "copy")

    def test_the_whole_source_is_verified_first(self, store: Store) -> None:
        source, _, _ = session_with_everything(store)
        spoil(source, 4)
        with pytest.raises(JournalDamaged, match="line 4"):
            store.fork("src", 1, "fork", time=1.0)
        assert [path.name for path in store.sessions.iterdir()] == ["src"]

    def test_a_damaged_blob_is_said_and_nothing_is_left(self, store: Store) -> None:
        source, used, _ = session_with_everything(store)
        (source / "blobs" / used).write_bytes(b"rot")
        with pytest.raises(JournalError, match="damaged"):
            store.fork("src", 3, "fork", time=1.0)
        assert [path.name for path in store.sessions.iterdir()] == ["src"]
        assert store.verify("src").blobs == (used,)

    def test_while_the_source_is_written(self, store: Store) -> None:
        session_with_everything(store)
        with store.open("src") as journal:
            journal.append([clock(7)])
            with (store.directory("src") / "journal.jsonl").open("ab") as file:
                file.write(b'{"n":8,')
            assert len(list(read_journal(store.fork("src", 7, "fork", time=1.0)))) == 8

    @pytest.mark.parametrize("how", ["die", "full"])
    def test_a_fork_is_there_whole_or_not_at_all(self, how: str) -> None:
        for after in range(40):
            disk = SimDisk()
            store = Store(Path("/sim/root"), disk=disk)
            with store.create("src", time=1.0) as journal:
                journal.append([prompt(journal.put_blob(b"x" * 700)), clock(2)])
                sync(journal)
            disk.fail(how, after=after)  # type: ignore[arg-type]
            done = False
            try:
                store.fork("src", 2, "fork", time=1.0)
                done = True
            except (Died, JournalError):
                pass
            disk.power_cut(random.Random(after).randrange)
            if "fork" in disk.names(store.sessions):
                assert store.verify("fork").lines == 3
                assert store.verify("fork").sound
            else:
                assert not done
                store.fork("src", 2, "fork", time=1.0)  # what was left is in nobody's way
        assert done


class TestVerifyAndSalvage:
    def test_a_missing_system_prompt_is_said_and_no_damage(self, store: Store) -> None:
        with store.create("src", time=1.0) as journal:
            system, tools = journal.put_blob(b"system"), journal.put_blob(b"tools")
            journal.append([RunStarted(model="m", system=system, tools=tools), finished()])
            sync(journal)
        assert store.verify("src").missing == ()
        (store.directory("src") / "blobs" / system).unlink()
        report = store.verify("src")
        assert (report.missing, report.sound) == ((system,), True)

    def test_sound(self, store: Store) -> None:
        source, _, _ = session_with_everything(store)
        report = store.verify("src")
        assert (report.lines, report.size, report.sound) == (7, (source / "journal.jsonl").stat().st_size, True)
        path = source / "journal.jsonl"
        path.write_bytes(path.read_bytes() + b"torn")
        report = store.verify("src")
        assert (report.lines, report.sound, report.damaged) == (7, True, "")
        assert "line 7" in report.torn

    def test_damage_is_named_and_the_valid_prefix_saved(self, store: Store) -> None:
        source, used, _ = session_with_everything(store)
        spoil(source, 3)
        (source / "blobs" / used).write_bytes(b"rot")
        before = (source / "journal.jsonl").read_bytes()
        report = store.verify("src")
        assert report.lines == 3
        assert "damaged at line 3" in report.damaged
        assert not report.sound
        made, last = store.salvage("src", "saved", time=3.0)
        assert last == 2
        assert [event.type for event in read_journal(made)] == ["session.created", "message.accepted", "clock.passed"]
        header = json.loads(lines_of(made)[0])
        assert (header["parent"], header["parent_seq"]) == ("src", 2)
        assert not (made / "blobs").exists()
        assert (source / "journal.jsonl").read_bytes() == before
        store.open("saved").close()

    @pytest.mark.parametrize(
        "bad",
        [lambda lines: b"\0" * 300 + b"\n", lambda lines: lines[3].replace(b"t", b"\xff", 1),
         lambda lines: b'{"valid":"json"}\n', lambda lines: lines[2]],
        ids=["nul", "no-utf-8", "another-shape", "the-line-before-again"],
    )  # fmt: skip
    def test_b51_one_bad_line_is_never_silent_and_never_costs_what_stands_before_it(
        self, store: Store, bad: Callable[[list[bytes]], bytes]
    ) -> None:
        """It is refused and named, the file stays as it is, and the whole prefix goes on in a session of its own."""
        source, _, _ = session_with_everything(store)
        lines = lines_of(source)
        damaged = b"".join([*lines[:3], bad(lines), *lines[4:]])
        (source / "journal.jsonl").write_bytes(damaged)
        with pytest.raises(JournalDamaged, match="line 3"):
            store.open("src")
        assert (source / "journal.jsonl").read_bytes() == damaged
        made, last = store.salvage("src", "saved", time=3.0)
        assert last == 2
        with store.open("saved") as journal:
            journal.append([clock(9)])
        assert [event.type for event in read_journal(made)][:3] == [json.loads(line)["type"] for line in lines[:3]]

    def test_a_record_that_is_no_event_is_damage(self, store: Store) -> None:
        store.sessions.mkdir(parents=True)
        raw_journal(store.sessions / "s", b'"type":"session.created","session_id":"s"', b'"type":"clock.passed"')
        assert "no event" in store.verify("s").damaged

    def test_nothing_to_salvage(self, store: Store) -> None:
        source, _, _ = session_with_everything(store)
        spoil(source, 0)
        with pytest.raises(SessionError, match="line 0"):
            store.salvage("src", "saved", time=1.0)
        (source / "journal.jsonl").write_bytes(b"")
        with pytest.raises(JournalError):
            store.salvage("src", "saved", time=1.0)
        assert [path.name for path in store.sessions.iterdir()] == ["src"]


def test_sessions_of_others_are_refused_by_the_lock_only_for_writing(store: Store) -> None:
    with store.create("s", time=1.0) as journal:
        journal.append([prompt("hi")])
        assert store.list()[0].prompt == "hi"
        assert store.verify("s").lines == 2
        with pytest.raises(JournalLocked):
            FileJournal.create(store.directory("s"), HEADER)
