"""Which headers go to an upstream and which come back. Pure.

A client's key is for us: no header that may carry one is passed on, and none that speaks of the connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

Dialect = Literal["openai", "anthropic"]

_CONNECTION = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
        "expect",
    }
)
"""Of one connection, whichever way."""

_ASKED = _CONNECTION | {
    "host",
    "content-length",
    "accept-encoding",
    "forwarded",
    "via",
    "x-real-ip",
    "origin",
    "referer",
}
"""Not for the upstream: of the request's own way, which the guard has judged, and of the address that it came from."""

_ANSWERED = _CONNECTION | {
    "content-length",
    "server",
    "date",
    "set-cookie",
    "alt-svc",
    "strict-transport-security",
    "x-request-id",
}
"""Not for the client: what speaks for the upstream's own host, and the id by which this server knows the request."""

_SECRET = re.compile(r"(\A|[-_])(authorization|auth|cookie|token|secret|password|credentials?|api[-_]?key)([-_]|\Z)")
_PREFIXES = ("proxy-", "x-forwarded-", "sec-", "access-control-")

HOPS = "x-homebase-hops"
"""Names the servers of ours that a request has been through, each by a word that means nothing elsewhere. An upstream
that is this server itself, by whatever name, was asked 512 times for one request."""


def has_been_at(headers: Mapping[str, str], hop: str) -> bool:
    """Whether a request has been through the server of that name already."""
    return hop in _split(headers.get(HOPS, ""))


def build_request_headers(headers: Mapping[str, str], key: str, dialect: Dialect, hop: str = "") -> dict[str, str]:
    """What an upstream is sent, of a client's headers (names in lower case), with the upstream's own key.

    `hop` is this server's name among those that the request has been through.
    """
    named = _name_hops(headers.get("connection", ""))
    sent = {
        name: value
        for name, value in headers.items()
        if name not in _ASKED and name not in named and not name.startswith(_PREFIXES) and not _SECRET.search(name)
    }
    # The bytes are read on their way, and not all that is compressed can be read as it comes.
    sent["accept-encoding"] = "identity"
    if hop:
        sent[HOPS] = ", ".join(filter(None, (headers.get(HOPS, ""), hop)))
    if key:
        sent |= {"x-api-key": key} if dialect == "anthropic" else {"authorization": f"Bearer {key}"}
    return sent


def build_response_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """What a client is sent, of an upstream's headers; names in lower case."""
    lowered = [(name.lower(), value) for name, value in headers]
    named = {hop for name, value in lowered if name == "connection" for hop in _name_hops(value)}
    return [
        (name, value)
        for name, value in lowered
        if name not in _ANSWERED and name not in named and not name.startswith(("proxy-", "access-control-"))
    ]


def _name_hops(connection: str) -> frozenset[str]:
    """The headers that a Connection header takes for its own."""
    return _split(connection.lower())


def _split(listed: str) -> frozenset[str]:
    return frozenset(name.strip() for name in listed.split(","))
