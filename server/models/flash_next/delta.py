"""Gated DeltaNet: the linear attention layer, with a recurrent state of fixed size."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from server.models.flash_next.activations import sigmoid, silu
from server.models.flash_next.config import FlashNextConfig
from server.models.flash_next.conv import DepthwiseConv
from server.models.flash_next.delta_rule import Trail, run_delta_rule
from server.models.flash_next.linear import JoinedLinear, SingleLinear
from server.models.flash_next.norms import GatedRMSNorm
from server.models.flash_next.spans import Spans, join

L2_EPS = 1e-6
"""Added to the sum of squares of a query or key head. Source: `qwen4_exp` of transformers 5.24."""

LinearTrail = tuple[mx.array, Trail] | tuple[()]
"""What a return into a segment needs: all rows that the convolution saw, and the delta rule's trail."""


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

    def __call__(
        self, x: mx.array, caches: list[list[mx.array]], spans: Spans
    ) -> tuple[mx.array, list[list[mx.array]], list[LinearTrail]]:
        """Rows (T, H) of all segments to rows of the same shape; each segment's cache after them, and its trail."""
        rows = x.shape[0]
        qkv, z, b, a = self.inputs(x)
        convolved = [self.conv1d(part, cache[0]) for part, cache in zip(spans.split(qkv), caches, strict=True)]
        mixed = silu(join([part for part, _ in convolved])).astype(mx.float32)
        qk, v = mx.split(mixed, [2 * self.key_width], axis=-1)
        normed = mx.fast.rms_norm(qk.reshape(rows, -1, self.key_dim), None, L2_EPS / self.key_dim) * self.lengths
        log_decay = self.rate * nn.softplus(a.astype(mx.float32) + self.dt_bias)
        parts = (
            *mx.split(normed, 2, axis=1),  # (T, Hk, Dk) each
            v.reshape(rows, self.value_heads, self.value_dim),
            log_decay,
            sigmoid(b.astype(mx.float32)),
        )
        by_segment = zip(*(spans.split(part) for part in parts), strict=True)
        ran = [
            run_delta_rule(q, k, v, decay, beta, cache[1])
            for (q, k, v, decay, beta), cache in zip(by_segment, caches, strict=True)
        ]
        out = join([part for part, _, _ in ran])
        gated = self.norm(out, z.reshape(out.shape)).astype(x.dtype)  # (T, Hv, Dv)
        seen = [rows for _, rows in convolved]
        after = [[rows[-self.conv1d.width :], state] for rows, (_, state, _) in zip(seen, ran, strict=True)]
        trails: list[LinearTrail] = [
            (rows, trail) if keeps else ()
            for rows, (_, _, trail), keeps in zip(seen, ran, spans.keeps_trail, strict=True)
        ]
        return self.output(gated.reshape(rows, -1)), after, trails
