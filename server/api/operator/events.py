"""GET /homebase/events: notices as they come, and a snapshot whenever something has changed.

Nothing is kept for a reader: it has a place in the ring of notices, and takes from there, and the newest snapshot,
when it is ready for more. So one that reads slowly misses snapshots, and one that does not read costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from quart import Quart, Response, request

from server.api.generation.stream import STREAM_HEADERS
from server.api.operator.snapshots import EVERY_S, SnapshotFrames
from server.api.services import Services
from server.api.sse import KEEP_ALIVE, build_frame
from server.events import AnyNotice, EventRing
from server.policy import ServerPolicy

IDS_PER_SECOND = 1_000_000
"""Ids of a run begin at its start in Unix seconds times this, so that they rise from run to run too."""


class Gap(msgspec.Struct, frozen=True, tag_field="kind", tag="gap"):
    """Notices that a reader asked for and cannot have."""

    missed: int | None
    """How many; None when they were another run's."""


def add_events(app: Quart, services: Services) -> None:
    """Register the route."""
    frames = SnapshotFrames(services.build_snapshot, time.monotonic)
    first_id = int(time.time()) * IDS_PER_SECOND

    async def follow() -> Response:
        if request.method == "HEAD":  # the framework would run through what has no end
            return Response(b"", headers=STREAM_HEADERS)
        place = Place(services.controls.ring, first_id, request.headers.get("last-event-id", ""))
        server = services.read_policy().server

        def is_over() -> bool:
            # Whoever may still come in comes back by itself; a key that was taken away does not.
            return services.controls.is_over() or list_doors(services.read_policy().server) != list_doors(server)

        response = Response(tell(place, frames, is_over, server.keep_alive_s), headers=STREAM_HEADERS)
        response.timeout = None  # Quart would end it after 60 s
        return response

    app.add_url_rule("/homebase/events", view_func=follow, methods=["GET"])


class Place:
    """How far one reader is in the ring."""

    def __init__(self, ring: EventRing, first_id: int, last_event_id: str = "") -> None:
        """`last_event_id` is the last id that it has; empty starts at what comes next, 0 at what is kept."""
        self._ring, self._first_id = ring, first_id
        self._is_lost = False
        self._told = self._find(last_event_id.strip()) if last_event_id.strip() else ring.newest

    @property
    def id(self) -> int:
        """Of the last notice that was told."""
        return self._first_id + self._told

    def take(self) -> bytes:
        """The frames of what is new, a gap in front where some of it is gone; empty when nothing is."""
        if self._is_lost:
            self._is_lost = False
            return build_frame(msgspec.json.encode(Gap(None)), "gap") + self._take_newer()
        return self._take_newer()

    def _take_newer(self) -> bytes:
        if self._ring.newest <= self._told:
            return b""
        entries = self._ring.after(self._told)
        missed = entries[-1].sequence - self._told - len(entries)
        told = [build_frame(msgspec.json.encode(Gap(missed)), "gap")] if missed else []
        for entry in entries:
            data = msgspec.json.encode(entry.notice)
            told.append(build_frame(data, name_event(entry.notice), self._first_id + entry.sequence))
        self._told = entries[-1].sequence
        return b"".join(told)

    def _find(self, last_event_id: str) -> int:
        """The place after an id; the ring's beginning for one of another run, which is a gap."""
        number = int(last_event_id) if last_event_id.isdecimal() and len(last_event_id) < 20 else -1
        if number == 0:
            return 0
        place = number - self._first_id
        self._is_lost = not 0 <= place <= self._ring.newest
        return 0 if self._is_lost else place


async def tell(
    place: Place, frames: SnapshotFrames, is_over: Callable[[], bool], keep_alive_s: float
) -> AsyncIterator[bytes]:
    """What one reader is sent, until the server ends: notices, then the snapshot, or a sign of life."""
    loop = asyncio.get_running_loop()
    seen, given_s = 0, loop.time()
    while True:
        ends = is_over()  # asked first: what came before it is still told
        told = place.take()
        number, data = frames.read(at_once=ends)
        if number != seen:
            seen = number
            told += build_frame(data, "snapshot", place.id)
        if not told and loop.time() - given_s >= keep_alive_s:
            told = KEEP_ALIVE
        if told:
            yield told
            given_s = loop.time()
        if ends:
            return
        await asyncio.sleep(EVERY_S)


def list_doors(server: ServerPolicy) -> tuple[object, ...]:
    """All that decides who may call."""
    return (
        server.api_key,
        server.api_keys_env,
        server.keys,
        server.read_only_keys,
        server.allow_unauthenticated,
        server.allowed_origins,
    )


def name_event(notice: AnyNotice) -> str:
    """The name of a notice's event, which is its kind too."""
    tag: Any = notice.__struct_config__.tag
    return str(tag)
