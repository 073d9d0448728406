"""A client that takes nothing is told from one that is slow, wherever the bytes wait."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from server import reader
from server.reader import Reader, read_unread_bytes

linux_alone = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what was not read")


@asynccontextmanager
async def connect(
    host: str = "127.0.0.1", client_family: socket.AddressFamily = socket.AF_INET
) -> AsyncGenerator[tuple[asyncio.StreamWriter, socket.socket]]:
    """Our end of a connection, and a client of which nothing is read by itself."""
    ends: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    try:
        server = await asyncio.start_server(lambda _, writer: ends.put_nowait(writer), host, 0)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with socket.socket(client_family) as client:
        client.setblocking(False)
        mapped = client_family == socket.AF_INET6 and ":" not in host
        address = (f"::ffff:{host}" if mapped else host, server.sockets[0].getsockname()[1])
        await asyncio.get_running_loop().sock_connect(client, address)
        writer = await ends.get()
        yield writer, client
        writer.transport.abort()
    server.close()


@linux_alone
@pytest.mark.parametrize(
    ("host", "family"),
    [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6), ("127.0.0.1", socket.AF_INET6)],
    ids=["IPv4", "IPv6", "IPv4 in IPv6"],
)
async def test_what_a_client_has_not_read_is_known(host: str, family: socket.AddressFamily) -> None:
    async with connect(host, family) as (writer, client):
        ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        assert read_unread_bytes(*ends) == 0
        writer.write(b"x" * 1000)
        await writer.drain()
        await asyncio.sleep(0.05)
        assert read_unread_bytes(*ends) == 1000
        client.recv(300)
        assert read_unread_bytes(*ends) == 700


def test_of_a_client_elsewhere_nothing_is_known() -> None:
    assert read_unread_bytes(("192.0.2.7", 5), ("192.0.2.1", 6)) is None
    assert read_unread_bytes(("fe80::1%eth0", 5, 0, 2), ("fe80::2%eth0", 6, 0, 2)) is None


def test_where_the_system_has_no_table_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "TABLES", ("/nowhere/tcp",))
    assert read_unread_bytes(("127.0.0.1", 5), ("127.0.0.1", 6)) is None


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "UNREAD_S", 0.4)
    monkeypatch.setattr(reader, "UNREAD_SLOW_S", 0.4)
    monkeypatch.setattr(reader, "CHECK_S", 0.05)


@linux_alone
@pytest.mark.usefixtures("short_times")
async def test_a_trickle_that_nobody_reads_ends_long_before_the_buffers_are_full() -> None:
    given = 0

    async def trickle(taker: Reader) -> None:
        nonlocal given
        while given < 10_000:
            await taker.give(b"x" * 20)
            given += 20
            await asyncio.sleep(0.005)

    async with connect() as (writer, _):
        with pytest.raises(TimeoutError):
            await trickle(Reader(writer))


@linux_alone
@pytest.mark.usefixtures("short_times")
async def test_a_trickle_that_is_read_slowly_goes_on() -> None:
    async with connect() as (writer, client):
        taker = Reader(writer)
        for number in range(300):
            await taker.give(b"x" * 20)
            await asyncio.sleep(0.005)
            if number % 20 == 0:
                client.recv(1)


@linux_alone
@pytest.mark.usefixtures("short_times")
async def test_a_pause_of_the_writer_is_not_the_readers() -> None:
    async with connect() as (writer, client):
        taker = Reader(writer)
        for _ in range(3):
            await taker.give(b"x" * 20)
            client.recv(1000)
            await asyncio.sleep(0.6)


@pytest.mark.usefixtures("short_times")
@pytest.mark.parametrize("tables", [reader.TABLES, ()], ids=["told", "not told"])
async def test_a_large_answer_that_nobody_reads_ends(tables: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "TABLES", tables)
    async with connect() as (writer, _):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Reader(writer).give(b"x" * 50_000_000), 20)


@pytest.mark.usefixtures("short_times")
async def test_a_large_answer_to_a_reader_with_pauses_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "UNREAD_SLOW_S", 5.0)
    loop = asyncio.get_running_loop()
    async with connect() as (writer, client):
        giving = asyncio.create_task(Reader(writer).give(b"x" * 1_000_000))
        left = 1_000_000
        while left:
            left -= len(await loop.sock_recv(client, 100_000))
            await asyncio.sleep(0.1)
        await giving
