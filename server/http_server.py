"""Runs the HTTP application on a socket that is bound already, on a loop that is not the main thread's."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from hypercorn.asyncio import serve
from hypercorn.config import Config
from quart import Quart

from server.connection import watch_connections
from server.errors import StartupError
from server.listen import BACKLOG, format_address, reachable_host

GRACEFUL_S = 1
"""How long open connections get at the end, once their streams were ended."""

PROBE_S = 10.0
"""A loop that cannot answer its own first request within this is not going to; a busy box took 0.3 s."""

log = logging.getLogger(__name__)


async def serve_http(app: Quart, listener: socket.socket, shutdown: Callable[[], Awaitable[object]]) -> None:
    """Answer requests until `shutdown` returns. Takes over the listener's descriptor."""
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.backlog = BACKLOG
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    config.graceful_timeout = GRACEFUL_S
    # Longer than clients keep idle connections (Go 90 s, httpx 5 s): who closes first must not be us, or a request
    # that was just sent meets a closed connection.
    config.keep_alive_timeout = 120
    config.include_server_header = False
    watch_connections()
    await serve(app, config, shutdown_trigger=shutdown)


async def probe(host: str, port: int) -> None:
    """Ask our own `/health` once, whatever it answers; raises StartupError when there is no answer."""
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(reachable_host(host), port)
            try:
                request = f"GET /health HTTP/1.1\r\nHost: {format_address(host, port)}\r\nConnection: close\r\n\r\n"
                writer.write(request.encode())
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise StartupError(f"The server at {format_address(host, port)} does not answer itself: {error!r}.") from None
    if not status.startswith(b"HTTP/1.1 "):
        raise StartupError(f"What answers at {format_address(host, port)} is not this server: {status[:40]!r}.")
