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
from server.admission.clients import choose_refusal_status
from server.api.body import LIMIT_BYTES, BoundedBody, drain_body
from server.api.cancel import add_cancel
from server.api.dialects import add_dialects
from server.api.failures import Failure, build_failure, find_dialect, internal_error
from server.api.front import FrontedQuart
from server.api.guard import (
    check_head,
    check_host,
    check_key,
    check_origin,
    check_reach,
    preflight_headers,
    read_authority,
    read_keys,
)
from server.api.health import add_health
from server.api.metrics import add_metrics
from server.api.models import add_models
from server.api.openapi import add_openapi
from server.api.operator.routes import add_operator
from server.api.operator.what_if import add_what_if
from server.api.services import Services
from server.errors import BodyTooLarge, HomebaseError, InvalidRequest, MethodNotAllowed, RouteNotFound

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
    add_dialects(app, services)
    add_cancel(app, services)
    add_models(app, services)
    add_health(app, services)
    add_operator(app, services)
    add_what_if(app, services)
    add_openapi(app, services)
    add_metrics(app, services)
    return app


def _add_guard(app: Quart, services: Services) -> None:
    # The address that the server was started with: a later edit of it changes nothing until the next start.
    bound_host = services.read_policy().server.host
    keys = KeySource(os.environ)

    async def check_caller() -> Response | None:
        g.request_id, g.key_name, g.cors = f"req-{secrets.token_hex(6)}", "", {}
        policy, headers = services.read_policy().server, request.headers
        g.keys = read_keys(headers.get("authorization"), headers.get("x-api-key"))
        check_head(headers.items())
        host = headers.get("host", "")
        check_host(host, bound_host)
        check_host(read_authority(request.scope.get("raw_path", b"")), bound_host)
        for origin in headers.getlist("origin"):
            g.cors = check_origin(origin, host, policy.allowed_origins)
        if request.method == "OPTIONS" and g.cors and "access-control-request-method" in headers:
            return Response(b"", status=204, headers=preflight_headers(headers.get("access-control-request-headers")))
        if request.method != "OPTIONS":
            g.key_name = check_key(g.keys, keys.read(policy), policy, bound_host)
            check_reach(g.key_name, request.method, request.path, policy)
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
        policy = services.read_policy().policy
        headers = {name.lower(): value for name, value in request.headers.items()}
        status = choose_refusal_status(policy, headers, g.key_name)
        dialect = find_dialect(request.path, request.headers)
        return _answer_failure(build_failure(error, status, dialect, g.request_id))

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
                f"There is nothing at {path}. GET /openapi.json lists what this server answers, POST "
                "/v1/chat/completions first of all."
            )
        case WrongMethod():
            allowed = tuple(sorted(error.valid_methods or ()))
            return MethodNotAllowed(f"{path} takes {', '.join(allowed)}; {request.method} was used.", allowed)
        case RequestEntityTooLarge():
            return BodyTooLarge(LIMIT_BYTES, request.content_length)
        case _:
            return InvalidRequest(f"The request cannot be read: {error.description or error.name}")
