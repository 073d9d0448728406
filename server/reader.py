"""The client's side of a connection: whether it takes what it is sent.

A client that stays and reads nothing kept its slot for over 150 s and 10,297 tokens. The system takes a stream for it:
two megabytes in buffers that grow by themselves, and more where it is read by nobody. With a window scale of 10 (a
`tcp_rmem` of 32 MB), Linux rounds a window of which a frame of 200 bytes was used up to what it was before, so that
the client's own system took 1.4 MB in ten minutes and would have gone on. So little is given to the system, and on
Linux it is asked how much of that a client on this machine has not read (Linux 6.18, 2026-11-30).
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

UNREAD_S = 20.0
"""A client that takes none of the bytes that wait for it, for this long, is given up.

The system tells of room in lumps of 20 KB or so: who reads 1.5 KB a second, 7 tokens, makes one each 15 s (Linux 6,
loopback, 2026-11-30)."""

UNREAD_SLOW_S = 75.0
"""The same for a client that waited before and went on: a slow reader. Once the system's own timer had grown, one that
read 3 KB a second made no room for 55 s."""

SLOW_S = 1.0
"""Whoever made room after this long is a slow reader."""

CHECK_S = 2.0
"""How often the system is asked what was not read. Its table takes 5 ms to read with a thousand connections."""

SEND_BUFFER_BYTES = 16 * 1024
"""What the system is to hold for a client; Linux takes twice that, and goes up to 4 MB when it is left to itself."""

PIECE_BYTES = 8 * 1024
"""Bytes are given to the system in pieces, so that a large answer to a slow reader counts as taken bit by bit."""

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
ESTABLISHED = "01"
"""Where Linux lists its connections, and how it writes the state of one."""


class Reader:
    """Gives bytes to one client and notices when it takes none."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._patience_s = UNREAD_S
        self._given_bytes = 0
        self._taken_bytes = 0
        """What of it was read when that was last asked, or was on its way."""
        self._checked_s = self._loop.time()
        self._idle_since_s: float | None = None
        """When the client was first seen to have taken nothing since; None while it takes."""
        peer = cast("socket.socket", writer.get_extra_info("socket"))
        with suppress(OSError):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        writer.transport.set_write_buffer_limits(high=0)

    async def give(self, data: bytes) -> None:
        """Hand everything to the system. Raises TimeoutError for a client that takes nothing any more."""
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            self._writer.write(piece)
            self._given_bytes += len(piece)
            await self._wait_for_room()
            self._check()

    async def _wait_for_room(self) -> None:
        """Wait until the system has taken what was written; it tells of room late where the client reads slowly."""
        transport = self._writer.transport
        if not transport.get_write_buffer_size():
            # Draining never waits then, and tells of a connection that is lost.
            return await self._writer.drain() if transport.is_closing() else None
        start_s = self._loop.time()
        while True:
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._writer.drain()
                break
            except TimeoutError:
                if not self._has_taken_more():
                    raise
        if self._loop.time() - start_s > SLOW_S:
            self._patience_s = UNREAD_SLOW_S
        return None

    def _check(self) -> None:
        """Ask the system whether what it took is read, now and then."""
        now_s = self._loop.time()
        if now_s - self._checked_s < CHECK_S:
            return
        self._checked_s = now_s
        if self._has_taken_more() is not False:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s > UNREAD_S:
            raise TimeoutError

    def _has_taken_more(self) -> bool | None:
        """True when the client has read since this was last asked, or has read all; None when nobody knows."""
        client, here = self._writer.get_extra_info("peername"), self._writer.get_extra_info("sockname")
        unread_bytes = read_unread_bytes(client, here) if client and here else None
        if unread_bytes is None:
            return None
        taken_before, self._taken_bytes = self._taken_bytes, self._given_bytes - unread_bytes
        return unread_bytes == 0 or self._taken_bytes > taken_before


def read_unread_bytes(client: tuple[Any, ...], here: tuple[Any, ...]) -> int | None:
    """What a client on this machine has received and not read yet; None when the system does not tell.

    `client` and `here` are the two ends' addresses as sockets have them. Linux alone tells.
    """
    ends = {(f"{theirs}:{client[1]:04X}", f"{ours}:{here[1]:04X}") for theirs, ours in _write_hosts(client[0], here[0])}
    for table in TABLES:
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, remote, state, queues, *_ = line.split()
                if state == ESTABLISHED and (local, remote) in ends:
                    return int(queues.partition(":")[2], 16)
    return None


def _write_hosts(client: str, here: str) -> Iterator[tuple[str, str]]:
    """Both hosts as the tables have them: an IPv4 client may have an IPv6 socket."""
    theirs, ours = _write_host(client), _write_host(here)
    yield theirs, ours
    if len(theirs) == len(ours) == 8:
        mapped = "0" * 16 + "FFFF0000"
        yield mapped + theirs, mapped + ours


def _write_host(host: str) -> str:
    """An address as Linux writes it: in hexadecimal, each four bytes as a number of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    packed = socket.inet_pton(family, host.partition("%")[0])
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
