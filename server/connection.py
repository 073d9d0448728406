"""One client's connection, watched for its end at all times, and given back at its end.

Hypercorn stops reading while bytes wait behind the request that runs: a stray line end after the body, or the next
request sent early. It then misses that the client has gone, and a stream that nobody reads keeps its slot. Here one
task reads and another hands over, so that the end of the connection is seen either way.

Hypercorn also keeps the socket of a client that has gone until its keep-alive timer runs out, which is two minutes
here: short requests at 17 a second, each on a connection of its own, used up the 2,048 files that mlx-lm lets the
process have. So the timer ends with the reading. And there is a most of connections, because of what came then:
asyncio tried to accept over and over and wrote 3 MB of log a second (Python 3.11, 2026-11).

Whoever holds connections and asks nothing must not shut an operator's `/health` out: the one that has been idle for
longest makes room for the next, and only when all are at work is one turned away. And a head that has begun must come
to its end: it could be sent byte by byte until the keep-alive timer.

A client that stays and takes nothing is disconnected, whatever it was that it did not take (`server.reader`).

And it speaks HTTP/1.1 alone: Hypercorn 0.18's HTTP/2 raises at a path that is not ASCII, and the other streams of
that connection then ran on with nobody to read them.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import ClassVar

import hypercorn.asyncio.run
from hypercorn.asyncio.tcp_server import MAX_RECV, TCPServer
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol

from server.reader import UNREAD_S, Reader

READ_AHEAD = 16
"""Reads kept while a request runs, each of at most 64 KiB; beyond them the client has to wait, as it should."""

LAST_WORDS_S = 0.2
"""How long what was read before the end may take to be handed over; only what waits behind a request takes longer."""

PARTING_S = 1.0
"""How long a request's task may take to end with its connection; it takes a few turns of the loop."""

MOST_CONNECTIONS = 512
"""Open at once. Every agent of a machine with its pools needs a few dozen."""

HEAD_S = 20.0
"""From the first bytes of a head to its end; a client sends all of it at once."""

_FULL_BODY = (
    b'{"error":{"message":"This server has %d connections at work and takes no more; come back when some are done.",'
    b'"type":"server_error","param":null,"code":"too_many_connections"}}' % MOST_CONNECTIONS
)
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 5\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_FULL_BODY), _FULL_BODY)
)
"""What a client that is turned away reads."""

_SLOW_BODY = (
    b'{"error":{"message":"The head of this request did not come to its end in time; send all of it at once.",'
    b'"type":"invalid_request_error","param":null,"code":"head_too_slow"}}'
)
SLOW_HEAD = (
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\nx-should-retry: false\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_SLOW_BODY), _SLOW_BODY)
)
"""What a client whose head does not end reads."""

log = logging.getLogger(__name__)


class WatchedConnection(TCPServer):
    """A connection of Hypercorn's that notices a hang-up while it holds unread bytes back."""

    open_now: ClassVar[int] = 0
    """Connections of this process that are being served."""
    _idle: ClassVar[dict[WatchedConnection, None]] = {}
    """Those of them that have no request, the one that has had none for longest first."""
    _is_over = False
    _head_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Serve the connection to its end."""
        if WatchedConnection.open_now >= MOST_CONNECTIONS and not self._take_a_place():
            self.writer.write(FULL)
            return await self._close()
        WatchedConnection.open_now += 1
        self._idle[self] = None
        self._reader = Reader(self.writer)
        if WatchedConnection.open_now == MOST_CONNECTIONS:
            log.warning("%d connections are open; the idle ones give way to more from now on", MOST_CONNECTIONS)
        try:
            # Hypercorn cancels what is still open at its end, and asyncio (3.11) logs a traceback for that.
            with suppress(asyncio.CancelledError):
                await super().run()
        finally:
            # Closing waits for what a client has not taken; at the server's end nobody waits with it. A transport that
            # is gone already holds nothing, and must not be aborted (asyncio 3.11 fails then).
            if self.writer.transport.get_write_buffer_size():
                self.writer.transport.abort()
            WatchedConnection.open_now -= 1
            self._note_busy()

    async def protocol_send(self, event: Event) -> None:
        """Do what the protocol asks; its wish for a keep-alive timer is void once the client has gone."""
        if isinstance(event, Updated):
            if event.idle:
                self._idle[self] = None
            else:
                self._note_busy()
        if isinstance(event, RawData):
            await self._send(event.data)
        elif not (self._is_over and isinstance(event, Updated)):
            await super().protocol_send(event)

    def _take_a_place(self) -> bool:
        """Close the connection that has been idle for longest; False when none is."""
        idlest = next(iter(self._idle), None)
        if idlest is None:
            return False
        idlest._note_busy()
        idlest.writer.transport.abort()
        return True

    def _note_busy(self) -> None:
        """It is idle no more: a request has come, or its end."""
        self._idle.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _note_bytes(self) -> None:
        """What comes while no request runs begins a head."""
        if self._head_timer is None and self in self._idle:
            self._head_timer = asyncio.get_running_loop().call_later(HEAD_S, self._give_up_head)

    def _give_up_head(self) -> None:
        """Say so, and close only then: a socket that is closed on bytes that still come resets the connection."""
        transport = self.writer.transport
        if transport.is_closing():
            return
        transport.write(SLOW_HEAD)
        transport.write_eof()
        self._head_timer = asyncio.get_running_loop().call_later(PARTING_S, transport.abort)

    async def _send(self, data: bytes) -> None:
        """Hand all of it to the system; a client that does not take it is disconnected."""
        async with self.send_lock:
            if self.writer.transport.is_closing():
                # Of hundreds of requests sent early, all after the hang-up; asyncio logs each write to nowhere.
                return await self.protocol.handle(Closed())
            try:
                await self._reader.give(data)
            except TimeoutError:
                log.warning("a client took nothing of its answer for %g s or more and was disconnected", UNREAD_S)
                self.writer.transport.abort()
                await self.protocol.handle(Closed())
                # This ends the request's task, which must not go on to its next bytes before that.
                await asyncio.sleep(PARTING_S)
            except (ConnectionError, RuntimeError):
                await self.protocol.handle(Closed())

    async def _read_data(self) -> None:
        chunks: asyncio.Queue[bytes] = asyncio.Queue(READ_AHEAD)
        handing = asyncio.create_task(self._hand_over(chunks))
        reading = asyncio.create_task(self._read_ahead(chunks))
        try:
            # Handing over ends by a fault only; to read on would hold the connection, and its slot, for ever.
            await asyncio.wait((handing, reading), return_when=asyncio.FIRST_COMPLETED)
        finally:
            handing.cancel()
            reading.cancel()
            for outcome in await asyncio.gather(handing, reading, return_exceptions=True):
                if isinstance(outcome, Exception):
                    kind = type(outcome).__name__
                    log.warning(
                        "a connection was closed, as what came in broke its protocol: %s: %.200s", kind, outcome
                    )
            self._is_over = True
            await self.idle_task.stop()
            await self.protocol.handle(Closed())

    async def _read_ahead(self, chunks: asyncio.Queue[bytes]) -> None:
        """Read to the end of the connection."""
        while data := await self._read():
            await chunks.put(data)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await chunks.join()

    async def _read(self) -> bytes:
        """The next bytes; none at the end of the connection."""
        try:
            return await self.reader.read(MAX_RECV)
        except OSError:
            return b""

    async def _hand_over(self, chunks: asyncio.Queue[bytes]) -> None:
        while True:
            data = await chunks.get()
            self._note_bytes()
            await self.protocol.handle(RawData(data))
            chunks.task_done()


async def _stay_with_http1(self: H11Protocol, event: object) -> None:
    """Take no offer to go on in HTTP/2: a server may ignore it, and whoever made it goes on in HTTP/1.1."""


def watch_connections() -> None:
    """Make Hypercorn build its connections this way. Its code names both; there is no setting for either."""
    hypercorn.asyncio.run.TCPServer = WatchedConnection  # pyright: ignore[reportPrivateImportUsage] - the name it builds
    H11Protocol._check_protocol = _stay_with_http1  # pyright: ignore[reportPrivateUsage]
