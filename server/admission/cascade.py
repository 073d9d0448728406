"""Ends the children of a parent whose stream was cut short. Reads no clock: when to look again is `call_later`'s."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from server.admission.place import Place
from server.snapshot import StreamView

RETURN_S = 2.0
"""A parent that is back by then goes on with the children that it has: an agent that was interrupted sends its next
turn at once, and one that lost its connection tries again within a second or two."""


SESSIONS_KEPT = 1000
"""Children whose parents are remembered; the one that has been silent longest is forgotten first."""

DEEPEST = 32
"""Steps from a child to its farthest ancestor that are followed: names that agents make up may go in a circle."""


class Handle(Protocol):
    """A call that is to come; `asyncio.TimerHandle` is one."""

    def cancel(self) -> None:
        """Let it not come."""
        ...


@dataclass(frozen=True, slots=True)
class _Gone:
    """A parent that may come back."""

    timer: Handle
    request_ids: set[str]
    """Its streams that were cut."""


def list_elsewhere(streams: Iterable[StreamView]) -> Iterator[tuple[str, Place]]:
    """Id and place of what upstreams work on without a slot here: a turn's end ends that too."""
    for each in streams:
        if each.upstream and not each.has_slot and each.outcome is None:
            yield (
                each.id,
                Place(each.session, each.parent_session, each.depth, each.lane, each.client, each.family, each.key),
            )


class Cascade:
    """Waits for parents that are gone. A parent that ends normally cancels nobody.

    Whoever cut the stream, its client by hanging up or the operator, cut the turn, and its children work for nobody.
    """

    def __init__(
        self,
        read_places: Callable[[], Iterable[tuple[str, Place]]],
        cancel: Callable[[str], object],
        is_on: Callable[[], bool],
        call_later: Callable[[float, Callable[[], None]], Handle],
    ) -> None:
        """`read_places` lists every request in flight, in line or with an upstream, and `cancel` ends one by its id."""
        self._read_places, self._cancel = read_places, cancel
        self._is_on, self._call_later = is_on, call_later
        self._gone: dict[str, _Gone] = {}
        self._parents: OrderedDict[str, str] = OrderedDict()

    def came(self, place: Place) -> None:
        """A request has come; a side request does not go on with the turn."""
        if place.parent_session is not None:
            self._parents[place.session] = place.parent_session
            self._parents.move_to_end(place.session)
            if len(self._parents) > SESSIONS_KEPT:
                self._parents.popitem(last=False)
        if place.lane != "auxiliary" and (gone := self._gone.pop(place.session, None)):
            gone.timer.cancel()

    def ended(self, stream: StreamView) -> None:
        """A stream is over."""
        if stream.outcome != "cancelled" or stream.lane == "auxiliary":
            return
        session, ids = stream.session, {stream.id}
        if before := self._gone.pop(session, None):
            before.timer.cancel()
            ids |= before.request_ids
        self._gone[session] = _Gone(self._call_later(RETURN_S, lambda: self._end_children(session)), ids)

    def _end_children(self, session: str) -> None:
        gone, places = self._gone.pop(session), tuple(self._read_places())
        is_back = any(
            place.session == session and place.lane != "auxiliary" and request_id not in gone.request_ids
            for request_id, place in places  # the engine may still hold what was cut
        )
        if is_back or not self._is_on():
            return
        for request_id, place in places:
            if self._is_below(place, session):
                self._cancel(request_id)

    def _is_below(self, place: Place, session: str) -> bool:
        """True for a child of the session, or a child of one, which itself may be idle now."""
        above = place.parent_session
        for _ in range(DEEPEST):
            if above is None or above == session:
                break
            above = self._parents.get(above)
        return above == session
