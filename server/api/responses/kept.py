"""What can be done with a response by its id: look at it, list its input, cancel it, delete it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from server.api.responses.in_flight import InFlight
from server.api.responses.listing import list_items, read_page
from server.api.responses.store import Kept, ResponseStore
from server.errors import InvalidRequest, UnsupportedParameter

CANCEL_S = 10.0
"""For a running step to end, which a cancel waits for; a step takes well under a second."""

Run = Callable[[Callable[[], bytes], int], Awaitable[bytes]]
"""Does work on so many bytes; on many it is done beside the loop."""

log = logging.getLogger(__name__)


class KeptResponses:
    """Responses by id: those that are kept, and those in flight that will be. One owner never sees another's."""

    def __init__(self, store: ResponseStore, in_flight: InFlight, run: Run) -> None:
        self._store, self._in_flight, self._run = store, in_flight, run

    def show(self, owner: str, response_id: str, query: Mapping[str, str]) -> bytes:
        """The object. Raises ResponseNotFound, and UnsupportedParameter when a stream is asked for."""
        if query.get("stream", "false").lower() not in ("false", "0", ""):
            raise UnsupportedParameter("A response that is kept is given whole; leave out `stream`.", param="stream")
        flight = self._in_flight.get(owner, response_id)
        if flight is not None and flight.is_kept:
            return flight.build_now()
        return self._store.find(owner, response_id).response

    async def list_input(self, owner: str, response_id: str, query: Mapping[str, str]) -> bytes:
        """The items that were sent as its input, a page of them. Raises ResponseNotFound and InvalidRequest."""
        kept = self._store.find(owner, response_id)

        def read() -> bytes:
            return msgspec.json.encode(read_page(list_items(response_id, kept.read_items()), query))

        return await self._run(read, len(kept.items))

    async def cancel(self, owner: str, response_id: str) -> bytes:
        """End a response that is in flight; its object with what there was of it.

        One that was cancelled before is given again. Raises InvalidRequest for any other that is over, and
        ResponseNotFound.
        """
        flight = self._in_flight.get(owner, response_id)
        if flight is not None:
            log.info("cancelled by its client", extra={"request_id": f"req-{response_id.removeprefix('resp_')}"})
            await flight.cancel(CANCEL_S)
            return flight.build_now()
        kept = self._store.find(owner, response_id)
        status = _read_status(kept)
        if status != "cancelled":
            raise InvalidRequest(f"The response {response_id} is over ({status}); only one in flight can be cancelled.")
        return kept.response

    def delete(self, owner: str, response_id: str) -> bytes:
        """Forget a response. Raises ResponseNotFound, and InvalidRequest while it is in flight."""
        if self._in_flight.get(owner, response_id) is not None:
            raise InvalidRequest(f"The response {response_id} is in flight; cancel it first.")
        self._store.delete(owner, response_id)
        return msgspec.json.encode({"id": response_id, "object": "response", "deleted": True})


def _read_status(kept: Kept) -> str:
    return msgspec.json.decode(kept.response)["status"]
