"""The only HTTP client, over `httpx2`, which is imported at the first call: a streaming POST, a small GET, a page.

Rule: the caller gets bytes, or one `ModelError` of kind `network`, `timeout` or `bad_request`; no wait is
without a deadline. One client an event loop, built on first use, kept for its connections, closed with the loop.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from latchstep.errors import ModelError

if TYPE_CHECKING:
    import ssl

    import httpx2

MAX_CONNECTIONS = 1_000
"""Open connections of one event loop; further requests wait, within their `first` deadline."""

MAX_IDLE = 32
"""Connections kept open for the next request, for `IDLE_SECONDS` at most."""

IDLE_SECONDS = 30.0

_T = TypeVar("_T")
_TURNS = 3  # of the event loop, in which httpx2's own generators end after an answer was left in the middle

_DIRECT = ("127.0.0.1", "localhost", "[::1]")  # a proxy would reach its own machine's, not ours
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")

_WORDS = {
    "connect": "no connection to {host} within {seconds:g} s (deadline `connect`)",
    "first": "{host} sent no answer within {seconds:g} s (deadline `first`)",
    "between": "{host} sent nothing more of its answer for {seconds:g} s (deadline `between`)",
}


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds in seconds; 0 switches one off. They count waiting for the server, never the caller's own time.

    connect: until the connection stands. first: until the first content, connecting and uploading included.
    between: from one piece of content to the next; comments and pings are not content.
    """

    connect: float = 15.0
    first: float = 600.0
    between: float = 300.0


class Watch:
    """Keeps the deadlines of one answer: `first` until `progress` is called, then `between`."""

    def __init__(self, host: str, deadlines: Deadlines) -> None:
        self._host, self._deadlines = host, deadlines
        self._name, self._left = "first", deadlines.first or None

    async def wait(self, work: Awaitable[_T], within: float | None = None) -> _T:
        """What `work` gives. Raises ModelError `timeout`, and whatever `work` raises.

        within: a bound in seconds for this wait alone, for what is welcome and not needed.
        """
        bound = self._left if within is None else min(within, self._left or within)
        clock = asyncio.get_running_loop().time
        start = clock()
        try:
            async with asyncio.timeout(bound) as timer:
                return await work
        except TimeoutError:
            if not timer.expired():
                raise
            raise late(self._name, self._host, self._deadlines) from None
        finally:
            if self._left is not None:
                self._left = max(0.001, self._left - (clock() - start))

    def progress(self) -> None:
        """What just came held content: the watch starts anew."""
        self._name, self._left = "between", self._deadlines.between or None


class Answer:
    """The open answer to one request. `headers` have lower-case names."""

    def __init__(self, response: httpx2.Response, host: str, watch: Watch) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.progress = watch.progress
        self._response, self._host, self._watch = response, host, watch
        self._pieces = response.aiter_bytes()

    async def read(self, within: float | None = None) -> bytes:
        """The next bytes, b"" at the end. Raises ModelError `timeout` or `network`. within: see `Watch.wait`."""
        try:
            return await self._watch.wait(anext(self._pieces, b""), within)
        except ModelError:
            raise
        except Exception as error:
            raise network_error(error, self._host) from error

    async def aclose(self) -> None:
        """Close the connection, or give it back where the body was read to its end."""
        await self._pieces.aclose()
        await self._response.aclose()
        await settle()


def stream_post(
    url: str, body: bytes, headers: Mapping[str, str], deadlines: Deadlines
) -> AbstractAsyncContextManager[Answer]:
    """POST `body` and read the answer as it comes; leaving the block closes it. Redirects are not followed.

    Proxies and certificates are taken from the environment as httpx2 does (`HTTPS_PROXY`, `SSL_CERT_FILE`, …);
    to a loopback address no proxy is used.
    """
    return _opened("POST", url, body, headers, deadlines)


async def get(url: str, *, within: float, most: int) -> tuple[int, bytes]:
    """The status and the body of a GET, whole within that many seconds. Raises ModelError.

    most: bytes of the body that are read; what is longer is cut there.
    """
    async with _opened("GET", url, b"", {}, Deadlines(connect=within, first=within)) as answer:
        body = b""
        while len(body) <= most and (piece := await answer.read()):
            body += piece
        return answer.status, body[:most]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one GET. location: where a redirect leads. cut: the body was longer than was read."""

    status: int
    content_type: str
    location: str
    body: bytes
    cut: bool


async def get_page(url: str, address: str, *, within: float, most: int) -> Page:
    """GET a page from this IP address of its host, and from no other: no name is resolved, no proxy asked, no cookie
    or key sent, no redirect followed. The certificate is the host's. Raises ModelError."""
    import httpx2

    try:
        asked = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise network_error(error, host_of(url)) from error
    host = asked.host
    try:
        async with (
            httpx2.AsyncClient(verify=_ssl_context(asked.scheme == "https"), trust_env=False, timeout=within) as client,
            client.stream(
                "GET",
                asked.copy_with(host=address),
                headers={"host": asked.netloc.decode(), "user-agent": "latchstep", "accept-encoding": "identity"},
                extensions={"sni_hostname": host},
            ) as response,
        ):
            body = b""
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > most:
                    break
            body = _plain(body, response.headers.get("content-encoding", ""), most)
            return Page(
                status=response.status_code,
                content_type=response.headers.get("content-type", ""),
                location=response.headers.get("location", ""),
                body=body[:most],
                cut=len(body) > most,
            )
    except httpx2.TimeoutException:
        raise ModelError("timeout", f"{host} sent no answer within {within:g} s") from None
    except Exception as error:
        raise network_error(error, host) from error


def _plain(body: bytes, encoding: str, most: int) -> bytes:
    """The body of an answer that is compressed though that was not asked for, to one byte more than may be read."""
    if encoding.strip().lower() in ("", "identity"):
        return body
    if encoding.strip().lower() in ("gzip", "x-gzip", "deflate"):
        with suppress(zlib.error):
            return zlib.decompressobj(zlib.MAX_WBITS + 32).decompress(body, most + 1)
    raise ModelError("network", f"its answer is compressed, unasked, in a way that cannot be read ({encoding[:40]!r})")


@asynccontextmanager
async def _opened(
    method: str, url: str, body: bytes, headers: Mapping[str, str], deadlines: Deadlines
) -> AsyncIterator[Answer]:
    import httpx2

    loop = asyncio.get_running_loop()
    secure = url.startswith("https:")
    host = host_of(url)
    try:
        client = _clients.get((loop, secure)) or await _open_client(loop, secure)
    except (ImportError, ValueError, OSError, httpx2.InvalidURL) as error:
        why = f"a proxy or certificate that the environment names cannot be used: {_shown(error)}"
        raise ModelError("bad_request", why) from error
    watch = Watch(host, deadlines)
    try:
        sent = _send(client, method, url, body=body, headers=headers, deadlines=deadlines)
        response = await watch.wait(sent)
    except ModelError:
        raise
    except httpx2.ConnectTimeout:
        raise late("connect", host, deadlines) from None
    except Exception as error:
        raise network_error(error, host) from error
    answer = Answer(response, host, watch)
    try:
        yield answer
    finally:
        await answer.aclose()


async def settle(turns: int = _TURNS) -> None:
    """Let the generators of an answer that was left in the middle end; each needs its turns of the event loop."""
    for _ in range(turns):
        await asyncio.sleep(0)


def host_of(url: str) -> str:
    """Host and port of a URL, for errors."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]


async def _send(
    client: httpx2.AsyncClient, method: str, url: str, *, body: bytes, headers: Mapping[str, str], deadlines: Deadlines
) -> httpx2.Response:
    """The answer's head. A kept connection that turns out to be closed is replaced by a new one, once.

    llama.cpp promises to keep a connection and closes it after each streamed answer: the next request then breaks
    before the server has seen it.
    """
    import httpx2

    connected = False

    async def trace(name: str, _info: object) -> None:
        nonlocal connected
        connected = connected or not name.startswith("http")  # anything else is connecting

    request = client.build_request(
        method,
        url,
        content=body,
        headers={"accept-encoding": "identity", "user-agent": "latchstep", **headers},
        timeout=httpx2.Timeout(None, connect=deadlines.connect or None),
        extensions={"trace": trace},
    )
    try:
        return await client.send(request, stream=True)
    except (httpx2.RemoteProtocolError, httpx2.NetworkError):
        if connected:
            raise
    return await client.send(request, stream=True)


def late(watch: str, host: str, deadlines: Deadlines) -> ModelError:
    return ModelError("timeout", _WORDS[watch].format(host=host, seconds=getattr(deadlines, watch)))


def network_error(error: Exception, host: str) -> ModelError:
    """One line that says what to do. The error's own text stays out where it could hold a header."""
    import ssl

    import httpx2

    if isinstance(error, (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)):
        return ModelError("bad_request", f"the request to {host} could not be formed; check base_url and headers")
    if isinstance(error, httpx2.ProxyError):
        return ModelError("network", f"the proxy on the way to {host} refused: {_shown(error)}")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = cause.verify_message
            return ModelError("network", f"the certificate of {host} is not trusted ({why}); set SSL_CERT_FILE?")
        if isinstance(cause, ssl.SSLError):
            return ModelError("network", f"no secure connection to {host} ({cause.reason}); does it speak https?")
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx2.ConnectError):
        proxies = [name for name in _PROXIES if os.environ.get(name) or os.environ.get(name.lower())]
        what = f"the proxy in {proxies[0]}, or the server," if proxies else "the server"
        return ModelError("network", f"cannot connect to {host} ({_shown(error)}); is {what} running?")
    if isinstance(error, (httpx2.HTTPError, OSError)):
        return ModelError("network", f"the connection to {host} broke ({_shown(error)})")
    raise error


def _shown(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(char if char.isprintable() else "?" for char in text)[:300]


# --- one client an event loop ------------------------------------------------------------------------

_Key = tuple[asyncio.AbstractEventLoop, bool]
_clients: dict[_Key, httpx2.AsyncClient] = {}
_keepers: dict[_Key, AsyncGenerator[None]] = {}
_context: list[ssl.SSLContext] = []


async def _open_client(loop: asyncio.AbstractEventLoop, secure: bool) -> httpx2.AsyncClient:
    for key in list(_clients):
        if key[0].is_closed():  # its loop never shut its generators down; nothing can be closed any more
            _clients.pop(key, None)
            _keepers.pop(key, None)
    client = _build_client(secure)
    key = (loop, secure)
    _clients[key] = client
    _keepers[key] = _keep(key, client)
    await anext(_keepers[key])
    return client


async def _keep(key: _Key, client: httpx2.AsyncClient) -> AsyncGenerator[None]:
    """A generator that an event loop closes at its end (`loop.shutdown_asyncgens`, which `asyncio.run` calls)."""
    try:
        yield
    finally:
        _clients.pop(key, None)
        _keepers.pop(key, None)
        await client.aclose()


async def close() -> None:
    """Close what this event loop holds open. `asyncio.run` does so by itself; other runners may call this."""
    loop = asyncio.get_running_loop()
    for key in [key for key in _keepers if key[0] is loop]:
        await _keepers[key].aclose()


def _build_client(secure: bool) -> httpx2.AsyncClient:
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    import httpx2

    limits = httpx2.Limits(
        max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_IDLE, keepalive_expiry=IDLE_SECONDS
    )
    no_cookies: Any = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    return httpx2.AsyncClient(
        verify=_ssl_context(secure),
        limits=limits,
        cookies=no_cookies,
        follow_redirects=False,
        mounts={f"all://{host}": None for host in _DIRECT},
    )


def _ssl_context(secure: bool) -> ssl.SSLContext:
    """Reading the certificate store takes 20 ms of CPU: once a process, and not for plain HTTP.

    The context for plain HTTP trusts nobody, so a mistake would fail closed.
    """
    if not secure:
        import ssl

        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not _context:
        import httpx2

        _context.append(httpx2.create_ssl_context())
    return _context[0]
