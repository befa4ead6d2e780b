"""One streaming POST a request, for every provider: its deadlines, its errors, the names of tools.

Rule: a wire is an encoder and a decoder, both pure, both in files of their own; what lies between them is here, once.
The key is in no error, no log and no `repr`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

import msgspec

from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.core.message import ToolCall, Usage
from latchstep.errors import DefinitionError, ModelError
from latchstep.http import Answer, Deadlines, stream_post
from latchstep.model.base import Request, with_final_tool
from latchstep.model.failure import http_failure, no_answer
from latchstep.model.history import legal_name
from latchstep.model.sse import MAX_EVENT, SSEParser

MAX_ERROR_BODY = 64 * 1024
"""Bytes of an error's body that are read."""

LINGER = 5.0
"""Seconds to wait in all for usage and the end of the stream once the answer itself is whole."""

CLOSING = 0.1
"""Seconds to wait for the end of the body after the stream's last word, so that the connection can be used again."""


class Decoder(Protocol):
    """Turns the events of one answer into chunks. Pure: it raises ModelError and nothing else."""

    @property
    def finished(self) -> bool:
        """The answer is whole; only its usage may be missing."""
        ...

    @property
    def done(self) -> bool:
        """The stream's last word was seen: nothing more will come."""
        ...

    @property
    def usage(self) -> Usage:
        """As far as it was reported."""
        ...

    def feed(self, event: str, data: str) -> list[Chunk]:
        """One event: its name ("message" where it has none) and its data. A whole answer that was not streamed
        comes as one event without a name, "". Raises ModelError: what the server reported, or `protocol`."""
        ...

    def end(self) -> list[Chunk]:
        """The `Completed`. Raises ModelError("protocol") where the stream ended before the answer did."""
        ...


class Events(Protocol):
    """The events of one answer, as they come."""

    async def read(self, within: float | None) -> list[tuple[str, str]] | None:
        """The next ones, as `Decoder.feed` takes them; maybe none yet. None at the end. Raises ModelError.

        within: a bound in seconds for this read alone.
        """
        ...

    def progress(self) -> None:
        """What was read held content: the deadline `between` counts from now."""
        ...


class Source(Protocol):
    """Where a wire's events come from: our own HTTP, or a client of somebody else's."""

    def __call__(
        self, body: bytes, headers: Mapping[str, str], deadlines: Deadlines
    ) -> AbstractAsyncContextManager[Events]:
        """Ask, and open the answer; leaving the block closes it. Raises ModelError, in which there is no secret, and
        blots out its secrets in the ModelErrors that are raised in the block."""
        ...


class Wire:
    """A model behind an HTTP API.

    name: what the journal calls it. url: see `endpoint`. decoder: makes one for an answer; it is given the tools'
    names as they were sent. key: blotted out of errors. rename: a tool's name as the API takes it.
    native_output: whether `encode` may be given `Request.output`, until the server has refused it once.
    key_from: where the key comes from, for the error that says it was refused.
    """

    def __init__(
        self,
        name: str,
        url: tuple[str, str],
        headers: Mapping[str, str],
        encode: Callable[[Request], bytes],
        decoder: Callable[[Iterable[str]], Decoder],
        *,
        key: str = "",
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
        rename: Callable[[str], str] = legal_name,
    ) -> None:
        self.native_output = False
        self.key_from = ""
        self.source: Source = self._post
        self._name, self._headers = name, headers
        self._url, self._shown = url
        self._encode, self._decoder, self._rename = encode, decoder, rename
        self._key, self._deadlines = key, deadlines

    def __repr__(self) -> str:
        return f"Wire({self._name!r}, {self._shown!r})"

    @property
    def name(self) -> str:
        return self._name

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """Deltas, then one `Completed`. Raises ModelError; DefinitionError for an option that cannot be sent."""
        first = asked = request if self.native_output else with_final_tool(request)
        while True:
            body = self._encode(asked)
            names = {self._rename(tool.name): tool.name for tool in asked.tools}
            renamed = any(wire != real for wire, real in names.items())
            async with AsyncExitStack() as stack:
                try:
                    events = await stack.enter_async_context(self.source(body, self._headers, self._deadlines))
                except ModelError as failure:
                    if failure.kind != "bad_request" or asked.output is None:
                        raise
                    asked = with_final_tool(asked)  # the model or the server takes no schema, or not this one
                    continue
                if asked is not first:
                    self.native_output = False
                decoder, over, clock = self._decoder(names), False, asyncio.get_running_loop().time
                until = math.inf
                while not over:
                    patience = CLOSING if decoder.done else LINGER if decoder.finished else math.inf
                    until = min(until, clock() + patience)
                    try:
                        chunks, over = await _next(events, decoder, until - clock())
                    except ModelError as failure:
                        failure.usage = decoder.usage
                        raise
                    for chunk in chunks:
                        yield _restored(chunk, names) if renamed else chunk
            return

    @asynccontextmanager
    async def _post(self, body: bytes, headers: Mapping[str, str], deadlines: Deadlines) -> AsyncIterator[Events]:
        """Our own HTTP as a `Source`."""
        sent = {"content-type": "application/json", "accept": "text/event-stream", **headers}
        try:
            async with stream_post(self._url, body, sent, deadlines) as answer:
                if answer.status // 100 != 2:
                    try:
                        text = await _whole(answer, MAX_ERROR_BODY)
                    except ModelError:
                        text = ""  # the status says more than how its body broke
                    raise http_failure(answer.status, answer.headers, text, self._shown)
                yield _Posted(answer, self._shown)
        except ModelError as error:
            if error.kind == "auth" and self.key_from:
                error.message += f" (check {self.key_from})"
            blot(error, self._key)
            raise


async def _next(events: Events, decoder: Decoder, patience: float) -> tuple[list[Chunk], bool]:
    """(the next chunks, whether `Completed` is among them)."""
    chunks: list[Chunk] = []
    try:
        read = await events.read(None if patience == math.inf else patience)
        for event, data in read or ():
            chunks += decoder.feed(event, data)
            if not (event or chunks or decoder.finished):
                raise no_answer(data)  # it was all
        if chunks:
            events.progress()
        if read is not None:
            return chunks, False
    except ModelError:
        if not decoder.finished:
            raise  # else the answer is whole; nothing may spoil it any more
    return chunks + decoder.end(), True


def blot(error: ModelError, *secrets: str) -> None:
    """Take the secrets out of the error's text."""
    for secret in filter(None, secrets):
        error.message = error.message.replace(secret, "***")
    error.args = (error.message,)


class _Posted:
    """`Events` of our own POST; one JSON value from a server that does not stream is one event."""

    def __init__(self, answer: Answer, url: str) -> None:
        self.progress = answer.progress
        self._answer, self._url = answer, url
        self._parser: SSEParser | None = None
        self._over = False

    async def read(self, within: float | None) -> list[tuple[str, str]] | None:
        if self._over:
            return None
        if self._parser is None:
            self._parser = SSEParser()
            return await self._begin(self._parser)
        if piece := await self._answer.read(within):
            return self._parser.feed(piece)
        self._over = True
        return self._parser.flush()

    async def _begin(self, parser: SSEParser) -> list[tuple[str, str]]:
        first, start = b"", b""
        while not start and (more := await self._answer.read()):
            first += more
            start = first.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]  # says what kind of body this is
            if len(first) > MAX_ERROR_BODY:
                break
        if start == b"<":
            raise http_failure(self._answer.status, self._answer.headers, "<", self._url)
        if start in (b"{", b"["):
            self._over = True
            return [("", await _whole(self._answer, MAX_EVENT, first))]
        return parser.feed(first)


async def _whole(answer: Answer, limit: int, first: bytes = b"") -> str:
    """The whole body as text, up to `limit` bytes; an answer may not be larger, an error is cut there."""
    pieces, size = [first], len(first)
    while size <= limit and (piece := await answer.read()):
        pieces.append(piece)
        size += len(piece)
    if size > limit and answer.status // 100 == 2:
        raise ModelError("protocol", f"the answer is larger than MAX_EVENT ({size} of {limit} bytes)")
    return b"".join(pieces)[:limit].decode("utf-8-sig", "replace")


def _restored(chunk: Chunk, names: dict[str, str]) -> Chunk:
    """The chunk with the tools' own names instead of those that the wire allows."""
    if isinstance(chunk, Delta) and chunk.name:
        return msgspec.structs.replace(chunk, name=names.get(chunk.name, chunk.name))
    if isinstance(chunk, Completed):
        blocks = tuple(
            msgspec.structs.replace(block, name=names.get(block.name, block.name))
            if isinstance(block, ToolCall)
            else block
            for block in chunk.blocks
        )
        return msgspec.structs.replace(chunk, blocks=blocks)
    return chunk


def endpoint(base_url: str, suffix: str) -> tuple[str, str]:
    """(the URL to post to, the same without user, password and query). Raises DefinitionError.

    `suffix` is the API's own path; `base_url` may already end in its beginning (`…/v1` and `/v1/messages`).
    A query in `base_url` is kept.
    """
    from urllib.parse import urlsplit, urlunsplit

    try:
        parts = urlsplit(base_url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    plain = base_url.isascii() and not any(char.isspace() or not char.isprintable() for char in base_url.strip())
    if parts.scheme not in ("http", "https") or not host or not plain:
        raise DefinitionError("base_url must look like http://HOST:PORT/v1 or https://HOST/v1")
    path, begun = parts.path.rstrip("/"), suffix
    while begun and not path.endswith(begun):
        begun = begun.rpartition("/")[0]
    path = path.removesuffix(begun) + suffix
    shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, "")), shown


def check_key(key: str, source: str = "api_key") -> str:
    """The key without blanks around it. Raises ModelError("auth") that names the place and never the key."""
    key = key.strip()
    for at, char in enumerate(key):
        if not "!" <= char <= "~":
            what = "a blank" if char.isspace() else "a character that is not printable ASCII"
            raise ModelError("auth", f"the key in {source} has {what} at position {at + 1}; copy it anew")
    return key
