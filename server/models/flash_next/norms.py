"""The normalisations of the architecture, all computed in float32 and cast back at the end.

Weights are held as the factor itself, in float32. Checkpoints mostly store factor - 1; `layouts` adds the one, since
adding it in a half precision would lose bits of the weight.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from server.models.flash_next.activations import sigmoid


class FactorRMSNorm(nn.Module):
    """RMS norm over the last axis."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = mx.ones((width,))
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        """Rows (..., width), normed."""
        return mx.fast.rms_norm(x, self.weight, self.eps).astype(x.dtype)


class StreamRMSNorm(nn.Module):
    """RMS norm of each residual stream (T, N, H) of its own; the stored factors (N*H) span all streams."""

    def __init__(self, count: int, width: int, eps: float) -> None:
        super().__init__()
        self.weight = mx.ones((count * width,))
        self.count = count
        self.eps = eps

    def prepare(self) -> None:
        """Give the factors the shape that they are used in; call once, after the weights are loaded."""
        self.weight = self.weight.reshape(self.count, -1)

    def __call__(self, x: mx.array) -> mx.array:
        """Stream rows (T, N, H), normed."""
        normed = mx.fast.rms_norm(x.astype(mx.float32), None, self.eps)
        return (normed * self.weight).astype(x.dtype)


class GatedRMSNorm(nn.Module):
    """RMS norm over the last axis, multiplied with a gate that goes through `act` in float32."""

    def __init__(self, width: int, eps: float, act: str) -> None:
        super().__init__()
        self.weight = mx.ones((width,))
        self.eps = eps
        self.silu = act == "silu"

    def __call__(self, x: mx.array, gate: mx.array) -> mx.array:
        """Rows (..., width), normed and gated, in the dtype of x."""
        gate32 = gate.astype(mx.float32)
        opened = sigmoid(gate32)
        factor = gate32 * opened if self.silu else opened
        return (mx.fast.rms_norm(x.astype(mx.float32), self.weight, self.eps) * factor).astype(x.dtype)
