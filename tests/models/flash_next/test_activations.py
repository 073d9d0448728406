"""Sigmoid and SiLU by every way are as exact as float32 allows."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from server.models.flash_next.activations import MANY, sigmoid, silu


@pytest.mark.parametrize("count", [MANY - 1, 4 * MANY])
@pytest.mark.parametrize("compiled", [False, True])
def test_sigmoid_is_exact_everywhere(count: int, compiled: bool) -> None:
    x = np.linspace(-40, 40, count).astype(np.float32)
    expected = 1 / (1 + np.exp(-x.astype(np.float64)))
    way = mx.compile(sigmoid) if compiled else sigmoid
    assert np.abs(np.array(way(mx.array(x))) - expected).max() < 2e-7


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("repeat", [1, MANY])
def test_no_value_is_too_large(dtype: mx.Dtype, repeat: int) -> None:
    x = mx.array([-mx.inf, -1e30, -100.0, 0.0, 100.0, 1e30, mx.inf] * repeat, dtype)
    assert sigmoid(x).dtype == dtype
    assert np.allclose(np.array(sigmoid(x).astype(mx.float32))[:7], [0, 0, 0, 0.5, 1, 1, 1], atol=1e-7)
    finite = mx.clip(x, -1e3, 1e3)
    assert np.allclose(np.array(silu(finite).astype(mx.float32))[:7], [0, 0, 0, 0, 100, 1e3, 1e3], 1e-2, 1e-4)
