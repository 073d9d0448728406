"""POST /homebase/streams/{id}/stop, /homebase/drain and /homebase/resume: what the operator does to what runs."""

from __future__ import annotations

import msgspec
from quart import Quart, Response

from server.api.cancel import describe_cancelled, find_stream
from server.api.operator.caller import name_caller
from server.api.services import Services
from server.errors import RequestNotLive
from server.snapshot import ServerState


class Admitting(msgspec.Struct, frozen=True):
    """Whether anything new is taken."""

    state: ServerState
    draining: bool
    """True while nothing new is admitted, also where `state` tells of something graver."""
    in_flight: int


def add_control(app: Quart, services: Services) -> None:
    """Register the routes."""

    async def stop(stream_id: str) -> Response:
        stream = find_stream(stream_id, services.build_snapshot().streams)
        if stream.outcome is not None or not services.stop_stream(stream.id, name_caller()):
            raise RequestNotLive(f"The stream {stream.id} is over already: {stream.outcome or 'it just ended'}.")
        return Response(msgspec.json.encode(describe_cancelled(stream)), content_type="application/json")

    async def drain() -> Response:
        services.controls.drain(name_caller())
        return answer()

    async def resume() -> Response:
        services.controls.resume(name_caller())
        return answer()

    def answer() -> Response:
        snapshot = services.build_snapshot()
        told = Admitting(snapshot.state, services.admission.draining, snapshot.admission.in_flight)
        return Response(msgspec.json.encode(told), content_type="application/json")

    app.add_url_rule("/homebase/streams/<stream_id>/stop", view_func=stop, methods=["POST"])
    app.add_url_rule("/homebase/drain", view_func=drain, methods=["POST"])
    app.add_url_rule("/homebase/resume", view_func=resume, methods=["POST"])
