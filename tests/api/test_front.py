"""Requests that the framework itself cannot take are answered in the dialect all the same.

The fixture `port` sees to it that none of them leaves an error in the log.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from server.api.front import find_path

WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/health", "/health"),
        ("", "/"),
        ("x", "/x"),
        ("*", "/*"),
        ("http://localhost:1/health", "/health"),
        ("HTTP://localhost", "/"),
        ("http://[/x", "/x"),
        ("/v1/models/http://a/b", "/v1/models/http://a/b"),
        ("//health", "//health"),
    ],
)
def test_every_target_has_a_path(target: str, path: str) -> None:
    assert find_path(target) == path


@pytest.mark.parametrize(
    ("target", "host", "status", "code"),
    [
        (b"/health", b"a..b", 403, "forbidden"),
        (b"/health", b"x" * 64 + b".example", 403, "forbidden"),
        (b"/health", b"x" * 5000, 403, "forbidden"),
        (b"/nothing", b"..localhost", 404, "route_not_found"),
        (b"?x", b"localhost", 404, "route_not_found"),
        (b"http://[/x", b"localhost", 404, "route_not_found"),
    ],
)
async def test_hosts_and_targets_that_are_none_are_refused_in_words(
    port: int, target: bytes, host: bytes, status: int, code: str
) -> None:
    answer = await ask(port, b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
    check_refusal(answer, status, code)


@pytest.mark.parametrize("target", [b"/v1/chat/completions", b"/nothing"])
async def test_a_websocket_is_refused_in_words(port: int, target: bytes) -> None:
    answer = await ask(port, b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n" + WEBSOCKET + b"\r\n")
    check_refusal(answer, 404, "route_not_found")


async def ask(port: int, request: bytes) -> bytes:
    """Everything that is sent back until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await writer.wait_closed()
    return answer


def check_refusal(answer: bytes, status: int, code: str) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    assert json.loads(body)["error"]["code"] == code
