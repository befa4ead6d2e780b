"""Google's Gemini API, `streamGenerateContent`.

Rule: encoding (`gemini_request.py`) and decoding (`gemini_answer.py`) are pure; `wire.py` carries them.
"""

from __future__ import annotations

from typing import Any

from latchstep.http import Deadlines
from latchstep.model.gemini_answer import Decoder
from latchstep.model.gemini_request import Encoder, legal_function, sort_options
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
    """A model behind the Gemini API.

    name: what the journal calls it. model: what the server calls it; with a slash it is the whole resource name
    (`tunedModels/x`, `publishers/google/models/x`). base_url: up to and with the version (`…/v1beta`); a query in it
    is kept. api_key: "" for a server that wants none; it goes into a header and never into the URL.
    options: see `sort_options`. Raises DefinitionError, or ModelError("auth") for a malformed key.
    """
    from urllib.parse import quote

    name = name or f"gemini:{model}"
    settings = dict(options or {})
    sort_options(settings)
    resource = quote(model if "/" in model else f"models/{model}", safe="/@")
    url, shown = endpoint(base_url, f"/{resource}:streamGenerateContent")
    key = check_key(api_key)
    encoder = Encoder(origin=name, options=settings)
    return Wire(
        name,
        (f"{url}{'&' if '?' in url else '?'}alt=sse", shown),
        {**(headers or {}), **({"x-goog-api-key": key} if key else {})},
        encoder.encode,
        Decoder,
        key=key,
        deadlines=deadlines,
        rename=legal_function,
    )
