"""Binds the socket that the API listens at, and says in one sentence why it cannot.

Binding is separate from serving so that a port in use is known before anything is loaded or drawn.
"""

from __future__ import annotations

import errno
import socket

from server.errors import AddressInUse, AddressInvalid
from server.machine import find_listener

BACKLOG = 128
"""Connections that the kernel holds until the loop takes them; enough for every agent of a machine at once."""

_REASONS = {
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.EACCES: "the system does not permit this port without more rights",
    errno.EPERM: "the system does not permit this port without more rights",
    errno.EAFNOSUPPORT: "this machine does not speak that kind of address",
}


def bind_socket(host: str, port: int) -> socket.socket:
    """A listening TCP socket, owned by the caller. Port 0 takes any free one.

    Raises AddressInUse, with who holds the port where that is known, or AddressInvalid. Connections made before
    anybody serves wait in the kernel.
    """
    family, address = _resolve(host, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port whose last owner was killed stays in TIME_WAIT for a minute; this lets us have it at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(host, port, find_listener(port)) from None
        raise AddressInvalid(host, port, _explain(error)) from None
    listener.setblocking(False)
    return listener


def reachable_host(host: str) -> str:
    """The address under which this machine itself reaches a listener at `host`: a wildcard is no destination."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def format_address(host: str, port: int) -> str:
    """`host:port` as it stands in a URL; an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    if not 0 <= port <= 65535:
        raise AddressInvalid(host, port, "a port is a number from 1 to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise AddressInvalid(host, port, "no address goes by this name") from None
    # `localhost` means both; IPv4 first, because that is what clients that try only one of them try.
    family, *_, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _explain(error: OSError) -> str:
    return _REASONS.get(error.errno or 0) or (error.strerror or str(error)).lower()
