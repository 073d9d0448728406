"""POST /v1/requests/{id}/cancel: ends a request that is in flight, by the same door as the console."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from quart import Quart, Response, g

from server.api.services import Services
from server.errors import RequestNotLive
from server.snapshot import StreamView

SHOWN_CHARS = 60
"""An id that is quoted back is cut to this."""

ID_PREFIXES = ("chatcmpl-", "cmpl-", "msg_", "resp_", "req-")
"""What ids begin with: a completion's, and the request's that made it. The rest is the same."""


def add_cancel(app: Quart, services: Services) -> None:
    """Register the route."""

    async def cancel(request_id: str) -> Response:
        streams = services.build_snapshot().streams
        stream = find_stream(request_id, [stream for stream in streams if stream.key == g.key_name])
        if stream.outcome is not None or not services.stop_stream(
            stream.id, f"a request of {g.key_name or 'a client'}"
        ):
            raise RequestNotLive(f"The request {stream.id} is over already ({stream.outcome or 'it just ended'}).")
        return Response(msgspec.json.encode(describe_cancelled(stream)), content_type="application/json")

    app.add_url_rule("/v1/requests/<request_id>/cancel", view_func=cancel, methods=["POST"])


def find_stream(given: str, streams: Iterable[StreamView]) -> StreamView:
    """The stream that an id means, among those that are the caller's to end. Raises RequestNotLive.

    Somebody else's is answered as one that never was: who asks learns nothing of it.
    """
    prefix = next((prefix for prefix in ID_PREFIXES if given.startswith(prefix)), "")
    wanted = f"req-{given.removeprefix(prefix)}"
    stream = next((stream for stream in streams if stream.id == wanted), None)
    if stream is None:
        shown = ascii(given if len(given) <= SHOWN_CHARS else f"{given[:SHOWN_CHARS]}…")
        raise RequestNotLive(
            f"No request {shown} is in flight; take the x-request-id of its answer, or the id of its chunks."
        )
    return stream


def describe_cancelled(stream: StreamView) -> dict[str, object]:
    """What was cancelled, and where it was."""
    return {
        "id": stream.id,
        "object": "request.cancelled",
        "phase": stream.phase,
        "prompt_tokens": stream.prompt_tokens,
        "completion_tokens": stream.completion_tokens,
    }
