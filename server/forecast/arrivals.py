"""Requests as they came, to be led through admission again under other limits. Holds no text of any."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

import msgspec

from server.events import AnyNotice, Lane, Refused, StreamEnded

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
    max_tokens: int | None = None
    """As the client had it; None when it left that open, or nobody noted it."""


def read_arrivals(notices: Iterable[AnyNotice]) -> tuple[Arrival, ...]:
    """The requests that notices tell of, in the order in which they came: those that ran, and those refused.

    A refused one whose prompt was not counted is taken to be as long as the median of the others'.
    """
    told = tuple(notices)
    ended = [notice for notice in told if isinstance(notice, StreamEnded)]
    usual_s = median([each.age_s for each in ended]) if ended else UNKNOWN_S
    usual_prompt = round(median([each.prompt_tokens for each in ended])) if ended else 1
    usual_answer = round(median([each.completion_tokens for each in ended])) if ended else 1
    ran = [
        Arrival(
            time_s=each.time_s - each.age_s,
            session=each.session,
            lane=each.lane,
            prompt_tokens=each.prompt_tokens,
            completion_tokens=each.completion_tokens,
            duration_s=each.age_s,
            depth=int(each.lane == "child"),
        )
        for each in ended
    ]
    refused = [
        Arrival(
            time_s=each.time_s,
            session=each.session,
            lane=each.lane,
            prompt_tokens=usual_prompt if each.prompt_tokens is None else each.prompt_tokens,
            completion_tokens=usual_answer if each.max_tokens is None else each.max_tokens,
            duration_s=usual_s,
            depth=int(each.lane == "child"),
            max_tokens=each.max_tokens,
        )
        for each in told
        if isinstance(each, Refused)
    ]
    return tuple(sorted([*ran, *refused], key=lambda arrival: arrival.time_s))
