"""GET /homebase/sessions: the agents' conversations, as far as their streams tell of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from server.events import Lane
from server.snapshot import StreamView


class SessionStreams(msgspec.Struct, frozen=True):
    """One session, by its streams that are in flight or ended less than 8 s ago."""

    session: str
    parent_session: str | None
    lane: Lane
    """Of its newest stream, as are client and key."""
    client: str
    key: str
    in_flight: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    """Of all its streams here together."""
    streams: tuple[str, ...]
    """Their ids."""


class SessionList(msgspec.Struct, frozen=True):
    """All sessions that are known now."""

    sessions: tuple[SessionStreams, ...]


def group_sessions(streams: Iterable[StreamView]) -> tuple[SessionStreams, ...]:
    """The sessions in the order of their first stream. Two keys never share one."""
    grouped: dict[tuple[str, str], list[StreamView]] = {}
    for stream in streams:
        grouped.setdefault((stream.key, stream.session), []).append(stream)
    return tuple(_sum_up(each) for each in grouped.values())


def _sum_up(streams: list[StreamView]) -> SessionStreams:
    newest = min(streams, key=lambda stream: stream.age_s + (stream.finished_ago_s or 0.0))
    return SessionStreams(
        session=newest.session,
        parent_session=newest.parent_session,
        lane=newest.lane,
        client=newest.client,
        key=newest.key,
        in_flight=sum(stream.outcome is None for stream in streams),
        prompt_tokens=sum(stream.prompt_tokens for stream in streams),
        cached_tokens=sum(stream.cached_tokens for stream in streams),
        completion_tokens=sum(stream.completion_tokens for stream in streams),
        streams=tuple(stream.id for stream in streams),
    )
