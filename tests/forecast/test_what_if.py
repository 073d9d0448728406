from __future__ import annotations

from typing import Any

import pytest

from server.events import StepCost
from server.forecast.arrivals import Arrival
from server.forecast.forecaster import Known
from server.forecast.prior import Physics
from server.forecast.what_if import Situation, forecast_what_if
from server.memory_plan import GIB
from server.policy import Policy, apply_changes, validate_policy


def build_policy(**changes: Any) -> Policy:
    return validate_policy(apply_changes({}, {name.replace("__", "."): value for name, value in changes.items()}))


def ask(facts: Any, policy: Policy, situation: Situation, arrivals: Any = ()) -> Any:
    model = facts()
    known = Known(Physics(model.reads, model.bandwidth_bps, model.timed), (), StepCost())
    return forecast_what_if(policy, situation, known, model, arrivals)


def test_rates_waits_and_memory_of_the_imagined_streams(facts: Any) -> None:
    policy = build_policy(engine__memory_budget_gib=1.5, policy__max_in_flight=3, policy__max_context_tokens=4096)
    found = ask(facts, policy, Situation(2, 1000, 1000))
    assert found.decode_tps == pytest.approx(1 / (0.01 + 2000 * 1e-8))
    assert found.together_tps == 2 * found.decode_tps
    assert (found.basis, found.ttft_s, found.replay) == ("estimate", None, None)
    memory = found.memory
    # A token takes 1,000 bytes; buffers may be an eighth and 512 tokens longer.
    assert memory.streams_bytes == 2 * 1000 * (1000 + 125 + 512)
    assert memory.worst_bytes == 3 * 1000 * (4096 + 512 + 512)
    assert (memory.budget_bytes, memory.stream_limit_tokens) == (int(1.5 * GIB), 4096)
    assert memory.room_bytes == memory.budget_bytes - 10**9 - int(0.05 * 1.5 * GIB)
    assert memory.most_streams == memory.room_bytes // (1000 * 5120)
    assert memory.fits


def test_streams_that_do_not_fit_are_told_and_without_a_budget_all_fit(facts: Any) -> None:
    tight = build_policy(engine__memory_budget_gib=1.0)
    assert not ask(facts, tight, Situation(64, 1_000_000, 1)).memory.fits
    free = ask(facts, build_policy(engine__memory_budget_gib=0.0), Situation(64, 1_000_000, 1)).memory
    assert (free.fits, free.most_streams) == (True, None)


@pytest.mark.parametrize(
    ("floor", "streams", "keeps"), [(0.0, 2, True), (99.0, 2, True), (100.0, 2, False), (100.0, 1, True)]
)
def test_the_floor_is_for_more_than_one_stream(facts: Any, floor: float, streams: int, keeps: bool) -> None:
    found = ask(facts, build_policy(policy__min_decode_tps=floor), Situation(streams, 1000, 1000))
    assert found.keeps_floor is keeps


def test_those_who_came_are_led_through_the_new_limits(facts: Any) -> None:
    arrivals = [Arrival(float(number), "s", "unknown", 10, 10, 60.0) for number in range(3)]
    found = ask(facts, build_policy(policy__max_in_flight=1), Situation(1, 1, 1), arrivals)
    assert found.replay.refused_by_code == {"in_flight_full": 2}
