from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.depth import (
    FIRST_PATIENCE_ROUNDS,
    LEAST_GAIN,
    LONGEST_PATIENCE_ROUNDS,
    MAX_DEPTH,
    PRIOR_RATE,
    PROBE_ROUNDS,
    Belief,
    Choice,
    choose_depth,
    look_aside,
)

FREE = (0.010,) * 5
CHEAP = (0.010, 0.0115, 0.013, 0.0145, 0.016)
DEAR = (0.010, 0.025, 0.040, 0.055, 0.070)


def believe(*rates: float, rounds: int = 400, seed: int = 0) -> Belief:
    """After many rounds at the greatest depth with these chances."""
    rng, belief = random.Random(seed), Belief()
    for _ in range(rounds):
        accepted = 0
        while accepted < len(rates) and rng.random() < rates[accepted]:
            accepted += 1
        belief = belief.learn(len(rates), accepted)
    return belief


def settle(belief: Belief, step_s: tuple[float, ...], rounds: int = 30, others: float = 0.0) -> Choice:
    choice = Choice()
    for _ in range(rounds):
        choice = choose_depth(choice, belief, step_s, others)
    return choice


def test_before_any_draft_the_prior_is_believed() -> None:
    assert [Belief().rate(depth) for depth in range(1, MAX_DEPTH + 1)] == pytest.approx([PRIOR_RATE] * MAX_DEPTH)


def test_rates_are_learned_by_depth() -> None:
    belief = believe(0.9, 0.6, 0.3)
    assert belief.rate(1) == pytest.approx(0.9, abs=0.12)
    assert belief.rate(2) == pytest.approx(0.6, abs=0.15)
    assert belief.rate(3) == pytest.approx(0.3, abs=0.15)


def test_a_rejected_draft_says_nothing_of_those_behind_it() -> None:
    belief = Belief().learn(4, 0)
    assert belief.tried == (1, 0, 0, 0)
    assert Belief().learn(4, 2).tried == (1, 1, 1, 0)
    assert Belief().learn(2, 2).accepted == (1, 1, 0, 0)


def test_expected_tokens_of_a_perfect_head_are_its_depth_plus_one() -> None:
    assert believe(1.0, 1.0, 1.0, 1.0).expected_tokens() == pytest.approx((1, 2, 3, 4, 5), abs=0.3)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=60))
def test_beliefs_stay_chances_and_deeper_never_brings_less(rounds: list[tuple[int, int]]) -> None:
    belief = Belief()
    for drafted, accepted in rounds:
        belief = belief.learn(drafted, min(drafted, accepted))
    assert all(0 <= belief.rate(depth) <= 1 for depth in range(1, MAX_DEPTH + 1))
    tokens = belief.expected_tokens()
    assert list(tokens) == sorted(tokens)


@pytest.mark.parametrize(
    ("rates", "step_s", "depth"),
    [
        ((0.95, 0.95, 0.95, 0.95), CHEAP, 4),
        ((0.9, 0.02, 0.1, 0.1), CHEAP, 1),
        ((0.1, 0.1, 0.1, 0.1), CHEAP, 0),
        ((0.95, 0.95, 0.95, 0.95), DEAR, 0),
    ],
)
def test_the_depth_that_brings_most_is_taken(rates: tuple[float, ...], step_s: tuple[float, ...], depth: int) -> None:
    choice = choose_depth(Choice(), believe(*rates), step_s, 0.0)
    assert choice.depth == depth
    assert bool(choice.why_not) == (depth == 0)


def test_a_choice_is_the_best_of_all_within_the_hysteresis() -> None:
    belief = believe(0.8, 0.7, 0.6, 0.5)
    for depth in range(1, MAX_DEPTH + 1):
        choice = choose_depth(Choice(depth), belief, CHEAP, 0.0)
        rates = [tokens / s for tokens, s in zip(belief.expected_tokens(), CHEAP, strict=True)]
        assert rates[choice.depth] * (1 + LEAST_GAIN) >= max(rates)


def test_a_small_gain_changes_nothing() -> None:
    belief = Belief((1e6,) * 4, (0.5e6,) * 4)
    level = (0.010, 0.0150, 0.0175, 0.01875, 0.019375)  # each depth brings just what it costs
    slightly = (*level[:3], level[3] / (1 + LEAST_GAIN / 2), level[4])
    assert choose_depth(Choice(2), belief, level, 0.0).depth == 2
    assert choose_depth(Choice(2), belief, slightly, 0.0).depth == 2
    clearly = (*level[:3], level[3] / (1 + 2 * LEAST_GAIN), level[4])
    assert choose_depth(Choice(2), belief, clearly, 0.0).depth == 3


def test_what_slows_the_others_counts() -> None:
    belief = believe(0.6, 0.6, 0.6, 0.6)
    step_s = (0.010, 0.013, 0.016, 0.019, 0.022)
    assert choose_depth(Choice(), belief, step_s, 0.0).depth > 0
    assert choose_depth(Choice(), belief, step_s, 6.0).depth == 0


def test_when_it_loses_it_says_what_it_would_bring() -> None:
    choice = choose_depth(Choice(), believe(0.1, 0.1, 0.1, 0.1), CHEAP, 0.0)
    assert choice.why_not.startswith("drafting would bring ")
    assert choice.why_not.endswith("tok/s, decoding plainly brings 100")


def test_at_rest_it_probes_ever_more_seldom_and_comes_back_when_it_pays() -> None:
    losing, choice = believe(0.1, 0.1, 0.1, 0.1), choose_depth(Choice(), believe(0.1, 0.1, 0.1, 0.1), CHEAP, 0.0)
    rests: list[int] = []
    for _ in range(8):
        rests.append(choice.review_in_rounds)
        probe = choose_depth(choice, losing, CHEAP, 0.0)
        assert (probe.depth, probe.review_in_rounds, probe.is_probe) == (1, PROBE_ROUNDS, True)
        choice = choose_depth(probe, losing, CHEAP, 0.0)
        assert choice.depth == 0
    assert rests[:3] == [FIRST_PATIENCE_ROUNDS, 2 * FIRST_PATIENCE_ROUNDS, 4 * FIRST_PATIENCE_ROUNDS]
    assert rests[-1] == LONGEST_PATIENCE_ROUNDS
    back = choose_depth(choose_depth(choice, losing, CHEAP, 0.0), believe(0.95, 0.9, 0.9, 0.9), CHEAP, 0.0)
    assert back.depth > 1
    assert back.patience_rounds == FIRST_PATIENCE_ROUNDS


def test_a_probe_that_gains_nothing_goes_back_to_rest() -> None:
    belief = Belief((1e6,) * 4, (0.15e6,) * 4)
    probe = Choice(1, "", 0, 96, is_probe=True)
    assert choose_depth(probe, belief, (0.010, 0.0115, 0.0130, 0.0145, 0.0160), 0.0).depth == 0


def test_with_drafts_for_nothing_it_drafts_as_deep_as_it_can() -> None:
    assert settle(Belief(), FREE).depth == MAX_DEPTH


def test_old_evidence_fades_so_that_deeper_drafts_are_tried_again() -> None:
    belief = believe(0.9, 0.9, 0.05, 0.05)
    assert belief.rate(3) < 0.25
    for _ in range(1200):
        belief = belief.learn(2, 2)
    assert belief.rate(3) > 0.7


def test_now_and_then_a_neighbouring_depth_is_tried() -> None:
    tried = [look_aside(2, rounds) for rounds in range(32)]
    assert tried.count(2) == 28
    assert (tried.count(3), tried.count(1)) == (2, 2)


@pytest.mark.parametrize(("depth", "neighbours"), [(0, {0}), (1, {1, 2}), (MAX_DEPTH, {MAX_DEPTH, MAX_DEPTH - 1})])
def test_no_neighbour_is_out_of_range_and_rest_is_rest(depth: int, neighbours: set[int]) -> None:
    assert {look_aside(depth, rounds) for rounds in range(40)} == neighbours


def test_what_the_cost_model_is_unsure_of_is_no_gain() -> None:
    belief = believe(0.95, 0.95, 0.95, 0.95)
    assert choose_depth(Choice(1), belief, CHEAP, 0.0).depth == 4
    assert choose_depth(Choice(1), belief, CHEAP, 0.0, doubt=2.0).depth == 1
