from __future__ import annotations

import pytest

from server.events import StepDone
from server.forecast.measured import (
    LATELY_S,
    LEAST_STEPS,
    MOST_POINTS,
    MeasuredSteps,
    find_bucket,
    usual_tokens_per_step,
)


def step(
    at_s: float, *, seconds: float = 0.1, tokens: int = 4, streams: int = 2, context: int = 3000, prefill: int = 0
):
    return StepDone(at_s, seconds, prefill, tokens, streams, streams, context)


def feed(record: MeasuredSteps, count: int, gap_s: float = 0.1, **fields: int | float) -> float:
    at_s = 0.0
    for number in range(count):
        at_s = (number + 1) * gap_s
        record.add(step(at_s, **fields))  # pyright: ignore[reportArgumentType]
    return at_s


@pytest.mark.parametrize(("tokens", "bucket"), [(0, 0), (512, 0), (513, 1), (1024, 1), (1025, 2), (262_144, 9)])
def test_each_bucket_of_contexts_is_twice_the_one_before(tokens: int, bucket: int) -> None:
    assert find_bucket(tokens) == bucket


def test_enough_steps_of_a_kind_make_a_measurement() -> None:
    record = MeasuredSteps()
    now_s = feed(record, LEAST_STEPS)
    assert record.points(now_s) == ()  # what is forgotten of the first ones is missing
    now_s = feed(record, 2 * LEAST_STEPS)
    (point,) = record.points(now_s)
    assert point.streams == 2
    assert (point.context_tokens, point.tokens_per_step) == pytest.approx((3000, 2))
    assert point.step_s == pytest.approx(0.1)
    assert point.token_s == pytest.approx(0.05)


def test_what_lies_between_steps_counts_and_a_pause_does_not() -> None:
    record = MeasuredSteps()
    now_s = feed(record, 60, gap_s=0.12)
    assert record.points(now_s)[0].step_s == pytest.approx(0.12, abs=0.001)
    paused = MeasuredSteps()
    now_s = feed(paused, 60, gap_s=5.0)
    assert paused.points(now_s)[0].step_s == pytest.approx(0.1)


def test_steps_with_a_chunk_of_a_prompt_and_steps_without_tokens_are_passed_over() -> None:
    record = MeasuredSteps()
    now_s = feed(record, 60, prefill=64)
    now_s = max(now_s, feed(record, 60, streams=0, tokens=0))
    assert record.points(now_s) == ()
    assert record.version == 0


def test_old_steps_weigh_less_and_those_of_another_hour_nothing() -> None:
    record = MeasuredSteps()
    feed(record, 200, seconds=0.1)
    now_s = feed(record, 200, seconds=0.2, gap_s=0.2)
    assert record.points(now_s)[0].step_s == pytest.approx(0.2, rel=0.02)
    assert record.points(now_s + LATELY_S + 1) == ()


def test_the_record_is_bounded_and_forgets_what_was_seen_longest_ago() -> None:
    record = MeasuredSteps()
    for streams in range(1, MOST_POINTS + 11):
        for number in range(40):
            record.add(step(number / 10, streams=streams, tokens=streams))
    points = record.points(4.0)
    assert {point.streams for point in points} == set(range(11, MOST_POINTS + 11))


def test_usual_tokens_are_those_of_all_steps() -> None:
    record = MeasuredSteps()
    feed(record, 500, tokens=4)
    now_s = feed(record, 500, tokens=3, streams=3)
    assert usual_tokens_per_step(record.points(now_s)) == pytest.approx(1.5)
    assert usual_tokens_per_step(()) is None
