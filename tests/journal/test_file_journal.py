"""The writer: what lies on disk, what a sync covers, what an opening does and refuses."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from latchstep.core.event import SessionCreated, SessionOpened, Unknown
from latchstep.errors import JournalDamaged, JournalError, JournalLocked, JournalPoisoned, JournalTooNew
from latchstep.journal import file as file_module
from latchstep.journal.blob import read_blob
from latchstep.journal.disk import OsDisk
from latchstep.journal.file import FileJournal
from latchstep.journal.frame import MAX_LINE
from latchstep.journal.reader import MAX_HEADER
from latchstep.testing.disk import SimDisk
from tests.journal.journal_kit import HEADER, CountingDisk, clock, finished, framed, prompt, raw_journal, snapshot, sync


def lines_of(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "journal.jsonl").read_bytes().split(b"\n")[:-1]]


def test_what_lies_on_disk_is_for_its_owner_only(tmp_path: Path) -> None:
    old = os.umask(0o777)
    try:
        with FileJournal.create(tmp_path / "a" / "s", HEADER) as journal:
            journal.put_blob(b"text")
            journal.outputs()
    finally:
        os.umask(old)
    for folder in ("a", "a/s", "a/s/blobs", "a/s/outputs"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700
    files = [path for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"journal.jsonl", "lock"}
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_each_line_is_json_with_its_place(tmp_path: Path) -> None:
    with FileJournal.create(tmp_path / "s", HEADER) as journal:
        sync(journal)
        journal.append([clock(1), prompt("é\u2028\n")])
        sync(journal)
        journal.append([clock(3)])
        journal.append([clock(4)])
    lines = lines_of(tmp_path / "s")
    assert [(line["n"], line["b"]) for line in lines] == [(0, 0), (1, 1), (2, 1), (3, 3), (4, 3)]
    assert [line["p"] for line in lines] == ["00000000", *(line["crc"] for line in lines[:-1])]
    assert not any("seq" in line or "part" in line for line in lines)


def test_a_group_is_one_write(tmp_path: Path) -> None:
    disk = CountingDisk()
    with FileJournal.create(tmp_path / "s", HEADER, disk=disk) as journal:
        before = disk.writes
        journal.append([clock(i) for i in range(50)])
        assert disk.writes == before + 1


def test_what_is_not_json_is_refused_with_nothing_written(tmp_path: Path) -> None:
    with FileJournal.create(tmp_path / "s", HEADER) as journal:
        with pytest.raises(ValueError, match="surrogate"):
            journal.append([clock(1), SessionOpened(epoch=1, host="\ud800")])
        assert journal.append([clock(1)]) == 1
        assert [event.seq for event in journal.read()] == [0, 1]


def test_a_line_too_long_is_refused_by_name_with_nothing_written(tmp_path: Path) -> None:
    with FileJournal.create(tmp_path / "s", HEADER) as journal:
        with pytest.raises(JournalError, match=rf"clock.passed.*MAX_LINE allows {MAX_LINE}"):
            journal.append([clock(1), clock(2, MAX_LINE)])
        assert journal.append([clock(1)]) == 1
    with pytest.raises(JournalError, match=f"MAX_HEADER allows {MAX_HEADER - 100}"):
        FileJournal.create(tmp_path / "t", SessionCreated(session_id="t", workspace="x" * MAX_HEADER))


class TestSync:
    def test_nothing_new_is_no_barrier(self) -> None:
        disk = SimDisk()
        with FileJournal.create(Path("/sim/s"), HEADER, disk=disk) as journal:
            sync(journal)
            before = disk.barriers
            sync(journal)
            assert disk.barriers == before

    def test_callers_share_a_barrier_only_if_it_covers_them(self) -> None:
        """The second joins while a barrier that began before its event is under way: it needs another."""
        disk = SlowDisk()
        journal = FileJournal.create(Path("/sim/s"), HEADER, disk=disk)

        async def both() -> None:
            journal.append([clock(1)])
            first = asyncio.create_task(journal.sync())
            shared = asyncio.create_task(journal.sync())
            await asyncio.to_thread(disk.started.wait, 10)
            journal.append([clock(2)])
            second = asyncio.create_task(journal.sync())
            await asyncio.sleep(0)
            disk.started.clear()
            disk.may_end.release()
            await asyncio.gather(first, shared)
            assert journal.synced == 1
            assert not second.done()
            disk.may_end.release()
            await second
            assert journal.synced == 2

        before = disk.barriers
        asyncio.run(both())
        assert disk.barriers == before + 2
        journal.append([clock(3)])
        journal.close()
        numbers = [json.loads(line)["b"] for line in disk.content(Path("/sim/s/journal.jsonl")).split(b"\n")[:-1]]
        assert numbers == [0, 0, 0, 3]

    def test_a_cancelled_wait_is_taken_over_on_another_loop(self) -> None:
        """The barrier goes on; a line written meanwhile keeps the old `b`; nothing verifies wrongly."""
        disk = SlowDisk()
        journal = FileJournal.create(Path("/sim/s"), HEADER, disk=disk)

        async def cancelled() -> None:
            task = asyncio.create_task(journal.sync())
            await asyncio.to_thread(disk.started.wait, 10)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(cancelled())
        journal.append([clock(1)])
        disk.may_end.release(2)
        sync(journal)
        assert journal.synced == 1
        journal.append([clock(2)])
        journal.close()
        with FileJournal.open(Path("/sim/s"), disk=disk) as again:
            assert again.recovered is None
            assert len(list(again.read())) == 3

    def test_a_barrier_covers_no_line_written_after_it_began(self) -> None:
        disk = SlowDisk()
        journal = FileJournal.create(Path("/sim/s"), HEADER, disk=disk)

        async def overtaken() -> None:
            task = asyncio.create_task(journal.sync())
            await asyncio.to_thread(disk.started.wait, 10)
            journal.append([clock(1)])
            disk.may_end.release()
            await task

        asyncio.run(overtaken())
        assert (journal.synced, journal.head) == (0, 1)
        journal.append([clock(2)])
        journal.close()
        data = disk.content(Path("/sim/s/journal.jsonl"))
        assert [json.loads(line)["b"] for line in data.split(b"\n")[:-1]] == [0, 0, 1]
        with FileJournal.open(Path("/sim/s"), disk=disk) as again:
            assert again.head == 2

    def test_the_thread_does_not_outlive_the_journal(self, tmp_path: Path) -> None:
        before = threading.active_count()
        with FileJournal.create(tmp_path / "s", HEADER) as journal:
            sync(journal)
            assert threading.active_count() == before + 1
        assert threading.active_count() == before

    def test_any_exception_of_a_disk_reaches_the_waiter(self) -> None:
        class Broken(SimDisk):
            def sync(self, handle: int) -> None:
                raise RuntimeError("no such thing")

        journal = FileJournal.create(Path("/sim/s"), HEADER, disk=Broken())
        with pytest.raises(JournalPoisoned, match="no such thing"):
            sync(journal)
        journal.close()

    @pytest.mark.parametrize("change", ["cut", "added"])
    def test_a_file_that_another_program_changed_takes_nothing_more(self, tmp_path: Path, change: str) -> None:
        path = tmp_path / "s" / "journal.jsonl"
        with FileJournal.create(tmp_path / "s", HEADER) as journal:
            journal.append([clock(1), clock(2)])
            sync(journal)
            if change == "cut":
                os.truncate(path, 100)
            else:
                with path.open("ab") as other:
                    other.write(b"something else")
            changed = path.read_bytes()
            journal.append([clock(3)])
            for _ in range(2):
                with pytest.raises(JournalPoisoned, match="another program changed the file"):
                    sync(journal)
            with pytest.raises(JournalPoisoned, match="another program changed the file"):
                journal.append([clock(4)])
        assert path.read_bytes().startswith(changed), "nothing of it is cut off"


class SlowDisk(SimDisk):
    """A file's sync waits until it is let go; one release is one sync."""

    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Event()
        self.may_end = threading.Semaphore(0)

    def sync(self, handle: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.started.set()
            assert self.may_end.acquire(timeout=10)
        super().sync(handle)


class TestOpen:
    @pytest.mark.parametrize("how", ["full", "eio"])
    def test_what_cannot_be_begun_leaves_no_new_folder(self, how: str) -> None:
        for after in range(20):
            disk = SimDisk()
            disk.make_directory(Path("/sim/kept"))
            disk.fail(how, after=after)  # type: ignore[arg-type]
            try:
                FileJournal.create(Path("/sim/kept/s1"), HEADER, disk=disk).close()
            except JournalError:
                assert "s1" not in disk.names(Path("/sim/kept"))
            else:
                break
        assert after > 3

    def test_a_folder_that_was_there_stays_where_nothing_can_be_begun(self) -> None:
        disk = SimDisk()
        disk.make_directory(Path("/sim/s1"))
        disk.fail("full", after=2)
        with pytest.raises(JournalError):
            FileJournal.create(Path("/sim/s1"), HEADER, disk=disk)
        assert disk.names(Path("/sim")) == ["s1"]

    def test_a_file_system_that_cannot_lock_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def flock(handle: int, how: int) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        FileJournal.create(tmp_path / "old", HEADER).close()
        monkeypatch.setattr(fcntl, "flock", flock)
        for action in (
            lambda: FileJournal.create(tmp_path / "new", HEADER),
            lambda: FileJournal.open(tmp_path / "old"),
        ):
            with pytest.raises(JournalError, match="files there cannot be locked"):
                action()
        assert os.listdir(tmp_path) == ["old"]

    def test_what_is_not_a_session(self, tmp_path: Path) -> None:
        with pytest.raises(JournalError, match="holds no session"):
            FileJournal.open(tmp_path / "nowhere")
        with pytest.raises(JournalError, match="holds no session"):
            FileJournal.open(tmp_path)
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "journal.jsonl").symlink_to("/etc/passwd")
        with pytest.raises(JournalError, match="cannot be opened"):
            FileJournal.open(tmp_path)

    def test_the_lock_is_given_up_when_an_opening_fails(self, tmp_path: Path) -> None:
        home = raw_journal(tmp_path / "s", b'"type":"session.created","session_id":"s"')
        with (home / "journal.jsonl").open("ab") as file:
            file.write(b"torn")
        with FileJournal.open(home) as journal:
            assert journal.recovered is not None
            with pytest.raises(JournalLocked):
                FileJournal.open(home)
            with pytest.raises(JournalLocked):
                FileJournal.create(home, HEADER)
        FileJournal.open(home).close()

    def test_a_holder_is_shown_without_control_characters(self, tmp_path: Path) -> None:
        with FileJournal.create(tmp_path / "s", HEADER):
            (tmp_path / "s" / "lock").write_bytes(b"pid 7: \x1b[2Jevil \xff\n")
            with pytest.raises(JournalLocked) as caught:
                FileJournal.open(tmp_path / "s")
        assert caught.value.holder == "pid 7: ?[2Jevil \ufffd?"

    def test_a_newer_format_is_refused_and_not_touched(self, tmp_path: Path) -> None:
        """Also where its lines are framed in a way that this program cannot verify."""
        home = raw_journal(tmp_path / "s", b'"type":"session.created","session_id":"s","format":2')
        for data in (
            framed(b'"type":"session.created","session_id":"s","format":2'),
            b'{"v":9,"type":"session.created","format":7,"sum":"?"}\nwho knows\n',
        ):
            (home / "journal.jsonl").write_bytes(data)
            with pytest.raises(JournalTooNew, match=r"format [27]"):
                FileJournal.open(home)
            assert (home / "journal.jsonl").read_bytes() == data

    def test_unknown_types_are_kept_and_skipped_unless_critical(self, tmp_path: Path) -> None:
        header, known = b'"type":"session.created","session_id":"s"', b'"type":"clock.passed","limit":"x","seconds":1.0'
        home = raw_journal(tmp_path / "a", header, b'"type":"moon.landed","x":[1]', known + b',"new_field":{"a":1}')
        with FileJournal.open(home) as journal:
            found = list(journal.read())
            assert isinstance(found[1], Unknown)
            assert (found[1].name, found[1].seq) == ("moon.landed", 1)
            assert b'"x":[1]' in found[1].raw
            assert found[2].type == "clock.passed"
        home = raw_journal(tmp_path / "b", header, b'"type":"moon.landed","critical":true')
        with FileJournal.open(home) as journal, pytest.raises(JournalTooNew, match="moon"):
            list(journal.read())

    def test_a_record_that_verifies_and_is_no_event_is_damage(self, tmp_path: Path) -> None:
        header = b'"type":"session.created","session_id":"s"'
        for number, content in enumerate((b'"type":"clock.passed","limit":7', b'"x":1', b'"type":"\xff"', b'"type"')):
            home = raw_journal(tmp_path / str(number), header, content)
            with FileJournal.open(home) as journal, pytest.raises(JournalDamaged, match=r"line 1 .*no event"):
                list(journal.read())
        home = raw_journal(tmp_path / "h", b'"type":"clock.passed","limit":"x","seconds":1.0')
        with pytest.raises(JournalDamaged, match=r"not session\.created"):
            FileJournal.open(home)

    def test_a_torn_end_is_kept_cut_and_said(self, tmp_path: Path) -> None:
        with FileJournal.create(tmp_path / "s", HEADER) as journal:
            journal.append([clock(1)])
        for number, tail in enumerate((b'{"n":2,"b":0,', b"\0" * 5000)):
            path = tmp_path / "s" / "journal.jsonl"
            whole = path.read_bytes()
            path.write_bytes(whole + tail)
            with FileJournal.open(tmp_path / "s") as journal:
                torn = journal.recovered
                assert torn is not None
                assert (torn.line, torn.offset, torn.size) == (2, len(whole), len(tail))
                assert torn.kept.name == ("torn-2.bin", "torn-2-2.bin")[number]
                assert torn.kept.read_bytes() == tail
                assert f"{len(tail)} bytes" in str(torn)
            assert path.read_bytes() == whole

    def test_of_a_huge_torn_end_a_bounded_part_is_kept(self, tmp_path: Path) -> None:
        FileJournal.create(tmp_path / "s", HEADER).close()
        path = tmp_path / "s" / "journal.jsonl"
        whole = path.read_bytes()
        os.truncate(path, len(whole) + file_module.MAX_TORN + 5_000_000)
        with FileJournal.open(tmp_path / "s") as journal:
            assert journal.recovered is not None
            assert journal.recovered.size == file_module.MAX_TORN + 5_000_000
            assert journal.recovered.kept.stat().st_size == file_module.MAX_TORN
        assert path.read_bytes() == whole


class TestLive:
    def big(self, home: Path, state: bytes = b"{}") -> int:
        """A journal of some megabytes whose last snapshot needs little. The needed line."""
        with FileJournal.create(home, HEADER) as journal:
            for i in range(400):
                journal.append([clock(i, 10_000), snapshot(0)] if i % 100 == 99 else [clock(i, 10_000)])
            sync(journal)
            needed = journal.append([clock(1), clock(2)]) - 1
            journal.append([snapshot(needed, state), clock(4)])
            sync(journal)
            journal.append([prompt('","type":"session.snapshot",'), finished()])
            assert journal.size > 4_000_000
        return needed

    def test_reads_little_of_a_long_journal(self, tmp_path: Path) -> None:
        needed = self.big(tmp_path / "s")
        disk = CountingDisk()
        with FileJournal.open(tmp_path / "s", disk=disk) as journal:
            live = list(journal.live())
            assert [event.seq for event in live] == list(range(needed, journal.head + 1))
        assert disk.bytes_read < 1_500_000

    def test_a_snapshot_longer_than_a_block(self, tmp_path: Path) -> None:
        needed = self.big(tmp_path / "s", b'{"x":"' + b"y" * 3_000_000 + b'"}')
        with FileJournal.open(tmp_path / "s") as journal:
            assert next(iter(journal.live())).seq == needed

    def test_what_looks_like_a_snapshot_inside_a_record_is_none(self, tmp_path: Path) -> None:
        inner = b'{"n":1,"b":1,"p":"00000000","type":"session.snapshot","needed":2,"state":{},"crc":"00000000"}'
        home = raw_journal(
            tmp_path / "s",
            b'"type":"session.created","session_id":"s"',
            b'"type":"tool.finished","call_id":"c","name":"t","outcome":"ok","content":"x","details":' + inner,
            b'"type":"clock.passed","limit":"x","seconds":1.0',
        )
        with FileJournal.open(home) as journal:
            assert [event.seq for event in journal.live()] == [0, 1, 2]

    def test_a_snapshot_that_needs_a_line_after_itself_is_read_itself(self, tmp_path: Path) -> None:
        with FileJournal.create(tmp_path / "s", HEADER) as journal:
            journal.append([snapshot(50), clock(2)])
            assert [event.seq for event in journal.live()] == [1, 2]

    def test_a_file_that_shrank_under_the_writer_is_said(self, tmp_path: Path) -> None:
        with FileJournal.create(tmp_path / "s", HEADER) as journal:
            journal.append([clock(1), clock(2)])
            os.truncate(tmp_path / "s" / "journal.jsonl", journal.size - 10)
            with pytest.raises(JournalDamaged, match="line 2"):
                list(journal.read())


class TestBlobs:
    def test_kept_by_content_and_checked_when_read(self, tmp_path: Path) -> None:
        with FileJournal.create(tmp_path / "s", HEADER) as journal:
            name = journal.put_blob(b"hello")
            assert read_blob(tmp_path / "s", name) == b"hello"
            path = tmp_path / "s" / "blobs" / name
            path.write_bytes(b"jello")
            with pytest.raises(JournalError, match="damaged"):
                read_blob(tmp_path / "s", name)
        with FileJournal.open(tmp_path / "s") as journal:  # whoever has the bytes mends it
            assert journal.put_blob(b"hello") == name
            assert read_blob(tmp_path / "s", name) == b"hello"
        for bad in ("", "../lock", "A" * 64, "0" * 64):
            with pytest.raises(JournalError):
                read_blob(tmp_path / "s", bad)

    def test_left_over_parts_are_in_nobodys_way(self, tmp_path: Path) -> None:
        with FileJournal.create(tmp_path / "s", HEADER) as journal:
            name = journal.put_blob(b"hello")
            (tmp_path / "s" / "blobs" / name).rename(tmp_path / "s" / "blobs" / f".{name}.part")
        with FileJournal.open(tmp_path / "s") as journal:
            journal.put_blob(b"hello")
        assert [path.name for path in (tmp_path / "s" / "blobs").iterdir()] == [name]

    def test_a_failure_is_said_and_the_journal_goes_on(self) -> None:
        for after in range(6):
            disk = SimDisk()
            with FileJournal.create(Path("/sim/s"), HEADER, disk=disk) as journal:
                disk.fail("full", after=after)
                with pytest.raises(JournalError, match="blob"):
                    journal.put_blob(b"hello")
                name = journal.put_blob(b"hello")
                assert read_blob(Path("/sim/s"), name, disk=disk) == b"hello"
                journal.append([clock(1)])


def test_a_read_only_folder_is_said(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    FileJournal.create(tmp_path / "s", HEADER).close()
    (tmp_path / "s" / "journal.jsonl").chmod(0o400)
    with pytest.raises(JournalError, match="Permission denied"):
        FileJournal.open(tmp_path / "s")
    (tmp_path / "s").chmod(0o500)
    with pytest.raises(JournalError, match="Permission denied"):
        FileJournal.create(tmp_path / "s" / "deeper", HEADER)
    (tmp_path / "s").chmod(0o700)


def test_the_real_disk_reads_across_short_reads(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    disk = OsDisk()
    handle = disk.open(path, "read")
    assert disk.read(handle, 4, 3) == b"3456"
    assert disk.read(handle, 100, 8) == b"89"
    assert disk.read(handle, 100, 10) == b""
    disk.close(handle)
