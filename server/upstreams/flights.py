"""Requests that are with an upstream now, so that an operator or the end of the server can end them."""

from __future__ import annotations

from collections.abc import Callable

from server.errors import HomebaseError


class Flights:
    """By their ids. Server loop only."""

    def __init__(self) -> None:
        self._stops: dict[str, Callable[[HomebaseError], None]] = {}
        self._closed: HomebaseError | None = None

    def add(self, request_id: str, stop: Callable[[HomebaseError], None]) -> None:
        """Follow one; `stop` ends it with an error. Raises what `close` was given."""
        if self._closed is not None:
            raise self._closed
        self._stops[request_id] = stop

    def remove(self, request_id: str) -> None:
        """It is over; calling it again changes nothing."""
        self._stops.pop(request_id, None)

    def stop(self, request_id: str, error: HomebaseError) -> bool:
        """End one; False when there is none of that id."""
        stop = self._stops.get(request_id)
        if stop is not None:
            stop(error)
        return stop is not None

    def close(self, error: HomebaseError) -> None:
        """End all, and take no more."""
        self._closed = error
        for stop in tuple(self._stops.values()):
            stop(error)
