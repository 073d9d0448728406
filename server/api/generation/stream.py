"""Sends one answer as a stream of server-sent events, in any dialect.

A task of its own reads the engine's events and fills an outbox; the response takes from it. So a reader that is slow
holds up nobody, and what keeps the connection alive follows the clock and not the tokens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from server.api.failures import internal_error
from server.api.generation.answer import Answer
from server.api.generation.stream_life import StreamLife
from server.api.generation.transcript import Piece
from server.api.sse import UNREAD_MOST_BYTES, Outbox
from server.errors import HomebaseError, StreamStopped
from server.events import EngineEvent

log = logging.getLogger(__name__)

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
"""The last one asks a proxy in between not to collect the stream before passing it on."""

NO_RESULT = "This stream ended without a result."

STUCK_S = 5.0
"""A connection that ends while its reader has taken nothing for this long ends because of that."""


class AnswerStream:
    """One streamed answer."""

    def __init__(self, life: StreamLife, answer: Answer, keep_alive_s: float) -> None:
        self._life, self._answer = life, answer
        self._outbox = Outbox(keep_alive_s, answer.keep_alive)
        self._early: list[Piece] = []
        """What was said before the response began."""
        self._is_flooded = False
        """True when more waits for the reader than anybody who reads leaves."""

    async def hold(self) -> None:
        """Wait until there is something to say. Raises HomebaseError when the answer ends without that."""
        reply = self._life.reply

        def take(event: EngineEvent) -> bool:
            self._early = reply.fold(event)
            return bool(self._early) or reply.finish_reason is not None

        try:
            await self._life.tokens.read(take)
            if not self._early and reply.finish_reason is None:
                raise StreamStopped(NO_RESULT)
        except HomebaseError as error:
            self._life.fail(error)
            raise

    async def frames(self) -> AsyncIterator[bytes]:
        """The bytes of the response, to be read by the task that the stream's life follows."""
        pump = asyncio.create_task(self._pump(asyncio.current_task()))
        try:
            async for frame in self._outbox.take():
                yield frame
        finally:
            pump.cancel()
            if self._outbox.unread_s > STUCK_S:
                self._drop()

    async def _pump(self, sender: asyncio.Task[object] | None) -> None:
        """Turn events into frames until the answer is complete, or can be no more."""
        try:
            self._outbox.put(self._answer.begin())
            await self._put_events(sender)
        except HomebaseError as error:
            self._fail(error)
        except Exception:  # the API's edge: the response has begun, so no error handler of the framework's is left
            log.exception("a stream broke", extra={"request_id": self._life.request_id})
            self._fail(internal_error(self._life.request_id))
        finally:
            self._outbox.close()

    async def _put_events(self, sender: asyncio.Task[object] | None) -> None:
        reply = self._life.reply
        if not self._put_pieces(self._early):
            await self._life.tokens.read(lambda event: self._put_pieces(reply.fold(event)))
        if reply.finish_reason is not None:
            self._life.complete()
            await self._life.leave()
            self._outbox.put(self._answer.end(reply))
        elif self._is_flooded:
            self._drop_reader(sender)
        else:
            raise StreamStopped(NO_RESULT)

    def _put_pieces(self, pieces: list[Piece]) -> bool:
        """What an event adds; True when nothing may follow."""
        frames = self._answer.add(pieces) if pieces else b""
        self._outbox.put(frames)
        # What was put just now nobody had the time to read, and it can be much at once.
        self._is_flooded = self._outbox.unread_bytes - len(frames) > UNREAD_MOST_BYTES
        return self._is_flooded or self._life.reply.finish_reason is not None

    def _fail(self, error: HomebaseError) -> None:
        """Say what happened in the dialect's own event; the answer is not whole."""
        self._life.fail(error)
        self._outbox.put(self._answer.fail(error))

    def _drop_reader(self, sender: asyncio.Task[object] | None) -> None:
        """Give up on a client that keeps its connection and does not read."""
        self._drop()
        if sender is not None:
            sender.cancel()

    def _drop(self) -> None:
        self._life.drop(f"client left {self._outbox.unread_bytes:,} bytes unread")


async def collect(life: StreamLife, answer: Answer) -> bytes:
    """The whole answer, when it is complete."""
    reply = life.reply

    def take(event: EngineEvent) -> bool:
        answer.keep(reply.fold(event))
        return reply.finish_reason is not None

    try:
        await life.tokens.read(take)
        if reply.finish_reason is None:
            raise StreamStopped(NO_RESULT)
        life.complete()
        await life.leave()
        return answer.build_whole(reply)
    except HomebaseError as error:
        life.fail(error)
        raise
