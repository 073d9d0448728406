"""How long a token takes before any was measured: bytes over bandwidth, and what operations cost besides. Pure."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from server.engine.depth import MAX_DEPTH, Belief
from server.events import StepCost
from server.step_reads import CHUNK_TOKENS, WIDE_TOKENS, StepReads, TimedSteps

EXPECTED_TOKENS = Belief().expected_tokens()
"""Tokens of a step by its depth, as the engine believes before a stream has told."""


class Physics(msgspec.Struct, frozen=True):
    """The served model on this device, as it was found when it was loaded."""

    reads: StepReads = StepReads()
    bandwidth_bps: float = 0.0
    timed: TimedSteps = TimedSteps()
    depths: tuple[int, ...] = (0,)
    """How deep streams may draft."""

    @property
    def is_known(self) -> bool:
        """False until something was loaded and measured: then nothing can be forecast."""
        return self.bandwidth_bps > 0 and self.reads.dense_bytes > 0


def list_depths(setting: str | int, has_mtp: bool) -> tuple[int, ...]:
    """What `[engine] mtp` lets streams draft."""
    if not has_mtp or setting == "off":
        return (0,)
    return tuple(range(MAX_DEPTH + 1)) if setting == "auto" else (int(setting),)


@lru_cache(maxsize=2048)
def predict_token_s(physics: Physics, streams: int, context_tokens: int) -> float:
    """Seconds for each token of a stream of usual text, while so many decode on contexts of that sum.

    The depth is the one that brings most: that is the one that the engine settles at.
    """
    return min(
        predict_step_s(physics, streams, context_tokens, depth) / EXPECTED_TOKENS[depth] for depth in physics.depths
    )


def predict_step_s(physics: Physics, streams: int, context_tokens: int, depth: int = 0) -> float:
    """Seconds of a step in which every stream drafts so deep."""
    timed, rows = physics.timed, streams * (1 + depth)
    reading_s = physics.reads.count_bytes(streams, rows, context_tokens) / physics.bandwidth_bps
    operations_s = _beyond_reading_s(physics, 1, 1, timed.one_s)
    each_sequence_s = max(0.0, _beyond_reading_s(physics, 2, 2, timed.pair_s) - operations_s)
    each_row_s = max(0.0, _beyond_reading_s(physics, 1, WIDE_TOKENS, timed.wide_s) - operations_s) / (WIDE_TOKENS - 1)
    beyond_s = operations_s + (streams - 1) * each_sequence_s + streams * depth * each_row_s
    beyond_s += _predict_context_s(physics, streams, context_tokens)
    return reading_s + beyond_s + depth * _predict_draft_s(physics, operations_s)


def predict_chunk_tps(physics: Physics, cost: StepCost) -> float | None:
    """Prompt tokens per second from the timed chunk, while no prefill was measured; None when it is."""
    if cost.prefill_s > 0 or not physics.timed.chunk_s:
        return None
    return CHUNK_TOKENS / physics.timed.chunk_s


def _predict_draft_s(physics: Physics, operations_s: float) -> float:
    """A call of the MTP head: one layer of those of the trunk, and the output."""
    reads = physics.reads
    return reads.head_bytes / physics.bandwidth_bps + operations_s / (1 + reads.expert_layers)


def _predict_context_s(physics: Physics, streams: int, context_tokens: int) -> float:
    """What contexts cost beyond their bytes: all of it once each is past the budget, and its share before."""
    timed, reads = physics.timed, physics.reads
    if not timed.far_tokens:
        return 0.0
    bytes_more = reads.count_bytes(1, 1, timed.far_tokens) - reads.count_bytes(1, 1, 0)
    far_s = max(0.0, timed.far_s - timed.one_s - bytes_more / physics.bandwidth_bps)
    return far_s * min(context_tokens / timed.far_tokens, float(streams))


def _beyond_reading_s(physics: Physics, sequences: int, rows: int, seconds: float) -> float:
    """What of a timed step its bytes do not explain."""
    return max(0.0, seconds - physics.reads.count_bytes(sequences, rows, 0) / physics.bandwidth_bps)
