"""How long a newcomer waits for its first token, beside streams that decode and others whose prompts are read. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from server.engine.cost import predict_s
from server.engine.scheduler import ChunkLimits, Need, size_chunk, sum_load
from server.events import StepCost
from server.forecast.prior import Physics, predict_chunk_tps
from server.policy import EnginePolicy
from server.snapshot import StreamView

PARTS = 4
"""A prompt's time is summed over so many equal parts: chunks get shorter and slower as the context grows."""


class PrefillLoad(msgspec.Struct, frozen=True):
    """What a newcomer's prompt shares the engine with."""

    decoding: tuple[Need, ...] = ()
    unread_tokens: tuple[int, ...] = ()
    """Of each prompt that is still read; they take turns."""


def read_load(streams: Sequence[StreamView]) -> PrefillLoad:
    """The load that streams in flight are; finished ones are passed over."""
    running = [stream for stream in streams if stream.phase != "finished"]
    decoding = [
        Need(stream.id, 0, 0, context_tokens=stream.context_tokens, draft_tokens=stream.draft_depth or 0)
        for stream in running
        if stream.phase == "decode"
    ]
    unread = (stream.prompt_tokens - stream.prefill_done_tokens for stream in running if stream.phase != "decode")
    return PrefillLoad(tuple(decoding), tuple(tokens for tokens in unread if tokens > 0))


def forecast_ttft_s(
    physics: Physics,
    cost: StepCost,
    engine: EnginePolicy,
    load: PrefillLoad,
    prompt_tokens: int,
    cached_tokens: int = 0,
) -> float | None:
    """Seconds until a newcomer's prompt is read, `cached_tokens` of it taken over; None when nothing tells.

    Prompts of one priority share the chunks by turns: of each other one, no more is read meanwhile than of the
    newcomer's own.
    """
    uncached = max(1, prompt_tokens - cached_tokens)
    tokens = uncached + sum(min(uncached, unread) for unread in load.unread_tokens)
    if (chunk_tps := predict_chunk_tps(physics, cost)) is not None:
        return tokens / chunk_tps
    if cost.prefill_s <= 0:
        return None
    limits = ChunkLimits(engine.prefill_chunk_tokens, engine.prefill_chunk_tokens, engine.decode_stall_ms / 1000, cost)
    middles = [cached_tokens + round(uncached * (part + 0.5) / PARTS) for part in range(PARTS)]
    token_s = [_price_token_s(limits, load, middle, uncached) for middle in middles]
    return tokens * sum(token_s) / PARTS


def _price_token_s(limits: ChunkLimits, load: PrefillLoad, context_tokens: int, left_tokens: int) -> float:
    """Seconds for each prompt token of a chunk at this context, as the engine would plan it."""
    need = Need("newcomer", left_tokens, -1, context_tokens=context_tokens)
    chunk = size_chunk(need, load.decoding, limits)
    step = msgspec.structs.replace(sum_load(load.decoding), prefill_tokens=chunk, prefill_context_tokens=context_tokens)
    return predict_s(limits.cost, step) / chunk
