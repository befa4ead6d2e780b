"""The way out of a sandbox: who may be asked for, what an address may be, and that there is no other way."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path

import pytest

from latchstep.tool import proxy
from latchstep.tool.probe import trial
from latchstep.tool.proxy import Refused, handle, is_allowed, is_public, parse_hosts
from latchstep.tool.sandbox import Sandbox
from latchstep.tool.spawner import Spawner

HOSTS = parse_hosts("example.org, *.example.com,api.example.net:8443")


@pytest.mark.parametrize(
    ("host", "port", "may"),
    [
        ("example.org", 443, True), ("EXAMPLE.org.", 80, True), ("example.org", 22, False),
        ("www.example.org", 443, False), ("notexample.org", 443, False), ("example.org.evil.net", 443, False),
        ("a.b.example.com", 443, True), ("example.com", 443, False), ("evilexample.com", 443, False),
        ("api.example.net", 8443, True), ("api.example.net", 443, False), ("127.0.0.1", 80, False), ("", 80, False),
    ],
)  # fmt: skip
def test_only_named_hosts_and_public_addresses(host: str, port: int, may: bool) -> None:
    assert is_allowed(host, port, HOSTS) is may


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1",
     "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
     "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "ff02::1",
     "64:ff9b:1::7f00:1", "fec0::1"],
)  # fmt: skip
def test_an_address_of_this_machine_or_a_neighbour_is_not_public(address: str) -> None:
    assert not is_public(address)


def test_addresses_of_others_are_public() -> None:
    assert is_public("93.184.216.34")
    assert is_public("2606:2800:220:1:248:1893:25c8:1946")
    with pytest.raises(Refused, match="no public address"):
        proxy.connect("localhost", 80)


@pytest.mark.parametrize("text", ["", ",", "a b", "http://x", "x:y", "a/b", "*.", "user@x", "[::1]:80", "ex*mple.org"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST"):
        parse_hosts(text)


def exchange(request: bytes, answer: bytes = b"the answer") -> tuple[bytes, bytes, list[tuple[str, int]]]:
    """What the client got, what the server got, and who was asked for."""
    client, inside = socket.socketpair()
    server, outside = socket.socketpair()
    asked: list[tuple[str, int]] = []

    def opener(host: str, port: int) -> socket.socket:
        asked.append((host, port))
        server.sendall(answer)
        server.shutdown(socket.SHUT_WR)
        return outside

    thread = threading.Thread(target=handle, args=(inside, HOSTS, opener))
    thread.start()
    with client, server, outside:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        got = b"".join(iter(lambda: client.recv(4096), b""))
        thread.join(20)
        assert not thread.is_alive()
        server.setblocking(False)
        try:
            sent = server.recv(65_536)
        except BlockingIOError:
            sent = b""
    return got, sent, asked


def test_a_request_is_checked_then_bytes_go_both_ways() -> None:
    got, sent, asked = exchange(b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n\x16secret")
    assert (asked, sent) == ([("example.org", 443)], b"\x16secret")
    assert got == b"HTTP/1.1 200 Connection established\r\n\r\nthe answer"
    got, sent, asked = exchange(
        b"POST http://a.example.com/x?y=1 HTTP/1.1\r\nHost: a.example.com\r\nProxy-Connection: keep-alive\r\n"
        b"Connection: keep-alive\r\nContent-Length: 4\r\n\r\nbody"
    )
    assert asked == [("a.example.com", 80)]
    assert sent == (
        b"POST /x?y=1 HTTP/1.1\r\nHost: a.example.com\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
    )
    assert got == b"the answer"


@pytest.mark.parametrize(
    "request_line",
    [
        b"CONNECT evil.net:443 HTTP/1.1", b"CONNECT example.org:22 HTTP/1.1", b"CONNECT example.org HTTP/1.1",
        b"CONNECT evil.net\0.example.com:443 HTTP/1.1", b"GET http://evil.net\0.example.com/ HTTP/1.1",
        b"CONNECT a\t.example.com:443 HTTP/1.1",
        b"CONNECT [::1]:443 HTTP/1.1", b"CONNECT a@example.org:443 HTTP/1.1", b"GET / HTTP/1.1",
        b"GET http://evil.net/ HTTP/1.1", b"GET http://example.org:22/ HTTP/1.1", b"GET http://example.org@evil.net/ x",
        b"GET file:///etc/passwd HTTP/1.1", b"GET http://example.org:99999/ HTTP/1.1", b"nonsense", b"\xff\xfe a b",
        b"GET http://example.org/" + b"a" * 20_000,
    ],
)  # fmt: skip
def test_everything_else_is_refused_and_nobody_is_asked(request_line: bytes) -> None:
    got, sent, asked = exchange(request_line + b"\r\nHost: example.org\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 403 ")
    assert (sent, asked) == (b"", [])


def test_a_sandbox_has_one_way_out(tmp_path: Path) -> None:
    root = os.path.realpath(tmp_path)
    sandbox = Sandbox("bubblewrap", root, "allow:localhost,localhost:8080,example.org")
    if problem := asyncio.run(trial(sandbox)):
        pytest.skip(problem)
    script = """python3 -c '
import os, socket, urllib.error, urllib.request
os.environ["no_proxy"] = os.environ["NO_PROXY"] = ""
def get(url):
    try:
        print(urllib.request.urlopen(url, timeout=20).read())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
get("http://elsewhere.example/")
get("http://localhost:8080/")
try:
    socket.create_connection(("192.0.2.1", 80), 5)
except OSError as error:
    print(error.strerror)
'"""

    async def main() -> str:
        spawner = Spawner(sandbox=sandbox)
        try:
            ended = await spawner.run(script, cwd=root, timeout=60)
            return (ended.head + ended.tail).decode()
        finally:
            await spawner.close()

    assert asyncio.run(main()).splitlines() == [
        "403 elsewhere.example:80 is not among the hosts that --net allow: names",
        "403 localhost leads to no public address",
        "Network is unreachable",
    ]
