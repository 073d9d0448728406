"""GET /homebase/sessions: the agents' conversations that the server remembers."""

from __future__ import annotations

import msgspec

from server.snapshot import SessionView


class SessionList(msgspec.Struct, frozen=True):
    """All sessions that are known now."""

    sessions: tuple[SessionView, ...]
