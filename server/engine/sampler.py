"""Draws one sequence's next tokens from its logits. Never touches MLX's global random state.

Top-p and top-k are mlx-lm's filters; they and min-p apply in mlx-lm's order and before the temperature. mlx-lm's own
draw is not used: it advances `mx.random.state`, which all sequences would share, so that a sibling would change what
a seed gives. Here each draw has a key of its own, made from the sequence's seed and the index of the token and from
nothing else: a seed gives the same tokens alone, beside siblings, and again after a rollback. The filters are
compiled by mlx-lm with that global state as an input and an output, but draw nothing and leave it as it was.

A draw is the best of scores with Gumbel noise, and not `mx.random.categorical`, which looks a uniform number up in the
running sum (MLX 0.32.4): both have the odds of the scores, but only the former lets two draws with one key and nearly
the same scores be nearly always the same token, which is how a draft comes to be accepted (see `accept`).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import cast

import mlx.core as mx
import msgspec
from mlx_lm.sample_utils import apply_top_k, apply_top_p

from server.engine.logprobs import Logprobs
from server.engine.request import Sampling

LOWEST_TEMPERATURE = 1e-6
"""Under this the draw is greedy. Random noise of 15 times the temperature is lost in float32 logits of size 100
(resolution 8e-6), and 1 / temperature would in the end overflow to infinity."""

LOWEST_TOP_P = 1e-6
"""A smaller top_p is raised to this; below one part in a vocabulary it keeps the best token alone either way. mlx-lm's
filter compares in float32, and with a top_p that rounds to 0 it reads past the end of the row."""

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Drawn(msgspec.Struct, frozen=True):
    """Tokens on their way: lazy, to be evaluated with the state of their sequence."""

    tokens: mx.array
    """(rows,) token ids."""
    peaks: mx.array
    """(rows,) each row's highest logit; MLX's maximum is NaN when any logit is."""
    logprobs: Logprobs | None = None
    """When they were asked for."""

    def arrays(self) -> list[mx.array]:
        """What is to be evaluated."""
        return [self.tokens, self.peaks, *(self.logprobs.arrays() if self.logprobs else ())]

    def read(self) -> tuple[list[int], list[float]]:
        """Token ids and peaks; waits for them."""
        return cast("list[int]", self.tokens.tolist()), cast("list[float]", self.peaks.tolist())


class TokenSampler:
    """Draws the tokens of one sequence. Values out of range are brought into it, whoever let them through."""

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        self._seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        self._temperature = sampling.temperature
        self._filters = _build_filters(sampling, vocab_size)
        self._greedy = not sampling.temperature >= LOWEST_TEMPERATURE or sampling.top_k == 1

    def draw(self, logits: mx.array, index: int) -> Drawn:
        """Tokens number `index`, `index` + 1, ... of the sequence, from logits (rows, V) float32. Lazy.

        A row's token depends on its logits, the seed and its index, and on no other row.
        """
        peaks = mx.max(logits, axis=-1)  # (rows,)
        if self._greedy:
            return Drawn(mx.argmax(logits, axis=-1), peaks)  # the lowest id of equals
        scores = logits - peaks[:, None]  # (rows, V), highest 0: all that the filters ask of log-probabilities
        for apply in self._filters:
            scores = apply(scores)
        scores = scores * (1.0 / self._temperature)
        keys = [mx.random.key(mix_seed(self._seed, index + row)) for row in range(logits.shape[0])]
        noise = [mx.random.gumbel((1, logits.shape[1]), key=key) for key in keys]
        return Drawn(mx.argmax(scores + (noise[0] if len(noise) == 1 else mx.concatenate(noise)), axis=-1), peaks)


def explain_unusable(peak: float) -> str:
    """What is said of a sequence whose scores cannot be drawn from."""
    what = "not numbers" if math.isnan(peak) else "infinite"
    return f"The model's scores for the next token of this sequence are {what}."


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
