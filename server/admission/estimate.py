"""When a request is likely to find a place, from what is in flight. Pure: reads no clock, rolls no dice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from server.admission.decide import LEAST_OUTPUT_TOKENS, Admit, Asked, Held, Load, decide
from server.admission.lengths import Lengths
from server.policy import AdmissionPolicy
from server.snapshot import StreamView

SHORTEST_S = 1
LONGEST_S = 60
"""Agents sleep as long as they are told: pi froze for hours on a large value before it put its own bound at 60 s."""

UNKNOWN_S = 10.0
"""For a stream that has no rate yet, in its first moments."""


def estimate_stream_s(stream: StreamView, left_tokens: float, unread_s: float = UNKNOWN_S) -> float:
    """Seconds until a stream ends at its present rates, with so many tokens still to come.

    `unread_s` stands for a prompt that has no rate yet.
    """
    prefill_s, prefill_tokens = 0.0, _count_unread(stream)
    if prefill_tokens:
        prefill_s = prefill_tokens / stream.prefill_tps if stream.prefill_tps else unread_s
    if not stream.decode_tps:
        # In prefill nothing is known of its decoding: the estimate is the least that it can be.
        return prefill_s or UNKNOWN_S
    return prefill_s + left_tokens / stream.decode_tps


def estimate_ends_s(streams: Sequence[StreamView], lengths: Lengths) -> dict[str, float]:
    """Seconds until each stream in flight ends, by its id.

    One that does not decode yet is taken to do so as fast as those that do, or did so last.
    """
    running = [stream for stream in streams if stream.phase != "finished" and stream.queue_position is None]
    unread_s, usual_tps = _estimate_prompts_s(running, lengths), _find_usual_tps(running, lengths)
    ends_s = dict[str, float]()
    for stream in running:
        known = stream if stream.decode_tps else msgspec.structs.replace(stream, decode_tps=usual_tps)
        ends_s[stream.id] = estimate_stream_s(known, lengths.expect_left(stream), unread_s)
    return ends_s


def estimate_wait_s(policy: AdmissionPolicy, load: Load, asked: Asked, ends_s: Mapping[str, float]) -> float | None:
    """Seconds until a request is likely to be let in: when as many of those that hold its limit have ended as must.

    None when an idle server would refuse it too. Streams whose end nobody estimates end after `UNKNOWN_S`.
    """
    ending = sorted(load.held, key=lambda held: _find_end_s(held, ends_s))
    if load.draining:  # it is done when all is done; its place is then likely taken by a new one
        return _find_end_s(ending[-1], ends_s) if ending else 0.0
    for ended in range(len(ending) + 1):
        # A rate is forecast beside what runs now; that one end is enough for it is a guess.
        forecast = load.forecast if not ended else None
        rest = msgspec.structs.replace(load, held=tuple(ending[ended:]), forecast=forecast)
        if isinstance(decide(policy, rest, asked), Admit):
            return _find_end_s(ending[ended - 1], ends_s) if ended else 0.0
    return None


def estimate_line_s(
    policy: AdmissionPolicy, load: Load, line: Sequence[Asked], ends_s: Mapping[str, float], usual_s: float
) -> list[float | None]:
    """The same for each of a line, the first one first. Who stands before one gets a place, for `usual_s`."""
    waits, ends = list[float | None](), dict(ends_s)
    for number, asked in enumerate(line):
        wait_s = estimate_wait_s(policy, load, asked, ends)
        waits.append(wait_s)
        if wait_s is not None:
            name = f"line {number}"  # no request is called so
            tokens = asked.prompt_tokens + min(asked.output_tokens, LEAST_OUTPUT_TOKENS)
            memory_bytes = load.memory.stream.at(tokens) if load.memory.budget_bytes else 0
            ends[name] = wait_s + usual_s
            load = msgspec.structs.replace(load, held=(*load.held, Held(name, asked.place, tokens, memory_bytes)))
    return waits


def estimate_usual_s(streams: Sequence[StreamView], lengths: Lengths) -> float:
    """Seconds that an answer takes which has not begun."""
    usual_tps = _find_usual_tps(streams, lengths)
    return lengths.expect_tokens() / usual_tps if usual_tps else UNKNOWN_S


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


def _find_end_s(held: Held, ends_s: Mapping[str, float]) -> float:
    return ends_s.get(held.request_id, UNKNOWN_S)


def _count_unread(stream: StreamView) -> int:
    return max(0, stream.prompt_tokens - stream.prefill_done_tokens)


def _estimate_prompts_s(streams: Sequence[StreamView], lengths: Lengths) -> float:
    """Seconds until all prompts are read: what is the latest for one that waits for its first chunk.

    Prompts that take turns have rates that add up to the engine's.
    """
    reading_tps = sum(stream.prefill_tps or 0.0 for stream in streams if _count_unread(stream)) or lengths.prefill_tps
    return sum(map(_count_unread, streams)) / reading_tps if reading_tps else UNKNOWN_S


def _find_usual_tps(streams: Sequence[StreamView], lengths: Lengths) -> float | None:
    rates = [stream.decode_tps for stream in streams if stream.decode_tps and stream.outcome is None]
    return sum(rates) / len(rates) if rates else lengths.decode_tps
