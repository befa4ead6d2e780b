"""Names of models: `provider:model` becomes a `Model`.

Rule: one table row a service. What is wrong, or a key that is missing, is said here, before anything starts.
Keys come from an argument or the environment, never from a file.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from latchstep.errors import DefinitionError, ModelError
from latchstep.http import Deadlines
from latchstep.model.base import Model
from latchstep.model.chat_request import Dialect
from latchstep.model.openai_chat import OpenAIChat, check_key
from latchstep.model.retry import retrying

OPENAI = "https://api.openai.com/v1"


class Service(msgspec.Struct, frozen=True):
    """A service that speaks Chat Completions. key: the variable that holds its key, "" where it wants none."""

    base_url: str
    key: str = ""
    dialect: Dialect = Dialect()
    local: bool = False


SERVICES: dict[str, Service] = {
    "openai-chat": Service(OPENAI, "OPENAI_API_KEY"),
    "openrouter": Service("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "groq": Service("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "deepseek": Service("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "mistral": Service("https://api.mistral.ai/v1", "MISTRAL_API_KEY", Dialect(short_ids=True, usage=False)),
    "xai": Service("https://api.x.ai/v1", "XAI_API_KEY"),
    "together": Service("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "ollama": Service("http://127.0.0.1:11434/v1", local=True),
    "lmstudio": Service("http://127.0.0.1:1234/v1", local=True),
    "llamacpp": Service("http://127.0.0.1:8080/v1", local=True),
    "vllm": Service("http://127.0.0.1:8000/v1", local=True),
}

NOT_YET = {"anthropic", "openai", "gemini"}
"""Providers whose own protocol is planned and not built yet."""

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
    """The model called `provider:model`, which asks again after failures that may pass (`retrying`).

    base_url: of the service, in place of its own. api_key: in place of the environment's. options: sent with each
    request, by name (`temperature=0`). Nothing is connected or imported for it yet.
    Raises DefinitionError for a name or option that cannot be, ModelError("auth") for a missing key.
    """
    provider, colon, known_as = name.partition(":")
    service = SERVICES.get(provider)
    if service is None or not colon or not known_as.strip():
        raise DefinitionError(_no_such(name, provider))
    url = base_url or (os.environ.get("OPENAI_BASE_URL") if provider == "openai-chat" else None) or service.base_url
    dialect = service.dialect
    at_openai = url.partition("://")[2].partition("/")[0].lower() == "api.openai.com"
    if at_openai:
        dialect = msgspec.structs.replace(dialect, max_tokens="max_completion_tokens")
    needed = at_openai if provider == "openai-chat" else bool(service.key)
    built = OpenAIChat(
        known_as.strip(),
        url,
        _key(provider, service, api_key, needed),
        name=name,
        options=options,
        dialect=dialect,
        deadlines=deadlines or (LOCAL_DEADLINES if service.local else Deadlines()),
    )
    return retrying(built)


def _key(provider: str, service: Service, given: str | None, needed: bool) -> str:
    source = "api_key" if given is not None else service.key
    key = check_key(given if given is not None else os.environ.get(service.key, "") if service.key else "", source)
    if needed and not key:
        raise ModelError("auth", f"no key for {provider}: set {service.key} in the environment, or pass api_key=")
    return key


def _no_such(name: str, provider: str) -> str:
    there_are = ", ".join(f"{service}:" for service in SERVICES)
    if provider in NOT_YET:
        return f"{provider}: is not built yet in this version ({name!r}); there are {there_are}"
    return f"no model {name!r}: a name is PROVIDER:MODEL, where PROVIDER is one of {there_are}"
