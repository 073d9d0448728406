from __future__ import annotations

import msgspec
import pytest

from server.events import StepCost
from server.forecast.prior import (
    EXPECTED_TOKENS,
    Physics,
    list_depths,
    predict_chunk_tps,
    predict_step_s,
    predict_token_s,
)
from server.step_reads import StepReads, TimedSteps

READS = StepReads(dense_bytes=10**9, context_bytes=10_000, head_bytes=10**8, expert_layers=9)
"""10 ms of weights at 100 GB/s; 10,000 tokens of context take 1 ms."""


def test_without_timed_steps_a_step_is_its_bytes_over_the_bandwidth() -> None:
    assert predict_step_s(Physics(READS, 1e11), 2, 10_000) == pytest.approx(0.011)


def test_what_bytes_do_not_explain_of_timed_steps_is_added() -> None:
    timed = TimedSteps(one_s=0.015, pair_s=0.018, wide_s=0.017)
    physics = Physics(READS, 1e11, timed)
    assert predict_step_s(physics, 1, 0) == pytest.approx(0.015)
    assert predict_step_s(physics, 2, 0) == pytest.approx(0.018)
    assert predict_step_s(physics, 4, 10_000) == pytest.approx(0.015 + 3 * 0.003 + 0.001)
    # Two drafts: two rows more at 1 ms each, and two calls of the head of 1 ms of bytes and a tenth of 5 ms.
    assert predict_step_s(physics, 1, 0, depth=2) == pytest.approx(0.015 + 0.002 + 2 * 0.0015)


def test_a_context_costs_what_the_far_step_took_beyond_its_bytes_once_it_is_that_long() -> None:
    # 10,000 tokens are 1 ms of bytes; the far step took 4 ms more than the one on an empty context.
    physics = Physics(READS, 1e11, TimedSteps(one_s=0.010, far_s=0.014, far_tokens=10_000))
    assert predict_step_s(physics, 1, 5_000) == pytest.approx(0.010 + 0.0005 + 0.0015)
    assert predict_step_s(physics, 1, 10_000) == pytest.approx(0.014)
    assert predict_step_s(physics, 1, 100_000) == pytest.approx(0.010 + 0.010 + 0.003)
    assert predict_step_s(physics, 2, 20_000) == pytest.approx(0.010 + 0.002 + 0.006)


def test_a_timed_step_that_is_quicker_than_its_bytes_takes_nothing_off() -> None:
    assert predict_step_s(Physics(READS, 1e11, TimedSteps(one_s=0.001)), 1, 0) == pytest.approx(0.01)


def test_a_token_is_priced_at_the_depth_that_brings_most() -> None:
    physics = Physics(READS, 1e11, depths=(0, 1, 2, 3, 4))
    each = [predict_step_s(physics, 1, 0, depth) / EXPECTED_TOKENS[depth] for depth in range(5)]
    assert predict_token_s(physics, 1, 0) == min(each) < each[0]
    assert predict_token_s(msgspec.structs.replace(physics, depths=(0,)), 1, 0) == each[0]


@pytest.mark.parametrize(
    ("setting", "has_mtp", "depths"),
    [("auto", True, (0, 1, 2, 3, 4)), ("auto", False, (0,)), ("off", True, (0,)), (3, True, (3,)), (3, False, (0,))],
)
def test_depths_are_those_that_the_policy_and_the_checkpoint_allow(
    setting: str | int, has_mtp: bool, depths: tuple[int, ...]
) -> None:
    assert list_depths(setting, has_mtp) == depths


def test_the_timed_chunk_tells_a_rate_until_prefill_was_measured() -> None:
    physics = Physics(READS, 1e11, TimedSteps(chunk_s=0.5))
    assert predict_chunk_tps(physics, StepCost()) == 128
    assert predict_chunk_tps(physics, StepCost(prefill_s=0.1)) is None
    assert predict_chunk_tps(Physics(READS, 1e11), StepCost()) is None
