"""Builds the HTTP application: routes, the guard before each of them, and the answer to every error."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import AsyncIterator
from typing import cast

from quart import Quart, Request, Response, g, request
from werkzeug.exceptions import HTTPException, NotFound, RequestEntityTooLarge
from werkzeug.exceptions import MethodNotAllowed as WrongMethod

from server.access import KeySource
from server.api.body import LIMIT_BYTES, BoundedBody, drain_body, read_body
from server.api.cancel import add_cancel
from server.api.chat import Caller, ChatEndpoint
from server.api.failures import Failure, build_failure, internal_error
from server.api.front import FrontedQuart
from server.api.guard import (
    check_head,
    check_host,
    check_key,
    check_origin,
    preflight_headers,
    read_authority,
    read_keys,
)
from server.api.health import add_health
from server.api.homebase import add_homebase
from server.api.models import add_models
from server.api.services import Services
from server.errors import BodyTooLarge, HomebaseError, InvalidRequest, MethodNotAllowed, RouteNotFound
from server.text.pool import TextPool

log = logging.getLogger(__name__)

SERVER_NAME = "homebase-console"
PATH_CHARS = 200
"""A path that is quoted back is cut to this."""


class BoundedRequest(Request):
    """Quart's request, with our own body."""

    body_class = BoundedBody


def build_app(services: Services) -> Quart:
    """The application, ready to be served by any ASGI server."""
    app = FrontedQuart("server.api", static_folder=None, template_folder=None)
    app.request_class = BoundedRequest
    app.config.update(
        MAX_CONTENT_LENGTH=LIMIT_BYTES,
        BODY_TIMEOUT=None,  # `read_body` has its own
        RESPONSE_TIMEOUT=None,  # Quart would cut any answer after 60 s
        PROPAGATE_EXCEPTIONS=False,
    )
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    _add_guard(app, services)
    _add_error_answers(app, services)
    _add_chat(app, services)
    add_cancel(app, services)
    add_models(app, services)
    add_health(app, services)
    add_homebase(app, services)
    return app


def _add_chat(app: Quart, services: Services) -> None:
    pool = TextPool()
    endpoint = ChatEndpoint(services, pool)

    async def complete_chat() -> Response:
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise InvalidRequest("Compressed request bodies are not read; send the JSON as it is.")
        body = await read_body(cast("BoundedBody", request.body))
        return await endpoint.answer(_read_caller(), body)

    async def close_pool() -> None:
        pool.close()

    app.add_url_rule("/v1/chat/completions", view_func=complete_chat, methods=["POST"])
    app.after_serving(close_pool)


def _read_caller() -> Caller:
    peer = request.scope.get("client")
    return Caller(
        request_id=g.request_id,
        headers={name.lower(): _read_header(value) for name, value in request.headers.items()},
        api_key="" if g.key_name else next(iter(_read_keys()), ""),
        peer=peer[0] if peer else "",
        key_name=g.key_name,
    )


def _read_keys() -> tuple[str, ...]:
    return read_keys(request.headers.get("authorization"), request.headers.get("x-api-key"))


def _read_header(value: str) -> str:
    """A header's value as its sender meant it: UTF-8 where it is that, which the framework reads as Latin-1."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _add_guard(app: Quart, services: Services) -> None:
    # The address that the server was started with: a later edit of it changes nothing until the next start.
    bound_host = services.read_policy().server.host
    keys = KeySource(os.environ)

    async def check_caller() -> Response | None:
        g.request_id, g.key_name, g.cors = f"req-{secrets.token_hex(6)}", "", {}
        policy, headers = services.read_policy().server, request.headers
        check_head(headers.items())
        host = headers.get("host", "")
        check_host(host, bound_host)
        check_host(read_authority(request.scope.get("raw_path", b"")), bound_host)
        for origin in headers.getlist("origin"):
            g.cors = check_origin(origin, host, policy.allowed_origins)
        if request.method == "OPTIONS" and g.cors and "access-control-request-method" in headers:
            return Response(b"", status=204, headers=preflight_headers(headers.get("access-control-request-headers")))
        if request.method != "OPTIONS":
            g.key_name = check_key(_read_keys(), keys.read(policy), policy, bound_host)
        return None

    async def sign_response(response: Response) -> Response:
        response.headers["x-request-id"] = g.request_id
        response.headers["server"] = SERVER_NAME
        response.headers.update(g.cors)
        return response

    app.before_request(check_caller)
    app.after_request(sign_response)


def _add_error_answers(app: Quart, services: Services) -> None:
    async def answer_known(error: HomebaseError) -> Response:
        return _answer_failure(build_failure(error, services.read_policy().policy.refusal_status))

    async def answer_http(error: HTTPException) -> Response:
        return await answer_known(_translate(error))

    async def answer_unforeseen(error: Exception) -> Response:
        log.error("a request broke: %s", type(error).__name__, exc_info=error, extra={"request_id": g.request_id})
        return await answer_known(internal_error(g.request_id))

    app.register_error_handler(HomebaseError, answer_known)
    app.register_error_handler(HTTPException, answer_http)
    app.register_error_handler(Exception, answer_unforeseen)


def _answer_failure(failure: Failure) -> Response:
    body = cast("BoundedBody", request.body)
    if not body.may_be_coming:
        return Response(failure.body, status=failure.status, headers=failure.headers)
    response = Response(_send_and_drain(failure.body, body), status=failure.status, headers=failure.headers)
    response.content_length = len(failure.body)
    return response


async def _send_and_drain(answer: bytes, body: BoundedBody) -> AsyncIterator[bytes]:
    yield answer
    await drain_body(body)


def _translate(error: HTTPException) -> HomebaseError:
    """The framework's own errors, in our words."""
    path = ascii(request.path if len(request.path) <= PATH_CHARS else f"{request.path[:PATH_CHARS]}…")
    match error:
        case NotFound():
            return RouteNotFound(
                f"There is nothing at {path}. This server answers POST /v1/chat/completions, GET /v1/models, "
                "GET /v1/models/{id}, POST /v1/requests/{id}/cancel, GET /health, GET /ready and "
                "GET /homebase/snapshot."
            )
        case WrongMethod():
            allowed = tuple(sorted(error.valid_methods or ()))
            return MethodNotAllowed(f"{path} takes {', '.join(allowed)}; {request.method} was used.", allowed)
        case RequestEntityTooLarge():
            return BodyTooLarge(LIMIT_BYTES, request.content_length)
        case _:
            return InvalidRequest(f"The request cannot be read: {error.description or error.name}")
