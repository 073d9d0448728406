"""What a row of sparse attention keeps, as a mask and as blocks, against the rule written out in plain Python."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.models.flash_next.selection import choose_blocks, choose_mask, rank_blocks, score_blocks


def keep_by_rule(scores: list[float], visible: int, ratio: int, top: int) -> set[int]:
    """The whole blocks that score highest (of equals the newer), and the incomplete one at the end."""
    complete = visible // ratio
    best = sorted(range(complete), key=lambda block: (scores[block], block), reverse=True)[:top]
    whole = {block * ratio + place for block in best for place in range(ratio)}
    return whole | set(range(complete * ratio, visible))


scores_with_ties = st.lists(st.sampled_from([0.0, 0.0, 0.25, 1.0, 1.5, 3e-7, 900.0]), min_size=1, max_size=24)


@settings(max_examples=60, deadline=None)
@given(scores=scores_with_ties, ratio=st.integers(1, 5), top=st.integers(1, 8), spare=st.integers(0, 4))
def test_every_row_keeps_what_the_rule_says(scores: list[float], ratio: int, top: int, spare: int) -> None:
    length = len(scores) * ratio + min(spare, ratio - 1)
    visible = np.arange(1, length + 1)
    rows = mx.array([scores] * length)
    mask = np.array(choose_mask(rows, mx.array(visible), length, ratio, top))
    for row, count in zip(mask, visible.tolist(), strict=True):
        assert set(np.flatnonzero(row)) == keep_by_rule(scores, count, ratio, top)


@settings(max_examples=60, deadline=None)
@given(scores=scores_with_ties, ratio=st.integers(1, 5), top=st.integers(1, 8), rows=st.integers(1, 6))
def test_rows_by_blocks_keep_the_same(scores: list[float], ratio: int, top: int, rows: int) -> None:
    scores = [*scores, *[0.5] * (top + 1 - len(scores))]
    last = len(scores) * ratio + ratio - 1
    visible = [max(1, last - back * 2) for back in range(rows)]  # also rows before the budget is full
    padded = mx.array([[*scores, 77.0, 99.0]] * rows)  # blocks beyond the complete ones must not win
    chosen, counts = choose_blocks(padded, mx.array(visible), ratio, top)
    assert chosen.shape == (rows, top + 1)
    tokens = (chosen[..., None] * ratio + mx.arange(ratio)).flatten(1)
    for row, count, seen in zip(np.array(tokens), np.array(counts), visible, strict=True):
        kept = row[count].tolist()
        assert sorted(kept) == sorted(keep_by_rule(scores, seen, ratio, top))


def test_the_own_token_can_be_left_out() -> None:
    mask = np.array(choose_mask(mx.array([[3.0, 2.0, 1.0]]), mx.array([6]), 6, 2, 2))
    assert mask.tolist() == [[True, True, True, True, False, False]]


def test_ranks_are_distinct_and_ordered_as_scores_are() -> None:
    scores = mx.array([[0.0, -0.0, 1e-38, 0.5, 0.5, 1e30]])
    ranks = np.array(rank_blocks(scores, mx.array([6])))[0].tolist()
    assert ranks == sorted(set(ranks))
    assert np.array(rank_blocks(scores, mx.array([2])))[0].tolist()[2:] == [-1] * 4


@pytest.mark.parametrize("heads", [1, 3])
def test_scores_are_cut_off_before_heads_are_added(heads: int) -> None:
    rng = np.random.default_rng(heads)
    queries, keys = rng.normal(size=(1, heads, 2, 8)), rng.normal(size=(1, 1, 5, 8))
    expected = np.maximum(np.einsum("htd,cd->htc", queries[0], keys[0, 0]), 0).sum(axis=0) / np.sqrt(8)
    got = score_blocks(mx.array(queries.astype(np.float32)), mx.array(keys.astype(np.float32)))
    assert np.abs(np.array(got) - expected).max() < 1e-5


def test_what_does_not_count_is_a_real_block_too() -> None:
    # A buffer that is full to the last row has nothing behind it that may be read.
    chosen, counts = choose_blocks(mx.array([[3.0, 2.0, 1.0, 0.0]]), mx.array([16]), 4, 2)
    assert np.array(chosen)[0].max() < 4
    assert not np.array(counts)[0, 8:].any()
