"""The framework's application, made fit for every request that the HTTP server lets through.

Quart makes objects of a request before any code of ours runs. Where it cannot, at a Host that is no name (`a..b`), a
path without a slash or a URL that is none, it ended in a bare 500, with a traceback in the log for each.
"""

from __future__ import annotations

import re
from typing import Any, cast

from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from quart import Quart
from quart.wrappers.base import BaseRequestWebsocket
from werkzeug.routing import MapAdapter

from server.api.failures import build_failure
from server.errors import RouteNotFound

_AUTHORITY = re.compile(r"[a-z][a-z0-9+.-]*://[^/]*", re.IGNORECASE)
"""What a target in absolute form has in front of its path."""


class FrontedQuart(Quart):
    """Quart, to which only requests come that it can take."""

    def create_url_adapter(self, request: BaseRequestWebsocket | None) -> MapAdapter | None:
        """Route by method and path alone: what the Host is called is for the guard to judge."""
        if request is None:
            return super().create_url_adapter(None)
        return self.url_map.bind("localhost", default_method=request.method, path_info=request.path)

    async def asgi_app(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer one request, or follow the server's own life."""
        if scope["type"] == "websocket":
            await _refuse_websocket(send)
        else:
            if scope["type"] == "http":
                scope["path"] = find_path(scope["path"])
            await super().asgi_app(scope, receive, send)


def find_path(target: str) -> str:
    """The path of a request's target, always with a slash at its beginning."""
    path = _AUTHORITY.sub("", target, count=1) if not target.startswith("/") else target
    return path if path.startswith("/") else f"/{path}"


async def _refuse_websocket(send: ASGISendCallable) -> None:
    failure = build_failure(RouteNotFound("There are no WebSockets here; ask by plain HTTP."))
    headers = [(name.encode(), value.encode()) for name, value in failure.headers.items()]
    headers.append((b"content-length", str(len(failure.body)).encode()))
    for message in (
        {"type": "websocket.http.response.start", "status": failure.status, "headers": headers},
        {"type": "websocket.http.response.body", "body": failure.body, "more_body": False},
    ):
        await send(cast("Any", message))
