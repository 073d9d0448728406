"""Registers what can be done with a response by its id."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from quart import Quart, Response, request

from server.api.body import BoundedBody, read_body
from server.api.generation.asked import Caller
from server.api.responses.kept import KeptResponses

PATH = "/v1/responses/<response_id>"


def add_kept_responses(app: Quart, kept: KeptResponses, read_caller: Callable[[], Caller]) -> None:
    """Register the routes. Each caller reaches the responses of its own API key."""

    async def show(response_id: str) -> Response:
        return _answer(kept.show(read_caller().owner, response_id, request.args))

    async def list_input(response_id: str) -> Response:
        return _answer(await kept.list_input(read_caller().owner, response_id, request.args))

    async def delete(response_id: str) -> Response:
        return _answer(kept.delete(read_caller().owner, response_id))

    async def cancel(response_id: str) -> Response:
        await read_body(cast("BoundedBody", request.body))
        return _answer(await kept.cancel(read_caller().owner, response_id))

    app.add_url_rule(PATH, endpoint="response", view_func=show, methods=["GET"])
    app.add_url_rule(PATH, endpoint="delete_response", view_func=delete, methods=["DELETE"])
    app.add_url_rule(f"{PATH}/cancel", endpoint="cancel_response", view_func=cancel, methods=["POST"])
    app.add_url_rule(f"{PATH}/input_items", endpoint="response_input", view_func=list_input, methods=["GET"])


def _answer(body: bytes) -> Response:
    return Response(body, content_type="application/json")
