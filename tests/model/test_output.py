"""A schema for the answer, on every wire: in the provider's own form where it has one, else as a tool."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, TypedDict

import msgspec
import pytest

import latchstep as ls
from latchstep.core.message import user
from latchstep.core.rules import FINAL
from latchstep.errors import ModelError
from latchstep.model import anthropic, gemini, openai_chat, openai_responses
from latchstep.model.base import OutputSpec, Request, ToolSpec
from latchstep.model.catalog import SERVICES, model
from latchstep.model.history import json_schema
from latchstep.model.wire import Wire
from latchstep.session.output import output_type
from tests.model import strict_chat, strict_gemini, strict_responses
from tests.model.strict_anthropic import streamed, strict_anthropic
from tests.model.strict_chat import StrictChat
from tests.model.test_catalog import no_keys  # noqa: F401 - a fixture


class City(msgspec.Struct):
    name: str
    tags: list[str]


class Loose(msgspec.Struct):
    name: str
    tags: list[str] = []


class Partial(TypedDict, total=False):
    name: str


@ls.tool(effect="read", thread=False)
def look() -> str:
    """Look."""
    return "seen"


ROME = '{"name":"Rome","tags":[]}'
SCHEMA = output_type(City).spec.schema
LOOK = ToolSpec("look", "Look.", {"type": "object", "properties": {}})
OPENAI_FORM = {"type": "json_schema", "name": FINAL, "schema": SCHEMA, "strict": True}


class Provider(msgspec.Struct):
    """A wire, its strict server, answers in its form, and where the schema stands in a request."""

    build: Callable[..., Wire]
    server: Callable[..., StrictChat]
    text: Callable[[str], Any]
    call: Callable[[str, str], Any]
    found: Callable[[Any], Any]
    form: Any
    options: dict[str, Any] = {}
    kept: Callable[[Any], Any] = lambda body: None
    names: Callable[[Any], list[str]] = lambda body: [tool["name"] for tool in body.get("tools", ())]


PROVIDERS = {
    "chat": Provider(
        openai_chat.build,
        StrictChat,
        strict_chat.text_answer,
        lambda name, arguments: strict_chat.call_answer(("c1", name, arguments)),
        lambda body: body.get("response_format"),
        {"type": "json_schema", "json_schema": {k: v for k, v in OPENAI_FORM.items() if k != "type"}},
        {"response_format": {"type": "text"}},
        names=lambda body: [tool["function"]["name"] for tool in body.get("tools", ())],
    ),
    "responses": Provider(
        openai_responses.build,
        strict_responses.strict,
        lambda words: strict_responses.answer(strict_responses.text(words)),
        lambda name, arguments: strict_responses.answer(strict_responses.call("c1", name, arguments)),
        lambda body: body.get("text", {}).get("format"),
        OPENAI_FORM,
        {"text": {"verbosity": "low"}},
        lambda body: body["text"] == {"verbosity": "low", "format": OPENAI_FORM},
    ),
    "anthropic": Provider(
        anthropic.build,
        strict_anthropic,
        lambda words: streamed({"type": "text", "text": words}),
        lambda name, arguments: streamed(
            {"type": "tool_use", "id": "c1", "name": name, "input": msgspec.json.decode(arguments)}, stop="tool_use"
        ),
        lambda body: body.get("output_config", {}).get("format"),
        {"type": "json_schema", "schema": SCHEMA},
        {"output_config": {"effort": "low"}},
        lambda body: body["output_config"]["effort"] == "low",
    ),
    "gemini": Provider(
        gemini.build,
        strict_gemini.strict_gemini,
        strict_gemini.text_answer,
        lambda name, arguments: strict_gemini.call_answer(
            strict_gemini.call(name, msgspec.json.decode(arguments), signature=strict_gemini.SIGNATURE)
        ),
        lambda body: body.get("generationConfig", {}).get("responseJsonSchema"),
        SCHEMA,
        {"temperature": 0.5, "responseMimeType": "text/plain"},
        lambda body: (
            body["generationConfig"]["temperature"] == 0.5
            and body["generationConfig"]["responseMimeType"] == "application/json"
        ),
        lambda body: [made["name"] for tool in body.get("tools", ()) for made in tool["functionDeclarations"]],
    ),
}
each = pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS)


def ask(provider: Provider, *answers: Any, native: bool = True, kind: Any = City, **options: Any) -> Any:
    """(how the run ended, the bodies of its requests, the wire)"""
    with provider.server(list(answers)) as server:
        wire = provider.build("m", server.url, "key", options=options)
        wire.native_output = native
        result = ls.Agent(wire, [look], output=kind).run_sync("Where?")
        assert not server.refused, server.refused
        return result, server.requests, wire


@each
def test_the_schema_goes_out_in_the_providers_form(provider: Provider) -> None:
    result, bodies, _ = ask(provider, provider.call("look", "{}"), provider.text("?"), provider.text(ROME))
    assert (result.status, result.output) == ("completed", City("Rome", []))
    assert len(bodies) == 3
    for body in bodies:
        assert provider.found(body) == provider.form
        assert provider.names(body) == ["look"]
    assert "not the output that was asked for" in str(bodies[2])


@each
def test_options_beside_it_are_kept(provider: Provider) -> None:
    _, (body,), _ = ask(provider, provider.text(ROME), **provider.options)
    assert provider.found(body) == provider.form
    assert provider.kept(body) in (True, None)


@each
def test_elsewhere_the_model_gets_a_tool(provider: Provider) -> None:
    """And a server that was never told of a schema may still answer in text."""
    answers = provider.call("look", "{}"), provider.call(FINAL, "{}"), provider.call(FINAL, ROME)
    for last in (answers[-1], provider.text(ROME)):
        result, bodies, _ = ask(provider, *answers[:-1], last, native=False)
        assert (result.status, result.output) == ("completed", City("Rome", []))
        for body in bodies:
            assert provider.found(body) is None
            assert provider.names(body) == ["look", FINAL]


@each
def test_a_server_that_refuses_the_schema_gets_the_tool_and_is_not_asked_again(provider: Provider) -> None:
    refused = ["#STATUS 400", {"error": {"message": "a schema with tools is unsupported", "code": 400}}]
    answers = refused, provider.call("look", "{}"), provider.call(FINAL, ROME)
    result, bodies, wire = ask(provider, *answers)
    assert (result.status, result.output) == ("completed", City("Rome", []))
    assert [provider.found(body) is not None for body in bodies] == [True, False, False]
    assert [provider.names(body) for body in bodies] == [["look"], ["look", FINAL], ["look", FINAL]]
    assert wire.native_output is False


@each
def test_a_request_that_is_bad_for_another_reason_fails_and_teaches_nothing(provider: Provider) -> None:
    refused = ["#STATUS 400", {"error": {"message": "no such model", "code": 400}}]
    result, bodies, wire = ask(provider, refused, refused)
    assert result.error is not None
    assert (result.error.kind, len(bodies)) == ("MODEL_BAD_REQUEST", 2)
    assert wire.native_output is True
    busy = ["#STATUS 429", {"error": {"message": "slow down", "code": 429}}]
    result, bodies, _ = ask(provider, busy)
    assert len(bodies) == 1


@each
def test_nothing_is_sent_where_nothing_is_asked_for(provider: Provider) -> None:
    result, (body,), wire = ask(provider, provider.text(ROME), kind=None)
    assert (result.output, provider.found(body), provider.names(body)) == (None, None, ["look"])
    assert wire.native_output is True


def test_a_wire_that_holds_nothing_is_given_the_tool_whoever_asks() -> None:
    """`Request.output` may reach any wire: a model object outlives the kit that looked at it."""
    request = Request(request_id="r", messages=(user("x"),), tools=(LOOK,), output=OutputSpec(FINAL, SCHEMA))
    with StrictChat([strict_chat.text_answer(ROME)]) as server:
        wire = openai_chat.build("m", server.url)

        async def once() -> None:
            async for _ in wire.stream(request):
                pass

        asyncio.run(once())
        assert PROVIDERS["chat"].names(server.requests[0]) == ["look", FINAL]


@pytest.mark.parametrize(
    ("kind", "strict"),
    [
        (City, True),
        (list[City], True),
        (int | None, True),
        (Loose, False),  # a field that may be left out
        (list[Loose], False),
        (Partial, False),
        (dict[str, int], False),
        (Any, False),
        (tuple[int, int], False),
        (set[int], False),
    ],
)
def test_openai_holds_strictly_what_its_strict_mode_takes(kind: Any, strict: bool) -> None:
    held = json_schema(output_type(kind).spec)
    assert held["strict"] is strict
    strict_chat.held_schema(held)  # the strict server takes it either way
    if not strict:
        with pytest.raises(strict_chat.Refused):
            strict_chat.held_schema({**held, "strict": True})


def test_the_catalogue_knows_who_holds_a_schema() -> None:
    for service in SERVICES:
        made = model("local") if service == "local" else model(f"{service}:m", api_key="k")
        expected = service in ("anthropic", "openai", "openai-chat", "gemini")
        assert getattr(made, "native_output", False) is expected, service
    for service in ("anthropic", "openai", "openai-chat", "gemini"):  # who knows what another server does
        assert getattr(model(f"{service}:m", base_url="http://127.0.0.1:1/v1"), "native_output", True) is False
    os.environ["OPENAI_BASE_URL"] = "http://127.0.0.1:1/v1"
    assert getattr(model("openai:m"), "native_output", True) is False


def test_the_official_sdks_know_the_fields() -> None:
    """As their types have them."""
    pytest.importorskip("openai", reason="openai is not installed (pip install openai)")
    pytest.importorskip("anthropic", reason="anthropic is not installed (pip install anthropic)")
    types = pytest.importorskip("google.genai.types", reason="google-genai is not installed (pip install google-genai)")
    from anthropic.types.message_create_params import MessageCreateParamsStreaming as Messages
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as Chat
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming as Responses
    from pydantic import TypeAdapter

    for name, params in (("chat", Chat), ("responses", Responses), ("anthropic", Messages)):
        (body,) = ask(PROVIDERS[name], PROVIDERS[name].text(ROME))[1]
        field = {"chat": "response_format", "responses": "text", "anthropic": "output_config"}[name]
        assert field in body
        assert TypeAdapter(params).validate_python(body)[field] == body[field]  # an unknown field would be dropped
    (body,) = ask(PROVIDERS["gemini"], PROVIDERS["gemini"].text(ROME))[1]
    config = types.GenerationConfig.model_validate(body["generationConfig"])
    assert (config.response_json_schema, config.response_mime_type) == (SCHEMA, "application/json")


def test_the_error_of_the_second_try_is_the_one_that_is_told() -> None:
    with StrictChat(
        [["#STATUS 400", '{"error":{"message":"first"}}'], ["#STATUS 401", '{"error":{"message":"key"}}']]
    ) as s:
        wire = openai_chat.build("m", s.url)
        wire.native_output = True
        request = Request(request_id="r", messages=(user("x"),), output=OutputSpec(FINAL, SCHEMA))

        async def once() -> None:
            async for _ in wire.stream(request):
                pass

        with pytest.raises(ModelError, match="key"):
            asyncio.run(once())
        assert wire.native_output is True
