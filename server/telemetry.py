"""Folds engine events and the API's words on its streams into one immutable Snapshot; derives rates, never keeps them.

Lives on the server loop and is touched by nothing else. Reads no file and no array; the clock is handed in.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from server.events import (
    DraftingChanged,
    EngineDied,
    EngineEvent,
    EventRing,
    Lane,
    MemorySampled,
    Outcome,
    PrefillAdvanced,
    PrefixCacheSampled,
    PromptLookedUp,
    PromptShared,
    Refused,
    SequenceEnded,
    StepCost,
    StepDone,
    StreamEnded,
    TokensEmitted,
)
from server.rates import RATE_ROUNDS, DecodeHistory, RecentChunks, RecentRounds, RecentSteps, RecentTokens, SecondCounts
from server.snapshot import (
    AdmissionView,
    EngineView,
    ForecastView,
    LinePlace,
    MemoryView,
    ModelView,
    Phase,
    PolicyView,
    RatesView,
    ServerState,
    Snapshot,
    StreamView,
    UpstreamView,
)

FINISHED_SHOWN_S = 8.0
"""How long a finished stream stays in the snapshot, so that a person sees how it ended."""

FINISHED_KEPT = 50
"""At most this many finished streams, however short they were."""

REFUSALS_KEPT = 50

TOTAL_HISTORY_S = 300


class ServerFacts(msgspec.Struct, frozen=True):
    """What a snapshot holds and telemetry cannot know."""

    state: ServerState
    host: str
    port: int
    version: str
    in_flight: int
    max_in_flight: int
    peak_in_flight: int
    admitted_total: int
    policy: PolicyView
    model: ModelView
    engine_alive: bool
    engine_error: str | None
    resident_bytes: int
    machine_bytes: int
    memory_budget_bytes: int = 0
    promised_bytes: int = 0
    answers_strangers: bool = False
    memory_is_full: bool = False
    line: Mapping[str, LinePlace] = {}
    """Where each request stands that waits for a slot, by its id."""
    forecast: ForecastView | None = None
    upstreams: tuple[UpstreamView, ...] = ()


class StreamIdentity(msgspec.Struct, frozen=True):
    """What is known of a stream when it is admitted."""

    session: str
    parent_session: str | None
    lane: Lane
    client: str
    key: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    max_tokens: int
    context_limit_tokens: int
    streaming: bool
    depth: int
    family: str
    arrived_s: float
    """Unix time."""
    upstream: str = ""
    governed: bool = False


@dataclass(slots=True)
class _Stream:
    """One stream while it is followed."""

    identity: StreamIdentity
    opened_s: float
    progress_s: float
    waited_s: float = 0.0
    """In line, for its slot."""
    tokens: RecentTokens = field(default_factory=RecentTokens)
    history: DecodeHistory = field(default_factory=DecodeHistory)
    chunks: RecentChunks = field(default_factory=RecentChunks)
    rounds: RecentRounds = field(default_factory=RecentRounds)
    mtp: str = ""
    phase: Phase = "waiting"
    is_in_line: bool = False
    """True while it waits for a slot and the engine knows nothing of it."""
    prefill_done_tokens: int = 0
    cached_tokens: int = 0
    reuse: str = ""
    diverged_at: int | None = None
    completion_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    first_token_s: float | None = None
    outcome: Outcome | None = None
    outcome_detail: str = ""
    ended_s: float | None = None
    told_ratio: float = 1.0
    """Tokens that an upstream told at its end, over those that were counted as they came."""

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.opened_s

    @property
    def whole_decode_tps(self) -> float | None:
        """From the first token, which comes of the prompt, to the last; None before there are two."""
        spent_s = 0.0 if self.first_token_s is None else self.progress_s - self.first_token_s
        return (self.completion_tokens - 1) / spent_s if spent_s > 0 else None


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
        self._open: dict[str, _Stream] = {}
        self._finished: deque[tuple[str, _Stream]] = deque(maxlen=FINISHED_KEPT)
        self._refusals: deque[Refused] = deque(maxlen=REFUSALS_KEPT)
        self._refused_by_code: Counter[str] = Counter()
        self._finished_by_outcome: Counter[str] = Counter()
        self._engine = _EngineFold(self._started_s)
        self._sequence = 0

    def stream_opened(
        self,
        *,
        request_id: str,
        session: str,
        parent_session: str | None,
        lane: Lane,
        client: str,
        model: str,
        prompt_tokens: int,
        cached_tokens: int,
        max_tokens: int,
        context_limit_tokens: int,
        streaming: bool,
        key: str = "",
        arrived_s: float | None = None,
        depth: int = 0,
        family: str = "",
        upstream: str = "",
        governed: bool = False,
    ) -> None:
        """Begin to follow a stream that was just admitted, or sent to an upstream."""
        now = self._clock()
        identity = StreamIdentity(
            session=session,
            parent_session=parent_session,
            lane=lane,
            client=client,
            key=key,
            model=model,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            max_tokens=max_tokens,
            context_limit_tokens=context_limit_tokens,
            streaming=streaming,
            arrived_s=self._wall() if arrived_s is None else arrived_s,
            depth=depth,
            family=family,
            upstream=upstream,
            governed=governed,
        )
        waited = self._open.pop(request_id, None)  # it goes behind those that were admitted before it
        self._open[request_id] = _Stream(
            identity,
            now if waited is None else waited.opened_s,
            now,
            waited_s=0.0 if waited is None else now - waited.opened_s,
            prefill_done_tokens=cached_tokens,
            cached_tokens=cached_tokens,
        )
        if not upstream:
            self._engine.took(request_id, now)
        self._on_change()

    def stream_waiting(self, request_id: str, identity: StreamIdentity) -> None:
        """Show a request that waits for a slot. Its time to the first token begins now."""
        now = self._clock()
        self._open[request_id] = _Stream(identity, now, now, is_in_line=True)
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
        return None if stream is None else _view(request_id, stream, self._clock())

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

    def _finish(self, request_id: str, stream: _Stream, outcome: Outcome, detail: str) -> None:
        stream.ended_s = self._clock()
        stream.outcome = outcome
        stream.outcome_detail = detail
        stream.phase = "finished"
        stream.is_in_line = False
        self._finished.append((request_id, stream))
        self._ring.publish(_tell_end(request_id, stream, outcome, self._wall()))

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
        return tuple(_view(request_id, stream, now) for request_id, stream in (*self._open.items(), *self._finished))

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
            streams=tuple(_place_in_line(view, facts.line) for view in self.streams()),
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

    def _fold_prefill(self, stream: _Stream, event: PrefillAdvanced) -> None:
        stream.phase = "prefill"
        stream.prefill_done_tokens = event.done_tokens
        stream.cached_tokens = max(stream.cached_tokens, event.cached_tokens)
        now = self._clock()
        if event.chunk_tokens:
            stream.chunks.add(self._find_turn(stream, now, event.seconds), now, event.chunk_tokens)
        stream.progress_s = now

    def _find_turn(self, stream: _Stream, now: float, seconds: float) -> float:
        """When a stream's turn began: after its last progress, with the turns that others had since.

        Before its first chunk it may have waited for a prompt that goes first, and then for no more than a turn of each
        of those that are read beside it.
        """
        began = now - seconds
        if not stream.chunks.is_empty:
            return min(began, stream.progress_s)
        others = sum(1 for each in self._open.values() if _is_reading(each)) - 1
        return min(began, max(stream.progress_s, began - seconds * others))

    def _fold_tokens(self, stream: _Stream, event: TokensEmitted) -> None:
        if not event.token_ids:
            return
        if stream.first_token_s is not None:  # the first one comes of the prompt, by no decode step
            stream.rounds.add(event.drafted_tokens, event.accepted_tokens, len(event.token_ids))
            stream.drafted_tokens += event.drafted_tokens
            stream.accepted_tokens += event.accepted_tokens
        self._add_tokens(stream, len(event.token_ids), event.at_s)

    def _add_tokens(self, stream: _Stream, tokens: int, at_s: float) -> None:
        stream.phase = "decode"
        stream.first_token_s = at_s if stream.first_token_s is None else stream.first_token_s
        stream.completion_tokens += tokens
        stream.tokens.add(at_s, tokens)
        stream.history.add(at_s, tokens)
        stream.progress_s = at_s


class _EngineFold:
    """The engine as a whole: its steps, its memory, and what it holds."""

    def __init__(self, started_s: float) -> None:
        self._held: set[str] = set()
        """Sequences that the engine has and has not reported as ended, whatever their clients did since."""
        self._work_since_s = started_s
        self._died = False
        self._last: StepDone | None = None
        self._steps_total = 0
        self._decode_total = 0
        self._prefill_total = 0
        self._decode, self._prefill = RecentSteps(), RecentSteps()
        self._decode_history = SecondCounts(started_s, TOTAL_HISTORY_S)
        self._prefill_history = SecondCounts(started_s, TOTAL_HISTORY_S)
        self._emissions: deque[tuple[int, int]] = deque(maxlen=RATE_ROUNDS)
        self._cost = StepCost()
        self._memory = MemorySampled(active_bytes=0, cache_bytes=0, peak_bytes=0)
        self._prefixes = PrefixCacheSampled(memory_bytes=0, budget_bytes=0, disk_bytes=0)

    def took(self, request_id: str, now: float) -> None:
        if self._died:
            return
        if not self._held:
            self._work_since_s = now
        self._held.add(request_id)

    def fold(self, event: EngineEvent) -> None:
        match event:
            case StepDone():
                self._fold_step(event)
            case SequenceEnded():
                self._held.discard(event.request_id)
            case MemorySampled():
                self._memory = event
            case PrefixCacheSampled():
                self._prefixes = event
            case StepCost():
                self._cost = event
            case EngineDied():
                self._died = True
                self._held.clear()
            case _:
                pass

    def _fold_step(self, step: StepDone) -> None:
        self._last = step
        self._steps_total += 1
        self._decode_total += step.decode_tokens
        self._prefill_total += step.prefill_tokens
        if step.decoding:
            self._emissions.append((step.decode_tokens, step.decoding))
        began = step.at_s - step.seconds
        self._decode.add(step.at_s, step.seconds, step.decode_tokens)
        self._prefill.add(step.at_s, step.seconds, step.prefill_tokens)
        self._decode_history.add(began, step.at_s, step.decode_tokens)
        self._prefill_history.add(began, step.at_s, step.prefill_tokens)

    def step_age_s(self, now: float) -> float | None:
        if not self._held:
            return None
        last_s = self._last.at_s if self._last else self._work_since_s
        return max(0.0, now - max(last_s, self._work_since_s))

    def memory(self, facts: ServerFacts) -> MemoryView:
        return MemoryView(
            active_bytes=self._memory.active_bytes,
            cache_bytes=self._memory.cache_bytes,
            peak_bytes=self._memory.peak_bytes,
            resident_bytes=facts.resident_bytes,
            machine_bytes=facts.machine_bytes,
            budget_bytes=facts.memory_budget_bytes,
            promised_bytes=facts.promised_bytes,
            is_full=facts.memory_is_full,
            prefix_cache_bytes=self._prefixes.memory_bytes,
            prefix_cache_budget_bytes=self._prefixes.budget_bytes,
            prefix_cache_disk_bytes=self._prefixes.disk_bytes,
        )

    def rates(self, now: float) -> RatesView:
        busy = bool(self._held)
        return RatesView(
            decode_tps=self._decode.rate(now, busy),
            prefill_tps=self._prefill.rate(now, busy),
            decode_history_tps=self._decode_history.history(now),
            prefill_history_tps=self._prefill_history.history(now),
            decode_tokens_total=self._decode_total,
            prefill_tokens_total=self._prefill_total,
        )

    def view(self, facts: ServerFacts, now: float) -> EngineView:
        return EngineView(
            alive=facts.engine_alive,
            busy=bool(self._held),
            steps_total=self._steps_total,
            step_s=self._last.seconds if self._last else None,
            step_age_s=self.step_age_s(now),
            error=facts.engine_error,
            tokens_per_step=self._tokens_per_step(),
            cost=self._cost,
            forecast=facts.forecast,
        )

    def _tokens_per_step(self) -> float | None:
        decoding = sum(decoding for _, decoding in self._emissions)
        return sum(tokens for tokens, _ in self._emissions) / decoding if decoding else None


def _tell_end(request_id: str, stream: _Stream, outcome: Outcome, time_s: float) -> StreamEnded:
    identity = stream.identity
    return StreamEnded(
        time_s=time_s,
        request_id=request_id,
        outcome=outcome,
        detail=stream.outcome_detail,
        session=identity.session,
        lane=identity.lane,
        client=identity.client,
        prompt_tokens=identity.prompt_tokens,
        completion_tokens=stream.completion_tokens,
        ttft_s=stream.ttft_s,
        age_s=(stream.ended_s or stream.opened_s) - stream.opened_s,
        reuse=stream.reuse,
        arrived_s=identity.arrived_s,
        parent_session=identity.parent_session,
        depth=identity.depth,
        key=identity.key,
        model=identity.model,
        cached_tokens=stream.cached_tokens,
        max_tokens=identity.max_tokens,
        waited_s=stream.waited_s,
        prefill_tps=stream.chunks.rate(None),
        decode_tps=stream.whole_decode_tps,
        drafted_tokens=stream.drafted_tokens,
        accepted_tokens=stream.accepted_tokens,
    )


def _is_reading(stream: _Stream) -> bool:
    return stream.phase in ("waiting", "prefill") and not stream.is_in_line


def _place_in_line(view: StreamView, line: Mapping[str, LinePlace]) -> StreamView:
    found = line.get(view.id)
    if found is None or view.queue_position is None:
        return view
    return msgspec.structs.replace(view, queue_position=found.position, expected_wait_s=found.expected_wait_s)


def _view(request_id: str, stream: _Stream, now: float) -> StreamView:
    identity, until = stream.identity, now if stream.ended_s is None else stream.ended_s
    if stream.ended_s is None:
        history, decode_tps = stream.history.history(now), stream.tokens.rate(now)
    else:
        history, decode_tps = stream.history.close()
    if stream.told_ratio != 1.0:
        history = tuple(value * stream.told_ratio for value in history)
        decode_tps = None if decode_tps is None else decode_tps * stream.told_ratio
    return StreamView(
        id=request_id,
        session=identity.session,
        parent_session=identity.parent_session,
        lane=identity.lane,
        client=identity.client,
        key=identity.key,
        depth=identity.depth,
        family=identity.family,
        model=identity.model,
        phase=stream.phase,
        context_tokens=stream.prefill_done_tokens + stream.completion_tokens,
        context_limit_tokens=identity.context_limit_tokens,
        prompt_tokens=identity.prompt_tokens,
        cached_tokens=stream.cached_tokens,
        completion_tokens=stream.completion_tokens,
        max_tokens=identity.max_tokens,
        prefill_done_tokens=stream.prefill_done_tokens,
        prefill_tps=stream.chunks.rate(until if stream.first_token_s is None else None),
        decode_tps=decode_tps,
        ttft_s=stream.ttft_s,
        age_s=until - stream.opened_s,
        idle_s=max(0.0, until - stream.progress_s),
        streaming=identity.streaming,
        decode_history_tps=history,
        outcome=stream.outcome,
        outcome_detail=stream.outcome_detail,
        finished_ago_s=None if stream.ended_s is None else now - stream.ended_s,
        mtp=stream.mtp,
        reuse=stream.reuse,
        diverged_at=stream.diverged_at,
        draft_depth=stream.rounds.depth,
        acceptance_ratio=stream.rounds.acceptance(),
        acceptance_by_depth=stream.rounds.acceptance_by_depth(),
        tokens_per_step=stream.rounds.tokens_per_step(),
        queue_position=1 if stream.is_in_line else None,  # its real place is the snapshot's to say
        upstream=identity.upstream,
        governed=identity.governed,
    )
