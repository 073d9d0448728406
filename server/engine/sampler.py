"""Draws one sequence's next token from its logits. Never touches MLX's global random state.

Top-p and top-k are mlx-lm's filters; they and min-p apply in mlx-lm's order and before the temperature. mlx-lm's own
draw is not used: it advances `mx.random.state`, which all sequences would share, so that a sibling would change what
a seed gives. Here each draw has a key of its own, made from the sequence's seed and the index of the token and from
nothing else: a seed gives the same tokens alone, beside siblings, and again after a rollback. The filters are
compiled by mlx-lm with that global state as an input and an output, but draw nothing and leave it as it was.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import cast

import mlx.core as mx
import msgspec
from mlx_lm.sample_utils import apply_top_k, apply_top_p

from server.engine.request import Sampling
from server.errors import SequenceFailed

LOWEST_TEMPERATURE = 1e-6
"""Under this the draw is greedy. Random noise of 15 times the temperature is lost in float32 logits of size 100
(resolution 8e-6), and 1 / temperature would in the end overflow to infinity."""

LOWEST_TOP_P = 1e-6
"""A smaller top_p is raised to this; below one part in a vocabulary it keeps the best token alone either way. mlx-lm's
filter compares in float32, and with a top_p that rounds to 0 it reads past the end of the row."""

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Drawn(msgspec.Struct, frozen=True):
    """A token on its way: lazy, to be evaluated with the state of its sequence."""

    token: mx.array
    """One token id."""
    peak: mx.array
    """The highest logit; MLX's maximum is NaN when any logit is."""

    def read(self) -> int:
        """The token id; waits for it. Raises SequenceFailed when the logits were unusable."""
        peak = cast("float", self.peak.item())
        if not math.isfinite(peak):
            what = "not numbers" if math.isnan(peak) else "infinite"
            raise SequenceFailed(f"The model's scores for the next token of this sequence are {what}.")
        return cast("int", self.token.item())


class TokenSampler:
    """Draws the tokens of one sequence. Values out of range are brought into it, whoever let them through."""

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        self._seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        self._temperature = sampling.temperature
        self._filters = _build_filters(sampling, vocab_size)
        self._greedy = not sampling.temperature >= LOWEST_TEMPERATURE or sampling.top_k == 1

    def draw(self, logits: mx.array, index: int) -> Drawn:
        """The token number `index` of the sequence, counted from 0, from logits (1, V) float32. Lazy."""
        peak = mx.max(logits, axis=-1)  # (1,)
        if self._greedy:
            return Drawn(mx.argmax(logits, axis=-1), peak)  # the lowest id of equals
        scores = logits - peak[:, None]  # (1, V), highest 0: all that the filters ask of log-probabilities
        for apply in self._filters:
            scores = apply(scores)
        key = mx.random.key(mix_seed(self._seed, index))
        return Drawn(mx.random.categorical(scores * (1.0 / self._temperature), key=key), peak)


def mix_seed(seed: int, index: int) -> int:
    """A 64-bit number that looks random and is fixed by a seed and the index of a draw.

    Source: SplitMix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. The
    seed goes through the mixer first, so that the draws of neighbouring seeds are not shifted copies.
    """
    return _finish((_finish(seed & _MASK) + (index + 1) * _GOLDEN) & _MASK)


def _finish(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _build_filters(sampling: Sampling, vocab_size: int) -> list[Callable[[mx.array], mx.array]]:
    filters: list[Callable[[mx.array], mx.array]] = []
    if sampling.top_p < 1:
        # An array is an input of mlx-lm's compiled filter; a number would be compiled in, each value anew.
        top_p = cast("float", mx.array(max(sampling.top_p, LOWEST_TOP_P)))
        filters.append(lambda scores: apply_top_p(scores, top_p))
    if sampling.min_p > 0:
        lowest_score = math.log(min(sampling.min_p, 1.0))  # the best token's score is 0
        filters.append(lambda scores: mx.where(scores < lowest_score, -math.inf, scores))
    if 0 < sampling.top_k < vocab_size:  # mlx-lm raises for anything else
        filters.append(lambda scores: apply_top_k(scores, sampling.top_k))
    return filters
