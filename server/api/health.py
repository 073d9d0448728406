"""GET /health, whether the process can still work at all, and GET /ready, whether a completion would be taken now."""

from __future__ import annotations

import msgspec
from quart import Quart, Response

from server.api.services import Services
from server.snapshot import Snapshot

RETRY_AFTER_S = 5


def add_health(app: Quart, services: Services) -> None:
    """Register the routes."""

    async def show_health() -> Response:
        snapshot = services.build_snapshot()
        return _answer(snapshot, explain_sickness(snapshot))

    async def show_ready() -> Response:
        snapshot = services.build_snapshot()
        return _answer(snapshot, explain_sickness(snapshot) or explain_unreadiness(snapshot))

    app.add_url_rule("/health", view_func=show_health, methods=["GET"])
    app.add_url_rule("/ready", view_func=show_ready, methods=["GET"])


def explain_sickness(snapshot: Snapshot) -> str | None:
    """Why only a restart helps, or help is doubtful; None while all is well. A model that loads is well."""
    if snapshot.state == "engine_dead" or (snapshot.model.state == "ready" and not snapshot.engine.alive):
        return f"The engine has ended: {snapshot.engine.error or 'no reason is known'}"
    if snapshot.state == "stalled":
        age_s = snapshot.engine.step_age_s
        since = f" for {age_s:.0f} s" if age_s is not None else ""
        return f"The engine is stalled: no step has ended{since}."
    return None


def explain_unreadiness(snapshot: Snapshot) -> str | None:
    """Why a completion would be refused whatever the load; None when it would not."""
    if snapshot.model.state == "none":
        return None if snapshot.state == "serving" else f"The server is {snapshot.state}."
    if snapshot.model.state != "ready":
        detail = f": {snapshot.model.detail}" if snapshot.model.detail else ""
        return f"The model is {snapshot.model.state}{detail}"
    if not snapshot.model.effective_context_limit_tokens:
        return snapshot.model.detail or "There is no room for a stream."
    return None if snapshot.state == "serving" else f"The server is {snapshot.state}."


def _answer(snapshot: Snapshot, reason: str | None) -> Response:
    fields = {
        "status": "ok" if reason is None else "unavailable",
        "reason": reason,
        "state": snapshot.state,
        "model": snapshot.model.id,
        "model_state": snapshot.model.state,
        "in_flight": snapshot.admission.in_flight,
        "max_in_flight": snapshot.admission.max_in_flight,
    }
    headers = {} if reason is None else {"retry-after": str(RETRY_AFTER_S)}
    body = msgspec.json.encode(fields)
    return Response(body, status=200 if reason is None else 503, headers=headers, content_type="application/json")
