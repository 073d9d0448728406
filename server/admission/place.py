"""Where in the tree of agents a request comes from."""

from __future__ import annotations

import msgspec

from server.events import Lane


class Place(msgspec.Struct, frozen=True):
    """Whose request it is; every text in it is safe to print."""

    session: str
    parent_session: str | None
    depth: int
    """0 for no child, 1 for a child of such a session, and so on."""
    lane: Lane
    client: str
    """As `Identity` has it."""
    family: str
    key: str = ""
    """The key's name; empty when none is asked for."""
