"""Causal depthwise convolution over a window of earlier rows."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


class DepthwiseConv(nn.Module):
    """Each channel is convolved with its own `kernel` taps, `dilation` rows apart; the newest tap is the row itself."""

    def __init__(self, channels: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.weight = mx.zeros((channels, kernel, 1))
        self.kernel, self.dilation = kernel, dilation
        self.width = (kernel - 1) * dilation
        """Rows that must precede the first one."""

    def prepare(self) -> None:
        """Lay out the loaded weights as the forward pass uses them; call once."""
        self.taps = mx.contiguous(self.weight[..., 0].T)  # (kernel, C)
        del self.weight

    def __call__(self, x: mx.array, window: mx.array) -> tuple[mx.array, mx.array]:
        """The convolved rows, shaped as x (T, C), and the window (width, C) for the rows that follow."""
        rows = mx.concatenate([window, x], axis=0)  # (width + T, C)
        length = x.shape[0]
        if length == 1:
            return (rows[:: self.dilation] * self.taps).sum(axis=0, keepdims=True), rows[1:]
        # Shifted products instead of a grouped convolution, which the CPU backend runs channel by channel.
        starts = range(0, self.width + 1, self.dilation)
        terms = [rows[start : start + length] * self.taps[tap] for tap, start in enumerate(starts)]
        return sum(terms[1:], terms[0]), rows[length:]
