from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.memory_plan import GIB, MemoryPlan, StreamCost, find_budget, say_bytes


@settings(deadline=None)
@given(st.integers(0, 2**28), st.integers(1, 2**20), st.integers(0, 2**40))
def test_the_most_tokens_are_those_that_just_fit(fixed: int, token: int, room: int) -> None:
    cost = StreamCost(fixed, token)
    most = cost.tokens_within(room)
    if most:
        assert cost.at(most) <= room
    # Two of nine and ten tokens round alike, so the next but one is the first that must not fit.
    assert cost.at(most + 2) > room


def test_a_stream_without_rows_fits_at_any_length_or_at_none() -> None:
    cost = StreamCost(1000, 0)
    assert cost.tokens_within(1999) == 0
    assert cost.tokens_within(2000) > 10**9


def test_what_is_left_for_streams_is_the_budget_less_the_model_and_a_step_s_work() -> None:
    plan = MemoryPlan(100 * GIB, 70 * GIB, StreamCost(0, 2**15))
    assert plan.room_bytes == 25 * GIB
    assert plan.most_tokens == plan.stream.tokens_within(25 * GIB)
    assert MemoryPlan(10 * GIB, 70 * GIB).room_bytes == 0
    assert MemoryPlan(GIB // 10, 0).room_bytes == GIB // 10 - 32 * 2**20
    assert MemoryPlan().most_tokens is None


@pytest.mark.parametrize(("given_gib", "budget"), [(-1.0, 7), (0.0, 0), (1.5, 3 * 2**29)])
def test_a_budget_that_is_left_open_is_the_device_s(given_gib: float, budget: int) -> None:
    assert find_budget(given_gib, 7) == budget


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0.0 MiB"),
        (3 * 2**19, "1.5 MiB"),
        (102 * 2**20, "102.0 MiB"),
        (503 * 2**20, "0.49 GiB"),
        (2**30, "1.0 GiB"),
        (99 * 2**30, "99.0 GiB"),
        (503 * 2**30, "0.49 TiB"),
        (3 * 2**40, "3.0 TiB"),
    ],
)
def test_amounts_are_said_in_units_that_fit(count: int, said: str) -> None:
    assert say_bytes(count) == said


def test_amounts_can_be_cut_upwards_and_downwards() -> None:
    assert say_bytes(50 * 2**20 + 1, math.ceil) == "50.1 MiB"
    assert say_bytes(50 * 2**20 - 1, math.floor) == "49.9 MiB"
