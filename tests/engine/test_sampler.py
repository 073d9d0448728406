from __future__ import annotations

import math

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.accept import count_usable
from server.engine.request import Sampling
from server.engine.sampler import TokenSampler, explain_unusable, mix_seed

LOGITS = (0.1, 2.0, -1.0, 1.5, 2.0, 0.0, -3.0, 1.0)


def draw_many(sampling: Sampling, count: int, logits: tuple[float, ...] = LOGITS) -> list[int]:
    sampler = TokenSampler(sampling, len(logits))
    row = mx.array([logits])
    drawn = [sampler.draw(row, index) for index in range(count)]
    mx.eval([d.tokens for d in drawn])
    return [token for d in drawn for token in d.read()[0]]


def probabilities(logits: tuple[float, ...], temperature: float) -> list[float]:
    weights = [math.exp(logit / temperature) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    assert draw_many(Sampling(temperature=0), 3) == [1, 1, 1]
    assert draw_many(Sampling(temperature=0), 1, (5.0,) * 3000) == [0]


@pytest.mark.parametrize("sampling", [Sampling(temperature=1e-300), Sampling(temperature=1e-6), Sampling(top_k=1)])
def test_all_but_no_randomness_is_the_best_token(sampling: Sampling) -> None:
    assert set(draw_many(sampling, 20, (0.0, 1.0, 4.0, 2.0))) == {2}


def test_the_same_seed_draws_the_same_tokens_and_another_seed_others() -> None:
    first = draw_many(Sampling(seed=7), 60)
    assert draw_many(Sampling(seed=7), 60) == first
    assert draw_many(Sampling(seed=8), 60) != first


def test_without_a_seed_each_sequence_has_its_own() -> None:
    assert draw_many(Sampling(), 60) != draw_many(Sampling(), 60)


def test_a_draw_is_addressed_by_its_index_alone() -> None:
    sampler = TokenSampler(Sampling(seed=3), len(LOGITS))
    row = mx.array([LOGITS])
    forwards = [sampler.draw(row, index).read()[0] for index in range(20)]
    backwards = [sampler.draw(row, index).read()[0] for index in reversed(range(20))]
    assert backwards == forwards[::-1]


def test_global_random_state_neither_steers_a_draw_nor_moves_by_it() -> None:
    sampling = Sampling(seed=7, top_p=0.9, min_p=0.01, top_k=6)
    mx.random.seed(1)
    expected = mx.random.uniform(shape=(4,)).tolist()
    mx.random.seed(1)
    first = draw_many(sampling, 40)
    assert mx.random.uniform(shape=(4,)).tolist() == expected
    mx.random.seed(2)
    assert draw_many(sampling, 40) == first


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_distribution(temperature: float) -> None:
    count = 3000
    drawn = draw_many(Sampling(temperature=temperature, seed=11), count)
    for token, expected in enumerate(probabilities(LOGITS, temperature)):
        spread = math.sqrt(expected * (1 - expected) / count)
        assert abs(drawn.count(token) / count - expected) < 4.5 * spread + 1e-9


def test_neighbouring_seeds_are_not_shifted_copies() -> None:
    streams = [draw_many(Sampling(seed=seed), 200) for seed in range(3)]
    agree = sum(a == b for a, b in zip(streams[0][1:], streams[1][:-1], strict=True))
    chance = sum(p * p for p in probabilities(LOGITS, 1.0))
    assert agree / 199 < chance + 0.15


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(top_k=2), {1, 4}),
        (Sampling(top_k=3), {1, 4, 3}),
        (Sampling(top_p=0.5), {1, 4}),
        (Sampling(min_p=0.5), {1, 4, 3}),
        (Sampling(min_p=1.0), {1, 4}),
        (Sampling(top_p=1e-300), {1, 4}),
        (Sampling(top_p=5e-324, top_k=5), {1, 4}),
    ],
)
def test_filters_keep_the_tokens_they_should(sampling: Sampling, allowed: set[int]) -> None:
    assert set(draw_many(sampling, 200)) == allowed


@given(
    temperature=st.floats(-1, 3),
    top_p=st.floats(-0.5, 1.5),
    top_k=st.integers(-5, 10**9),
    min_p=st.floats(-1, 2),
    seed=st.integers(-(2**70), 2**70),
)
@settings(max_examples=60, deadline=None)
def test_no_value_whatever_reaches_mlx_unguarded(
    temperature: float, top_p: float, top_k: int, min_p: float, seed: int
) -> None:
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed)
    assert all(0 <= token < len(LOGITS) for token in draw_many(sampling, 3))


def test_not_a_number_for_temperature_is_greedy() -> None:
    assert draw_many(Sampling(temperature=math.nan), 2) == [1, 1]


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(seed=1), Sampling(seed=1, top_p=0.5, top_k=3)])
@pytest.mark.parametrize(
    ("logits", "said"),
    [
        ((0.0, math.nan, 1.0), "not numbers"),
        ((math.nan,) * 3, "not numbers"),
        ((0.0, math.inf, 1.0), "infinite"),
        ((-math.inf,) * 3, "infinite"),
    ],
)
def test_unusable_logits_are_told_by_their_peak(sampling: Sampling, logits: tuple[float, ...], said: str) -> None:
    ((peak,)) = TokenSampler(sampling, len(logits)).draw(mx.array([logits]), 0).read()[1]
    assert count_usable([0.5, peak]) == 1
    assert said in explain_unusable(peak)


@pytest.mark.parametrize("position", [0, 1, 7, 8, 1023, 4098])
def test_one_bad_logit_is_found_wherever_it_is(position: int) -> None:
    logits = [0.5] * 4099
    logits[position] = math.nan
    peaks = TokenSampler(Sampling(temperature=0), 4099).draw(mx.array([[0.5] * 4099, logits]), 0).read()[1]
    assert count_usable(peaks) == 1


def test_a_masked_token_is_fine_and_never_drawn() -> None:
    logits = (0.0, -math.inf, 0.0)
    assert set(draw_many(Sampling(seed=5), 100, logits)) == {0, 2}
    assert set(draw_many(Sampling(seed=5, top_p=0.99, min_p=0.01), 100, logits)) == {0, 2}


def test_mixed_seeds_do_not_collide() -> None:
    assert len({mix_seed(seed, index) for seed in range(100) for index in range(100)}) == 10_000


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0), Sampling(seed=6), Sampling(seed=6, top_p=0.8, top_k=5, min_p=0.02)]
)
def test_rows_drawn_together_are_what_each_draws_alone(sampling: Sampling) -> None:
    sampler = TokenSampler(sampling, len(LOGITS))
    rows = mx.array([[logit * scale for logit in LOGITS] for scale in (1.0, 0.5, -1.0, 2.0, 0.1)])
    together = sampler.draw(rows, 30).read()
    alone = [sampler.draw(rows[i : i + 1], 30 + i).read() for i in range(5)]
    assert together == ([token for tokens, _ in alone for token in tokens], [p for _, peaks in alone for p in peaks])
