"""When a slot is likely to be free again, from what is in flight. Pure: reads no clock, rolls no dice."""

from __future__ import annotations

import math
from collections.abc import Sequence

from server.snapshot import StreamView

SHORTEST_S = 1
LONGEST_S = 60
"""Agents sleep as long as they are told: pi froze for hours on a large value before it put its own bound at 60 s."""

UNKNOWN_S = 10.0
"""For a stream that has no rate yet, in its first moments."""


def estimate_stream_s(stream: StreamView, unread_s: float = UNKNOWN_S) -> float:
    """Seconds until a stream ends at its present rates, if it uses all of its max_tokens.

    `unread_s` stands for a prompt that has no rate yet.
    """
    prefill_tokens = _count_unread(stream)
    decode_tokens = max(0, stream.max_tokens - stream.completion_tokens)
    if prefill_tokens and not stream.prefill_tps:
        return unread_s
    prefill_s = prefill_tokens / stream.prefill_tps if prefill_tokens and stream.prefill_tps else 0.0
    if not stream.decode_tps:
        # In prefill nothing is known of its decoding: the estimate is the least that it can be.
        return prefill_s or UNKNOWN_S
    return prefill_s + decode_tokens / stream.decode_tps


def estimate_slot_s(streams: Sequence[StreamView], ends_needed: int) -> float:
    """Seconds until `ends_needed` of the streams in flight have ended; finished ones are passed over."""
    running = [stream for stream in streams if stream.phase != "finished"]
    unread_s = _estimate_prompts_s(running)
    in_flight = sorted(estimate_stream_s(stream, unread_s) for stream in running)
    if len(in_flight) < ends_needed:
        return UNKNOWN_S if ends_needed > 0 else 0.0
    return in_flight[ends_needed - 1] if ends_needed > 0 else 0.0


def _count_unread(stream: StreamView) -> int:
    return max(0, stream.prompt_tokens - stream.prefill_done_tokens)


def _estimate_prompts_s(streams: Sequence[StreamView]) -> float:
    """Seconds until all prompts are read: what is the latest for one that waits for its first chunk.

    Prompts that take turns have rates that add up to the engine's.
    """
    reading_tps = sum(stream.prefill_tps or 0.0 for stream in streams if _count_unread(stream))
    return sum(map(_count_unread, streams)) / reading_tps if reading_tps else UNKNOWN_S


def clamp_wait_s(seconds: float, spread_ratio: float) -> int:
    """Whole seconds, 1..60, put off by up to a quarter and at least up to two seconds.

    `spread_ratio` is 0..1, a different one for each refusal: clients that are refused together and sleep exactly as
    long as they are told then do not come back together.
    """
    floor = max(SHORTEST_S, math.ceil(min(seconds, LONGEST_S)))
    reach = max(2, floor // 4)
    # Near the bound the spread goes downwards: 60 for everybody would bring all of them back at once.
    start = min(floor, LONGEST_S - reach)
    return start + min(reach, int(spread_ratio * (reach + 1)))
