"""Runs the HTTP application on a socket that is bound already, on a loop that is not the main thread's.

What Hypercorn answers by itself, to bytes that are no HTTP and to a handshake that is none, is said in words here: it
was a bare status, and behind such a handshake the connection stayed open.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Awaitable, Callable

import h11
from hypercorn.asyncio import serve
from hypercorn.config import Config
from hypercorn.protocol.events import Body, EndBody, Response, StreamClosed
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.ws_stream import WSStream
from quart import Quart

from server.api.failures import encode_error
from server.connection import watch_connections
from server.errors import HeadTooLarge, HomebaseError, InvalidRequest, StartupError
from server.listen import BACKLOG, format_address, reachable_host

GRACEFUL_S = 1
"""How long open connections get at the end, once their streams were ended."""

PROBE_S = 10.0
"""A loop that cannot answer its own first request within this is not going to; a busy box took 0.3 s."""

REASON_CHARS = 200
"""A parser's reason is cut to this."""

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
    _answer_in_words()
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


def _answer_in_words() -> None:
    """Make Hypercorn use our words. Its code names both; there is no setting for either."""
    H11Protocol._send_error_response = _refuse_bytes  # pyright: ignore[reportPrivateUsage]
    WSStream._send_error_response = _refuse_handshake  # pyright: ignore[reportPrivateUsage]


async def _refuse_bytes(self: H11Protocol, status_code: int) -> None:
    """Answer what is no HTTP request; Hypercorn then closes the connection."""
    if status_code == 431:
        most = self.config.h11_max_incomplete_size
        error = HeadTooLarge(f"The head of a request may have at most {most:,} bytes; this one has more.")
    else:
        # Called where the parser's error is being handled; it says what is wrong, sometimes with what was sent.
        reason = str(sys.exception())[:REASON_CHARS]
        error = InvalidRequest(f"This is no HTTP/1.1 request that can be read: {reason}.")
    body, headers = _describe(error)
    headers += self.config.response_headers("h11")
    for event in (h11.Response(status_code=status_code, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
        await self._send_h11_event(event)  # pyright: ignore[reportPrivateUsage]


async def _refuse_handshake(self: WSStream, status_code: int) -> None:
    """Answer a WebSocket handshake that is none, and close the connection."""
    told = "This is no WebSocket handshake, and there are no WebSockets here; ask by plain HTTP."
    body, headers = _describe(InvalidRequest(told))
    await self.send(Response(self.stream_id, headers, status_code))
    await self.send(Body(self.stream_id, body))
    await self.send(EndBody(self.stream_id))
    await self.send(StreamClosed(self.stream_id))


def _describe(error: HomebaseError) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The dialect's error object, and the headers that an answer has which is the connection's last."""
    body = encode_error(error)
    length = str(len(body)).encode()
    return body, [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]
