"""GET /v1/models and /v1/models/{id}: what is served, and how long a context one request may really have."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from quart import Quart, Response

from server.api.generation.plan import check_model
from server.api.services import Services
from server.snapshot import ModelView

OWNER = "homebase-console"


def add_models(app: Quart, services: Services) -> None:
    """Register the routes. No slot is needed, and none is counted."""
    created_s = int(time.time())

    async def list_models() -> Response:
        return _answer({"object": "list", "data": [_describe(services.read_model(), created_s)]})

    async def show_model(model_id: str) -> Response:
        model = services.read_model()
        check_model(model_id, model)
        return _answer(_describe(model, created_s))

    app.add_url_rule("/v1/models", view_func=list_models, methods=["GET"])
    app.add_url_rule("/v1/models/<path:model_id>", view_func=show_model, methods=["GET"])


def _describe(model: ModelView, created_s: int) -> dict[str, Any]:
    """`context_length` and `max_model_len` are the two names that clients look for; both are the effective limit.

    Prompt and answer share it, so the longest answer is a token less: that of a prompt of one. All are null until the
    model is loaded and the limit is known, and while memory has no room for any stream.
    """
    limit = model.effective_context_limit_tokens or None
    return {
        "id": model.id,
        "object": "model",
        "created": created_s,
        "owned_by": OWNER,
        "context_length": limit,
        "max_model_len": limit,
        "max_output_tokens": None if limit is None else limit - 1,
        "state": model.state,
    }


def _answer(document: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(document), content_type="application/json")
