"""Rotary positions: angles are made once per step on the host, and every layer turns its heads by them."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from server.models.flash_next.config import FlashNextConfig

Rotation = list[mx.array]
"""Cosines and sines (T, 1, rotated columns / 2) of the positions of T rows, in float32."""


class RotaryAngles:
    """The frequencies of a checkpoint's rotary positions."""

    def __init__(self, config: FlashNextConfig) -> None:
        half = config.rope_dim // 2
        powers = np.arange(half, dtype=np.float64) / half
        self._frequencies = (config.rope_parameters.rope_theta**-powers).astype(np.float32)

    def at(self, positions: npt.NDArray[np.int64]) -> Rotation:
        """What rows at these positions (T,) are turned by."""
        # The angle is rounded to float32, as in the reference; its cosine is not computed from that in less.
        angles = (positions[:, None, None].astype(np.float32) * self._frequencies).astype(np.float64)
        return [mx.array(np.cos(angles).astype(np.float32)), mx.array(np.sin(angles).astype(np.float32))]


def rotate(x: mx.array, rotation: Rotation) -> mx.array:
    """Heads (T, H, D) with their leading columns turned, each with the one half of these further on."""
    cosines, sines = rotation
    half = cosines.shape[-1]
    first, second, rest = mx.split(x, [half, 2 * half], axis=-1)
    turned = [first * cosines - second * sines, second * cosines + first * sines]
    parts = [part.astype(x.dtype) for part in turned]
    return mx.concatenate([*parts, rest] if rest.size else parts, axis=-1)
