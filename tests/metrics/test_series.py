"""Counters and histograms: where values fall, what is known before anything was counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.metrics.families import ACCEPTED_TOKENS_PER_POS, PROMPT_TOKENS, REFUSED, REQUEST_SUCCESS, STEP
from server.metrics.series import Histogram, Series, known_labels

BOUNDS = (0.1, 1.0, 10.0)


def test_a_value_falls_into_the_bucket_whose_bound_it_does_not_exceed() -> None:
    histogram = Histogram(BOUNDS)
    for value in (0.05, 0.1, 0.5, 1.0, 3.0, 10.0, 11.0):
        histogram.observe(value)
    assert histogram.cumulate() == [2, 4, 6, 7]
    assert (histogram.count, histogram.sum) == (7, pytest.approx(25.65))


@given(st.lists(st.floats(0, 100)))
def test_buckets_only_rise_and_end_with_all(values: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    counts = histogram.cumulate()
    assert counts == [*(sum(value <= bound for value in values) for bound in BOUNDS), len(values)]
    assert histogram.sum == pytest.approx(sum(values))


def test_what_is_known_is_shown_at_0_before_it_moves() -> None:
    series = Series()
    assert series.counts(PROMPT_TOKENS, "m") == {("m",): 0}
    assert set(series.counts(REQUEST_SUCCESS, "m")) == {("m", why) for why in ("stop", "length", "abort", "error")}
    assert ("in_flight_full",) in series.counts(REFUSED, "m")
    assert {labels: each.count for labels, each in series.histograms(STEP, "m").items()} == {
        ("prefill",): 0,
        ("decode",): 0,
        ("mixed",): 0,
    }


def test_another_model_begins_at_0_and_the_former_ones_counts_stay() -> None:
    series = Series()
    series.add(PROMPT_TOKENS, 5, "old")
    series.add(PROMPT_TOKENS, 2, "old")
    assert series.counts(PROMPT_TOKENS, "new") == {("new",): 0, ("old",): 7}


def test_a_counter_cannot_fall() -> None:
    with pytest.raises(AssertionError, match="would fall"):
        Series().add(PROMPT_TOKENS, -1, "m")


def test_a_label_whose_values_nobody_knows_has_no_series_yet() -> None:
    assert known_labels(ACCEPTED_TOKENS_PER_POS, "m") == ()
