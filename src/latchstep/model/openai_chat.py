"""Any server that speaks OpenAI's Chat Completions: one streaming POST a request.

Rule: encoding and decoding are pure and lie beside this file (`chat_request.py`, `chat_answer.py`); here are only
the wire, its deadlines and its errors. The key is in no error, no log and no `repr`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.core.message import ToolCall
from latchstep.errors import DefinitionError, ModelError
from latchstep.http import Answer, Deadlines, stream_post
from latchstep.model.base import Request
from latchstep.model.chat_answer import Decoder
from latchstep.model.chat_request import Dialect, Encoder, check_options, legal_name
from latchstep.model.failure import http_failure
from latchstep.model.sse import MAX_EVENT, SSEParser

MAX_ERROR_BODY = 64 * 1024
"""Bytes of an error's body that are read."""

LINGER = 5.0
"""Seconds to wait for usage and the end of the stream once the answer itself is whole."""

CLOSING = 0.1
"""Seconds to wait for the end of the body after `[DONE]`, so that the connection can be used again."""


class OpenAIChat:
    """A model behind a Chat Completions endpoint.

    name: what the journal calls it. model: what the server calls it. base_url: up to and without
    `/chat/completions`; a query in it is kept. api_key: "" for a server that wants none.
    options: sent with each request, by name.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        api_key: str = "",
        *,
        name: str = "",
        options: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        dialect: Dialect = Dialect(),  # noqa: B008 - frozen
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
    ) -> None:
        self._name = name or f"openai-chat:{model}"
        self._url, self._shown = endpoint(base_url)
        self._key = check_key(api_key)
        self._options = dict(options or {})
        check_options(self._options)
        self._headers = {"content-type": "application/json", "accept": "text/event-stream", **(headers or {})}
        if self._key:
            self._headers["authorization"] = f"Bearer {self._key}"
        self._encoder = Encoder(model, origin=self._name, dialect=dialect)
        self._deadlines = deadlines

    def __repr__(self) -> str:
        return f"OpenAIChat({self._name!r}, {self._shown!r})"

    @property
    def name(self) -> str:
        return self._name

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """Deltas, then one `Completed`. Raises ModelError; DefinitionError for an option that cannot be sent."""
        body = self._encoder.encode(request, self._options)
        names = {legal_name(tool.name): tool.name for tool in request.tools}
        renamed = any(wire != real for wire, real in names.items())
        decoder = Decoder(names)
        try:
            async with stream_post(self._url, body, self._headers, self._deadlines) as answer:
                if answer.status != 200:
                    raise http_failure(answer.status, answer.headers, await _whole(answer, MAX_ERROR_BODY), self._shown)
                reading = _Reading(answer, decoder, self._shown)
                while chunks := await reading.next():
                    for chunk in chunks:
                        yield _restored(chunk, names) if renamed else chunk
        except ModelError as error:
            if self._key and self._key in error.message:
                error.message = error.message.replace(self._key, "***")
                error.args = (error.message,)
            raise


class _Reading:
    """Reads one answer: events, or one JSON value from a server that does not stream."""

    def __init__(self, answer: Answer, decoder: Decoder, url: str) -> None:
        self._answer, self._decoder, self._url = answer, decoder, url
        self._parser: SSEParser | None = None
        self._over = False

    async def next(self) -> list[Chunk]:
        """The next chunks; an empty list once `Completed` is out."""
        while not self._over:
            try:
                chunks = await (self._begin() if self._parser is None else self._more(self._parser))
            except ModelError:
                if not self._decoder.finished:
                    raise
                chunks = self._end()  # the answer is whole; nothing may spoil it any more
            if chunks:
                return chunks
        return []

    async def _begin(self) -> list[Chunk]:
        self._parser = SSEParser()
        first, start = b"", b""
        while not start and (more := await self._answer.read()):
            first += more
            start = first.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]  # says what kind of body this is
            if len(first) > MAX_ERROR_BODY:
                break
        if start == b"<":
            raise http_failure(self._answer.status, self._answer.headers, "<", self._url)
        if start in (b"{", b"["):
            chunks = self._decoder.feed(await _whole(self._answer, MAX_EVENT, first))
            return chunks + self._end()
        return self._feed(self._parser.feed(first))

    async def _more(self, parser: SSEParser) -> list[Chunk]:
        patience = CLOSING if self._decoder.done else LINGER if self._decoder.finished else None
        piece = await self._answer.read(patience)
        if piece:
            return self._feed(parser.feed(piece))
        return self._feed(parser.flush()) + self._end()

    def _feed(self, events: list[tuple[str, str]]) -> list[Chunk]:
        chunks: list[Chunk] = []
        for _, data in events:
            chunks += self._decoder.feed(data)
        if chunks:
            self._answer.progress()
        return chunks

    def _end(self) -> list[Chunk]:
        self._over = True
        return self._decoder.end()


async def _whole(answer: Answer, limit: int, first: bytes = b"") -> str:
    """The whole body as text, up to `limit` bytes; an answer may not be larger, an error is cut there."""
    pieces, size = [first], len(first)
    while size <= limit and (piece := await answer.read()):
        pieces.append(piece)
        size += len(piece)
    if size > limit and answer.status == 200:
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


def endpoint(base_url: str) -> tuple[str, str]:
    """(the URL to post to, the same without user, password and query). Raises DefinitionError."""
    from urllib.parse import urlsplit, urlunsplit

    try:
        parts = urlsplit(base_url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    plain = base_url.isascii() and not any(char.isspace() or not char.isprintable() for char in base_url.strip())
    if parts.scheme not in ("http", "https") or not host or not plain:
        raise DefinitionError("base_url must look like http://HOST:PORT/v1 or https://HOST/v1")
    path = parts.path.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
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
