"""One client's connection, watched for its end at all times.

Hypercorn stops reading while bytes wait behind the request that runs: a stray line end after the body, or the next
request sent early. It then misses that the client has gone, and a stream that nobody reads keeps its slot. Here one
task reads and another hands over, so that the end of the connection is seen either way.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import hypercorn.asyncio.run
from hypercorn.asyncio.tcp_server import MAX_RECV, TCPServer
from hypercorn.events import Closed, RawData

READ_AHEAD = 16
"""Reads kept while a request runs, each of at most 64 KiB; beyond them the client has to wait, as it should."""

LAST_WORDS_S = 0.2
"""How long what was read before the end may take to be handed over; only what waits behind a request takes longer."""


class WatchedConnection(TCPServer):
    """A connection of Hypercorn's that notices a hang-up while it holds unread bytes back."""

    async def _read_data(self) -> None:
        chunks: asyncio.Queue[bytes] = asyncio.Queue(READ_AHEAD)
        handing = asyncio.create_task(self._hand_over(chunks))
        try:
            while data := await self._read():
                await chunks.put(data)
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await chunks.join()
        finally:
            handing.cancel()
            with suppress(asyncio.CancelledError):
                await handing
            await self.protocol.handle(Closed())

    async def _read(self) -> bytes:
        """The next bytes; none at the end of the connection."""
        try:
            return await self.reader.read(MAX_RECV)
        except OSError:
            return b""

    async def _hand_over(self, chunks: asyncio.Queue[bytes]) -> None:
        while True:
            await self.protocol.handle(RawData(await chunks.get()))
            chunks.task_done()


def watch_connections() -> None:
    """Make Hypercorn build its connections this way. Its loop names the class; there is no setting for it."""
    hypercorn.asyncio.run.TCPServer = WatchedConnection  # pyright: ignore[reportPrivateImportUsage] - the name it builds
