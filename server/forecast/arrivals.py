"""Requests as they came, to be led through admission again under other limits. Holds no text of any."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from server.events import Lane
from server.history.records import ADMITTED, RequestRecord

UNKNOWN_S = 30.0
"""How long a refused request would have run, where none that ran tells."""


class Arrival(msgspec.Struct, frozen=True):
    """One request, whatever became of it."""

    time_s: float
    """When it came; Unix time."""
    session: str
    lane: Lane
    prompt_tokens: int
    completion_tokens: int
    """What it generated; for one that was refused, what it asked for at most."""
    duration_s: float
    """From its admission to its end; for one that was refused, that of a usual one."""
    depth: int = 0
    parent_session: str | None = None
    client: str = ""
    key: str = ""
    max_tokens: int | None = None
    """As the client had it; None when it left that open, or nobody noted it."""


def read_arrivals(requests: Iterable[RequestRecord]) -> tuple[Arrival, ...]:
    """Arrivals of what is remembered, in the order in which they came: those that ran, and those refused.

    A refused one whose prompt was not counted is taken to be as long as the median of the others'. What other servers
    answered is left out.
    """
    told = [request for request in requests if not request.upstream]
    ended = [request for request in told if request.decision == ADMITTED]
    usual_s = median([each.duration_s for each in ended]) if ended else UNKNOWN_S
    usual_prompt = round(median([each.prompt_tokens or 0 for each in ended])) if ended else 1
    usual_answer = round(median([each.completion_tokens for each in ended])) if ended else 1

    def read(request: RequestRecord) -> Arrival:
        ran = request.decision == ADMITTED
        answer = usual_answer if request.max_tokens is None else request.max_tokens
        return Arrival(
            time_s=request.arrived_s,
            session=request.session,
            parent_session=request.parent_session,
            lane=request.lane,
            depth=request.depth,
            client=request.client,
            key=request.key,
            prompt_tokens=usual_prompt if request.prompt_tokens is None else request.prompt_tokens,
            completion_tokens=request.completion_tokens if ran else answer,
            duration_s=request.duration_s if ran else usual_s,
            max_tokens=request.max_tokens,
        )

    return tuple(sorted(map(read, told), key=lambda arrival: arrival.time_s))
