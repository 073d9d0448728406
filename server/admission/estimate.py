"""When a request is likely to find a place, from what is in flight. Pure: reads no clock, rolls no dice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import median

import msgspec

from server.admission.decide import LEAST_OUTPUT_TOKENS, Admit, Asked, Held, Load, decide
from server.admission.lengths import Lengths
from server.policy import AdmissionPolicy
from server.snapshot import StreamView

SHORTEST_S = 1
LONGEST_S = 60
"""Agents sleep as long as they are told: pi froze for hours on a large value before it put its own bound at 60 s."""

UNKNOWN_S = 10.0
"""For a stream that has no rate yet, where no forecast tells one either."""

COURSES = 11
"""How many ways in which things may go on are weighed; a prime."""


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


class Rates(msgspec.Struct, frozen=True):
    """What a stream is taken to have that has no rate of its own yet; None where nothing tells."""

    prefill_tps: float | None = None
    decode_tps: float | None = None


class Ends(msgspec.Struct, frozen=True):
    """How all could go on: several courses of things, each as likely as the others."""

    courses: tuple[Mapping[str, float], ...] = ({},)
    """In each, the seconds until each stream in flight ends, by its id."""
    usual_s: tuple[float, ...] = (UNKNOWN_S,)
    """What an answer takes that has not begun: as many as there are courses, the shortest first."""


def estimate_ends(streams: Sequence[StreamView], lengths: Lengths, rates: Rates, courses: int = COURSES) -> Ends:
    """When the streams in flight end, if each turns out short or long independently of the others.

    The first of several ends sooner than the first of their medians. One that does not decode yet is taken to do so as
    fast as those that do, or did so last, or are forecast to.
    """
    running = [stream for stream in streams if stream.phase != "finished" and stream.queue_position is None]
    unread_s = _estimate_prompts_s(running, lengths.prefill_tps or rates.prefill_tps)
    usual_tps = _find_usual_tps(running, lengths) or rates.decode_tps
    shares = [(course + 0.5) / courses for course in range(courses)]
    by_stream = dict[str, list[float]]()
    for number, stream in enumerate(running):
        known = stream if stream.decode_tps else msgspec.structs.replace(stream, decode_tps=usual_tps)
        ends_s = [estimate_stream_s(known, left, unread_s) for left in lengths.expect_lefts(stream, shares)]
        by_stream[stream.id] = [ends_s[_mix(course, number, courses)] for course in range(courses)]
    usual_s = [tokens / usual_tps if usual_tps else UNKNOWN_S for tokens in lengths.expect_tokens(shares)]
    return Ends(
        tuple({name: ends_s[course] for name, ends_s in by_stream.items()} for course in range(courses)),
        tuple(usual_s),
    )


def estimate_waits_s(policy: AdmissionPolicy, load: Load, line: Sequence[Asked], ends: Ends) -> list[float | None]:
    """How long each of a line is likely to wait: the median of what it would in each course.

    Who has a slot and is no stream yet is about to begin: its answer takes what is usual.
    """
    if load.forecast is not None:  # it costs far more than a decision, and is the same in every course
        load = msgspec.structs.replace(load, forecast=cache(load.forecast))
    count, by_course = len(ends.courses), list[list[float | None]]()
    for course, known_s in enumerate(ends.courses):
        begun_s = {held.request_id: ends.usual_s[_mix(course, number, count)] for number, held in enumerate(load.held)}
        answers_s = _rotate(ends.usual_s, course)
        by_course.append(estimate_line_s(policy, load, line, {**begun_s, **known_s}, answers_s))
    return [_find_middle(waits) for waits in zip(*by_course, strict=True)]


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
    policy: AdmissionPolicy, load: Load, line: Sequence[Asked], ends_s: Mapping[str, float], usual_s: Sequence[float]
) -> list[float | None]:
    """The same for each of a line, the first one first. Who stands before one gets a place, for its `usual_s`."""
    waits, ends = list[float | None](), dict(ends_s)
    for number, asked in enumerate(line):
        wait_s = estimate_wait_s(policy, load, asked, ends)
        waits.append(wait_s)
        if wait_s is not None:
            name = f"line {number}"  # no request is called so
            tokens = asked.prompt_tokens + min(asked.output_tokens, LEAST_OUTPUT_TOKENS)
            memory_bytes = load.memory.stream.at(tokens) if load.memory.budget_bytes else 0
            ends[name] = wait_s + usual_s[number % len(usual_s)]
            load = msgspec.structs.replace(load, held=(*load.held, Held(name, asked.place, tokens, memory_bytes)))
    return waits


def clamp_wait_s(seconds: float, spread_ratio: float) -> int:
    """Whole seconds, 1..60, put off by up to a quarter and at least up to one second.

    `spread_ratio` is 0..1, a different one for each refusal: clients that are refused together and sleep exactly as
    long as they are told then do not come back together.
    """
    floor = max(SHORTEST_S, math.ceil(min(seconds, LONGEST_S)))
    reach = max(1, floor // 4)
    # Near the bound the spread goes downwards: 60 for everybody would bring all of them back at once.
    start = min(floor, LONGEST_S - reach)
    return start + min(reach, int(spread_ratio * (reach + 1)))


def _find_end_s(held: Held, ends_s: Mapping[str, float]) -> float:
    return ends_s.get(held.request_id, UNKNOWN_S)


def _count_unread(stream: StreamView) -> int:
    return max(0, stream.prompt_tokens - stream.prefill_done_tokens)


def _estimate_prompts_s(streams: Sequence[StreamView], usual_tps: float | None) -> float:
    """Seconds until all prompts are read: what is the latest for one that waits for its first chunk.

    Prompts that take turns have rates that add up to the engine's.
    """
    reading_tps = sum(stream.prefill_tps or 0.0 for stream in streams if _count_unread(stream)) or usual_tps
    return sum(map(_count_unread, streams)) / reading_tps if reading_tps else UNKNOWN_S


def _find_usual_tps(streams: Sequence[StreamView], lengths: Lengths) -> float | None:
    rates = [stream.decode_tps for stream in streams if stream.decode_tps and stream.outcome is None]
    return sum(rates) / len(rates) if rates else lengths.decode_tps


def _mix(course: int, number: int, courses: int) -> int:
    """Which of its ends a stream has in a course: each once, and beside another stream's in no order.

    `courses` is a prime, so that every stride goes through all.
    """
    return course * (number % (courses - 1) + 1) % courses if courses > 1 else 0


def _rotate(usual_s: Sequence[float], course: int) -> tuple[float, ...]:
    """The answers of those in line, one after another: other ones in each course, short and long by turns."""
    count = len(usual_s)
    return tuple(usual_s[(course * (count // 2) + count // 2 + place * 3) % count] for place in range(count))


def _find_middle(waits: Sequence[float | None]) -> float | None:
    known = [wait_s for wait_s in waits if wait_s is not None]
    return median(known) if len(known) == len(waits) else None
