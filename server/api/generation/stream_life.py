"""One admitted request from submit to its end: it ends once, whatever comes first, and never outlives its client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from server.api.generation.reply import Reply
from server.api.services import StreamObserver, TokenStream
from server.errors import HomebaseError, ParentGone, ServerEnding, StreamStopped
from server.events import Outcome

LEAVE_S = 2.0
"""Most that the end of an answer waits for the engine: a step takes a second at most, but for the slowest machines."""

log = logging.getLogger(__name__)


class StreamLife:
    """Ties a generation to the task that answers its request.

    That task ends when the answer is sent, and is cancelled when the client's connection is gone, streaming or not,
    whether or not a first byte was sent. If the generation is not over by then, nobody will read it.
    """

    def __init__(
        self,
        request_id: str,
        tokens: TokenStream,
        reply: Reply,
        observer: StreamObserver,
        on_end: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        self.request_id = request_id
        self.tokens = tokens
        self.reply = reply
        self._observer, self._on_end = observer, on_end
        self._is_over = False

    def follow(self, task: asyncio.Task[object]) -> None:
        """End the generation when `task` ends before it."""
        task.add_done_callback(self._abandon)

    def complete(self) -> None:
        """The answer is whole: it ends as the reply says."""
        assert self.reply.finish_reason is not None, "an answer without a finish reason is not whole"
        self._end("length" if self.reply.finish_reason == "length" else "stop")

    async def leave(self) -> None:
        """Wait until the engine holds nothing of what is over: its slot is free before its client is told of the end.

        Where a stop string or a call ends the answer, the engine only hears of it at its next step. An agent sends its
        next turn at once, and would be refused because of its own last one.
        """
        with suppress(HomebaseError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self.tokens.read(lambda _: False)

    def fail(self, error: HomebaseError) -> None:
        """The answer stays unfinished, and not because of the client."""
        if isinstance(error, ServerEnding):
            self._end("cancelled", f"ended with the server {self.reply.place}")
        elif isinstance(error, ParentGone):
            self._end("cancelled", f"cancelled with its parent {self.reply.place}")
        elif isinstance(error, StreamStopped):
            self._end("cancelled", f"stopped at the server {self.reply.place}")
        else:
            self._end("failed", error.message)

    def drop(self, reason: str) -> None:
        """The client's fault; `reason` is said in words, and where the generation was is added."""
        self._end("cancelled", f"{reason} {self.reply.place}")

    def _end(self, outcome: Outcome, detail: str = "") -> None:
        """The first word counts. What the engine still does for this stream is cancelled."""
        if self._is_over:
            return
        self._is_over = True
        self.tokens.cancel()
        self._on_end(outcome)
        self._observer.stream_ended(self.request_id, outcome, detail)

    def _abandon(self, task: asyncio.Task[object]) -> None:
        if self._is_over:
            return
        if task.cancelled() or task.exception() is not None:
            self.drop("client closed the connection")
        else:
            # The framework turned a fault of ours into an answer; the traceback is in the log already.
            self._end("failed", "the answer could not be made")
