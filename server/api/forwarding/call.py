"""A request that may be another server's to answer."""

from __future__ import annotations

import msgspec

from server.api.failures import Dialect, find_dialect
from server.api.generation.asked import Caller
from server.upstreams.meter import Kind

KINDS: dict[str, Kind] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/responses/input_tokens": "count",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "count",
}
"""The paths that are passed on. Tokenizing is not: token ids of two models have nothing to do with each other."""


class Call(msgspec.Struct, frozen=True):
    """One request, with its body unread."""

    caller: Caller
    path: str
    query: str
    body: bytes

    @property
    def kind(self) -> Kind:
        """What it asks for."""
        return KINDS[self.path]

    @property
    def dialect(self) -> Dialect:
        """Whose errors it is answered with."""
        return find_dialect(self.path)

    @property
    def upstream_path(self) -> str:
        """The same behind an upstream's base_url, which ends with /v1."""
        return self.path.removeprefix("/v1") + (f"?{self.query}" if self.query else "")
