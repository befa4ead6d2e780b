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
from latchstep.http import Deadlines
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
    """One service. key: the variable that holds its key, "" where it wants none. wire: the module here whose `build`
    makes the model. settings: what else that is given, by name. url: the variable that may name another server, one
    that may want no key. other_key: the variable that is read where `key` is not set. native: whether it holds an
    answer to a JSON Schema; another server at `url` is not known to."""

    base_url: str
    key: str = ""
    wire: str = "openai_chat"
    settings: dict[str, Any] = {}
    url: str = ""
    local: bool = False
    other_key: str = ""
    native: bool = False


SERVICES: dict[str, Service] = {
    "anthropic": Service(ANTHROPIC, "ANTHROPIC_API_KEY", wire="anthropic", url="ANTHROPIC_BASE_URL", native=True),
    "openai": Service(OPENAI, "OPENAI_API_KEY", wire="openai_responses", url="OPENAI_BASE_URL", native=True),
    "openai-chat": Service(OPENAI, "OPENAI_API_KEY", url="OPENAI_BASE_URL", native=True),
    "gemini": Service(
        GEMINI, "GEMINI_API_KEY", "gemini", url="GEMINI_BASE_URL", other_key="GOOGLE_API_KEY", native=True
    ),
    "openrouter": Service("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "groq": Service("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "deepseek": Service("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "mistral": Service("https://api.mistral.ai/v1", "MISTRAL_API_KEY", settings={"dialect": MISTRAL}),
    "xai": Service("https://api.x.ai/v1", "XAI_API_KEY"),
    "together": Service("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "ollama": Service("http://127.0.0.1:11434/v1", local=True),
    "lmstudio": Service("http://127.0.0.1:1234/v1", local=True),
    "llamacpp": Service("http://127.0.0.1:8080/v1", local=True),
    "vllm": Service("http://127.0.0.1:8000/v1", local=True),
}

LOCAL_DEADLINES = Deadlines(connect=5.0, first=1_800.0, between=600.0)
"""A model on one's own machine may read a long prompt for many minutes."""


def model(
    name: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    deadlines: Deadlines | None = None,
    **options: Any,
) -> Model:
    """The model called `provider:model`, which asks again after failures that may pass (`retrying`), with what an
    answer costs where `genai-prices` is installed and knows it (`priced`).

    base_url: of the service, in place of its own. api_key: in place of the environment's. options: sent with each
    request, by name (`temperature=0`). Nothing is connected or imported for it yet.
    Raises DefinitionError for a name or option that cannot be, ModelError("auth") for a missing key.
    """
    service, known_as = service_of(name)
    url = base_url or (service.url and os.environ.get(service.url)) or service.base_url
    own = _host(url) == _host(service.base_url)
    needed = bool(service.key) and (own or not service.url)
    built: Wire = import_module(f"latchstep.model.{service.wire}").build(
        known_as,
        url,
        _key(name.partition(":")[0], service, api_key, needed),
        name=name,
        options=options,
        deadlines=deadlines or (LOCAL_DEADLINES if service.local else Deadlines()),
        **service.settings,
    )
    built.native_output = service.native and own
    return retrying(priced(built, known_as, url))


def service_of(name: str) -> tuple[Service, str]:
    """The service that a name names, and what it calls the model. Raises DefinitionError."""
    provider, _, known_as = name.partition(":")
    service = SERVICES.get(provider)
    if service is None or not known_as.strip():
        raise DefinitionError(_no_such(name))
    return service, known_as.strip()


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].lower()


def _key(provider: str, service: Service, given: str | None, needed: bool) -> str:
    source = service.other_key if service.other_key and not os.environ.get(service.key) else service.key
    if given is not None:
        source = "api_key"
    key = check_key(given if given is not None else os.environ.get(source, "") if source else "", source)
    if needed and not key:
        raise ModelError("auth", f"no key for {provider}: set {service.key} in the environment, or pass api_key=")
    return key


def _no_such(name: str) -> str:
    there_are = ", ".join(f"{service}:" for service in SERVICES)
    return f"no model {name!r}: a name is PROVIDER:MODEL, where PROVIDER is one of {there_are}"
