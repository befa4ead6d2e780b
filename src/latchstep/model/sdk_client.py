"""A client of the official `anthropic` or `openai` SDK carries a wire's requests: for Bedrock, Vertex, Azure.

Rule: the SDK signs, sends and splits the stream; requests, answers, deadlines, retries and errors stay ours. It is
never imported here: the caller's object brings it along, and is known by the package that its class comes from.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from inspect import iscoroutinefunction
from typing import Any
from weakref import WeakKeyDictionary, ref

from latchstep.core.message import clean
from latchstep.errors import DefinitionError, ModelError
from latchstep.http import Deadlines, Watch, host_of, network_error, settle
from latchstep.model.failure import MAX_WORDS, body_failure, http_failure
from latchstep.model.wire import MAX_ERROR_BODY, Events, Source, blot

PATHS = {
    "anthropic": ("anthropic", "/v1/messages"),
    "openai_chat": ("openai", "/chat/completions"),
    "openai_responses": ("openai", "/responses"),
}
"""By wire: the SDK whose client can carry it, and the path as that SDK's own methods give it to `post`."""

SECRET = ("authorization", "x-api-key", "api-key", "x-amz-security-token")
"""Headers of the SDK's request that no error may show."""


_END = object()
_homes: WeakKeyDictionary[Any, ref[asyncio.AbstractEventLoop]] = WeakKeyDictionary()
_OTHER_LOOP = (
    "this client keeps connections of another event loop, over which a request would be sent and its answer lost: make"
    " a new client and model for each asyncio.run or run_sync, or do everything in one"
)
_TURNS = 24  # twice what the generators of an SDK's stream were seen to need


def client_source(client: Any, wire: str) -> Source:
    """A `Source` for `wire`, a module's name. Raises DefinitionError for a client that cannot carry it."""
    if wire not in PATHS:
        raise DefinitionError(f"client= carries no {wire} models; leave it out")
    package, path = PATHS[wire]
    owners = {cls.__module__.partition(".")[0] for cls in type(client).__mro__}
    given = f"{type(client).__module__}.{type(client).__qualname__}"
    if package not in owners or not hasattr(client, "post"):
        raise DefinitionError(f"client= must be an async client of the {package} SDK here, not {given}")
    if not iscoroutinefunction(client.post):
        raise DefinitionError(f"client= is a synchronous {given}; give the async one (Async{type(client).__name__})")
    stream = sys.modules[package].AsyncStream[object]

    @asynccontextmanager
    async def source(body: bytes, headers: Mapping[str, str], deadlines: Deadlines) -> AsyncIterator[Events]:
        options = {"max_retries": 0, "headers": dict(headers), "follow_redirects": False}
        asked = json.loads(body)
        if _homes.setdefault(client, ref(asyncio.get_running_loop()))() is not asyncio.get_running_loop():
            raise ModelError("bad_request", f"{_OTHER_LOOP} ({type(client).__name__})")
        host = host_of(str(client.base_url))
        watch = Watch(host, deadlines)
        secrets = [key for key in (getattr(client, "api_key", None),) if isinstance(key, str)]
        opened: Any = None
        try:
            try:
                opened = await watch.wait(
                    client.post(path, body=asked, cast_to=object, options=options, stream=True, stream_cls=stream)
                )
            except ModelError:
                raise
            except Exception as error:
                secrets += _secrets(getattr(error, "request", None))
                raise _failure(error, host, package) from None
            answer = opened.response
            secrets += _secrets(answer.request)
            if "text/html" in answer.headers.get("content-type", ""):
                raise http_failure(answer.status_code, answer.headers, "", _shown(answer.request))
            yield _Streamed(opened, watch, host)
        except ModelError as error:
            blot(error, *secrets)
            raise
        finally:
            if opened is not None:
                await _close(opened)

    return source


class _Streamed:
    """`Events` of an SDK's stream, whose items are the events' JSON values."""

    def __init__(self, opened: Any, watch: Watch, host: str) -> None:
        self.progress = watch.progress
        self._opened, self._watch, self._host = opened, watch, host

    async def read(self, within: float | None) -> list[tuple[str, str]] | None:
        try:
            event = await self._watch.wait(anext(self._opened, _END), within)
            return None if event is _END else [("message", json.dumps(event))]
        except ModelError:
            raise
        except Exception as error:
            raise _failure(error, self._host) from None


async def _close(opened: Any) -> None:
    iterator = getattr(opened, "_iterator", None)  # left in the middle, the SDK's generator would outlive the answer
    if iterator is not None:
        await iterator.aclose()
    await opened.close()
    await settle(_TURNS)


def _failure(error: Exception, host: str, asking: str = "") -> ModelError:
    """What an exception of the SDK means; its own text may hold the key. asking: the SDK that could not even ask."""
    kinds = {cls.__name__ for cls in type(error).__mro__}
    response = getattr(error, "response", None)
    if "APIStatusError" in kinds and response is not None and response.status_code != 200:
        body = response.text[:MAX_ERROR_BODY]
        return http_failure(response.status_code, response.headers, body, _shown(response.request))
    if kinds & {"APITimeoutError", "TimeoutException"}:
        return ModelError("timeout", f"{host} did not answer within the client's own timeout; give it a longer one")
    if "APIConnectionError" in kinds or "RequestError" in kinds or isinstance(error, OSError):
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        try:
            return network_error(cause, host)
        except Exception:  # nothing that our own HTTP knows, such as the error of another HTTP library
            return ModelError("network", f"the connection to {host} broke ({type(cause).__name__})")
    if "APIError" in kinds:
        return body_failure(getattr(error, "body", None))  # an event of the stream
    words = clean(" ".join(f"{type(error).__name__}: {error}".split()))[:MAX_WORDS]
    if asking:
        return ModelError("auth", f"the {asking} client could not sign or send the request ({words})")
    return ModelError("protocol", f"the {host} stream could not be read ({words})")


def _secrets(request: Any) -> list[str]:
    return [request.headers.get(name, "").removeprefix("Bearer ") for name in SECRET] if request is not None else []


def _shown(request: Any) -> str:
    """The request's URL without user, password and query."""
    url = str(request.url).partition("?")[0]
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{host_of(url)}/{rest.partition('/')[2]}"
