"""The operator's own endpoints under /homebase. No limit of the server counts them."""

from __future__ import annotations

import msgspec
from quart import Quart, Response

from server.api.services import Services


def add_homebase(app: Quart, services: Services) -> None:
    """Register the routes."""

    async def show_snapshot() -> Response:
        return Response(msgspec.json.encode(services.build_snapshot()), content_type="application/json")

    app.add_url_rule("/homebase/snapshot", view_func=show_snapshot, methods=["GET"])
