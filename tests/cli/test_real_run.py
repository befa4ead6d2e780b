"""The whole command against a real, very small model: shapes are asserted, not wit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from latchstep.journal.store import Store
from tests.cli.cli_kit import Home
from tests.model.small_model import small_model

TEMPLATE = Path(__file__).with_name("coding.jinja")

pytestmark = pytest.mark.real_model


def test_it_streams_reads_the_file_and_ends(home: Home) -> None:
    (home.workspace / "notes.txt").write_text("The answer is 42.\n")
    with small_model(TEMPLATE) as url:
        done = home.run("run", "Read the file notes.txt", "--base-url", url, "--max-steps", "4", "--json")
    assert done.status == 0, done
    events = [json.loads(line) for line in done.raw.splitlines()]
    types = [event["type"] for event in events]
    assert types[-1] == "run.finished"
    assert events[-1]["usage"]["input"] > 100
    assert "model.delta" in types
    results = [event for event in events if event["type"] == "tool.finished" and event["name"] == "read"]
    assert any("The answer is 42." in str(event["content"]) for event in results)
    after = types[types.index("tool.finished") :]
    assert "model.requested" in after
    assert "message.completed" in after
    assert Store(home.state).verify(home.session().name).sound
    shown = home.run("show", home.session().name)
    assert shown.status == 0, shown
    assert "› Read the file notes.txt" in shown.out
    assert "▸ read notes.txt" in shown.out
