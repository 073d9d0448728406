"""Who may call: API key, Host and Origin, and how long a head may be. Pure checks on header values.

Why Host and Origin matter for a server at loopback: any web page that the operator visits can send requests there,
openly (then the browser adds Origin) or by pointing a name of its own at 127.0.0.1 (then Host is that name).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from server.access import KeyRing, answers_strangers, is_loopback
from server.errors import Forbidden, HeadTooLarge, KeyReadOnly, KeyRejected
from server.policy import ServerPolicy

CONTAINER_HOSTS = frozenset({"host.docker.internal", "host.containers.internal", "host.lima.internal"})
"""Names under which a container reaches its host's loopback; `.internal` is reserved, so no web page can own one."""

CORS_METHODS = "GET, POST, PUT, DELETE, OPTIONS"
CORS_EXPOSED = "x-request-id, retry-after, x-should-retry"
CORS_MAX_AGE_S = 600

MOST_HEADERS = 100
MOST_HEAD_BYTES = 16 * 1024
"""Names and values together. Agents send 10 to 25 headers and under 4 KiB."""

LOOKING = re.compile(r"/homebase/.+|/metrics/?|/v1/models(/.*)?|/health/?")
"""What a read-only key may read."""
_NO_NAMES = re.compile(r"[^!#$%&'*+.^_`|~0-9A-Za-z, -]")
"""What stands in no list of headers' names."""

_HOST = re.compile(r"(?P<name>\[[^\[\]@/\\]*\]|[^\[\]:@/\\]*)(:[0-9]*)?")
"""A name or an address, in brackets where it has colons, and a port; nobody's name before an @."""


def check_host(host_header: str, bound_host: str) -> None:
    """Refuse a Host that no honest client of a loopback server sends. Raises Forbidden.

    An address is always fine: a page cannot make a browser send another address than the one that it came from.
    """
    if not host_header or not is_loopback(bound_host):
        return
    if _is_safe_name(_host_name(host_header)):
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
        "access-control-allow-headers": _NO_NAMES.sub("", requested_headers or "authorization, content-type"),
        "access-control-max-age": str(CORS_MAX_AGE_S),
    }


def check_head(headers: Iterable[tuple[str, str]]) -> None:
    """Refuse a head that no client sends. Raises HeadTooLarge."""
    sizes = [len(name) + len(value) for name, value in headers]
    if len(sizes) > MOST_HEADERS:
        raise HeadTooLarge(f"A request may have at most {MOST_HEADERS} headers; this one has {len(sizes):,}.")
    if sum(sizes) > MOST_HEAD_BYTES:
        raise HeadTooLarge(
            f"The head of a request may have at most {MOST_HEAD_BYTES:,} bytes; this one has {sum(sizes):,}."
        )


def check_key(given: Sequence[str], keys: KeyRing, server: ServerPolicy, bound_host: str) -> str:
    """Who is asking: the name of the first key that is one of ours, empty when none is asked for. Raises KeyRejected.

    Without a key, a server that was started for others answers nobody: its last one was taken away while it runs.
    """
    if not keys.names:
        if is_loopback(bound_host) or answers_strangers(bound_host, server):
            return ""
        raise KeyRejected(
            f"This server listens at {bound_host} for other machines too and has no key left to ask for; its operator "
            "has to set one, or server.allow_unauthenticated = true."
        )
    found = [name for name in map(keys.find, given) if name is not None]
    if found:
        return found[0]
    fault = "is not the right one" if any(given) else "is missing"
    raise KeyRejected(f"The API key {fault}: send it as `Authorization: Bearer ...` or as `x-api-key: ...`.")


def check_reach(key_name: str, method: str, path: str, server: ServerPolicy) -> None:
    """Refuse what a read-only key may not do. Raises KeyReadOnly."""
    if key_name not in server.read_only_keys or (method in ("GET", "HEAD") and LOOKING.fullmatch(path)):
        return
    raise KeyReadOnly(
        f"The key {key_name} may only read /homebase/..., /metrics, /v1/models and /health (server.read_only_keys); "
        "take another key for this."
    )


def read_keys(authorization: str | None, x_api_key: str | None) -> tuple[str, ...]:
    """The keys that a request carries: the bearer token, as OpenAI's clients do, and `x-api-key`, as Anthropic's."""
    return tuple(key for key in (read_bearer(authorization), (x_api_key or "").strip()) if key)


def read_authority(target: bytes) -> str:
    """Host and port of a request's target in absolute form (`http://host/path`), empty for any other form."""
    if target.startswith(b"/"):
        return ""
    return _netloc(target.decode("latin-1"))


def read_bearer(authorization: str | None) -> str:
    """The token of an Authorization header, empty when there is none."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _netloc(origin: str) -> str:
    """Host and port of an origin in lower case, empty for one that has none (`null`, or not a URL)."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _host_name(host_header: str) -> str:
    """A Host header without its port and brackets, in lower case; empty for one that has another form.

    A dot at the end means the same host, and browsers keep it.
    """
    found = _HOST.fullmatch(host_header.strip().lower())
    return found["name"].strip("[]").removesuffix(".") if found else ""


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
