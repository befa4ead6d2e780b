"""The whole command against a real, very small model: shapes are asserted, not wit."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from latchstep.journal.store import Store
from latchstep.model.local import INSTALL, weights_file
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


def test_local_needs_no_server_and_no_url(home: Home) -> None:
    if weights_file() is None or find_spec("xllamacpp") is None:
        pytest.skip(f"needs the small model: {INSTALL}")
    (home.workspace / "notes.txt").write_text("The meeting is on Tuesday at nine.\n")
    done = home.run("run", "Read notes.txt and say what it says", "--model", "local", "--json", "--max-steps", "4")
    assert (done.status, done.err) == (0, ""), done
    events = [json.loads(line) for line in done.raw.splitlines()]
    assert any(event["type"] == "tool.finished" and event["outcome"] == "ok" for event in events)
    assert "Tuesday" in events[-1]["final_text"]
    begun = next(event for event in events if event["type"] == "run.started")
    assert begun["setup"]["model"] == "local:smollm2"
    resumed = home.run("resume", "Read notes.txt", "--max-steps", "4")
    assert resumed.status == 0, resumed
    assert "local:smollm2" in resumed.out


def test_doctor_tries_it(home: Home) -> None:
    if weights_file() is None or find_spec("xllamacpp") is None:
        pytest.skip(f"needs the small model: {INSTALL}")
    done = home.run("doctor")
    assert done.status == 0, done
    assert re.search(r"^✓ local +local:smollm2 loaded and answered in this process", done.out, re.M)
