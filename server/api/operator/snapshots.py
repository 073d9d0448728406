"""The newest snapshot as one frame for all who follow: made a few times a second at most, however many there are."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from server.snapshot import Snapshot, StreamView

EVERY_S = 0.25
"""As often as the console's."""

_RESIDENT_STEP = 4 * 2**20
"""What the system counts for a process that rests goes up and down by a few pages."""


class SnapshotFrames:
    """Looks again when it is asked and time has gone by, and knows whether anything is different."""

    def __init__(self, build_snapshot: Callable[[], Snapshot], clock: Callable[[], float]) -> None:
        self._build_snapshot, self._clock = build_snapshot, clock
        self._looked_s: float | None = None
        self._seen: Snapshot | None = None
        self._number, self._data = 0, b""

    def read(self, *, at_once: bool = False) -> tuple[int, bytes]:
        """A number that rises when something has changed, and the snapshot as JSON."""
        now = self._clock()
        # Those who wait for the same quarter of a second wake a little apart.
        if at_once or self._looked_s is None or now - self._looked_s >= EVERY_S * 0.9:
            self._looked_s = now
            self._look()
        return self._number, self._data

    def _look(self) -> None:
        snapshot = self._build_snapshot()
        seen = leave_out_clocks(snapshot)
        if seen != self._seen:
            self._seen = seen
            self._number += 1
            self._data = msgspec.json.encode(snapshot)


def leave_out_clocks(snapshot: Snapshot) -> Snapshot:
    """The snapshot without what goes on by itself while nothing happens."""
    change = msgspec.structs.replace
    step = snapshot.memory.resident_bytes // _RESIDENT_STEP
    return change(
        snapshot,
        sequence=0,
        time_s=0.0,
        monotonic_s=0.0,
        uptime_s=0.0,
        streams=tuple(map(_leave_out_age, snapshot.streams)),
        memory=change(snapshot.memory, resident_bytes=step),
        # What these tell is in the rates and the totals too.
        rates=change(snapshot.rates, decode_history_tps=(), prefill_history_tps=()),
    )


def _leave_out_age(stream: StreamView) -> StreamView:
    """Of a stream that is over; of any other its age and its silence are news."""
    return stream if stream.outcome is None else msgspec.structs.replace(stream, finished_ago_s=None)
