"""`fetch`: only named hosts, only public addresses, each redirect judged anew, and a page as text."""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchstep.errors import DefinitionError, ToolError
from latchstep.tool import fetch as fetch_module
from latchstep.tool.base import Output
from latchstep.tool.fetch import fetch_tool, is_public
from latchstep.tool.page import page_text

PAGES: dict[str, tuple[int, dict[str, str], bytes]] = {
    "/": (
        200,
        {"Content-Type": "text/html; charset=utf-8"},
        "<title>T</title><p>Grüße <a href='/a'>hier</a></p>".encode(),
    ),
    "/latin": (200, {"Content-Type": "text/html"}, b"<meta charset=latin-1><p>Gr\xfc\xdfe"),
    "/odd": (200, {"Content-Type": "text/plain; charset=punycode"}, b"a-b"),
    "/odder": (200, {"Content-Type": "text/plain; charset=idna"}, b"a-b"),
    "/cut": (200, {"Content-Type": "text/plain; charset=utf-16"}, b"a\0b\0c"),
    "/nowhere": (302, {"Location": "http://["}, b""),
    "/json": (200, {"Content-Type": "application/json"}, b'{"a": 1}'),
    "/png": (200, {"Content-Type": "image/png"}, b"\x89PNG"),
    "/gzip": (200, {"Content-Type": "text/plain", "Content-Encoding": "gzip"}, gzip.compress("grüße".encode())),
    "/deflate": (200, {"Content-Type": "text/plain", "Content-Encoding": "deflate"}, zlib.compress("grüße".encode())),
    "/bomb": (200, {"Content-Type": "text/plain", "Content-Encoding": "gzip"}, gzip.compress(b"x" * 50_000_000)),
    "/broken": (200, {"Content-Type": "text/plain", "Content-Encoding": "gzip"}, b"no gzip"),
    "/br": (200, {"Content-Type": "text/plain", "Content-Encoding": "br"}, b"\x0b\x02\x80abc\x03"),
    "/gone": (404, {"Content-Type": "text/plain"}, b"not here"),
    "/big": (200, {"Content-Type": "text/plain"}, b"x" * 200_000),
    "/to": (302, {"Location": "/"}, b""),
    "/loop": (302, {"Location": "/loop"}, b""),
    "/away": (302, {"Location": "http://elsewhere.example/"}, b""),
    "/file": (302, {"Location": "file:///etc/passwd"}, b""),
}


class Handler(BaseHTTPRequestHandler):
    seen: list[dict[str, str]]

    def do_GET(self) -> None:
        self.seen.append({name.lower(): value for name, value in self.headers.items()})
        status, headers, body = PAGES[self.path]
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body)), "Set-Cookie": "a=b"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Site:
    def __init__(self, port: int, seen: list[dict[str, str]]) -> None:
        self.url, self.seen = f"http://localhost:{port}", seen

    def fetch(self, path: str, **arguments: Any) -> Output:
        return call(fetch_tool(["localhost"], may=lambda address: True), url=self.url + path, **arguments)


def call(tool: Any, **arguments: Any) -> Output:
    output = asyncio.run(tool.function(**tool.validate(arguments)))
    assert isinstance(output, Output)
    return output


@pytest.fixture
def site() -> Iterator[Site]:
    seen: list[dict[str, str]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"seen": seen}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Site(server.server_address[1], seen)
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_page_is_text_with_its_links(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    output = site.fetch("/")
    assert str(output.content) == f"[{site.url}/]\nT\n\nGrüße hier (/a)"
    assert output.details == {"url": f"{site.url}/", "status": 200}
    (sent,) = site.seen
    assert set(sent) == {"host", "user-agent", "accept", "accept-encoding", "connection"}
    assert sent["host"] == site.url.removeprefix("http://")


def test_other_encodings_types_and_statuses(site: Site) -> None:
    assert "Grüße" in str(site.fetch("/latin").content)
    assert [str(site.fetch(path).content)[-3:] for path in ("/odd", "/odder", "/cut")] == ["a-b", "a-b", "ab\ufffd"]
    assert '{"a": 1}' in str(site.fetch("/json").content)
    gone = site.fetch("/gone")
    assert gone.is_error
    assert "status 404" in str(gone.content)
    with pytest.raises(ToolError, match="image/png, not text"):
        site.fetch("/png")


def test_a_long_page_is_read_in_parts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first = str(site.fetch("/big").content)
    assert "characters 0-50000 of 200000; use offset=50000 to read on" in first
    assert len(first) < 51_000
    assert "characters" not in str(site.fetch("/big", offset=150_000).content)
    monkeypatch.setattr(fetch_module, "MAX_BYTES", 1000)
    assert "only the first 1000 B were read" in str(site.fetch("/big").content)


def test_what_is_compressed_unasked_is_read_within_the_same_bound_or_refused(site: Site) -> None:
    assert str(site.fetch("/gzip").content).endswith("grüße")
    assert str(site.fetch("/deflate").content).endswith("grüße")
    assert "only the first 5.0 MiB were read" in str(site.fetch("/bomb").content)
    for path in ("/broken", "/br"):
        with pytest.raises(ToolError, match="compressed, unasked"):
            site.fetch(path)


def test_an_offset_behind_the_end_says_where_that_is(site: Site) -> None:
    with pytest.raises(ToolError, match="the page has 200000 characters; offset 200000 lies behind"):
        site.fetch("/big", offset=200_000)


def test_redirects_are_followed_and_judged_anew(site: Site) -> None:
    assert site.fetch("/to").details == {"url": f"{site.url}/", "status": 200}
    for path, words in [
        ("/loop", "redirects"),
        ("/away", "not one of the allowed hosts"),
        ("/file", "https://"),
        ("/nowhere", "no address"),
    ]:
        with pytest.raises(ToolError, match=words):
            site.fetch(path)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://localhost:1/", "private network"),
        ("http://localhost.:1/", "private network"),
        ("http://127.0.0.1/", "not one of the allowed"),
        ("http://2130706433/", "not one of the allowed"),
        ("http://[::1]/", "not one of the allowed"),
        ("http://user:pw@localhost/", "password"),
        ("file:///etc/passwd", "whole address"),
        ("//localhost/", "whole address"),
        ("http://localhost:99999/", "no address"),
        ("http://evil.example/?localhost", "not one of the allowed"),
        ("http://localhost.evil.example/", "not one of the allowed"),
        ("http://localhost\0/", "no address"),
        ("http://127.0.0.1\0.localhost/", "no address"),
        ("http://localhost /", "no address"),
        ("http://local\nhost/", "no address"),
        ("http://localhost\\@evil.example/", "allowed|password|address"),
    ],
)
def test_what_is_not_allowed_is_not_asked(url: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        call(fetch_tool(["localhost"]), url=url)


@pytest.mark.parametrize("address", ["2130706433", "0x7f000001", "127.1", "0177.0.0.1"])
def test_a_loopback_address_spelled_otherwise_is_still_one(address: str) -> None:
    with pytest.raises(ToolError, match=r"private network|cannot be found"):
        call(fetch_tool([address]), url=f"http://{address}/")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("192.168.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", True),
        ("64:ff9b:1::7f00:1", False),
        ("::7f00:1", False),
        ("::ffff:0:7f00:1", False),
        ("fec0::1", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize("host", ["", "*", "http://a.b", "a b", "*.", "a/b"])
def test_what_is_no_host_is_refused_at_once(host: str) -> None:
    with pytest.raises(DefinitionError, match="no host"):
        fetch_tool([host])


def test_all_beneath_a_host_and_not_the_host_that_only_ends_so() -> None:
    tool = fetch_tool(["*.example.com"], may=lambda address: False)
    for url in ("http://example.com/", "http://badexample.com/", "http://example.com.evil.net/"):
        with pytest.raises(ToolError, match="not one of"):
            call(tool, url=url)


HTML = """<!doctype html><html><head><title> A  page </title><style>p{}</style><script>alert("<p>no</p>")</script>
</head><body><h2>Head</h2><p>One <b>two</b>
three.<br>four</p><ul><li>a<li>b</ul><pre>  keep
   this</pre><a href="#x">in</a> <a href="https://e.org/x">out</a><img alt="a cat"><noscript>no</noscript>
&lt;&amp;</body>"""


def test_what_a_person_would_read() -> None:
    assert page_text(HTML).split("\n") == [
        *("A page", "", "## Head", "One two three.", "four", "- a", "- b", "  keep", "   this"),
        "in out (https://e.org/x)[a cat] <&",
    ]


PIECES = ["<p>", "</p>", "<a href='x'>", "</a>", "<pre>", "</pre>", "<li>", "&lt", "&#x41;", "text ", "<b>", "</div>"]
parts = st.lists(st.sampled_from(PIECES)).map("".join)


@given(parts, st.sampled_from(["script", "style", "template", "noscript"]), parts)
def test_what_no_person_reads_is_left_out_and_what_stands_behind_it_is_not(before: str, tag: str, after: str) -> None:
    text = page_text(f"{before}<{tag}>hidden</{tag}>{after}<p>seen</p>")
    assert "hidden" not in text
    assert text.endswith("seen")


@given(st.text(max_size=200))
def test_no_page_is_too_odd_to_be_read(html: str) -> None:
    assert len(page_text(html)) <= 20 * len(html) + 20
