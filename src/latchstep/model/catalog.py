"""Names of models: `provider:model` becomes a `Model`.

Rule: one table row a service. What is wrong, or a key that is missing, is said here, before anything starts.
Keys come from an argument or the environment, never from a file.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import msgspec

from latchstep.errors import DefinitionError, ModelError
from latchstep.http import Deadlines, host_of
from latchstep.model.base import Model
from latchstep.model.chat_request import Dialect
from latchstep.model.prices import priced
from latchstep.model.retry import retrying
from latchstep.model.wire import Wire, check_key

ANTHROPIC = "https://api.anthropic.com"
OPENAI = "https://api.openai.com/v1"
GEMINI = "https://generativelanguage.googleapis.com/v1beta"
MISTRAL = Dialect(short_ids=True, usage=False)


class Service(msgspec.Struct, frozen=True):
    """One service. base_url: "" where it is no server. key: the variable that holds its key, "" where it wants none.
    wire: the module here whose `build` makes the model. settings: what else that is given, by name. url: the variable
    that may name another server, one that may want no key. other_key: the variable that is read where `key` is not
    set. default: the model that is used where none is named, "" where nothing is ever chosen so.
    native: whether it holds an answer to a JSON Schema; another server at `url` is not known to."""

    base_url: str
    key: str = ""
    wire: str = "openai_chat"
    settings: dict[str, Any] = {}
    url: str = ""
    local: bool = False
    other_key: str = ""
    native: bool = False
    default: str = ""


# Defaults go stale, and stand here alone: the provider's own "latest" where it has one, else its middle model.
SERVICES: dict[str, Service] = {
    "anthropic": Service(
        ANTHROPIC, "ANTHROPIC_API_KEY", "anthropic", url="ANTHROPIC_BASE_URL", native=True, default="claude-sonnet-5-5"
    ),
    "openai": Service(
        OPENAI, "OPENAI_API_KEY", "openai_responses", url="OPENAI_BASE_URL", native=True, default="gpt-6.2-sol"
    ),
    "openai-chat": Service(OPENAI, "OPENAI_API_KEY", url="OPENAI_BASE_URL", native=True, default="gpt-6.2-sol"),
    "gemini": Service(
        GEMINI,
        "GEMINI_API_KEY",
        "gemini",
        url="GEMINI_BASE_URL",
        other_key="GOOGLE_API_KEY",
        native=True,
        default="gemini-flash-latest",
    ),
    "openrouter": Service("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", default="openrouter/auto"),
    "groq": Service("https://api.groq.com/openai/v1", "GROQ_API_KEY", default="openai/gpt-oss-120b"),
    "deepseek": Service("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", default="deepseek-v4-flash"),
    "mistral": Service(
        "https://api.mistral.ai/v1", "MISTRAL_API_KEY", settings={"dialect": MISTRAL}, default="mistral-medium-latest"
    ),
    "xai": Service("https://api.x.ai/v1", "XAI_API_KEY", default="grok-4.7"),
    "together": Service("https://api.together.xyz/v1", "TOGETHER_API_KEY", default="openai/gpt-oss-120b"),
    "ollama": Service("http://127.0.0.1:11434/v1", local=True, url="OLLAMA_BASE_URL"),
    "lmstudio": Service("http://127.0.0.1:1234/v1", local=True, url="LMSTUDIO_BASE_URL"),
    "llamacpp": Service("http://127.0.0.1:8080/v1", local=True, url="LLAMACPP_BASE_URL"),
    "vllm": Service("http://127.0.0.1:8000/v1", local=True, url="VLLM_BASE_URL"),
    "local": Service("", wire="local", local=True, default="smollm2"),
}
"""In the order in which one is chosen where none is named."""

LOCAL_DEADLINES = Deadlines(connect=5.0, first=1_800.0, between=600.0)
"""A model on one's own machine may read a long prompt for many minutes."""


def model(
    name: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    client: Any = None,
    deadlines: Deadlines | None = None,
    **options: Any,
) -> Model:
    """The model called `provider:model`, which asks again after failures that may pass (`retrying`), with what an
    answer costs where `genai-prices` is installed and knows it (`priced`).

    `local` alone is the small model that needs no server (`local.py`).

    base_url: of the service, in place of its own. api_key: in place of the environment's. client: an async client of
    the official `anthropic` or `openai` SDK that sends in place of our own HTTP, with its own address and key; it stays
    the caller's to close. options: sent with each request, by name (`temperature=0`). Nothing is connected or imported
    for it yet. Raises DefinitionError for a name or option that cannot be, ModelError("auth") for a missing key.
    """
    service, known_as = service_of(name)
    name = name if ":" in name else f"{name}:{known_as}"
    if client is not None:
        from latchstep.model.sdk_client import client_source

        if base_url is not None or api_key is not None:
            raise DefinitionError("client= brings its own address and key: leave base_url= and api_key= out")
        source = client_source(client, service.wire)
        base_url, api_key = str(client.base_url), ""
    url = base_url or usual_url(service)
    own = _host(url) == _host(service.base_url)
    needed = bool(service.key) and (own or not service.url) and client is None
    key, key_from = _key(name.partition(":")[0], service, api_key, needed)
    built: Wire = import_module(f"latchstep.model.{service.wire}").build(
        known_as,
        url,
        key,
        name=name,
        options=options,
        deadlines=deadlines or (LOCAL_DEADLINES if service.local else Deadlines()),
        **service.settings,
    )
    built.native_output, built.key_from = service.native and own, key_from
    if client is not None:
        built.source = source
    return retrying(priced(built, known_as, url))


def service_of(name: str) -> tuple[Service, str]:
    """The service that a name names, and what it calls the model. Raises DefinitionError."""
    provider, _, known_as = (f"local:{SERVICES['local'].default}" if name == "local" else name).partition(":")
    service = SERVICES.get(provider)
    if service is None or not known_as.strip():
        raise DefinitionError(_no_such(name))
    return service, known_as.strip()


def key_variable(service: Service) -> str:
    """The variable that holds this service's key, "" where none is set."""
    names = (service.key, service.other_key)
    return next((name for name in names if name and os.environ.get(name, "").strip()), "")


def elsewhere(service: Service) -> str:
    """The host that the environment names in place of the service's own, "" where it does not."""
    host = _host(usual_url(service))
    return host if host != _host(service.base_url) else ""


def usual_url(service: Service) -> str:
    """Where the service is asked: the server that the environment names, else its own."""
    return (service.url and os.environ.get(service.url)) or service.base_url


def _host(url: str) -> str:
    return host_of(url).lower()


def _key(provider: str, service: Service, given: str | None, needed: bool) -> tuple[str, str]:
    """(the key, where it comes from)."""
    source = key_variable(service) if given is None else "api_key"
    key = check_key(given if given is not None else os.environ.get(source, ""), source)
    if needed and not key:
        raise ModelError("auth", f"no key for {provider}: set {service.key} in the environment, or pass api_key=")
    return key, source


def _no_such(name: str) -> str:
    there_are = ", ".join(f"{service}:" for service in SERVICES)
    return f"no model {name!r}: a name is PROVIDER:MODEL, where PROVIDER is one of {there_are}"
