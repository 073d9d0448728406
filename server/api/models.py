"""GET /v1/models and /v1/models/{id}: what is served, and how long a context one request may really have."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import msgspec
from quart import Quart, Response, request

from server.api.failures import ANTHROPIC_HEADER
from server.api.generation.plan import check_model
from server.api.services import Services
from server.snapshot import ModelView

OWNER = "homebase-console"


def add_models(app: Quart, services: Services) -> None:
    """Register the routes. No slot is needed, and none is counted."""
    created_s = int(time.time())

    async def list_models() -> Response:
        model = services.read_model()
        if ANTHROPIC_HEADER not in request.headers:
            return _answer({"object": "list", "data": [_describe(model, created_s)]})
        page = {"first_id": model.id, "last_id": model.id, "has_more": False}
        return _answer({"data": [_describe_to_anthropic(model, created_s)], **page})

    async def show_model(model_id: str) -> Response:
        model = services.read_model()
        check_model(model_id, model)
        describe = _describe_to_anthropic if ANTHROPIC_HEADER in request.headers else _describe
        return _answer(describe(model, created_s))

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


def _describe_to_anthropic(model: ModelView, created_s: int) -> dict[str, Any]:
    """The same as Anthropic's clients read it, in their names."""
    ours = _describe(model, created_s)
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": datetime.fromtimestamp(created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": ours["max_output_tokens"],
        "max_tokens": ours["max_output_tokens"],
        "state": model.state,
    }


def _answer(document: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(document), content_type="application/json")
