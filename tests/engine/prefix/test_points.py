"""Where points are taken, by table and by property."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.prefix.points import (
    LEAST_END_TOKENS,
    LEAST_GAP_TOKENS,
    LEAST_SPACING_TOKENS,
    find_spacing,
    plan_points,
)


@pytest.mark.parametrize(
    ("prompt", "restored", "common", "boundaries", "spacing", "points"),
    [
        pytest.param(1000, 0, 0, (), 4096, (999,), id="without boundaries, a token before the end"),
        pytest.param(1000, 0, 0, (0, 400, 995), 4096, (400, 995), id="after the first message, and before the reply"),
        pytest.param(1000, 0, 0, (0, 400, 700, 995), 4096, (400, 995), id="not at each message"),
        pytest.param(1000, 0, 600, (0, 995), 4096, (600, 995), id="where it parts"),
        pytest.param(1000, 300, 600, (0, 300, 995), 4096, (600, 995), id="not before what is restored"),
        pytest.param(1000, 600, 600, (0, 995), 4096, (995,), id="parting where it begins"),
        pytest.param(1000, 600, 630, (0, 995), 4096, (995,), id="parting close by"),
        pytest.param(1000, 990, 992, (0, 995), 4096, (), id="nearly all there"),
        pytest.param(1000, 0, 1000, (0, 995), 4096, (995,), id="all there without a point"),
        pytest.param(1000, 0, 0, (0, 985, 995), 4096, (985,), id="a short question: the first message serves for both"),
        pytest.param(1000, 0, 0, (0, 960, 995), 4096, (960, 995), id="a question of some length"),
        pytest.param(1000, 0, 988, (0, 995), 4096, (988,), id="parting just before the end"),
        pytest.param(1000, 0, 403, (0, 400, 995), 4096, (400, 995), id="parting just after the first message"),
        pytest.param(1000, 0, 397, (0, 400, 995), 4096, (397, 995), id="parting just before it does"),
        pytest.param(1000, 0, 998, (0, 995), 4096, (995,), id="parting after the end"),
        pytest.param(10, 0, 0, (), 4096, (), id="too short"),
        pytest.param(5000, 0, 0, (), 2000, (2000, 4000, 4999), id="every so many tokens"),
        pytest.param(5000, 0, 0, (0, 1500, 1900, 3000, 4996), 2000, (1500, 3000, 4996), id="at messages"),
        pytest.param(5000, 0, 0, (0, 100, 400, 4000), 2000, (100, 2100, 4000, 4999), id="where there are some"),
        pytest.param(4010, 0, 0, (), 2000, (2000, 4009), id="none close before the end"),
    ],
)
def test_points(
    prompt: int, restored: int, common: int, boundaries: tuple[int, ...], spacing: int, points: tuple[int, ...]
) -> None:
    assert plan_points(prompt, restored, common, boundaries, spacing) == points


@given(
    prompt=st.integers(1, 30_000),
    share=st.floats(0, 1),
    boundaries=st.lists(st.integers(0, 30_000), max_size=30).map(lambda each: tuple(sorted(set(each)))),
    spacing=st.integers(LEAST_SPACING_TOKENS, 10_000),
    data=st.data(),
)
def test_points_ascend_within_the_prompt_and_are_neither_crowded_nor_far_apart(
    prompt: int, share: float, boundaries: tuple[int, ...], spacing: int, data: st.DataObject
) -> None:
    restored = int(share * (prompt - 1))
    common = data.draw(st.integers(restored, prompt))
    boundaries = tuple(each for each in boundaries if each < prompt)
    points = plan_points(prompt, restored, common, boundaries, spacing)
    edges = [restored, *points]
    gaps = [last - first for first, last in pairwise(edges)]
    assert all(point < prompt for point in points)
    assert all(gap >= LEAST_GAP_TOKENS for gap in gaps[:-1])
    assert all(gap >= LEAST_END_TOKENS for gap in gaps[-1:])
    assert all(gap <= spacing + LEAST_GAP_TOKENS for gap in gaps)
    assert prompt - edges[-1] <= LEAST_GAP_TOKENS + LEAST_END_TOKENS


def test_spacing_by_what_points_and_rows_weigh() -> None:
    assert find_spacing(110 * 2**20, 28_416) == 8118
    assert find_spacing(1000, 10_000) == LEAST_SPACING_TOKENS
    assert find_spacing(1000, 0) == 4096
