"""Where a request stands among the sessions: whose it is, how deep, and the lane that it is admitted under."""

from __future__ import annotations

import msgspec

from server.events import Lane


class Place(msgspec.Struct, frozen=True):
    """Who is asking, once headers and earlier requests have been looked at; every text in it is safe to print."""

    session: str
    parent_session: str | None
    depth: int
    """0 for no child; a child has its parent's plus 1."""
    lane: Lane
    client: str
    family: str
    key: str = ""
    """Name of the key that it came with; empty when none is asked for."""
