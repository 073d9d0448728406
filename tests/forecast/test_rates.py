from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.forecast.measured import MeasuredPoint
from server.forecast.prior import Physics
from server.forecast.rates import Forecast, StreamLoad, forecast_rates, has_measured
from server.step_reads import StepReads, TimedSteps

PHYSICS = Physics(StepReads(dense_bytes=10**9, context_bytes=10_000), 1e11)
"""10 ms a step, and 1 ms for 10,000 tokens of context."""


def point(streams: int, context: float, step_s: float, tokens: float = 1.0, steps: float = 40.0) -> MeasuredPoint:
    return MeasuredPoint(streams, context, step_s, tokens, steps)


def test_before_anything_was_measured_rates_are_those_of_the_prior() -> None:
    forecast = forecast_rates(PHYSICS, (), [StreamLoad(0)] * 2)
    assert forecast.rates_tps == pytest.approx((100, 100))
    assert forecast.basis == "estimate"


def test_what_was_measured_there_is_what_is_forecast() -> None:
    points = [point(1, 400, 0.020), point(2, 400, 0.050)]
    forecast = forecast_rates(PHYSICS, points, [StreamLoad(200)] * 2)
    assert forecast.rates_tps == pytest.approx((20, 20), rel=0.01)
    assert forecast.basis == "measured"


def test_elsewhere_the_prior_is_scaled_by_what_is_near() -> None:
    # Twice as slow as the prior at one stream: so it is taken to be at two, and on longer contexts.
    forecast = forecast_rates(PHYSICS, [point(1, 0, 0.020)], [StreamLoad(0)] * 2)
    assert forecast.rates_tps == pytest.approx((50, 50))
    assert forecast.basis == "estimate"
    longer = forecast_rates(PHYSICS, [point(1, 0, 0.020)], [StreamLoad(10_000)])
    assert longer.rates_tps == pytest.approx((1 / 0.022,))


def test_a_stream_whose_drafts_are_taken_more_often_gets_more() -> None:
    points = [point(2, 400, 0.050, tokens=2.0)]
    forecast = forecast_rates(PHYSICS, points, [StreamLoad(200, 3.0), StreamLoad(200, 1.0), StreamLoad(200)][:2])
    assert forecast.rates_tps == pytest.approx((60, 20), rel=0.01)
    assert forecast.lowest_tps == forecast.rates_tps[1]


def test_measured_means_so_many_streams_on_contexts_alike() -> None:
    points = [point(2, 3000, 0.05)]
    assert has_measured(points, 2, 3000)
    assert has_measured(points, 2, 7000)
    assert not has_measured(points, 2, 30_000)
    assert not has_measured(points, 3, 3000)


def test_without_a_model_or_streams_there_is_nothing_to_forecast() -> None:
    assert forecast_rates(Physics(), (), [StreamLoad(1)]) == Forecast()
    assert forecast_rates(PHYSICS, (), []) == Forecast()
    assert Forecast().lowest_tps == math.inf


points_of_any_kind = st.lists(
    st.builds(
        MeasuredPoint,
        streams=st.integers(1, 12),
        context_tokens=st.floats(0, 200_000),
        step_s=st.floats(0.001, 2.0),
        tokens_per_step=st.floats(1.0, 5.0),
        steps=st.floats(16, 50),
    ),
    max_size=8,
)
loads = st.builds(StreamLoad, st.integers(0, 60_000), st.one_of(st.none(), st.floats(1.0, 5.0)))
physics_of_any_kind = st.builds(
    Physics,
    st.builds(
        StepReads,
        dense_bytes=st.integers(10**6, 10**10),
        expert_bytes=st.integers(0, 10**6),
        experts=st.just(64),
        experts_per_token=st.integers(1, 8),
        expert_layers=st.integers(0, 48),
        context_bytes=st.integers(100, 40_000),
        attended_tokens=st.sampled_from([0, 1024, 2048]),
        index_bytes=st.integers(0, 100),
        head_bytes=st.integers(0, 10**8),
        is_packed=st.booleans(),
    ),
    st.floats(1e9, 1e12),
    st.builds(
        TimedSteps,
        one_s=st.floats(0, 0.05),
        pair_s=st.floats(0, 0.1),
        wide_s=st.floats(0, 0.1),
        far_s=st.floats(0, 0.1),
        far_tokens=st.sampled_from([0, 1028]),
    ),
    st.sampled_from([(0,), (2,), (0, 1, 2, 3, 4)]),
)


@settings(deadline=None, max_examples=150)
@given(physics_of_any_kind, points_of_any_kind, st.lists(loads, min_size=1, max_size=8), loads)
def test_one_more_stream_never_raises_a_stream_s_rate(
    physics: Physics, points: list[MeasuredPoint], streams: list[StreamLoad], newcomer: StreamLoad
) -> None:
    before = forecast_rates(physics, points, streams).rates_tps
    after = forecast_rates(physics, points, [*streams, newcomer]).rates_tps
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in zip(before, after, strict=False))


@settings(deadline=None, max_examples=150)
@given(physics_of_any_kind, points_of_any_kind, st.lists(loads, min_size=1, max_size=8), st.integers(0, 100_000))
def test_a_longer_context_never_raises_a_rate(
    physics: Physics, points: list[MeasuredPoint], streams: list[StreamLoad], more: int
) -> None:
    before = forecast_rates(physics, points, streams).rates_tps
    longer = [StreamLoad(streams[0].context_tokens + more, streams[0].tokens_per_step), *streams[1:]]
    after = forecast_rates(physics, points, longer).rates_tps
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in zip(before, after, strict=True))
