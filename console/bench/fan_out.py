"""What a fan-out of streams does to each of them: what is run, and what is read off it. Pure.

One parent and its children begin at the same moment, once with everybody let in and once under the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

from console.format import format_rate, format_seconds

Mode = Literal["off", "on"]
"""The policy: everybody is let in, or the limits of homebase.toml hold."""

DEFAULT_FLOOR_TPS = 30.0
"""Drawn as a line where the policy sets no `min_decode_tps`: below it an agent at work feels dead. From the Mac that
this was built for, where one stream had 57-72 tok/s and four had 17 each."""

MOST_TOKENS_A_PIECE = 8
"""On average, of text that is sent as it is drawn: a step of four drafts brings up to five. Of 16 tokens that came at
once, held back as they might have been a marker, a rate of 603 tok/s was read (nano on two cores)."""

MOST_STREAMS = 64
"""As many as `policy.max_in_flight` can be."""
MOST_CONTEXT_TOKENS = 1 << 24
LEAST_CONTEXT_TOKENS = 16


class Case(msgspec.Struct, frozen=True):
    """One fan-out."""

    mode: Mode
    context_tokens: int
    streams: int


class Turn(msgspec.Struct, frozen=True):
    """What one stream of a fan-out went through; times in seconds from its first try."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    ttft_s: float | None = None
    """Until the first token, with every refusal and wait before it."""
    decode_s: float | None = None
    """From the first token to the last."""
    ended_s: float = 0.0
    refusals: tuple[str, ...] = ()
    """The code of each, in order."""
    fault: str | None = None
    """Why it did not finish, None when it did."""
    pieces: int | None = None
    """In which its text came; None when they were not counted."""

    @property
    def decode_tps(self) -> float | None:
        """Tokens after the first by the time that they took.

        None for a turn that failed, has only one, or whose text was held back and came in too few pieces to time.
        """
        if self.fault is not None or not self.decode_s or self.completion_tokens < 2:
            return None
        if self.pieces is not None and self.pieces * MOST_TOKENS_A_PIECE < self.completion_tokens:
            return None
        return (self.completion_tokens - 1) / self.decode_s


class Outcome(msgspec.Struct, frozen=True):
    """A fan-out that was run."""

    case: Case
    turns: tuple[Turn, ...]
    wall_s: float
    """Until the last of its turns was over."""

    @property
    def rates_tps(self) -> list[float]:
        """Decode rates of the streams that have one."""
        return [rate for turn in self.turns if (rate := turn.decode_tps) is not None]

    @property
    def median_tps(self) -> float | None:
        """Of the decode rates."""
        return median(self.rates_tps) if self.rates_tps else None

    @property
    def lowest_tps(self) -> float | None:
        """The decode rate of the stream that had it worst."""
        return min(self.rates_tps, default=None)

    @property
    def ttfts_s(self) -> list[float]:
        """Times to first token of the turns that came to one."""
        return [turn.ttft_s for turn in self.turns if turn.ttft_s is not None]

    @property
    def median_ttft_s(self) -> float | None:
        """Of the times to first token."""
        return median(self.ttfts_s) if self.ttfts_s else None

    @property
    def worst_ttft_s(self) -> float | None:
        """The longest time to first token."""
        return max(self.ttfts_s, default=None)

    @property
    def refusals(self) -> int:
        """Of all turns together."""
        return sum(len(turn.refusals) for turn in self.turns)

    @property
    def faults(self) -> list[str]:
        """Why turns did not finish, each reason once."""
        return sorted({turn.fault for turn in self.turns if turn.fault is not None})


def plan_cases(contexts: Sequence[int], streams: Sequence[int], modes: Sequence[Mode]) -> tuple[Case, ...]:
    """Every fan-out, few changes of policy between them: by context, then policy, then streams."""
    return tuple(Case(mode, context, count) for context in contexts for mode in modes for count in streams)


def parse_streams(text: str) -> tuple[int, ...]:
    """`4` or `1..4` or `1,2,4`, rising and each once. Raises ValueError with a sentence."""
    first, dots, last = text.partition("..")
    names = [str(number) for number in range(_whole(first), _whole(last) + 1)] if dots else text.split(",")
    counts = sorted({_whole(name) for name in names})
    if not counts or counts[0] < 1 or counts[-1] > MOST_STREAMS:
        raise ValueError(f"{text!r} must name 1 to {MOST_STREAMS} streams, as 4, 1..4 or 1,2,4.")
    return tuple(counts)


def parse_contexts(text: str) -> tuple[int, ...]:
    """`2k,8k` or `2048`, in tokens, k for 1,024; rising and each once. Raises ValueError with a sentence."""
    contexts = sorted({_tokens(name) for name in text.split(",")})
    if contexts[0] < LEAST_CONTEXT_TOKENS or contexts[-1] > MOST_CONTEXT_TOKENS:
        raise ValueError(
            f"{text!r} must name contexts of {LEAST_CONTEXT_TOKENS} to {MOST_CONTEXT_TOKENS:,} tokens, "
            "as 2k,8k or 2048."
        )
    return tuple(contexts)


def conclude(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """For each context a sentence on the widest fan-out that was run both ways."""
    found: list[str] = []
    for context in sorted({outcome.case.context_tokens for outcome in outcomes}):
        ran = {
            (outcome.case.mode, outcome.case.streams): outcome
            for outcome in outcomes
            if outcome.case.context_tokens == context
        }
        both = [streams for mode, streams in ran if mode == "off" and ("on", streams) in ran]
        if both:
            found.append(_compare(ran["off", max(both)], ran["on", max(both)]))
    return tuple(found)


def _compare(off: Outcome, on: Outcome) -> str:
    streams = "1 stream" if off.case.streams == 1 else f"{off.case.streams} streams"
    return (
        f"{streams} at {off.case.context_tokens:,} tokens: with everybody let in the slowest decodes at "
        f"{format_rate(off.lowest_tps)} tok/s and all are done after {format_seconds(off.wall_s)}; under the policy at "
        f"{format_rate(on.lowest_tps)} tok/s and after {format_seconds(on.wall_s)}, with "
        f"{'1 refusal' if on.refusals == 1 else f'{on.refusals} refusals'}."
    )


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number of streams; give them as 4, 1..4 or 1,2,4.") from None


def _tokens(text: str) -> int:
    name = text.strip().lower()
    try:
        return int(name.removesuffix("k")) * (1024 if name.endswith("k") else 1)
    except ValueError:
        raise ValueError(f"{text!r} is no number of tokens; give contexts as 2k,8k or 2048.") from None
