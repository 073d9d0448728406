"""What cannot be a request is answered in words all the same, and its connection is closed."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest
from quart import Quart, request

from server.http_server import serve_http

HEAD = b"POST /echo HTTP/1.1\r\nHost: localhost\r\n"
HANDSHAKE = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app, stop = Quart("site"), asyncio.Event()

    async def echo() -> bytes:
        return cast("bytes", await request.get_data())

    app.add_url_rule("/echo", view_func=echo, methods=["POST", "HEAD"])
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    number: int = listener.getsockname()[1]
    serving = asyncio.create_task(serve_http(app, listener, stop.wait))
    yield number
    stop.set()
    await serving


async def ask(port: int, sent: bytes) -> tuple[bytes, bytes]:
    """Head and body of what is answered, up to the end that the server makes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        (b"nonsense\r\n\r\n", 400, "no HTTP/1.1 request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\xfc\x03\x03 a TLS hello\r\n\r\n", 400, "no HTTP/1.1 request"),
        (b"GET /echo HTTP/1.1\r\n\r\n", 400, "Host"),
        (HEAD + b"Content-Length: -5\r\n\r\n", 400, "Content-Length"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "no HTTP/1.1 request"),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 501, "Transfer-Encoding"),
        (HEAD + b"X: " + b"y" * 1_000_000 + b"\r\n\r\n", 431, "at most 16,384 bytes"),
        (b"x" * 1_000_000, 431, "at most 16,384 bytes"),
        (HANDSHAKE + b"\r\n", 400, "no WebSockets"),
        (HANDSHAKE + b"Sec-WebSocket-Version: 9\r\nSec-WebSocket-Key: eA==\r\n\r\n\x81\x05hello", 400, "no WebSockets"),
    ],
)
async def test_what_is_no_request_gets_the_error_object_and_the_end(
    port: int, sent: bytes, status: int, words: str
) -> None:
    head, body = await ask(port, sent)
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in head.lower()
    assert b"content-type: application/json" in head.lower()
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == ("head_too_large" if status == 431 else "invalid_request")
    assert words in error["message"]
    assert len(error["message"]) < 300


async def test_a_head_request_that_breaks_off_gets_no_body(port: int) -> None:
    head, body = await ask(port, HEAD.replace(b"POST", b"HEAD") + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert body == b""


async def test_what_is_one_is_answered_as_ever(port: int) -> None:
    head, body = await ask(port, HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert body == b"hi"
