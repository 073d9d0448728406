"""Registers the endpoints that read prompts: one for each dialect, all through the same door."""

from __future__ import annotations

import time
from typing import cast

from quart import Quart, Response, g, request

from server.api.body import BoundedBody, read_body
from server.api.chat.endpoint import ChatEndpoint
from server.api.completions.endpoint import CompletionEndpoint
from server.api.forwarding.call import Call
from server.api.forwarding.forwarding import Answerer, Forwarding
from server.api.generation.answering import Answering
from server.api.generation.asked import Caller
from server.api.generation.door import Door
from server.api.messages.endpoint import MessagesEndpoint
from server.api.responses.endpoint import ResponsesEndpoint
from server.api.responses.routes import add_kept_responses
from server.api.services import Services
from server.api.tokens import TokenEndpoints
from server.errors import InvalidRequest
from server.text.pool import TextPool


def add_dialects(app: Quart, services: Services) -> None:
    """Register the routes."""
    pool = TextPool()
    door = Door(services, pool)
    answering, tokens = Answering(services, door), TokenEndpoints(services, door)
    messages = MessagesEndpoint(answering, services.read_model)
    forwarding = Forwarding(services, pool)

    def _add(app: Quart, path: str, answer: Answerer) -> None:
        _add_route(app, path, answer, forwarding)

    _add(app, "/v1/chat/completions", ChatEndpoint(answering).answer)
    responses = ResponsesEndpoint(answering)
    _add(app, "/v1/completions", CompletionEndpoint(answering).answer)
    _add(app, "/v1/responses", responses.answer)
    _add(app, "/v1/responses/input_tokens", responses.count)
    add_kept_responses(app, responses.kept, _read_caller)
    _add(app, "/v1/messages", messages.answer)
    _add(app, "/v1/messages/count_tokens", messages.count)
    _add(app, "/tokenize", tokens.tokenize)
    _add(app, "/detokenize", tokens.detokenize)

    async def close_pool() -> None:
        pool.close()

    app.after_serving(close_pool)


def _add_route(app: Quart, path: str, answer: Answerer, forwarding: Forwarding) -> None:
    async def view() -> Response:
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise InvalidRequest("Compressed request bodies are not read; send the JSON as it is.")
        body = await read_body(cast("BoundedBody", request.body))
        return await forwarding.answer(Call(_read_caller(), path, request.query_string.decode("latin-1"), body), answer)

    app.add_url_rule(path, endpoint=path, view_func=view, methods=["POST"])


def _read_caller() -> Caller:
    peer = request.scope.get("client")
    return Caller(
        request_id=g.request_id,
        headers={name.lower(): _read_header(value) for name, value in request.headers.items()},
        api_key="" if g.key_name else next(iter(g.keys), ""),
        peer=peer[0] if peer else "",
        key_name=g.key_name,
        arrived_s=time.time(),
    )


def _read_header(value: str) -> str:
    """A header's value as its sender meant it: UTF-8 where it is that, which the framework reads as Latin-1."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value
