"""What answers cost, by the real price table."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from latchstep.core.chunk import Completed, Failed
from latchstep.core.message import Text, Usage
from latchstep.errors import ModelError
from latchstep.model.prices import Priced, look_up, priced
from latchstep.model.retry import retrying
from tests.model.test_fallback import ask
from tests.model.test_retry import PART, Scripted

OPENAI = "https://api.openai.com/v1"
ANTHROPIC = "https://api.anthropic.com"
USAGE = Usage(input=1_000_000, output=100_000)


def cost(url: str = OPENAI, known_as: str = "gpt-4o", **fields: Any) -> float | None:
    given = {"usage": USAGE, **fields}
    inner = Scripted([PART, Completed(blocks=(Text("x"),), stop_reason="stop", **given)])
    chunks, error = ask(priced(inner, known_as, url))
    assert error is None
    assert (chunks[0], inner.closed) == (PART, 1)
    assert isinstance(chunks[1], Completed)
    return chunks[1].cost


def test_a_known_model_has_a_price() -> None:
    assert cost() == pytest.approx(2.5 + 1.0)
    assert cost(model="gpt-4o-2024-08-06", known_as="nosuch") == cost()
    assert cost(model="nosuch") == cost()
    assert cost(ANTHROPIC, "claude-sonnet-4-5", usage=Usage(100_000, 10_000)) == pytest.approx(0.3 + 0.15)


def test_input_includes_what_came_from_the_cache() -> None:
    plain, _ = look_up(("claude-sonnet-4-5",), ANTHROPIC, Usage(input=100_000))
    read, _ = look_up(("claude-sonnet-4-5",), ANTHROPIC, Usage(input=100_000, cache_read=100_000))
    written, _ = look_up(("claude-sonnet-4-5",), ANTHROPIC, Usage(input=100_000, cache_write=100_000))
    assert plain == pytest.approx(0.3)
    assert read == pytest.approx(0.03)
    assert written == pytest.approx(0.375)


def test_what_is_not_known_is_none_and_never_zero() -> None:
    assert cost(known_as="nosuch") is None
    assert cost(known_as="") is None
    for url in ("http://127.0.0.1:8000/v1", "https://gateway.example/openai/v1", "", "no url"):
        assert cost(url) is None, url
    assert cost(usage=Usage()) is None
    assert cost(known_as="tts-1") is None, "the table knows it, but not by tokens"
    assert cost(usage=Usage(input=1, cache_read=2)) is None
    assert cost(usage=Usage(input=-5)) is None


def test_the_providers_own_word_wins() -> None:
    assert cost(cost=0.5) == 0.5
    assert cost(cost=0.0) == 0.0


def test_errors_and_names_pass_through() -> None:
    inner = Scripted([PART, ModelError("server", "x")])
    model = priced(inner, "gpt-4o", OPENAI)
    assert model.name == inner.name
    chunks, error = ask(model)
    assert chunks == [PART]
    assert error is not None
    assert error.kind == "server"
    assert isinstance(model, Priced)


BARE = """
import importlib.abc, os, sys, threading
os.environ["OPENAI_API_KEY"] = "k"

class Watch(importlib.abc.MetaPathFinder):
    threads = []
    def find_spec(self, name, path=None, target=None):
        if name in ("pydantic", "genai_prices.data"):
            self.threads.append(threading.current_thread())

sys.meta_path.insert(0, Watch())
from latchstep.model.catalog import model
from tests.model.test_prices import cost
assert type(model("openai:gpt-4o").inner).__name__ == "Priced"
assert cost(cost=1.0) == 1.0
assert not {"genai_prices", "pydantic"} & set(sys.modules)
assert cost() > 0
assert Watch.threads and threading.main_thread() not in Watch.threads
"""

WITHOUT = """
import os, sys
os.environ["OPENAI_API_KEY"] = "k"
sys.modules["genai_prices"] = None
from latchstep.model.catalog import model
assert type(model("openai:gpt-4o").inner).__name__ == "Wire"
"""


@pytest.mark.parametrize("code", [BARE, WITHOUT], ids=["installed", "not installed"])
def test_the_table_is_loaded_after_the_first_answer_and_off_the_loop(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_window_is_told_with_the_answer() -> None:
    assert look_up(("claude-sonnet-4-5",), ANTHROPIC, Usage(input=100))[1] == 200_000
    assert look_up(("nosuch",), ANTHROPIC, Usage(input=100)) == (None, 0)
    inner = Scripted([PART, Completed(blocks=(Text("x"),), stop_reason="stop", usage=USAGE)])
    chunks, _ = ask(priced(inner, "gpt-4o", OPENAI))
    assert isinstance(chunks[1], Completed)
    assert chunks[1].window == 128_000


def test_an_attempt_that_failed_after_it_was_counted_has_its_price_too() -> None:
    _, error = ask(priced(Scripted([PART, ModelError("server", "x", usage=USAGE)]), "gpt-4o", OPENAI))
    assert error is not None
    assert error.cost == cost()
    _, error = ask(priced(Scripted([ModelError("server", "x", usage=USAGE)]), "nosuch", OPENAI))
    assert error is not None
    assert error.cost is None
    inner = priced(Scripted([ModelError("server", "x", usage=USAGE)], [ModelError("auth", "y")]), "gpt-4o", OPENAI)
    chunks, error = ask(retrying(inner, base=0.0))
    assert isinstance(chunks[0], Failed)
    assert (chunks[0].usage, chunks[0].cost) == (USAGE, cost())
    assert error is not None
    assert (error.usage, error.cost) == (None, None)
