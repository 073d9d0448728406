"""Readers that are slow and readers that take nothing, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

import pytest

from server import reader
from server.api.generation import stream as answer_stream


async def open_stream(rig: Any, port: int, body: dict[str, Any]) -> socket.socket:
    """A client whose request has begun; nothing reads for it by itself."""
    data = json.dumps({**body, "stream": True}).encode()
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data))
    client.sendall(data)
    client.setblocking(False)
    await rig.until(lambda: rig.admission.in_flight == 1)
    return client


async def read_to_end(client: socket.socket, *, pause_s: float, within_s: float) -> bytes:
    """All of an answer, 6,000 bytes at a time, up to its last chunk or the connection's end."""
    seen = b""
    async with asyncio.timeout(within_s):
        while not seen.endswith(b"0\r\n\r\n"):
            with contextlib.suppress(BlockingIOError):
                part = client.recv(6000)
                if not part:
                    break
                seen += part
            await asyncio.sleep(pause_s)
    return seen


async def test_a_reader_that_does_not_read_is_dropped_and_slows_nobody(
    rig: Any, port: int, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_stream, "UNREAD_MOST_BYTES", 50_000)
    client = await open_stream(rig, port, chat_body())
    request_id = rig.engine.only
    for _ in range(3000):
        if rig.ends():
            break
        rig.engine.say(request_id, "x" * 20_000)
        await asyncio.sleep(0.001)
    await rig.until(lambda: rig.admission.in_flight == 0)
    assert rig.ends()[0].outcome == "cancelled"
    assert "unread in decode after" in rig.ends()[0].detail
    with contextlib.suppress(ConnectionError):
        seen = await read_to_end(client, pause_s=0, within_s=10)
        assert not seen.endswith(b"0\r\n\r\n"), "a stream that was cut must not look whole"
    client.close()


async def test_a_reader_that_takes_nothing_gives_its_slot_back_soon(
    rig: Any, port: int, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "UNREAD_S", 0.5)
    monkeypatch.setattr(answer_stream, "STUCK_S", 0.2)
    client = await open_stream(rig, port, chat_body())
    request_id = rig.engine.only
    sent = 0
    async with asyncio.timeout(20):
        while not rig.ends():
            rig.engine.say(request_id, "word " * 20)
            sent += 1
            await asyncio.sleep(0.001)
    await rig.until(lambda: rig.admission.in_flight == 0)
    assert rig.engine.cancelled == [request_id]
    assert rig.ends()[0].outcome == "cancelled"
    assert "unread in decode after" in rig.ends()[0].detail
    assert sent * 300 < answer_stream.UNREAD_MOST_BYTES, "it was dropped for how much it left, not for how long"
    client.close()


async def test_a_reader_that_is_slow_gets_all_of_its_answer(
    rig: Any, port: int, chat_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "UNREAD_S", 2.0)
    client = await open_stream(rig, port, chat_body())
    request_id = rig.engine.only
    for _ in range(2000):
        rig.engine.say(request_id, "word " * 20)
        await asyncio.sleep(0)
    rig.engine.end(request_id, "length")
    seen = await read_to_end(client, pause_s=0.02, within_s=60)
    assert seen.count(b"word ") == 40_000
    assert rig.ends()[0].outcome == "length"
    client.close()
