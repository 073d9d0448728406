"""The responses that are being worked on, so that they can be looked at and cancelled by their ids."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from server.api.generation.stream_life import StreamLife
from server.api.responses.answer import ResponsesAnswer
from server.errors import StreamStopped

CANCELLED = "This response was cancelled by its client."


class Flight:
    """One response that is being worked on."""

    def __init__(self, owner: str, answer: ResponsesAnswer, life: StreamLife, *, is_kept: bool) -> None:
        self.owner = owner
        self.is_kept = is_kept
        """It is kept when it is over, and may be looked at before."""
        self._answer, self._life = answer, life
        self._is_cancelled = False
        self._last: msgspec.Raw | None = None
        self._over = asyncio.Event()

    def build_now(self) -> bytes:
        """The object as it is now."""
        return self._answer.build_now() if self._last is None else bytes(self._last)

    def settle(self, last: msgspec.Raw) -> None:
        """It is over; this is its last object."""
        self._last = last
        self._over.set()

    def leave(self) -> None:
        """The request is over. Cancelled and not streamed, nobody else says what there was."""
        if self._is_cancelled and self._last is None:
            self._answer.finish_failed(StreamStopped(CANCELLED))
        self._over.set()

    async def cancel(self, within_s: float) -> None:
        """End the generation at the next step boundary, and wait until its reader has been told."""
        self._is_cancelled = True
        self._life.drop("cancelled by its client")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._over.wait()


class InFlight:
    """Responses by id, from their first byte to their last."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}

    def add(self, response_id: str, flight: Flight, task: asyncio.Task[object]) -> None:
        """Know a response until `task`, which answers its request, ends."""
        self._flights[response_id] = flight

        def leave(_: asyncio.Task[object]) -> None:
            del self._flights[response_id]
            flight.leave()

        task.add_done_callback(leave)

    def get(self, owner: str, response_id: str) -> Flight | None:
        """A response that is being worked on for this owner."""
        flight = self._flights.get(response_id)
        return flight if flight is not None and flight.owner == owner else None
