"""A connection's end is seen, whatever bytes wait behind its request."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from hypercorn.protocol.h11 import H11Protocol
from quart import Quart

import server.connection
from server.connection import WatchedConnection
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


async def test_who_sent_hundreds_early_and_left_fills_no_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300)
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    peer: socket.socket = writer.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    await wait_until_open(0)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "request_bytes", [b"", b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=["none", "one"]
)
async def test_a_connection_is_given_back_when_its_client_has_gone(site: Site, request_bytes: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(request_bytes)
    if request_bytes:
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    writer.write_eof()
    await asyncio.wait_for(reader.read(), 2)  # to the end that the server makes; hypercorn made it after 120 s
    writer.close()
    await wait_until_open(0)


async def test_bytes_that_break_the_protocol_end_the_connection_and_its_work(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = H11Protocol.handle

    async def break_at_bytes(self: H11Protocol, event: object) -> None:
        if getattr(event, "data", b"") == b"BREAK":
            raise KeyError(b"BREAK")
        await handle(self, event)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(H11Protocol, "handle", break_at_bytes)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(REQUEST)
    await asyncio.wait_for(site.began.wait(), 5)
    writer.write(b"BREAK")
    await asyncio.wait_for(site.left.wait(), 2)
    assert await asyncio.wait_for(reader.read(), 2) == b""
    writer.close()


async def test_clients_beyond_the_most_are_turned_away_in_words_until_one_leaves(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.connection, "MOST_CONNECTIONS", 3)
    writers = [(await asyncio.open_connection("127.0.0.1", site.port))[1] for _ in range(3)]
    for writer in writers:
        writer.write(REQUEST)
    await wait_until_open(3)
    await wait_until_idle(0)
    answer = await ask(site, REQUEST)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"too_many_connections" in answer
    for writer in writers:
        writer.close()
    await wait_until_open(0)
    assert (await ask(site, REQUEST.replace(b"/wait", b"/echo"))).endswith(b"echo")


@pytest.mark.parametrize("sent", [b"", b"POST /echo HT", REQUEST.replace(b"/wait", b"/echo")])
async def test_who_has_been_idle_for_longest_gives_way_and_nobody_at_work(
    site: Site, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(server.connection, "MOST_CONNECTIONS", 3)
    _, busy = await asyncio.open_connection("127.0.0.1", site.port)
    busy.write(REQUEST)
    await asyncio.wait_for(site.began.wait(), 5)
    idle_ones: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    for opened in (2, 3):
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(sent)
        if sent.endswith(b"{}"):
            assert b"echo" in await asyncio.wait_for(reader.readuntil(b"echo"), 5)
        idle_ones.append((reader, writer))
        await wait_until_open(opened)
        await wait_until_idle(opened - 1)
    assert (await ask(site, REQUEST.replace(b"/wait", b"/echo"))).endswith(b"echo")
    (first, first_writer), (second, second_writer) = idle_ones
    with suppress(ConnectionError):
        assert await asyncio.wait_for(first.read(), 5) == b""
    assert not second.at_eof()
    assert not site.left.is_set()
    for writer in (first_writer, second_writer, busy):
        writer.close()
    await wait_until_open(0)


async def test_a_crowd_that_asks_nothing_keeps_nobody_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.connection, "MOST_CONNECTIONS", 10)
    crowd = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(40)]
    for _, writer in crowd:
        writer.write(b"POST /echo HTTP/1.1\r\nX:")
    await wait_until_open(10)
    for _ in range(20):
        assert (await ask(site, REQUEST.replace(b"/wait", b"/echo"))).endswith(b"echo")
    for _, writer in crowd:
        writer.close()
    await wait_until_open(0)
    await wait_until_idle(0)


async def test_a_head_that_comes_byte_by_byte_is_not_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.connection, "HEAD_S", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    began_s = time.monotonic()
    answer = asyncio.create_task(reader.read())
    for byte in REQUEST:
        if answer.done():
            break
        writer.write(bytes([byte]))
        await asyncio.sleep(0.02)
    told = await asyncio.wait_for(answer, 5)
    assert told.startswith(b"HTTP/1.1 408 ")
    assert b"head_too_slow" in told
    assert 0.25 < time.monotonic() - began_s < 1.0
    writer.close()
    await wait_until_open(0)


async def test_no_time_runs_between_requests_nor_while_one_runs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.connection, "HEAD_S", 0.02)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    for pause_s in (0.1, 0.1, 0):
        writer.write(REQUEST.replace(b"/wait", b"/echo"))
        assert (await asyncio.wait_for(reader.readuntil(b"echo"), 5)).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(pause_s)
    writer.close()


@pytest.mark.parametrize(
    "offer",
    [
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["upgrade", "prior knowledge"],
)
async def test_http2_is_not_spoken(site: Site, offer: bytes) -> None:
    answer = await ask(site, offer)
    assert answer.startswith(b"HTTP/1.1 ")
    assert not answer.startswith(b"HTTP/1.1 101")


async def test_a_request_that_is_open_at_the_end_leaves_no_traceback(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(REQUEST)
    await asyncio.wait_for(site.began.wait(), 5)
    site.stop.set()
    await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await wait_until_open(0)
    await asyncio.sleep(0)
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def ask(site: Site, request: bytes) -> bytes:
    """Everything that is answered to a request, without its end being waited for."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(request)
    answer = b""
    while not answer.endswith((b"echo", b"}", b"\r\n\r\n")) and (part := await asyncio.wait_for(reader.read(4096), 5)):
        answer += part
    writer.close()
    return answer


async def wait_until_open(connections: int) -> None:
    async with asyncio.timeout(10):
        while WatchedConnection.open_now != connections:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)


async def wait_until_idle(connections: int) -> None:
    async with asyncio.timeout(10):
        while len(WatchedConnection._idle) != connections:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)
