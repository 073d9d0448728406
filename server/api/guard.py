"""Who may call: API key, Host and Origin. Pure checks on header values.

Why Host and Origin matter for a server at loopback: any web page that the operator visits can send requests there,
openly (then the browser adds Origin) or by pointing a name of its own at 127.0.0.1 (then Host is that name).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from server.errors import Forbidden, KeyRejected

CONTAINER_HOSTS = frozenset({"host.docker.internal", "host.containers.internal", "host.lima.internal"})
"""Names under which a container reaches its host's loopback; `.internal` is reserved, so no web page can own one."""

CORS_METHODS = "GET, POST, DELETE, OPTIONS"
CORS_EXPOSED = "x-request-id, retry-after, x-should-retry"
CORS_MAX_AGE_S = 600


def check_host(host_header: str, bound_host: str) -> None:
    """Refuse a Host that no honest client of a loopback server sends. Raises Forbidden.

    An address is always fine: a page cannot make a browser send another address than the one that it came from.
    """
    if not host_header or not _is_loopback(bound_host):
        return
    name = _host_name(host_header)
    if _is_safe_name(name) or name == bound_host.lower():
        return
    raise Forbidden(
        f"This server listens for this machine only and does not answer to the name {host_header[:100]!r}; "
        "use 127.0.0.1 or localhost."
    )


def check_origin(origin: str | None, host_header: str, allowed_origins: Sequence[str]) -> dict[str, str]:
    """The CORS headers for a web page's request, none for a request that is no web page's. Raises Forbidden."""
    if origin is None:
        return {}
    if any(origin.lower() == allowed.rstrip("/").lower() for allowed in allowed_origins):
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": CORS_EXPOSED,
            "vary": "Origin",
        }
    # A page of our own. Not under any name: a page can give this machine's address to a name of its own.
    if _netloc(origin) == host_header.lower() and _is_safe_name(_host_name(host_header)):
        return {}
    raise Forbidden(
        f"Web pages from {origin[:100]!r} may not call this server; the operator can add that origin to "
        "server.allowed_origins in homebase.toml."
    )


def preflight_headers(requested_headers: str | None) -> dict[str, str]:
    """What an allowed origin is told when its browser asks first."""
    return {
        "access-control-allow-methods": CORS_METHODS,
        "access-control-allow-headers": requested_headers or "authorization, content-type",
        "access-control-max-age": str(CORS_MAX_AGE_S),
    }


def check_key(authorization: str | None, api_key: str) -> None:
    """Compare the bearer token with the policy's key, in constant time. Raises KeyRejected."""
    if not api_key:
        return
    given = read_bearer(authorization)
    if hmac.compare_digest(given.encode("utf-8", "surrogatepass"), api_key.encode("utf-8", "surrogatepass")):
        return
    fault = "is not the right one" if given else "is missing"
    raise KeyRejected(f"The API key {fault}: send it as `Authorization: Bearer ...`.")


def read_bearer(authorization: str | None) -> str:
    """The token of an Authorization header, empty when there is none."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _is_loopback(host: str) -> bool:
    """True when only this machine can reach a server that listens at `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return _is_local_name(host)


def _netloc(origin: str) -> str:
    """Host and port of an origin in lower case, empty for one that has none (`null`, or not a URL)."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _host_name(host_header: str) -> str:
    """A Host header without its port and brackets, in lower case."""
    host = host_header.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_safe_name(name: str) -> bool:
    """True for an address, and for names that no web page can point anywhere."""
    return _is_address(name) or _is_local_name(name) or name in CONTAINER_HOSTS


def _is_local_name(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
