"""One stream while it is followed, and what is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from server.events import Outcome, StreamEnded
from server.rates import DecodeHistory, RecentChunks, RecentRounds, RecentTokens
from server.snapshot import LinePlace, Phase, StreamView
from server.telemetry.facts import StreamIdentity


@dataclass(slots=True)
class FollowedStream:
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
        """From its beginning, a wait in line with it, to its first token."""
        return None if self.first_token_s is None else self.first_token_s - self.opened_s

    @property
    def whole_decode_tps(self) -> float | None:
        """From the first token, which comes of the prompt, to the last; None before there are two."""
        spent_s = 0.0 if self.first_token_s is None else self.progress_s - self.first_token_s
        return (self.completion_tokens - 1) / spent_s if spent_s > 0 else None


def tell_end(request_id: str, stream: FollowedStream, outcome: Outcome, time_s: float) -> StreamEnded:
    """The notice of its end; `time_s` is Unix time."""
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


def is_reading(stream: FollowedStream) -> bool:
    """True while the engine reads its prompt, or is about to."""
    return stream.phase in ("waiting", "prefill") and not stream.is_in_line


def place_in_line(view: StreamView, line: Mapping[str, LinePlace]) -> StreamView:
    """The same with its real place, if it waits for a slot."""
    found = line.get(view.id)
    if found is None or view.queue_position is None:
        return view
    return msgspec.structs.replace(view, queue_position=found.position, expected_wait_s=found.expected_wait_s)


def view_stream(request_id: str, stream: FollowedStream, now: float) -> StreamView:
    """What there is to show of it; `now` is of the clock that its times are of."""
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
