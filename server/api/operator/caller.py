"""Who asks, as the log and the notices name them."""

from __future__ import annotations

from quart import g, request


def name_caller() -> str:
    """The name of the key that a request came with, else the address that it came from."""
    peer = request.scope.get("client")
    return g.key_name or (peer[0] if peer else "someone")
