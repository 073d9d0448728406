"""GET /metrics, for Prometheus. No slot is needed, and no limit of the server counts it."""

from __future__ import annotations

from quart import Quart, Response, request

from server.api.services import Services
from server.metrics.exposition import Exposition


def add_metrics(app: Quart, services: Services) -> None:
    """Register the route."""
    exposition = Exposition(services.tally, services.build_snapshot)

    async def show_metrics() -> Response:
        text, content_type = exposition.render(request.headers.get("accept", ""))
        return Response(text, content_type=content_type)

    app.add_url_rule("/metrics", view_func=show_metrics, methods=["GET"])
