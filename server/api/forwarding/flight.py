"""One request while an upstream has it: its row, its slot if it needs one, and its one end, whatever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from server.admission.sessions import make_printable
from server.admission.slots import Permit
from server.api.services import StreamObserver
from server.errors import HomebaseError, ParentGone, ServerEnding, StreamStopped
from server.events import Outcome
from server.upstreams.exchange import Exchange
from server.upstreams.meter import Meter

TOLD_CHARS = 200
"""Of an upstream's own words on what went wrong."""


class Flight:
    """Ties an exchange to the task that answers its client, as `StreamLife` does a generation."""

    def __init__(
        self,
        request_id: str,
        observer: StreamObserver,
        meter: Meter,
        permit: Permit | None,
        on_over: Callable[[Flight, Outcome], None],
    ) -> None:
        self.request_id, self.meter = request_id, meter
        self._observer, self._permit, self._on_over = observer, permit, on_over
        self._exchange: Exchange | None = None
        self._closing: asyncio.Task[None] | None = None
        self._tokens = 0
        self._is_over = False

    def follow(self, task: asyncio.Task[object]) -> None:
        """End it when `task` ends before it: nobody will read the rest."""
        task.add_done_callback(self._abandon)

    def carry(self, exchange: Exchange) -> None:
        """It is with an upstream from now on."""
        self._exchange = exchange

    def count(self, lines: bytes) -> None:
        """Take in what comes by; the slot is given back as soon as the answer is known to end."""
        before, tokens = self.meter.outcome, self.meter.read(lines)
        self._tokens += tokens
        self._observer.upstream_said(self.request_id, tokens)
        if self.meter.outcome is not None and before is None:
            self._release()

    def complete(self) -> None:
        """The answer is whole: it ends as the upstream said."""
        usage = self.meter.usage
        self._observer.upstream_told(self.request_id, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
        error = make_printable(self.meter.error, TOLD_CHARS)
        self._end(self.meter.outcome or "stop", f"the upstream said: {error}" if error else "")

    def fail(self, error: HomebaseError) -> None:
        """It is not, and not because of the client."""
        if isinstance(error, ServerEnding):
            self._end("cancelled", f"ended with the server {self._place}")
        elif isinstance(error, ParentGone):
            self._end("cancelled", f"cancelled with its parent {self._place}")
        elif isinstance(error, StreamStopped):
            self._end("cancelled", f"stopped at the server {self._place}")
        else:
            self._end("failed", error.message)

    def stop(self, error: HomebaseError) -> None:
        """End it for somebody else, at once: also when its client does not read."""
        if self._exchange is not None:
            self._exchange.stop(error)
        self.fail(error)

    async def close(self) -> None:
        """Let go of the upstream."""
        if self._exchange is not None:
            await self._exchange.close()

    @property
    def tokens(self) -> int:
        """Of the answer so far: as the upstream tells, or as they were counted by the way."""
        return self.meter.usage.completion_tokens or self._tokens

    @property
    def _place(self) -> str:
        return f"after {self._tokens:,} tokens" if self._tokens else "before a first token"

    def _release(self) -> None:
        if self._permit is not None:
            self._permit.release()

    def _end(self, outcome: Outcome, detail: str = "") -> None:
        """The first word counts."""
        if self._is_over:
            return
        self._is_over = True
        self._release()
        self._on_over(self, outcome)
        self._observer.stream_ended(self.request_id, outcome, detail)

    def _abandon(self, task: asyncio.Task[object]) -> None:
        if self._exchange is not None:
            # Held here, since the loop itself does not hold its tasks.
            self._closing = asyncio.get_running_loop().create_task(self._exchange.close())
        if self._is_over:
            return
        if task.cancelled() or task.exception() is not None:
            self._end("cancelled", f"client closed the connection {self._place}")
        else:
            self._end("failed", "the answer could not be made")
