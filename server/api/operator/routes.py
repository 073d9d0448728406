"""Registers the operator's endpoints."""

from __future__ import annotations

import msgspec
from quart import Quart, Response

from server.api.operator.control import add_control
from server.api.operator.events import add_events
from server.api.operator.history import add_history
from server.api.operator.policy import add_policy
from server.api.operator.sessions import SessionList
from server.api.services import Services


def add_operator(app: Quart, services: Services) -> None:
    """Register the routes."""

    async def show_snapshot() -> Response:
        return Response(msgspec.json.encode(services.build_snapshot()), content_type="application/json")

    async def list_sessions() -> Response:
        listed = SessionList(services.lineage.sessions())
        return Response(msgspec.json.encode(listed), content_type="application/json")

    app.add_url_rule("/homebase/snapshot", view_func=show_snapshot, methods=["GET"])
    app.add_url_rule("/homebase/sessions", view_func=list_sessions, methods=["GET"])
    add_events(app, services)
    add_policy(app, services)
    add_control(app, services)
    add_history(app, services)
