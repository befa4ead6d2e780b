"""What the transport takes from the environment: certificates and proxies. Each case runs in a process of its own."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.model.strict_chat import StrictChat, text_answer

ASK = """
import asyncio, sys
from latchstep.core.message import user
from latchstep.errors import ModelError
from latchstep.model.base import Request
from latchstep.model.openai_chat import build

async def main():
    try:
        async for chunk in build("m", sys.argv[1]).stream(Request(request_id="r", messages=(user("hi"),))):
            print(chunk)
    except ModelError as error:
        print(error)

asyncio.run(main())
"""


def ask(url: str, **environment: str) -> str:
    clean = {
        name: value for name, value in os.environ.items() if not name.lower().endswith(("_proxy", "ssl_cert_file"))
    }
    command = [sys.executable, "-W", "error", "-c", ASK, url]
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program")
    key, cert, both = tmp_path / "key.pem", tmp_path / "cert.pem", tmp_path / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    out = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *out], check=True, capture_output=True)
    both.write_text(key.read_text() + cert.read_text())
    return both


def test_certificates_are_verified(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with StrictChat([text_answer("hello")], tls=context) as server:
        refused = ask(server.url)
        assert "certificate of 127.0.0.1" in refused
        assert "not trusted" in refused
        assert "SSL_CERT_FILE" in refused
        assert server.bodies == []
        assert "Completed(" in ask(server.url, SSL_CERT_FILE=str(certificate))


def test_proxies_are_taken_from_the_environment() -> None:
    with StrictChat([text_answer("hello")]) as proxy:
        said = ask("http://model.invalid/v1", HTTP_PROXY=proxy.url.removesuffix("/v1"))
        assert "Completed(" in said
        assert proxy.paths == ["http://model.invalid/v1/chat/completions"]
    with StrictChat([text_answer("hello")]) as server:
        assert "Completed(" in ask(server.url, HTTP_PROXY="http://127.0.0.1:1", NO_PROXY="127.0.0.1")
        for host in ("127.0.0.1", "localhost"):  # a proxy would look for it on its own machine
            server.scripts.append(text_answer("hello"))
            said = ask(
                server.url.replace("127.0.0.1", host), HTTP_PROXY="http://127.0.0.1:1", ALL_PROXY="http://[::1]:1"
            )
            assert "Completed(" in said
    said = ask("https://model.invalid/v1", HTTPS_PROXY="http://127.0.0.1:1")
    assert said.startswith("network: cannot connect to model.invalid")
    assert "is the proxy in HTTPS_PROXY, or the server, running?" in said


def test_a_proxy_that_refuses_and_a_server_without_tls() -> None:
    for reply, said in [
        (b"HTTP/1.1 407 Proxy Authentication Required", "refused: 407 Proxy Authentication Required"),
        (b"HTTP/1.1 503 no \x1b[31mway", "refused: 503 no ?[31mway"),
    ]:
        with replying(reply + b"\r\ncontent-length: 0\r\n\r\n") as port:
            line = ask("https://model.invalid/v1", HTTPS_PROXY=f"http://user:secret@127.0.0.1:{port}")
        assert line == f"network: the proxy on the way to model.invalid {said}\n"
    with replying(b"HTTP/1.1 400 Bad Request\r\n\r\nplain") as port:
        assert "does it speak https?" in ask(f"https://127.0.0.1:{port}/v1")


def test_an_environment_that_cannot_be_used() -> None:
    for variable, value in [
        ("ALL_PROXY", "ftp://user:secret@host:1"),
        ("HTTPS_PROXY", "ftp://user:secret@host:1"),
        ("SSL_CERT_FILE", "/nowhere/at/all"),
    ]:
        line = ask("https://model.invalid/v1", **{variable: value})
        assert line.startswith("bad_request: a proxy or certificate that the environment names cannot be used: ")
        assert "secret" not in line
        assert line.count("\n") == 1


@contextmanager
def replying(reply: bytes) -> Iterator[int]:
    """The port of a server that gives one answer to whatever comes, once."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)
