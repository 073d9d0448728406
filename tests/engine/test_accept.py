"""Acceptance keeps the target's distribution: shown by counting, with wrong rules beside it that the count catches."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from itertools import product

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from server.engine.accept import accept, count_usable
from server.engine.request import Sampling
from server.engine.sampler import TokenSampler

TARGET = (
    (1.0, 0.2, -0.5, 0.8, -2.0),
    (0.0, 1.5, 0.3, -1.0, 0.9),
    (-0.4, 0.1, 1.2, 1.0, 0.2),
    (0.7, -0.3, 0.6, 0.0, 0.5),
    (0.3, 0.2, -1.5, 1.4, 0.9),
)
"""Logits of the model after each token of a vocabulary of five."""
HEAD = tuple(tuple(row[(i + 1) % 5] * 0.6 + row[i] * 0.7 for i in range(5)) for row in TARGET)
"""What a head believes: partly right."""
VOCAB = 5
START = 0
DEPTH = 2
STREAMS = 2000
EMITTED = 2

Row = tuple[float, ...]


@pytest.mark.parametrize(
    ("drafted", "drawn", "kept"),
    [((), (4,), 0), ((4,), (4, 9), 1), ((5,), (4, 9), 0), ((4, 9, 2), (4, 9, 3, 1), 2), ((4, 0, 3), (4, 9, 3, 1), 1)],
)
def test_the_longest_agreeing_prefix_is_kept(drafted: Row, drawn: Row, kept: int) -> None:
    assert accept([int(token) for token in drafted], [int(token) for token in drawn]) == kept


@given(st.lists(st.integers(0, 2), max_size=4), st.lists(st.integers(0, 2), min_size=5, max_size=5))
def test_what_is_kept_is_what_was_drawn_and_the_next_one_is_not(drafted: list[int], drawn: list[int]) -> None:
    kept = accept(drafted, drawn[: len(drafted) + 1])
    assert drafted[:kept] == drawn[:kept]
    assert kept == len(drafted) or drafted[kept] != drawn[kept]


def test_rows_are_usable_up_to_the_first_that_is_not() -> None:
    assert count_usable([1.0, 2.0, math.nan, 1.0]) == 2
    assert count_usable([math.inf]) == 0
    assert count_usable([]) == 0


def filtered(logits: Row, sampling: Sampling) -> Row:
    """The target's distribution, worked out by hand: top-p, min-p and top-k on the plain odds, then the temperature."""
    odds = [math.exp(logit) for logit in logits]
    odds = [each / sum(odds) for each in odds]
    order = sorted(range(len(odds)), key=lambda i: -odds[i])
    kept = [i for place, i in enumerate(order) if sum(odds[j] for j in order[:place]) < sampling.top_p]
    kept = [i for i in kept if odds[i] >= sampling.min_p * max(odds)]
    kept = kept[: sampling.top_k or VOCAB]
    weights = [math.exp(logits[i] / sampling.temperature) if i in kept else 0.0 for i in range(len(odds))]
    return tuple(weight / sum(weights) for weight in weights)


Rule = Callable[[int, int, int, Sampling], list[int]]
"""The tokens of one round, from the newest token, their index, the stream's seed, and the sampling."""


def by_our_rule(newest: int, index: int, seed: int, sampling: Sampling) -> list[int]:
    sampler = TokenSampler(replace(sampling, seed=seed), 5)
    drafted: list[int] = []
    for number in range(DEPTH):
        logits = mx.array([HEAD[drafted[-1] if drafted else newest]])
        drafted += sampler.draw(logits, index + number).read()[0]
    drawn, _ = sampler.draw(mx.array([TARGET[token] for token in (newest, *drafted)]), index).read()
    return drawn[: accept(drafted, drawn) + 1]


def by_chance(pick: Callable[[Row, Row, int, random.Random], int | None]) -> Rule:
    """A rule that draws its drafts by dice of their own; `pick` gives another token for a draft that is rejected."""

    def rule(newest: int, index: int, seed: int, sampling: Sampling) -> list[int]:
        rng = random.Random(seed * 1000 + index)
        tokens: list[int] = []
        for _ in range(DEPTH):
            before = tokens[-1] if tokens else newest
            p, q = filtered(TARGET[before], sampling), filtered(HEAD[before], sampling)
            draft = rng.choices(range(VOCAB), q)[0]
            instead = pick(p, q, draft, rng)
            tokens.append(draft if instead is None else instead)
            if instead is not None:
                return tokens
        return [*tokens, rng.choices(range(VOCAB), filtered(TARGET[tokens[-1]], sampling))[0]]

    return rule


def with_residual(p: Row, q: Row, draft: int, rng: random.Random) -> int | None:
    if rng.random() < p[draft] / q[draft]:
        return None
    return rng.choices(range(VOCAB), [max(0.0, a - b) for a, b in zip(p, q, strict=True)])[0]


def from_the_target_again(p: Row, q: Row, draft: int, rng: random.Random) -> int | None:
    return None if rng.random() < p[draft] / q[draft] else rng.choices(range(VOCAB), p)[0]


def when_it_is_the_best(p: Row, q: Row, draft: int, rng: random.Random) -> int | None:
    return None if p[draft] == max(p) else rng.choices(range(VOCAB), p)[0]


def by_our_rule_unfiltered(newest: int, index: int, seed: int, sampling: Sampling) -> list[int]:
    return by_our_rule(newest, index, seed, Sampling(temperature=sampling.temperature))


def by_our_rule_untempered(newest: int, index: int, seed: int, sampling: Sampling) -> list[int]:
    return by_our_rule(newest, index, seed, Sampling(top_p=sampling.top_p, top_k=sampling.top_k))


def surprise(rule: Rule, sampling: Sampling) -> float:
    """How far pairs of tokens are from their odds: chi-square, in standard deviations above what chance gives."""
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(STREAMS):
        tokens: list[int] = []
        while len(tokens) < EMITTED:
            tokens += rule(tokens[-1] if tokens else START, len(tokens), seed, sampling)
        counts[tuple(tokens[:EMITTED])] += 1
    chi, cells = 0.0, 0
    for pair in product(range(VOCAB), repeat=EMITTED):
        first, second = pair
        odds = filtered(TARGET[START], sampling)[first] * filtered(TARGET[first], sampling)[second]
        if odds == 0 and counts[pair]:
            return math.inf
        if odds:
            chi += (counts[pair] - STREAMS * odds) ** 2 / (STREAMS * odds)
            cells += 1
    return (chi - (cells - 1)) / math.sqrt(2 * (cells - 1))


SAMPLINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.6),
    Sampling(temperature=1.4, top_p=0.8),
    Sampling(temperature=1.2, top_k=3),
    Sampling(temperature=0.9, min_p=0.3),
    Sampling(temperature=1.3, top_p=0.9, top_k=4, min_p=0.1),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_what_is_emitted_has_the_odds_of_the_filtered_target(sampling: Sampling) -> None:
    assert surprise(by_our_rule, sampling) < 3.5


@pytest.mark.parametrize("sampling", SAMPLINGS[:3], ids=str)
def test_the_count_agrees_with_textbook_speculative_sampling(sampling: Sampling) -> None:
    assert surprise(by_chance(with_residual), sampling) < 3.5


@pytest.mark.parametrize(
    ("rule", "sampling"),
    [
        (by_chance(from_the_target_again), SAMPLINGS[0]),
        (by_chance(when_it_is_the_best), SAMPLINGS[0]),
        (by_our_rule_unfiltered, SAMPLINGS[2]),
        (by_our_rule_unfiltered, SAMPLINGS[3]),
        (by_our_rule_untempered, SAMPLINGS[1]),
    ],
    ids=["target instead of residual", "when the best agrees", "no top-p", "no top-k", "no temperature"],
)
def test_the_count_catches_wrong_rules(rule: Rule, sampling: Sampling) -> None:
    assert surprise(rule, sampling) > 8


def test_a_seed_gives_the_same_tokens_at_every_depth() -> None:
    sampler = TokenSampler(Sampling(temperature=1.0, seed=3), VOCAB)
    plain: list[int] = []
    while len(plain) < 40:
        plain += sampler.draw(mx.array([TARGET[plain[-1] if plain else START]]), len(plain)).read()[0]
    drafted: list[int] = []
    while len(drafted) < 40:
        drafted += by_our_rule(drafted[-1] if drafted else START, len(drafted), 3, Sampling(temperature=1.0))
    assert drafted[:40] == plain


def test_shared_dice_are_accepted_more_often_than_the_best_guess() -> None:
    sampling = Sampling(temperature=1.0)
    kept = sum(len(by_our_rule(START, 0, seed, sampling)) > 1 for seed in range(STREAMS)) / STREAMS
    p, q = filtered(TARGET[START], sampling), filtered(HEAD[START], sampling)
    apart = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    noise = 3 * math.sqrt(0.25 / STREAMS)
    assert (1 - apart) / (1 + apart) - noise < kept < 1 - apart + noise
    assert kept > p[q.index(max(q))] + noise
