"""What the operator's endpoints need of the rest of the server, beside what every route has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server.events import EventRing
from server.policy_store import PolicyStore


@dataclass(frozen=True)
class Controls:
    """Handed over by the composition root; the callables are asked at each request."""

    store: Callable[[], PolicyStore]
    ring: EventRing
    drain: Callable[[str], object]
    """Takes nothing new from now on; is told by whom, for the log."""
    resume: Callable[[str], object]
    """Undoes it."""
    is_over: Callable[[], bool]
    """True once every stream was told that the server ends, and connections are about to be closed."""
