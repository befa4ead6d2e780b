"""`latchstep models` says what is there, and `run` without a model takes the first of it."""

from __future__ import annotations

import json
import re

import pytest

from latchstep.model.catalog import SERVICES
from tests.cli.cli_kit import Home, refused
from tests.model.strict_anthropic import streamed, strict_anthropic
from tests.model.strict_chat import StrictChat, text_answer

LISTING = json.dumps({"object": "list", "data": [{"id": "nomic-embed-text"}, {"id": "qwen3:8b", "owned_by": "me"}]})


def row(shown: str, service: str) -> str:
    found = re.search(rf"^. {service} +.*$", shown, re.M)
    assert found is not None, shown
    return found[0]


def test_every_service_has_a_row_and_nothing_is_claimed(home: Home) -> None:
    done = home.run("models")
    assert (done.status, done.err) == (0, "")
    for name, service in SERVICES.items():
        assert f"{name}:{service.default or 'NAME'}" in row(done.out, name)
        if service.key:
            assert row(done.out, name).startswith("-")
            assert f"{service.key} is not set" in row(done.out, name)
        elif service.base_url:
            assert row(done.out, name).startswith("-")
            assert "nothing answers at http://127.0.0.1:9/v1" in row(done.out, name)
    assert "Without --model nothing would be used" in done.out


def test_keys_are_named_and_never_shown(home: Home) -> None:
    env: dict[str, str | None] = {
        "GROQ_API_KEY": "gsk-secret",
        "GOOGLE_API_KEY": "g-secret",
        "XAI_API_KEY": "sec ret",
        "OPENAI_BASE_URL": "http://me:secret@gateway.example/v1",
    }
    out = home.run("models", env=env).out
    assert "secret" not in out
    assert row(out, "groq").startswith("✓")
    assert "GROQ_API_KEY is set (not tried)" in row(out, "groq")
    assert "GOOGLE_API_KEY is set" in row(out, "gemini")
    assert row(out, "xai").startswith("-")
    assert "a blank at position 4" in row(out, "xai")
    assert "OPENAI_BASE_URL names gateway.example, which may want none" in row(out, "openai")
    assert "Without --model: gemini:" in out
    named = home.run("models", env={**env, "LATCHSTEP_MODEL": "xai:mine"}).out
    assert "Without --model: xai:mine, as LATCHSTEP_MODEL says." in named


def test_a_server_is_believed_when_it_lists_its_models(home: Home) -> None:
    with (
        StrictChat([LISTING], strict=False) as good,
        StrictChat(['{"object": "list", "data": null}'], strict=False) as empty,
        StrictChat(["<html>Jenkins</html>"], strict=False) as other,
        StrictChat(["#NOHEAD"], strict=False) as deaf,
    ):
        env: dict[str, str | None] = {
            "OLLAMA_BASE_URL": good.url,
            "LMSTUDIO_BASE_URL": empty.url,
            "LLAMACPP_BASE_URL": other.url,
            "VLLM_BASE_URL": deaf.url,
        }
        out = home.run("models", env=env).out
    assert good.paths == ["/v1/models"]
    assert f"answers at {good.url}: nomic-embed-text, qwen3:8b" in row(out, "ollama")
    assert "ollama:qwen3:8b" in row(out, "ollama")
    assert f"{empty.url}, and has no model" in row(out, "lmstudio")
    assert "lists no models (status 200)" in row(out, "llamacpp")
    assert "no answer within 1 s" in row(out, "vllm")
    assert [row(out, name)[0] for name in ("ollama", "lmstudio", "llamacpp", "vllm")] == ["✓", "-", "-", "-"]
    assert "Without --model: ollama:qwen3:8b." in out


HOSTILE = [
    '{"data": [{"id": "' + "x" * 1_100_000 + '"}]}',  # longer than MAX_LIST
    "[" * 100_000,
    '{"data": [{"id": 7}]}',
    '{"data": [{"id": "\\ud800"}]}',
    b'{"data": [{"id": "\xff"}]}',
]


@pytest.mark.parametrize("listing", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_listing_is_no_list(home: Home, listing: str | bytes) -> None:
    with StrictChat([listing], strict=False) as server:
        done = home.run("models", env={"VLLM_BASE_URL": server.url})
    assert done.status == 0, done
    assert row(done.out, "vllm").startswith("-")
    assert "lists no models" in row(done.out, "vllm")


def test_a_hostile_name_is_shown_escaped(home: Home) -> None:
    listing = json.dumps({"data": [{"id": "a\n✓ b\x1b[2J"}, *({"id": f"m{at}"} for at in range(500))]})
    with StrictChat([listing], strict=False) as server:
        done = home.run("models", env={"VLLM_BASE_URL": server.url, "OLLAMA_BASE_URL": "foo"})
    assert b"\x1b" not in done.raw
    assert "and 496 more" in row(done.out, "vllm")
    assert "OLLAMA_BASE_URL is no URL" in row(done.out, "ollama")
    assert len(done.out.splitlines()) == len(SERVICES) + 2


def test_a_run_takes_the_server_that_answers_and_says_so(home: Home) -> None:
    with StrictChat([LISTING, text_answer("hello")], strict=False) as server:
        done = home.run("run", "go", "--json", env={"LLAMACPP_BASE_URL": server.url})
    assert done.status == 0, done
    assert done.err == (
        f"no model was named: using llamacpp:qwen3:8b (answers at {server.url}: nomic-embed-text, qwen3:8b)\n"
    )
    assert server.paths == ["/v1/models", "/v1/chat/completions"]
    assert json.loads(server.bodies[1])["model"] == "qwen3:8b"
    started = next(event for event in home.events() if event["type"] == "run.started")
    assert started["model"] == "llamacpp:qwen3:8b"


def test_a_key_comes_before_servers_which_are_not_even_asked(home: Home) -> None:
    with strict_anthropic([streamed({"type": "text", "text": "hello"})]) as claude, StrictChat([LISTING]) as server:
        env: dict[str, str | None] = {
            "ANTHROPIC_BASE_URL": claude.url,
            "ANTHROPIC_API_KEY": "k",
            "GROQ_API_KEY": "k",
            "OLLAMA_BASE_URL": server.url,
        }
        done = home.run("run", "go", env=env)
        assert done.status == 0, done
        assert f"using anthropic:{SERVICES['anthropic'].default} (ANTHROPIC_API_KEY is set" in done.err
        assert claude.requests[0]["model"] == SERVICES["anthropic"].default
        assert server.connections == 0
    bad = home.run("run", "go", env={"ANTHROPIC_API_KEY": "a b", "GROQ_API_KEY": "k"})
    refused(bad, 2, "no model was named", "ANTHROPIC_API_KEY has a blank at position 2")


def test_what_is_named_is_used_and_nothing_else_is_looked_at(home: Home) -> None:
    with StrictChat([LISTING]) as other, StrictChat([text_answer("hello"), text_answer("hello")]) as server:
        env: dict[str, str | None] = {
            "GROQ_API_KEY": "k",
            "OLLAMA_BASE_URL": other.url,
            "LMSTUDIO_BASE_URL": server.url,
        }
        watched = ("-X", "importtime")
        named = home.run("run", "go", "--base-url", server.url, env=env, python=watched)
        by_variable = home.run("run", "go", env={**env, "LATCHSTEP_MODEL": "lmstudio:mine"}, python=watched)
        assert other.connections == 0
    for done in (named, by_variable):
        assert done.status == 0, done
        assert "latchstep.cli.running" in done.err
        assert "no model was named" not in done.err
        assert not re.search(r"latchstep\.(cli\.models|model\.local)\b|xllamacpp", done.err)
    assert server.requests[1]["model"] == "mine"
