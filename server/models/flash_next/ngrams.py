"""Token n-grams as rows of a hash table: which rows a token looks up, computed in whole numbers on the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from server.models.flash_next.config import FlashNextConfig

GAMMA = 0x9E3779B97F4A7C15
"""The increment of splitmix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014."""
LAYER_SALT = 10_007
"""Keeps the hashes of several PLE layers apart. Source: `qwen4_exp` of transformers 5.24."""
WORD = (1 << 64) - 1

Ints = npt.NDArray[np.int64]


class NgramHash:
    """The hash of one PLE layer: odd multipliers, one prime and one first row per head."""

    def __init__(self, multipliers: Ints, primes: Ints, offsets: Ints, eos: int) -> None:
        self.multipliers, self.primes, self.offsets, self.eos = multipliers, primes, offsets, eos
        self.heads_per_ngram = len(primes) // (len(multipliers) - 1)

    @property
    def context(self) -> int:
        """Earlier tokens that a lookup depends on."""
        return len(self.multipliers) - 1

    def find_rows(self, earlier: Sequence[int], tokens: Sequence[int]) -> Ints:
        """Table rows (T, heads) of `tokens`, which follow the `context` tokens in `earlier`."""
        shifted = self._shift(np.array([*earlier, *tokens], np.int64), len(tokens))  # (T, n)
        products = shifted * self.multipliers
        mixed = np.bitwise_xor.accumulate(products, axis=1)[:, 1:]  # (T, n-1): bigram, trigram, ...
        by_head = np.repeat(mixed, self.heads_per_ngram, axis=1)
        return by_head % self.primes + self.offsets

    def _shift(self, tokens: Ints, count: int) -> Ints:
        """Each row a token, then the ones before it; from an end of text backwards all are the end of text."""
        shifted = [tokens[self.context :]]
        ended = np.zeros(count, bool)
        for back in range(1, self.context + 1):
            earlier = tokens[self.context - back : len(tokens) - back]
            ended = ended | (earlier == self.eos)
            shifted.append(np.where(ended, self.eos, earlier))
        return np.stack(shifted, axis=1)


def derive_multipliers(config: FlashNextConfig, place: int) -> Ints:
    """The multipliers of the PLE layer that is `place`-th (from 0) among the PLE layers."""
    bound = max(((1 << 63) - 1) // config.vocab_size // 2, 1)
    seed = config.seed + LAYER_SALT * place
    drawn = [_splitmix64((seed + GAMMA * (j + 1)) & WORD) for j in range(config.ngram_size)]
    return np.array([2 * (value % bound) + 1 for value in drawn], np.int64)


def derive_primes(config: FlashNextConfig, place: int) -> Ints:
    """The table sizes of the heads of the `place`-th PLE layer: consecutive primes, no two layers share one."""
    heads = config.ngram_heads
    primes: list[int] = []
    candidate = config.ngram_vocab_size_base
    while len(primes) < (place + 1) * heads:
        if _is_prime(candidate):
            primes.append(candidate)
        candidate += 1
    return np.array(primes[place * heads :], np.int64)


def derive_offsets(primes: Ints) -> Ints:
    """Where each head's rows begin: the tables lie one after the other."""
    return np.concatenate([[0], np.cumsum(primes)[:-1]]).astype(np.int64)


def _splitmix64(state: int) -> int:
    mixed = (state + GAMMA) & WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & WORD
    return mixed ^ (mixed >> 31)


def _is_prime(number: int) -> bool:
    if number < 4:
        return number > 1
    if number % 2 == 0:
        return False
    divisor = 3
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 2
    return True
