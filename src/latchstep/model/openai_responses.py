"""OpenAI's Responses API, and servers that speak it.

Rule: encoding (`responses_request.py`) and decoding (`responses_answer.py`) are pure; `wire.py` carries them.
"""

from __future__ import annotations

from typing import Any

from latchstep.http import Deadlines
from latchstep.model.history import check_options
from latchstep.model.responses_answer import Decoder
from latchstep.model.responses_request import RESERVED, Encoder
from latchstep.model.wire import Wire, check_key, endpoint


def build(
    model: str,
    base_url: str,
    api_key: str = "",
    *,
    name: str = "",
    options: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
) -> Wire:
    """A model behind a Responses endpoint.

    name: what the journal calls it. model: what the server calls it. base_url: up to and without `/responses`; a
    query in it is kept. api_key: "" for a server that wants none. options: sent with each request, by name.
    Raises DefinitionError, or ModelError("auth") for a malformed key.
    """
    name = name or f"openai:{model}"
    settings = dict(options or {})
    check_options(settings, RESERVED)
    url, key = endpoint(base_url, "/responses"), check_key(api_key)
    encoder = Encoder(model, origin=name, options=settings)
    sent = {"authorization": f"Bearer {key}"} if key else {}
    return Wire(name, url, {**(headers or {}), **sent}, encoder.encode, Decoder, key=key, deadlines=deadlines)
