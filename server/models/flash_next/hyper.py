"""Hyper-connections: how a block reads one hidden row out of the residual streams and writes its result back.

The widened stream has the shape (T, N, H) here: T rows of N residual streams of width H.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from server.models.flash_next.activations import sigmoid, silu
from server.models.flash_next.config import FlashNextConfig
from server.models.flash_next.linear import JoinedLinear, SingleLinear
from server.models.flash_next.norms import StreamRMSNorm


class HyperMixer(nn.Module):
    """Reads one hidden row (H) out of each row of the stream: a gated mean of the normed streams."""

    def __init__(self, config: FlashNextConfig) -> None:
        super().__init__()
        self.count = config.hc_count
        self.hc_norm = StreamRMSNorm(config.hc_count, config.hidden_size, config.rms_norm_eps)
        self.input_mix_weight_down = nn.Linear(config.stream_width, config.hc_lowrank, bias=False)
        self.input_mix_weight_up = nn.Linear(config.hc_lowrank, config.stream_width, bias=False)

    def prepare(self) -> None:
        """Lay out the loaded weights as the forward pass uses them; call once."""
        self.hc_norm.prepare()
        self.down = JoinedLinear(self.input_mix_weight_down)
        self.up = SingleLinear(self.input_mix_weight_up)
        del self.input_mix_weight_down, self.input_mix_weight_up

    def __call__(self, stream: mx.array) -> mx.array:
        """Hidden rows (T, H) of stream rows (T, N, H)."""
        normed = self.hc_norm(stream)
        return self._mix(normed, self.down(normed.flatten(1))[0])

    def _mix(self, normed: mx.array, narrow: mx.array) -> mx.array:
        # The division by N stands before the activation; after it the gates would saturate differently.
        gate = self.up(silu(narrow / self.count)).reshape(normed.shape)  # (T, N, H)
        return (sigmoid(gate) * normed * (1 / self.count)).sum(axis=1)  # (T, H)


class HyperConnection(HyperMixer):
    """A mixer that also says how strongly the block's result enters each stream."""

    def __init__(self, config: FlashNextConfig) -> None:
        super().__init__(config)
        self.block_inject_weight = nn.Linear(config.stream_width, config.hc_count, bias=False)

    def prepare(self) -> None:
        """Lay out the loaded weights as the forward pass uses them; call once."""
        super_down, inject = self.input_mix_weight_down, self.block_inject_weight
        super().prepare()
        self.down = JoinedLinear(super_down, inject)
        del self.block_inject_weight

    def read(self, stream: mx.array) -> tuple[mx.array, mx.array]:
        """The block's input (T, H) and its strength in each stream (T, N, 1)."""
        normed = self.hc_norm(stream)
        narrow, strength = self.down(normed.flatten(1))
        # Opened here: next to the product below, MLX would fuse the two and take a sigmoid of every column.
        return self._mix(normed, narrow), 2 * sigmoid(strength / self.count)[..., None]

    def write(self, stream: mx.array, result: mx.array, strength: mx.array) -> mx.array:
        """The raw stream with the block's result (T, H) added to each part."""
        return stream + strength * result[:, None]
