"""Chunks, steps and mlx-lm's own loop compute the same gated delta rule."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.gated_delta import gated_delta_ops

from server.models.flash_next.delta_rule import BLOCK_UP_TO, CHUNK, return_within, run_delta_rule

Inputs = tuple[mx.array, mx.array, mx.array, mx.array, mx.array, mx.array]


def draw(rows: int, key_heads: int, value_heads: int, decay: float) -> Inputs:
    rng = np.random.default_rng(rows)

    def normal(*shape: int) -> mx.array:
        return mx.array(rng.normal(size=shape).astype(np.float32))

    k = normal(rows, key_heads, 16)
    k = k / mx.linalg.norm(k, axis=-1, keepdims=True)
    q, v = normal(rows, key_heads, 16) * 0.25, normal(rows, value_heads, 8)
    log_decay = -decay * mx.abs(normal(rows, value_heads))
    return q, k, v, log_decay, mx.sigmoid(normal(rows, value_heads)), normal(1, value_heads, 8, 16)


def check_close(ours: mx.array, theirs: mx.array) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(np.array(ours) - np.array(theirs)).max() < 2e-5


@pytest.mark.parametrize("rows", [1, 2, 3, 5, BLOCK_UP_TO, BLOCK_UP_TO + 1, CHUNK, CHUNK + 1, 3 * CHUNK - 1, 100])
@pytest.mark.parametrize(("key_heads", "value_heads"), [(2, 2), (2, 6)])
@pytest.mark.parametrize("decay", [0.0, 0.1, 30.0])
def test_the_rule_equals_the_plain_loop(rows: int, key_heads: int, value_heads: int, decay: float) -> None:
    q, k, v, log_decay, beta, state = draw(rows, key_heads, value_heads, decay)
    expected, last = gated_delta_ops(q[None], k[None], v[None], mx.exp(log_decay)[None], beta[None], state)
    got, after, _ = run_delta_rule(q, k, v, log_decay, beta, state)
    assert got.shape == v.shape
    assert after.shape == state.shape
    check_close(got, expected[0])
    check_close(after, last)


def test_a_cut_in_the_rows_changes_nothing() -> None:
    q, k, v, log_decay, beta, state = draw(60, 2, 4, 0.2)
    whole, _, _ = run_delta_rule(q, k, v, log_decay, beta, state)
    outputs: list[mx.array] = []
    for start, end in ((0, 3), (3, 40), (40, 60)):
        rows = slice(start, end)
        out, state, _ = run_delta_rule(q[rows], k[rows], v[rows], log_decay[rows], beta[rows], state)
        outputs.append(out)
    check_close(mx.concatenate(outputs), whole)


@pytest.mark.parametrize("rows", [2, BLOCK_UP_TO, BLOCK_UP_TO + 1, 40])
@pytest.mark.parametrize(("key_heads", "value_heads"), [(2, 2), (2, 6)])
def test_the_trail_leads_back_to_the_state_after_any_row(rows: int, key_heads: int, value_heads: int) -> None:
    q, k, v, log_decay, beta, state = draw(rows, key_heads, value_heads, 0.2)
    _, last, trail = run_delta_rule(q, k, v, log_decay, beta, state)
    for kept in range(1, rows):
        part = slice(kept)
        _, expected, _ = run_delta_rule(q[part], k[part], v[part], log_decay[part], beta[part], state)
        check_close(return_within(trail, state, kept), expected)
    check_close(return_within(trail, state, rows), last)
