"""Gated DeltaNet: the linear attention layer, with a recurrent state of fixed size."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from server.models.flash_next.config import FlashNextConfig
from server.models.flash_next.conv import DepthwiseConv
from server.models.flash_next.delta_rule import run_delta_rule
from server.models.flash_next.linear import JoinedLinear, SingleLinear
from server.models.flash_next.norms import GatedRMSNorm

L2_EPS = 1e-6
"""Added to the sum of squares of a query or key head. Source: `qwen4_exp` of transformers 5.24."""


class GatedDeltaNet(nn.Module):
    """Cache: the last rows before the convolution (k-1, C) and the state (1, Hv, Dv, Dk) in float32."""

    def __init__(self, config: FlashNextConfig) -> None:
        super().__init__()
        self.key_heads, self.key_dim = config.linear_num_key_heads, config.linear_key_head_dim
        self.value_heads, self.value_dim = config.linear_num_value_heads, config.linear_value_head_dim
        self.key_width = self.key_heads * self.key_dim
        values = self.value_heads * self.value_dim
        self.channels = 2 * self.key_width + values
        hidden = config.hidden_size
        self.in_proj_qkv = nn.Linear(hidden, self.channels, bias=False)
        self.in_proj_z = nn.Linear(hidden, values, bias=False)
        self.in_proj_b = nn.Linear(hidden, self.value_heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, self.value_heads, bias=False)
        self.conv1d = DepthwiseConv(self.channels, config.linear_conv_kernel_dim)
        self.A_log = mx.zeros((self.value_heads,))
        self.dt_bias = mx.zeros((self.value_heads,))
        self.norm = GatedRMSNorm(self.value_dim, config.rms_norm_eps, config.gate_act)
        self.out_proj = nn.Linear(values, hidden, bias=False)

    def prepare(self) -> None:
        """Lay out the loaded weights as the forward pass uses them; call once."""
        self.inputs = JoinedLinear(self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a)
        self.output = SingleLinear(self.out_proj)
        self.rate = -mx.exp(self.A_log.astype(mx.float32))
        self.conv1d.prepare()
        # Unit length for queries and keys, and 1 / sqrt(Dk) for queries, on top of a norm by the mean of squares.
        unit = mx.full((self.key_heads, 1), self.key_dim**-0.5)
        self.lengths = mx.concatenate([unit * unit, unit])  # (2 * Hk, 1)
        del self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a, self.out_proj, self.A_log

    def build_cache(self, dtype: mx.Dtype) -> list[mx.array]:
        """The cache of a sequence that has not begun."""
        window = mx.zeros((self.conv1d.width, self.channels), dtype)
        return [window, mx.zeros((1, self.value_heads, self.value_dim, self.key_dim), mx.float32)]

    def __call__(self, x: mx.array, cache: list[mx.array]) -> tuple[mx.array, list[mx.array]]:
        """Rows (T, H) to rows of the same shape, and the cache after them."""
        rows = x.shape[0]
        qkv, z, b, a = self.inputs(x)
        mixed, window = self.conv1d(qkv, cache[0])
        qk, v = mx.split(nn.silu(mixed).astype(mx.float32), [2 * self.key_width], axis=-1)
        normed = mx.fast.rms_norm(qk.reshape(rows, -1, self.key_dim), None, L2_EPS / self.key_dim) * self.lengths
        q, k = mx.split(normed, 2, axis=1)  # (T, Hk, Dk)
        v = v.reshape(rows, self.value_heads, self.value_dim)
        log_decay = self.rate * nn.softplus(a.astype(mx.float32) + self.dt_bias)
        out, state = run_delta_rule(q, k, v, log_decay, mx.sigmoid(b.astype(mx.float32)), cache[1])
        gated = self.norm(out, z.reshape(out.shape)).astype(x.dtype)  # (T, Hv, Dv)
        return self.output(gated.reshape(rows, -1)), [window, state]
