from __future__ import annotations

import random

import msgspec
import pytest

from server.engine.cost import COEFFICIENTS, CostModel, StepLoad, predict_s
from server.events import StepCost

TRUTH = StepCost(
    step_s=0.002,
    sequence_s=0.001,
    wide_s=0.0015,
    row_s=0.0004,
    context_s=0.0003,
    prefill_s=0.012,
    prefill_context_s=0.002,
    draft_call_s=0.0006,
    draft_row_s=0.0001,
)


def draw_load(rng: random.Random) -> StepLoad:
    sequences = rng.randint(1, 3)
    depth = rng.randint(0, 4)
    return StepLoad(
        sequences=sequences,
        rows=sequences * (1 + depth),
        wide_sequences=sequences if depth else 0,
        context_tokens=sequences * rng.randint(100, 30_000),
        prefill_tokens=rng.choice([0, 0, 0, 64, 256, 1024]),
        prefill_context_tokens=rng.randint(0, 20_000),
        draft_calls=depth,
        draft_rows=sequences * 2 * depth,
    )


def learn(model: CostModel, steps: int, noise: float = 0.0, seed: int = 1, slower: float = 1.0) -> None:
    rng = random.Random(seed)
    for _ in range(steps):
        load = draw_load(rng)
        model.observe(load, slower * predict_s(TRUTH, load) * (1 + noise * rng.uniform(-1, 1)))


def misses(cost: StepCost, slower: float = 1.0) -> list[float]:
    rng = random.Random(99)
    loads = [draw_load(rng) for _ in range(200)]
    return sorted(abs(predict_s(cost, load) / (slower * predict_s(TRUTH, load)) - 1) for load in loads)


def test_nothing_measured_predicts_nothing_and_says_so() -> None:
    cost = CostModel().cost
    assert (predict_s(cost, StepLoad(sequences=1, rows=1)), cost.error_ratio, cost.steps) == (0, 1, 0)


def test_every_coefficient_is_a_field_and_every_column_has_one() -> None:
    assert len(StepLoad().columns()) == len(COEFFICIENTS)
    assert {*COEFFICIENTS, "pace_ratio", "error_ratio", "steps"} == set(StepCost.__struct_fields__)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_sets_of_streams_that_were_never_run_are_predicted(noise: float) -> None:
    model = CostModel()
    learn(model, 600, noise)
    errors = misses(model.cost)
    assert errors[100] < 0.03 + noise / 4
    assert errors[190] < 0.12 + noise / 2


def test_its_error_is_what_its_predictions_missed_by() -> None:
    model = CostModel()
    learn(model, 400, noise=0.3)
    assert model.cost.error_ratio == pytest.approx(0.15, abs=0.07)


def test_a_machine_that_gets_slower_is_followed() -> None:
    model = CostModel()
    learn(model, 400)
    learn(model, 400, slower=2.0, seed=2)
    assert misses(model.cost, slower=2.0)[150] < 0.1


@pytest.mark.parametrize("slower", [2.0, 0.5])
def test_another_pace_is_felt_within_ten_steps_and_what_was_fitted_stays(slower: float) -> None:
    model = CostModel()
    learn(model, 400)
    learn(model, 10, slower=slower, seed=2)
    assert misses(model.cost, slower)[150] < 0.2
    learn(model, 10, seed=3)
    assert misses(model.cost)[150] < 0.2
    assert model.cost.pace_ratio == pytest.approx(1, abs=0.2)


def test_one_stall_of_seconds_hardly_counts() -> None:
    model = CostModel()
    learn(model, 400)
    load = StepLoad(sequences=1, rows=1)
    before = predict_s(model.cost, load)
    model.observe(load, 30.0)
    learn(model, 4, seed=3)
    assert predict_s(model.cost, load) == pytest.approx(before, rel=0.25)


def test_more_work_never_looks_cheaper() -> None:
    rng, model = random.Random(4), CostModel()
    for _ in range(300):  # times that have nothing to do with the load
        model.observe(draw_load(rng), rng.uniform(0.001, 0.1))
        assert min(msgspec.structs.asdict(model.cost)[name] for name in COEFFICIENTS) >= 0


def test_a_long_time_without_prompts_does_not_forget_what_they_cost() -> None:
    model = CostModel()
    learn(model, 400)
    chunk = StepLoad(prefill_tokens=512, prefill_context_tokens=2048)
    for _ in range(5000):
        model.observe(StepLoad(sequences=1, rows=1, context_tokens=5000), 0.0041)
    assert predict_s(model.cost, chunk) == pytest.approx(predict_s(TRUTH, chunk), rel=0.35)


def test_a_time_of_nothing_is_no_step() -> None:
    model = CostModel()
    model.observe(StepLoad(sequences=1, rows=1), 0.0)
    assert model.cost.steps == 0
