"""Any server that speaks OpenAI's Chat Completions.

Rule: encoding (`chat_request.py`) and decoding (`chat_answer.py`) are pure; `wire.py` carries them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from latchstep.http import Deadlines, host_of
from latchstep.model.chat_answer import Decoder
from latchstep.model.chat_request import RESERVED, Dialect, Encoder
from latchstep.model.history import check_options
from latchstep.model.wire import Wire, check_key, endpoint


def build(
    model: str,
    base_url: str,
    api_key: str = "",
    *,
    name: str = "",
    options: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    dialect: Dialect = Dialect(),  # noqa: B008 - frozen
    deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
) -> Wire:
    """A model behind a Chat Completions endpoint.

    name: what the journal calls it. model: what the server calls it. base_url: up to and without
    `/chat/completions`; a query in it is kept. api_key: "" for a server that wants none.
    options: sent with each request, by name. Raises DefinitionError, or ModelError("auth") for a malformed key.
    """
    name = name or f"openai-chat:{model}"
    settings = dict(options or {})
    check_options(settings, RESERVED)
    url, key = endpoint(base_url, "/chat/completions"), check_key(api_key)
    if f".{host_of(url[1]).lower()}".endswith((".api.openai.com", ".openai.azure.com")):
        dialect = msgspec.structs.replace(dialect, max_tokens="max_completion_tokens")
    encoder = Encoder(model, origin=name, dialect=dialect, options=settings)
    sent = {"authorization": f"Bearer {key}"} if key else {}
    return Wire(name, url, {**(headers or {}), **sent}, encoder.encode, Decoder, key=key, deadlines=deadlines)
