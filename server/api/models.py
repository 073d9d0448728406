"""GET /v1/models and /v1/models/{id}: what is served, and how long a context one request may really have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from quart import Quart, Response, request

from server.api.failures import ANTHROPIC_HEADER
from server.api.generation.plan import check_model, is_served
from server.api.services import Services
from server.snapshot import ModelView
from server.upstreams.routing import list_names

OWNER = "homebase-console"


def add_models(app: Quart, services: Services) -> None:
    """Register the routes. No slot is needed, and none is counted."""
    created_s = int(time.time())

    async def list_models() -> Response:
        listed = list(_list_all(services, created_s))
        if ANTHROPIC_HEADER not in request.headers:
            return _answer({"object": "list", "data": listed})
        page = {
            "first_id": listed[0]["id"] if listed else None,
            "last_id": listed[-1]["id"] if listed else None,
            "has_more": False,
        }
        return _answer({"data": [_tell_anthropic(each) for each in listed], **page})

    async def show_model(model_id: str) -> Response:
        other = next((each for each in _list_others(services, created_s) if each["id"] == model_id), None)
        model = services.read_model()
        if other is None:
            check_model(model_id, model)
        found = other or _describe(model, created_s)
        return _answer(_tell_anthropic(found) if ANTHROPIC_HEADER in request.headers else found)

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


def _tell_anthropic(listed: dict[str, Any]) -> dict[str, Any]:
    """The same as Anthropic's clients read it, in their names."""
    return {
        "type": "model",
        "id": listed["id"],
        "display_name": listed["id"],
        "created_at": datetime.fromtimestamp(listed["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": listed["max_output_tokens"],
        "max_tokens": listed["max_output_tokens"],
        "owned_by": listed["owned_by"],
        **({"state": listed["state"]} if "state" in listed else {}),
    }


def _list_all(services: Services, created_s: int) -> Iterator[dict[str, Any]]:
    """Our own model, and what else may be asked for."""
    model = services.read_model()
    if model.state != "none":
        yield _describe(model, created_s)
    yield from _list_others(services, created_s)


def _list_others(services: Services, created_s: int) -> Iterator[dict[str, Any]]:
    """Aliases, and the models of upstreams that are named, whose limits are not known."""
    policy, model = services.read_policy(), services.read_model()
    for name in list_names(lambda asked: is_served(asked, model), policy.aliases, policy.upstreams):
        if name.upstream is None:
            yield {**_describe(model, created_s), "id": name.name}
        else:
            unknown = dict.fromkeys(("context_length", "max_model_len", "max_output_tokens"))
            yield {"id": name.name, "object": "model", "created": created_s, "owned_by": name.upstream.name, **unknown}


def _answer(document: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(document), content_type="application/json")
