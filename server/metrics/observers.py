"""Tells telemetry, and then the tally, of everything that streams and the engine do."""

from __future__ import annotations

from collections.abc import Callable

from server.events import EngineEvent, Outcome, Refused
from server.metrics.tally import Tally
from server.snapshot import StreamView
from server.telemetry import StreamIdentity, Telemetry


class Observers:
    """Both as one observer, so that neither has to know the other."""

    def __init__(
        self,
        telemetry: Telemetry,
        tally: Tally,
        on_end: Callable[[StreamView], object] = lambda stream: None,
    ) -> None:
        """`on_end` is given each stream once it is over."""
        self._telemetry, self._tally, self._on_end = telemetry, tally, on_end

    def stream_opened(self, request_id: str, identity: StreamIdentity) -> None:
        """A request was admitted and is with the engine.

        One that is with an upstream is not counted here, since the name of its model may be a client's to choose.
        """
        if not identity.upstream:
            self._tally.stream_opened(request_id, identity.model, identity.prompt_tokens)
        self._telemetry.stream_opened(request_id, identity)

    def stream_waiting(self, request_id: str, identity: StreamIdentity) -> None:
        """A request waits for a slot."""
        self._telemetry.stream_waiting(request_id, identity)

    def stream_left(self, request_id: str, outcome: Outcome | None = None, detail: str = "") -> float:
        """It waits no more, and never had a slot."""
        waited_s = self._telemetry.stream_left(request_id, outcome, detail)
        self._tell_end(request_id)
        return waited_s

    def stream_ended(self, request_id: str, outcome: Outcome, detail: str = "") -> None:
        """A stream is over, and how."""
        self._tally.stream_ended(request_id, outcome)
        self._telemetry.stream_ended(request_id, outcome, detail)
        self._tell_end(request_id)

    def upstream_said(self, request_id: str, tokens: int) -> None:
        """An upstream's answer has grown."""
        self._telemetry.upstream_said(request_id, tokens)

    def upstream_told(
        self, request_id: str, prompt_tokens: int | None, completion_tokens: int | None, cached_tokens: int | None
    ) -> None:
        """What an upstream says that a request has cost."""
        self._telemetry.upstream_told(request_id, prompt_tokens, completion_tokens, cached_tokens)

    def refused(self, refused: Refused) -> None:
        """A request was not admitted."""
        self._tally.refused(refused)
        self._telemetry.refused(refused)

    def fold(self, events: tuple[EngineEvent, ...]) -> None:
        """What one engine step did."""
        self._telemetry.fold(events)
        self._tally.fold(events)

    def _tell_end(self, request_id: str) -> None:
        stream = self._telemetry.find(request_id)
        if stream is not None and stream.outcome is not None:
            self._on_end(stream)
