"""Compaction at the terminal: what it shows, on a long run and on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import latchstep as ls
from latchstep.core.message import estimate
from latchstep.model.base import Request
from tests.cli.cli_kit import Home, Terminal, refused, wait_for
from tests.conformance.wire_servers import speaking
from tests.model.strict_chat import StrictChat, text_answer

WINDOW = 20_000


def reader(steps: int, sizes: list[int]) -> Any:
    """Reads one line of `notes.txt` after the other, and sums up where it is asked to."""

    def reply(request: Request) -> ls.Reply:
        sizes.append(size := sum(map(estimate, request.messages)) + 4_000)
        if not request.tools:
            return ls.Reply("SUMMARY", usage=ls.Usage(size, 9))
        read = len([given for given in sizes if given > 0])
        if read > steps:
            return ls.Reply("done", usage=ls.Usage(size, 9))
        call = ls.ToolCall("c", "read", {"path": "notes.txt", "offset": read, "limit": 10})
        return ls.Reply([call], usage=ls.Usage(size, 9))

    return reply


def notes(home: Home) -> Path:
    (home.workspace / "notes.txt").write_text("".join(f"line {n} {'of the notes ' * 10}\n" for n in range(2_000)))
    return home.workspace


def test_a_run_of_some_hundred_steps_stays_within_its_window(home: Home) -> None:
    notes(home)
    sizes: list[int] = []
    with speaking("openai-chat", reader(200, sizes)) as server:
        done = home.run(
            "run", "Read it all", "--base-url", server.url, "--max-context", str(WINDOW), "--max-steps", "500"
        )
    assert done.status == 0, done
    assert max(sizes) < WINDOW
    assert " → " in done.out
    assert done.out.count("compacted 1") > 3
    assert "SUMMARY" not in done.out
    events = home.events()
    assert sum(event["type"] == "context.compacted" for event in events) == done.out.count("  compacted ")
    assert {event["limits"]["max_context"] for event in events if event["type"] == "run.started"} == {WINDOW}
    shown = home.run("show", home.session().name)
    assert shown.status == 0, shown
    assert shown.out.count("  compacted ") == done.out.count("  compacted ")


def test_compact_on_demand(home: Home) -> None:
    with StrictChat([text_answer("hello " * 200), text_answer("SUMMARY"), text_answer("and on")]) as server:
        assert home.run("run", "Say hello", "--base-url", server.url).status == 0
        done = home.run("compact", "the greeting")
        assert done.status == 0, done
        assert "compacted " in done.out
        assert home.run("resume", "Go on").status == 0
        summary, last = server.requests[1:]
    assert "the greeting" in summary["messages"][-1]["content"]
    assert "tools" not in summary
    assert "SUMMARY" in last["messages"][1]["content"]
    assert "Say hello" in last["messages"][1]["content"]
    assert home.run("sessions").status == 0


def test_what_cannot_be_compacted_is_said(home: Home) -> None:
    refused(home.run("compact"), 2, "there is no session")
    with StrictChat([text_answer("hello"), ["#STATUS 400", {"error": {"message": "out of summaries"}}]]) as server:
        home.run("run", "Say hello", "--base-url", server.url)
        done = home.run("compact", "--session", home.session().name)
    assert done.status == 1, done
    assert "out of summaries" in done.err
    refused(home.run("compact", "--session", "nosuch"), 2, "nosuch")
    begun = home.run("fork", "--at", "0").out.split()[1].rstrip(":")
    refused(home.run("compact", "--session", begun), 2, "nothing to compact")


def test_ctrl_c_stops_a_compaction_and_keeps_the_session(home: Home) -> None:
    with StrictChat([text_answer("hello"), ["#NOHEAD"], text_answer("still here")]) as server:
        home.run("run", "Say hello", "--base-url", server.url)
        with Terminal(home, "compact") as terminal:
            wait_for(lambda: len(server.bodies) == 2, "the request for the summary")
            terminal.type("\x03")
            terminal.expect("nothing was changed")
            assert terminal.end() == 130
        assert home.run("resume", "And now?").status == 0
        assert len(server.requests[-1]["messages"]) == 4
