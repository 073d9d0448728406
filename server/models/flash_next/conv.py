"""Causal depthwise convolution over a window of earlier rows."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from server.models.flash_next.spans import FEW_ROWS


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
        self._spread: dict[int, list[mx.array]] = {}
        del self.weight

    def __call__(self, x: mx.array, window: mx.array) -> tuple[mx.array, mx.array]:
        """The convolved rows, shaped as x (T, C), and all rows it saw (width + T, C): the last are the next window."""
        rows = mx.concatenate([window, x], axis=0)
        length = x.shape[0]
        # Shifted products instead of a grouped convolution, which the CPU backend runs channel by channel.
        starts = range(0, self.width + 1, self.dilation)
        terms = [rows[start : start + length] * tap for tap, start in zip(self._find_taps(length), starts, strict=True)]
        return sum(terms[1:], terms[0]), rows

    def _find_taps(self, length: int) -> list[mx.array]:
        """Each tap as wide as the rows it is multiplied with: (1, C), or for a few rows (T, C).

        A fused operation on the CPU takes twice the time when an input has to be spread over rows.
        """
        spread = length if 1 < length <= FEW_ROWS else 1
        if spread not in self._spread:
            taps = [mx.contiguous(mx.repeat(tap, spread, axis=0)) for tap in mx.split(self.taps, self.kernel, axis=0)]
            mx.eval(taps)  # constants of every trace
            self._spread[spread] = taps
        return self._spread[spread]
