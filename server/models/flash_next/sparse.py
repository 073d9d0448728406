"""QSA: the projections of the sparse attention layer, whose indexer picks the blocks that a row attends to."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from server.models.flash_next.activations import sigmoid
from server.models.flash_next.attend import Cache, Parts
from server.models.flash_next.config import FlashNextConfig
from server.models.flash_next.linear import JoinedLinear, SingleLinear
from server.models.flash_next.norms import FactorRMSNorm
from server.models.flash_next.rotation import Rotation, rotate


class Indexer(nn.Module):
    """The weights that score blocks: queries of the row, and one raw key per token."""

    def __init__(self, config: FlashNextConfig) -> None:
        super().__init__()
        self.head_dim = config.indexer_head_dim
        self.index_qk_proj = nn.Linear(config.hidden_size, (config.indexer_n_heads + 1) * self.head_dim, bias=False)
        self.q_layernorm = FactorRMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_layernorm = FactorRMSNorm(self.head_dim, config.rms_norm_eps)


class SparseAttention(nn.Module):
    """What is done per token; `attend` does the rest, sequence by sequence."""

    def __init__(self, config: FlashNextConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.ratio = config.indexer_compress_ratio
        self.eps = config.rms_norm_eps
        hidden = config.hidden_size
        self.q_proj = nn.Linear(hidden, 2 * self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.q_norm = FactorRMSNorm(self.head_dim, self.eps)
        self.k_norm = FactorRMSNorm(self.head_dim, self.eps)
        self.indexer = Indexer(config)

    @property
    def block_norm(self) -> mx.array:
        """The factors (Di,) of the norm of block keys."""
        return self.indexer.k_layernorm.weight

    def prepare(self) -> None:
        """Lay out the loaded weights as the forward pass uses them; call once."""
        self.inputs = JoinedLinear(self.q_proj, self.k_proj, self.v_proj, self.indexer.index_qk_proj)
        self.output = SingleLinear(self.o_proj)
        # Queries and keys are normed and rotated together, each head with its own factors.
        factors = [self.q_norm.weight] * self.heads + [self.k_norm.weight] * self.kv_heads
        self.qk_factors = mx.stack(factors)  # (H + Hkv, D)
        del self.q_proj, self.k_proj, self.v_proj, self.o_proj, self.indexer.index_qk_proj, self.q_norm, self.k_norm

    def build_cache(self, dtype: mx.Dtype, capacity: int) -> Cache:
        """Empty buffers for `capacity` tokens."""
        pair = (1, self.kv_heads, capacity, self.head_dim)
        width = self.indexer.head_dim
        shapes = (pair, pair, (1, 1, capacity, width), (1, 1, capacity // self.ratio, width))
        return [mx.zeros(shape, dtype) for shape in shapes]

    def project(self, x: mx.array, rotation: Rotation) -> tuple[Parts, mx.array]:
        """Rows (T, H) as attention wants them, and the gate (T, H * D) of its result."""
        rows = x.shape[0]
        q_gate, k, v, index = self.inputs(x)
        q, gate = mx.split(q_gate.reshape(rows, self.heads, -1), 2, axis=-1)
        qk = mx.concatenate([q, k.reshape(rows, self.kv_heads, -1)], axis=1)  # (T, H + Hkv, D)
        normed = (mx.fast.rms_norm(qk.astype(mx.float32), None, self.eps) * self.qk_factors).astype(x.dtype)
        index = index.reshape(rows, -1, self.indexer.head_dim)  # (T, Hi + 1, Di)
        parts = (
            rotate(normed, rotation),
            v.reshape(rows, self.kv_heads, -1),
            rotate(self.indexer.q_layernorm(index[:, :-1]), rotation),
            index[:, -1],
        )
        return parts, gate.flatten(1)

    def close(self, attended: mx.array, gate: mx.array) -> mx.array:
        """The layer's result (T, H) of attended rows (T, H * D)."""
        return self.output(attended * sigmoid(gate))
