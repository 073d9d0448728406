"""A connection's end is seen, whatever bytes wait behind its request."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest
from quart import Quart

from server.http_server import serve_http

REQUEST = b"POST /wait HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"


class Site:
    """An application that waits until its client goes, and counts."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.left = asyncio.Event()
        self.stop = asyncio.Event()
        self.app = Quart("site")
        self.app.post("/wait")(self._wait)
        self.app.post("/echo")(self._echo)
        self.port = 0

    async def _wait(self) -> str:
        self.began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.left.set()
            raise
        return "late"

    async def _echo(self) -> str:
        await asyncio.sleep(0.05)
        return "echo"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    site.port = listener.getsockname()[1]
    serving = asyncio.create_task(serve_http(site.app, listener, site.stop.wait))
    yield site
    site.stop.set()
    await serving


@pytest.mark.parametrize("trailing", [b"", b"\r\n", REQUEST, REQUEST * 5], ids=["none", "line end", "request", "many"])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_hang_up_is_seen_behind_trailing_bytes(site: Site, trailing: bytes, reset: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(REQUEST + trailing)
    await asyncio.wait_for(site.began.wait(), 5)
    if reset:
        peer: socket.socket = writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    await asyncio.wait_for(site.left.wait(), 2)
    del reader


async def test_requests_sent_early_are_answered_in_order(site: Site) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(REQUEST.replace(b"/wait", b"/echo") * 3)
    answers = b""
    while answers.count(b"echo") < 3:
        answers += await asyncio.wait_for(reader.read(4096), 5)
    assert answers.count(b"HTTP/1.1 200") == 3
    writer.close()
    await writer.wait_closed()
