"""Names of models: what they build, and what is said about what cannot be built."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from latchstep.core.message import user
from latchstep.errors import DefinitionError, ModelError
from latchstep.model.base import Model, Request
from latchstep.model.catalog import SERVICES, elsewhere, key_variable, model
from tests.model.strict_chat import StrictChat, text_answer


@pytest.fixture(autouse=True)
def no_keys() -> Iterator[None]:
    names = {name for service in SERVICES.values() for name in (service.key, service.other_key, service.url) if name}
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    yield
    for name in names:
        os.environ.pop(name, None)
    os.environ.update(kept)


def sent(name: str, scripts: int = 1, **options: Any) -> Any:
    """(the request's body, its headers) of a model that is built and asked once."""
    with StrictChat([text_answer("hello")]) as server:
        if "base_url" not in options:
            os.environ["OPENAI_BASE_URL"] = server.url
        elif options["base_url"] is None:
            options["base_url"] = server.url
        built = model(name, **options)

        async def once() -> None:
            async for _ in built.stream(Request(request_id="r", messages=(user("x"),), max_output=5)):
                pass

        asyncio.run(once())
        return server.requests[0], server.headers[0]


def test_names_and_options() -> None:
    os.environ["OPENAI_API_KEY"] = "key"
    body, headers = sent("openai-chat:gpt:x/y", temperature=0)
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("gpt:x/y", 0, 5)
    assert headers["authorization"] == "Bearer key"
    _, headers = sent("openai-chat:m", base_url=None, api_key="given")
    assert headers["authorization"] == "Bearer given"
    del os.environ["OPENAI_API_KEY"]
    _, headers = sent("openai-chat:m", base_url=None)
    assert "authorization" not in headers
    body, _ = sent("mistral:m", base_url=None, api_key="k")
    assert "stream_options" not in body


def test_every_service_is_built_with_its_key() -> None:
    for name, service in SERVICES.items():
        if not service.base_url:  # `local`: see test_local.py
            continue
        if service.key:
            os.environ.pop(service.key, None)  # two names may share a key
            with pytest.raises(ModelError, match=service.key) as caught:
                model(f"{name}:m")
            assert caught.value.kind == "auth"
            os.environ[service.key] = "k"
        built = model(f"{name}:m")
        assert isinstance(built, Model)
        assert built.name == f"{name}:m"
        assert service.base_url.split("/")[2] in repr(built)


def test_openai_itself_wants_a_key_and_its_own_field() -> None:
    for url in (None, "https://api.openai.com/v1"):
        with pytest.raises(ModelError, match="OPENAI_API_KEY"):
            model("openai-chat:m", base_url=url)
    built: Any = model("openai-chat:m", api_key="k")
    while hasattr(built, "inner"):
        built = built.inner
    body = built._encode(Request(request_id="r", messages=(user("x"),), max_output=5))
    assert b'"max_completion_tokens":5' in body


def test_the_variable_of_a_key_and_the_server_it_goes_to() -> None:
    gemini, openai = SERVICES["gemini"], SERVICES["openai"]
    assert (key_variable(gemini), elsewhere(openai), key_variable(SERVICES["ollama"])) == ("", "", "")
    os.environ |= {"GEMINI_API_KEY": " ", "GOOGLE_API_KEY": "k"}
    assert key_variable(gemini) == "GOOGLE_API_KEY"
    os.environ["OPENAI_BASE_URL"] = "https://me:secret@Gateway.example:8443/v1"
    assert elsewhere(openai) == "gateway.example:8443"
    os.environ["OPENAI_BASE_URL"] = "https://me@api.openai.com/v1"  # is still their server, which wants a key
    assert elsewhere(openai) == ""
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        model("openai:m")


def test_a_bad_key_names_its_variable_and_not_itself() -> None:
    os.environ["GROQ_API_KEY"] = "secret key"
    with pytest.raises(ModelError, match="GROQ_API_KEY has a blank at position 7") as caught:
        model("groq:m")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "m", "groq", "groq:", "groq: ", ":m", "nobody:m", "GROQ:m"])
def test_unknown_names_list_what_there_is(name: str) -> None:
    with pytest.raises(DefinitionError, match="openai-chat:, gemini:, openrouter:"):
        model(name)


def test_options_are_checked_when_the_model_is_built() -> None:
    with pytest.raises(DefinitionError, match="stream"):
        model("ollama:m", stream=False)
    with pytest.raises(DefinitionError, match="base_url"):
        model("ollama:m", base_url="127.0.0.1:11434")
