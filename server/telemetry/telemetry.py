"""Folds engine events and the API's words on its streams into one immutable Snapshot; derives rates, never keeps them.

Lives on the server loop and is touched by nothing else. Reads no file and no array; the clock is handed in.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

import msgspec

from server.events import (
    DraftingChanged,
    EngineEvent,
    EventRing,
    Outcome,
    PrefillAdvanced,
    PromptLookedUp,
    PromptShared,
    Refused,
    TokensEmitted,
)
from server.snapshot import AdmissionView, Snapshot, StreamView
from server.telemetry.engine import EngineFold
from server.telemetry.facts import ServerFacts, StreamIdentity
from server.telemetry.stream import FollowedStream, is_reading, place_in_line, tell_end, view_stream

FINISHED_SHOWN_S = 8.0
"""How long a finished stream stays in the snapshot, so that a person sees how it ended."""

FINISHED_KEPT = 50
"""At most this many finished streams, however short they were."""

REFUSALS_KEPT = 50


class Telemetry:
    """Follows every stream from its admission to a few seconds past its end.

    `on_change` is called after a stream began or ended: a moment that a screen should not be late for.
    """

    def __init__(
        self,
        ring: EventRing,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        self._ring, self._clock, self._wall = ring, clock, wall
        self._on_change = on_change
        self._started_s = clock()
        self._open: dict[str, FollowedStream] = {}
        self._finished: deque[tuple[str, FollowedStream]] = deque(maxlen=FINISHED_KEPT)
        self._refusals: deque[Refused] = deque(maxlen=REFUSALS_KEPT)
        self._refused_by_code: Counter[str] = Counter()
        self._finished_by_outcome: Counter[str] = Counter()
        self._engine = EngineFold(self._started_s)
        self._sequence = 0

    def stream_opened(self, request_id: str, identity: StreamIdentity) -> None:
        """Begin to follow a stream that was just admitted, or sent to an upstream."""
        now = self._clock()
        waited = self._open.pop(request_id, None)  # it goes behind those that were admitted before it
        self._open[request_id] = FollowedStream(
            identity,
            now if waited is None else waited.opened_s,
            now,
            waited_s=0.0 if waited is None else now - waited.opened_s,
            prefill_done_tokens=identity.cached_tokens,
            cached_tokens=identity.cached_tokens,
        )
        if not identity.upstream:
            self._engine.took(request_id, now)
        self._on_change()

    def stream_waiting(self, request_id: str, identity: StreamIdentity) -> None:
        """Show a request that waits for a slot. Its time to the first token begins now."""
        now = self._clock()
        self._open[request_id] = FollowedStream(identity, now, now, is_in_line=True)
        self._on_change()

    def stream_left(self, request_id: str, outcome: Outcome | None = None, detail: str = "") -> float:
        """A request waits no more and never had a slot: it was refused, or ended as told. The seconds it waited."""
        stream = self._open.pop(request_id, None)
        if stream is None:
            return 0.0
        stream.waited_s = self._clock() - stream.opened_s
        if outcome is not None:
            self._finish(request_id, stream, outcome, detail)
        self._on_change()
        return stream.waited_s

    def find(self, request_id: str) -> StreamView | None:
        """One stream, in flight or just finished."""
        stream = self._open.get(request_id)
        if stream is None:
            stream = next((each for name, each in reversed(self._finished) if name == request_id), None)
        return None if stream is None else view_stream(request_id, stream, self._clock())

    def upstream_said(self, request_id: str, tokens: int) -> None:
        """An upstream's answer has grown by so many tokens, counted as events."""
        stream = self._open.get(request_id)
        if stream is not None and tokens:
            stream.prefill_done_tokens = stream.identity.prompt_tokens
            self._add_tokens(stream, tokens, self._clock())

    def upstream_told(
        self, request_id: str, prompt_tokens: int | None, completion_tokens: int | None, cached_tokens: int | None
    ) -> None:
        """What an upstream says that a request has cost: that is the truth. None leaves what is known."""
        stream = self._open.get(request_id)
        if stream is None:
            return
        if prompt_tokens is not None:
            stream.identity = msgspec.structs.replace(stream.identity, prompt_tokens=prompt_tokens)
            stream.prefill_done_tokens = prompt_tokens
        if cached_tokens is not None:
            stream.cached_tokens = cached_tokens
        if completion_tokens:
            stream.told_ratio *= completion_tokens / max(1, stream.completion_tokens)
            stream.completion_tokens = completion_tokens

    def fold(self, events: tuple[EngineEvent, ...]) -> None:
        """Take in what one engine step did. Events of streams that are over, or never were, change no stream."""
        for event in events:
            match event:
                case PrefillAdvanced(request_id=request_id) if stream := self._open.get(request_id):
                    self._fold_prefill(stream, event)
                case PromptLookedUp() | PromptShared() if stream := self._open.get(event.request_id):
                    stream.reuse, stream.diverged_at = event.detail, event.diverged_at
                case TokensEmitted(request_id=request_id) if stream := self._open.get(request_id):
                    self._fold_tokens(stream, event)
                case DraftingChanged(request_id=request_id) if stream := self._open.get(request_id):
                    stream.mtp = event.state
                case _:
                    self._engine.fold(event)

    def stream_ended(self, request_id: str, outcome: Outcome, detail: str = "") -> None:
        """How a stream ended, in the API's word; the first word counts. Publishes `StreamEnded`."""
        stream = self._open.pop(request_id, None)
        if stream is None:
            return
        self._finished_by_outcome[outcome] += 1
        self._finish(request_id, stream, outcome, detail)
        self._on_change()

    def _finish(self, request_id: str, stream: FollowedStream, outcome: Outcome, detail: str) -> None:
        stream.ended_s = self._clock()
        stream.outcome = outcome
        stream.outcome_detail = detail
        stream.phase = "finished"
        stream.is_in_line = False
        self._finished.append((request_id, stream))
        self._ring.publish(tell_end(request_id, stream, outcome, self._wall()))

    def refused(self, refused: Refused) -> None:
        """Count, keep and publish a refusal."""
        self._refused_by_code[refused.code] += 1
        self._refusals.appendleft(refused)
        self._ring.publish(refused)

    def streams(self) -> tuple[StreamView, ...]:
        """In flight or in line first, as they came; then those that ended less than 8 s ago, in order of their end."""
        now = self._clock()
        while self._finished and now - (self._finished[0][1].ended_s or now) >= FINISHED_SHOWN_S:
            self._finished.popleft()
        return tuple(
            view_stream(request_id, stream, now) for request_id, stream in (*self._open.items(), *self._finished)
        )

    @property
    def open_streams(self) -> int:
        """Streams whose end the API has not told yet."""
        return len(self._open)

    @property
    def step_age_s(self) -> float | None:
        """Since the engine last finished a step, while it holds work; None while it holds none."""
        return self._engine.step_age_s(self._clock())

    def build_snapshot(self, facts: ServerFacts) -> Snapshot:
        """Everything, now."""
        self._sequence += 1
        now = self._clock()
        return Snapshot(
            sequence=self._sequence,
            time_s=self._wall(),
            monotonic_s=now,
            uptime_s=now - self._started_s,
            state=facts.state,
            host=facts.host,
            port=facts.port,
            version=facts.version,
            streams=tuple(place_in_line(view, facts.line) for view in self.streams()),
            admission=self._admission(facts),
            policy=facts.policy,
            model=facts.model,
            memory=self._engine.memory(facts),
            rates=self._engine.rates(now),
            engine=self._engine.view(facts, now),
            answers_strangers=facts.answers_strangers,
            upstreams=facts.upstreams,
        )

    def _admission(self, facts: ServerFacts) -> AdmissionView:
        return AdmissionView(
            in_flight=facts.in_flight,
            max_in_flight=facts.max_in_flight,
            peak_in_flight=facts.peak_in_flight,
            admitted_total=facts.admitted_total,
            refused_total=self._refused_by_code.total(),
            refused_by_code=dict(self._refused_by_code),
            finished_by_outcome=dict(self._finished_by_outcome),
            recent_refusals=tuple(self._refusals),
        )

    def _fold_prefill(self, stream: FollowedStream, event: PrefillAdvanced) -> None:
        stream.phase = "prefill"
        stream.prefill_done_tokens = event.done_tokens
        stream.cached_tokens = max(stream.cached_tokens, event.cached_tokens)
        now = self._clock()
        if event.chunk_tokens:
            stream.chunks.add(self._find_turn(stream, now, event.seconds), now, event.chunk_tokens)
        stream.progress_s = now

    def _find_turn(self, stream: FollowedStream, now: float, seconds: float) -> float:
        """When a stream's turn began: after its last progress, with the turns that others had since.

        Before its first chunk it may have waited for a prompt that goes first, and then for no more than a turn of each
        of those that are read beside it.
        """
        began = now - seconds
        if not stream.chunks.is_empty:
            return min(began, stream.progress_s)
        others = sum(1 for each in self._open.values() if is_reading(each)) - 1
        return min(began, max(stream.progress_s, began - seconds * others))

    def _fold_tokens(self, stream: FollowedStream, event: TokensEmitted) -> None:
        if not event.token_ids:
            return
        if stream.first_token_s is not None:  # the first one comes of the prompt, by no decode step
            stream.rounds.add(event.drafted_tokens, event.accepted_tokens, len(event.token_ids))
            stream.drafted_tokens += event.drafted_tokens
            stream.accepted_tokens += event.accepted_tokens
        self._add_tokens(stream, len(event.token_ids), event.at_s)

    def _add_tokens(self, stream: FollowedStream, tokens: int, at_s: float) -> None:
        stream.phase = "decode"
        stream.first_token_s = at_s if stream.first_token_s is None else stream.first_token_s
        stream.completion_tokens += tokens
        stream.tokens.add(at_s, tokens)
        stream.history.add(at_s, tokens)
        stream.progress_s = at_s
