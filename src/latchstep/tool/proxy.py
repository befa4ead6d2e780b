"""The way out for a sandbox that may reach some hosts: an HTTP proxy outside, whose listener lies inside.

A process of the guard's. It takes names, looks them up itself, and connects to public addresses only, so that an
allowed name that leads to this machine or its neighbours leads nowhere. Standard library alone.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable

PORT = 3128
"""Of the listener, on the loopback of the sandbox."""
PORTS = (80, 443)
"""Of a host that was allowed without one."""

HEAD_BYTES = 16_384
HEAD_SECONDS, CONNECT_SECONDS, IDLE_SECONDS = 20.0, 20.0, 300.0
CONNECTIONS = 64
"""At a time; further ones wait."""

UNICAST = "2000::/3"

Opener = Callable[[str, int], socket.socket]


class Refused(Exception):
    """Why a request goes nowhere, in words for whoever reads the answer."""


def parse_hosts(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """`HOST`, `*.HOST` or `HOST:PORT`, joined by commas, each with its ports. Raises ValueError."""
    found = []
    for entry in text.split(","):
        host, colon, port = entry.strip().rpartition(":")
        if not colon:
            host, port = port, ""
        name = host.casefold().rstrip(".")
        bare = name.removeprefix("*.")
        if not is_name(bare) or (colon and not port.isdecimal()):
            raise ValueError(f"{entry.strip()!r} is no HOST, *.HOST or HOST:PORT")
        found.append((name, (int(port),) if colon else PORTS))
    return tuple(found)


def is_name(host: str) -> bool:
    """Of letters and digits. The system reads a name to its first NUL: `evil.net\\0.example.org` is another host."""
    letters = host.replace("-", "a").replace(".", "a").replace("_", "a")
    return letters.isascii() and letters.isalnum()


def is_allowed(host: str, port: int, hosts: tuple[tuple[str, tuple[int, ...]], ...]) -> bool:
    name = host.casefold().rstrip(".")
    return any(
        port in ports and (name == entry or (entry.startswith("*.") and name.endswith(entry[1:])))
        for entry, ports in hosts
    )


def is_public(address: str) -> bool:
    """Whether an address is neither this machine's nor a neighbour's, in whatever clothes."""
    import ipaddress

    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip not in ipaddress.ip_network(UNICAST) or ip.sixtofour is not None or ip.teredo is not None:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def connect(host: str, port: int) -> socket.socket:
    """A connection to a public address of this name. Raises Refused."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Refused(f"{host} is not known") from None
    public = [str(entry[4][0]) for entry in found if is_public(str(entry[4][0]))]
    if not public:
        raise Refused(f"{host} leads to no public address")
    for address in public[:4]:
        try:
            return socket.create_connection((address, port), CONNECT_SECONDS)
        except OSError:
            continue
    raise Refused(f"{host} does not answer")


def serve(channel: socket.socket, hosts: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
    """Take the listener that comes over the channel, and serve it until this process is ended."""
    _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    if not fds:
        return
    listener, free = socket.socket(fileno=fds[0]), threading.Semaphore(CONNECTIONS)

    def work(client: socket.socket) -> None:
        try:
            handle(client, hosts)
        finally:
            free.release()

    while True:
        free.acquire()
        client, _ = listener.accept()
        threading.Thread(target=work, args=(client,), daemon=True).start()


def handle(client: socket.socket, hosts: tuple[tuple[str, tuple[int, ...]], ...], opener: Opener = connect) -> None:
    """One connection from inside: its first request, then bytes both ways."""
    with client:
        try:
            head, rest = _read_head(client)
            host, port, first = _target(head)
            if not is_allowed(host, port, hosts):
                raise Refused(f"{host}:{port} is not among the hosts that --net allow: names")
            server = opener(host, port)
        except Refused as refused:
            _answer(
                client, f"HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n{refused}\n"
            )
            return
        except OSError:
            return
        with server:
            if first:
                server.sendall(first + rest)
            else:
                _answer(client, "HTTP/1.1 200 Connection established\r\n\r\n")
                server.sendall(rest)
            _relay(client, server)


def _answer(client: socket.socket, text: str) -> None:
    try:
        client.sendall(text.encode())
    except OSError:
        pass


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    client.settimeout(HEAD_SECONDS)
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > HEAD_BYTES or not (piece := client.recv(4096)):
            raise Refused("the request has no end")
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _target(head: bytes) -> tuple[str, int, bytes]:
    """Host, port, and the head to send on (empty for CONNECT, whose bytes are the client's own)."""
    line, *fields = head.split(b"\r\n")
    try:
        method, target, version = line.decode("ascii").split(" ")
        secure = method == "CONNECT"
        place, _, path = (target, "", "") if secure else target.removeprefix("http://").partition("/")
        if not secure and not target.startswith("http://"):
            raise ValueError
        host, _, port = place.rpartition(":") if ":" in place else (place, "", "" if secure else "80")
        number = int(port)
    except ValueError:
        raise Refused("this proxy takes CONNECT HOST:PORT, and requests for http://HOST/") from None
    if not is_name(host) or not 0 < number < 65_536:
        raise Refused("this proxy takes names of hosts")
    if secure:
        return host, number, b""
    kept = [
        field for field in fields if field.split(b":")[0].strip().lower() not in (b"connection", b"proxy-connection")
    ]
    first = f"{method} /{path} {version}".encode()
    return host, number, b"\r\n".join([first, *kept, b"Connection: close"]) + b"\r\n\r\n"


def _relay(client: socket.socket, server: socket.socket) -> None:
    """Bytes both ways until either side ends or nothing has come for long."""
    other = {client: server, server: client}
    for side in other:
        side.settimeout(IDLE_SECONDS)
    open_sides = set(other)
    try:
        while open_sides:
            ready, _, _ = select.select(list(open_sides), [], [], IDLE_SECONDS)
            if not ready:
                return
            for side in ready:
                if data := side.recv(65_536):
                    other[side].sendall(data)
                else:
                    open_sides.discard(side)
                    other[side].shutdown(socket.SHUT_WR)
    except OSError:
        return
