from __future__ import annotations

from typing import Any

import pytest

from server.events import StepDone
from server.forecast.forecaster import Forecaster
from server.policy import EnginePolicy
from server.step_reads import StepReads


class Bench:
    def __init__(self) -> None:
        self.now, self.engine = 0.0, EnginePolicy()
        self.forecaster = Forecaster(lambda: self.engine, lambda: self.now)

    def decode(self, streams: int, context: int, seconds: float = 0.04, count: int = 100) -> None:
        for _ in range(count):
            self.now += seconds
            self.forecaster.fold((StepDone(self.now, seconds, 0, streams, streams, streams, context),))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_without_a_model_nothing_is_expected(bench: Bench, stream: Any) -> None:
    assert bench.forecaster.expect(100, 100, [stream()]) is None
    assert bench.forecaster.show_next([stream()]) is None


def test_a_newcomer_is_expected_by_physics_first(bench: Bench, facts: Any, stream: Any) -> None:
    bench.forecaster.model_loaded(facts(reads=StepReads(dense_bytes=10**9, context_bytes=1_000_000)))
    expected = bench.forecaster.expect(500, 1000, [stream(context_tokens=400, prompt_tokens=400, max_tokens=100)])
    assert expected is not None
    # 10 ms of weights and 10 us for each token of context: 900 at first, 1,500 and 500 at the end.
    assert expected.rates_tps == pytest.approx((1 / 0.019, 1 / 0.019))
    assert expected.lowest_tps == expected.lowest_at_end_tps == pytest.approx(1 / 0.030)
    assert expected.basis == "estimate"


def test_others_are_expected_to_grow_by_what_they_usually_have_left(bench: Bench, facts: Any, stream: Any) -> None:
    bench.forecaster.model_loaded(facts(reads=StepReads(dense_bytes=10**9, context_bytes=1_000_000)))
    running = stream(context_tokens=400, prompt_tokens=400, max_tokens=32_000)
    expected = bench.forecaster.expect(500, 1000, [running], lambda _: 50)
    assert expected is not None
    # 900 at first; at the end 1,500 and 450, whatever max_tokens would allow.
    assert expected.lowest_at_end_tps == pytest.approx(1 / 0.0295)


def test_what_was_seen_is_expected_again(bench: Bench, facts: Any, stream: Any) -> None:
    bench.forecaster.model_loaded(facts())
    bench.decode(streams=2, context=800)
    expected = bench.forecaster.expect(300, 100, [stream(context_tokens=400)])
    assert expected is not None
    assert expected.lowest_tps == pytest.approx(25, rel=0.02)
    assert expected.basis == "measured"


def test_an_end_that_nobody_has_seen_is_an_estimate(bench: Bench, facts: Any, stream: Any) -> None:
    bench.forecaster.model_loaded(facts())
    bench.decode(streams=2, context=800)
    expected = bench.forecaster.expect(300, 50_000, [stream(context_tokens=400)])
    assert expected is not None
    assert expected.basis == "estimate"


def test_a_prompt_that_is_still_read_counts_whole_and_finished_streams_not_at_all(
    bench: Bench, facts: Any, stream: Any
) -> None:
    bench.forecaster.model_loaded(facts(reads=StepReads(dense_bytes=10**9, context_bytes=1_000_000)))
    reading = stream(phase="prefill", context_tokens=10, prompt_tokens=400, max_tokens=0)
    expected = bench.forecaster.expect(600, 1, [reading, stream(phase="finished")])
    assert expected is not None
    assert expected.rates_tps == pytest.approx((50, 50))


def test_the_snapshot_tells_of_one_more_stream_of_the_mean_context(bench: Bench, facts: Any, stream: Any) -> None:
    bench.forecaster.model_loaded(facts())
    view = bench.forecaster.show_next([stream(context_tokens=1000), stream(context_tokens=3000)])
    assert view is not None
    assert (view.streams, view.context_tokens, view.basis) == (3, 2000, "estimate")
    assert view.decode_tps == view.lowest_tps == pytest.approx(1 / (0.01 + 6000 * 1e-8))


def test_a_changed_policy_changes_what_is_shown(bench: Bench, facts: Any) -> None:
    bench.forecaster.model_loaded(facts(has_mtp=True))
    drafting = bench.forecaster.show_next([])
    bench.engine = EnginePolicy(mtp="off")
    plain = bench.forecaster.show_next([])
    assert drafting is not None
    assert plain is not None
    assert plain.decode_tps < drafting.decode_tps
