"""The rules of the mature agents, one by one: the record, and what a resume may rely on (5 and 6)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import latchstep as ls
from latchstep.core import event as ev
from tests.cli.cli_kit import alive, pids_in, wait_for
from tests.crash.simulate import check_request
from tests.model.strict_chat import StrictChat, text_answer

from .s4 import CHECK, Ground, bash, lines, read, write

HANG = "echo $$ > pid; exec sleep 300"


def asking(name: str, id: str, arguments: str) -> list[Any]:
    function = {"name": name, "arguments": arguments}
    call = {"index": 0, "id": id, "type": "function", "function": function}
    return [
        {"id": id, "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        "[DONE]",
    ]


WRITES = asking("write", "w", '{"path": "a.txt", "content": "a"}')
HANGS = asking("bash", "b", json.dumps({"command": HANG}))


def killed_at(ground: Ground, server: StrictChat, answers: int, check: str = "true") -> None:
    """A real process of the example that dies while it waits for an answer, with so many given."""
    process = ground.start(server.url, "go", check=check)
    server.wait(lambda: len(server.bodies) == answers + 1, 30)
    process.kill()
    process.communicate()


# 5. Append-only, and a prefix that never changes


def test_s4_05_the_journal_is_json_lines_that_only_grow(ground: Ground) -> None:
    frozen = b""

    async def main() -> None:
        nonlocal frozen
        session = ground.session([read(), bash("echo x"), write("a.txt", "a"), "done", "more"], name="m")
        async with session.stream("go") as run:
            async for _ in run:
                now = ground.journal.read_bytes()
                assert now.startswith(frozen)
                frozen = now
        await session.close()

    asyncio.run(main())
    ground.run(["", "", "", "", "more"], "and?", old=ground.id, name="m")
    now = ground.journal.read_bytes()
    assert now.startswith(frozen)
    assert len(now) > len(frozen)
    assert [line["n"] for line in lines(ground.journal)] == list(range(len(lines(ground.journal))))


def test_s4_05_a_prefix_can_be_frozen_as_a_session_of_its_own(ground: Ground) -> None:
    ground.run([read(), "done"])
    source = ground.events()
    at = next(event.seq for event in source if event.type == "tool.finished")
    fork = ground.store.fork(ground.id, at, "20260101-000000-aaaaaa", time=1.0)
    kept = lines(fork / "journal.jsonl")[1:]
    frame = ("n", "b", "p", "crc")
    strip = lambda line: {k: v for k, v in line.items() if k not in frame}  # noqa: E731
    original = lines(ground.store.directory(source_id(source)) / "journal.jsonl")[1 : at + 1]
    assert list(map(strip, kept)) == list(map(strip, original))


def source_id(events: list[ev.Event]) -> str:
    (header,) = [event for event in events if isinstance(event, ev.SessionCreated)]
    return header.session_id


# 6. Write order is crash semantics


def test_s4_06_the_order_of_writes_is_intent_effect_result(ground: Ground) -> None:
    """The file is there only after its intent is on record, and its result comes last."""
    seen: list[tuple[str, bool]] = []

    async def main() -> None:
        session = ground.session([write("a.txt", "a"), "done"])
        async with session.stream("go") as run:
            async for event in run:
                if event.type.startswith("tool.") and not event.part:
                    on_record = [line["type"] for line in lines(ground.journal)]
                    assert event.type in on_record
                    seen.append((event.type, (ground.root / "a.txt").exists()))
        await session.close()

    asyncio.run(main())
    assert seen == [("tool.started", False), ("tool.finished", True)]


def test_s4_06_a_request_lost_with_its_process_is_asked_again(ground: Ground) -> None:
    with StrictChat([WRITES, ["#STALL"], text_answer("Done.")]) as server:
        killed_at(ground, server, 1)
        again = ground.start(server.url)
        assert again.communicate(timeout=30)[0].count("run.finished") == 1
    assert again.returncode == 0
    assert [(e.request_id, e.attempt) for e in ground.of(ev.ModelRequested)][-2:] == [
        ("request-002", 1),
        ("request-002", 2),
    ]
    assert (ground.root / "a.txt").read_text() == "a"


def test_s4_06_a_side_effect_that_may_be_half_done_fails_closed(ground: Ground) -> None:
    with StrictChat([HANGS, text_answer("Done.")]) as server:
        process = ground.start(server.url, "go")
        assert process.stdin is not None
        process.stdin.write("y\n")
        process.stdin.flush()
        (pid,) = wait_for(lambda: pids_in(ground.root / "pid"), "the command")
        process.kill()
        process.communicate()
        wait_for(lambda: not alive(pid), "the end of the command")
        again = ground.start(server.url)
        out, err = again.communicate(timeout=30)
    ended = ground.of(ev.RunFinished)[-1]
    assert (ended.status, ended.error and ended.error.kind) == ("failed", "IN_DOUBT"), out + err
    assert len(server.bodies) == 1, "the model was not asked to go on from what nobody knows"
    assert [e.call_id for e in ground.of(ev.ToolStarted)] == ["b"], "and nothing ran twice"


def test_s4_06_the_git_root_must_exist_and_head_be_the_pinned_base(ground: Ground) -> None:
    with StrictChat([["#STALL"], text_answer("Done.")]) as server:
        killed_at(ground, server, 0)
        before = ground.journal.read_bytes()
        (ground.root / "notes.txt").write_text("two\n")
        ground.git("commit", "-q", "-a", "-m", "two")
        again = ground.start(server.url)
        assert "HEAD was" in again.communicate(timeout=30)[1]
        (ground.root / ".git").rename(ground.root / "git")
        bare = ground.start(server.url)
        assert "is no git repository" in bare.communicate(timeout=30)[1]
        assert ground.journal.read_bytes() == before, "a refusal changes nothing"
        (ground.root / "git").rename(ground.root / ".git")
        ground.git("checkout", "-q", "HEAD~1")
        assert ground.start(server.url).communicate(timeout=30)[1] == ""
    assert ground.of(ev.RunFinished)[-1].status == "completed"


@pytest.mark.parametrize("name", ["openai:m", "anthropic:m", "openai-chat:n"])
def test_s4_06_protocol_provider_and_model_must_match(ground: Ground, name: str) -> None:
    with StrictChat([["#STALL"], text_answer("Done.")]) as server:
        killed_at(ground, server, 0)
    before = ground.journal.read_bytes()
    with pytest.raises(ls.SessionError, match=f"the model was openai-chat:m and is {name}"):
        ground.session(["unasked"], name=name, old=ground.id)
    assert ground.journal.read_bytes() == before
    assert ground.run(["done"], None, name="openai-chat:m", old=ground.id).status == "completed"


def test_s4_06_the_one_known_window_is_repaired_and_everything_else_refused(ground: Ground) -> None:
    """A line that was being written when the power went is cut; any change before it is damage."""
    ground.run([read(), "done"], name="m")
    whole = ground.journal.read_bytes()
    ground.journal.write_bytes(whole + whole.splitlines(keepends=True)[-1][:-20])
    assert ground.run(["", "", "more"], "and?", name="m", old=ground.id).status == "completed"
    assert list(ground.journal.parent.glob("torn-*.bin"))
    whole = ground.journal.read_bytes()
    split = whole.splitlines(keepends=True)
    gap = b"".join(split[:5] + split[6:])
    doubled = b"".join([*split[:5], split[4], *split[5:]])
    flipped = whole.replace(b"notes.txt", b"nodes.txt", 1)
    for damaged in (gap, doubled, flipped):
        ground.journal.write_bytes(damaged)
        with pytest.raises(ls.JournalError, match="damaged at line"):
            ground.session(["unasked"], name="m", old=ground.id)
        assert ground.journal.read_bytes() == damaged


def test_s4_06_a_pending_approval_is_abandoned_and_the_model_may_ask_again(ground: Ground) -> None:
    """The process dies at the question. The call gets a failed observation, and nobody's old yes is used."""
    asks = asking("bash", "b", '{"command": "touch ran"}')
    with StrictChat([asks, asking("bash", "c", '{"command": "touch ran"}'), text_answer("Done.")]) as server:
        process = ground.start(server.url, "go")
        wait_for(lambda: ground.has("approval.requested"), "the question")
        process.kill()
        process.communicate()
        again = ground.start(server.url)
        again.communicate("y\n", timeout=30)
        sent = server.bodies[1]
    assert again.returncode == 0
    kinds = [e.type for e in ground.events()]
    at = kinds.index("approval.abandoned")
    assert kinds[at : at + 3] == ["approval.abandoned", "tool.finished", "model.requested"]
    first, second = ground.of(ev.ToolFinished)
    assert (first.outcome, first.is_error, second.outcome) == ("not_started", True, "ok")
    assert "permission for this call was asked for" in str(sent)
    assert (ground.root / "ran").exists()


def test_s4_06_a_verification_in_flight_fails_closed(ground: Ground) -> None:
    """The process dies while a check runs: the run is not done, and the check runs anew before it is."""
    (ground.root / "check.py").write_text(
        "import os, time\nopen('checked', 'a').write('x')\nif not os.path.exists('go'): time.sleep(300)\n"
    )
    ground.git("commit", "-q", "-a", "-m", "slow")
    with StrictChat([WRITES, text_answer("Done.")]) as server:
        process = ground.start(server.url, "go", check=CHECK)
        wait_for((ground.root / "checked").exists, "the check")
        process.kill()
        process.communicate()
        assert ground.of(ev.RunFinished) == []
        (ground.root / "go").touch()
        again = ground.start(server.url, check=CHECK)
        out, err = again.communicate(timeout=30)
    assert again.returncode == 0, out + err
    assert [e.type for e in ground.events() if e.type.startswith(("check", "run.f", "session.o"))] == [
        "session.opened", "check.started", "session.opened", "check.started", "check.finished", "run.finished",
    ]  # fmt: skip
    assert (ground.root / "checked").read_text() == "xx"
    assert len(server.bodies) == 2, "the model had its say already"


def test_s4_06_after_any_of_it_the_history_is_valid(ground: Ground) -> None:
    with StrictChat([HANGS, text_answer("Done.")]) as server:
        process = ground.start(server.url, "go")
        wait_for(lambda: ground.has("approval.requested"), "the question")
        process.kill()
        process.communicate()
    requests: list[Any] = []

    def reply(request: Any) -> str:
        requests.append(list(request.messages))
        return "done"

    assert ground.run(["", reply], "leave it", name="openai-chat:m", old=ground.id).status == "completed"
    check_request(requests[0])
    assert [message.role for message in requests[0]] == ["user", "assistant", "tool", "user"]
