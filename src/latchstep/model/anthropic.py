"""Anthropic's Messages API, at Anthropic and wherever else it is spoken.

Rule: encoding (`anthropic_request.py`) and decoding (`anthropic_answer.py`) are pure; `wire.py` carries them.
"""

from __future__ import annotations

from typing import Any

from latchstep.http import Deadlines
from latchstep.model.anthropic_answer import Decoder
from latchstep.model.anthropic_request import RESERVED, Encoder
from latchstep.model.history import check_options
from latchstep.model.wire import Wire, check_key, endpoint

VERSION = "2023-06-01"
"""The `anthropic-version` whose requests and answers these are."""


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
    """A model behind `/v1/messages`.

    name: what the journal calls it. model: what the server calls it. base_url: up to and without `/v1/messages`.
    options: sent with each request, by name; but `betas`, a list of names, becomes the `anthropic-beta` header.
    Raises DefinitionError, or ModelError("auth") for a malformed key.
    """
    name = name or f"anthropic:{model}"
    settings = dict(options or {})
    betas = settings.pop("betas", ())
    check_options(settings, RESERVED)
    key = check_key(api_key)
    sent = {"anthropic-version": VERSION, **(headers or {})}
    if betas:
        sent["anthropic-beta"] = betas if isinstance(betas, str) else ",".join(betas)
    if key:
        sent["x-api-key"] = key
    encoder = Encoder(model, origin=name, options=settings)
    url = endpoint(base_url, "/v1/messages")
    return Wire(name, url, sent, encoder.encode, Decoder, key=key, deadlines=deadlines)
