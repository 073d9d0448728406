"""QSA: the sparse attention layer, whose indexer picks the blocks of tokens that a row attends to."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import msgspec

from server.models.flash_next.config import FlashNextConfig
from server.models.flash_next.linear import JoinedLinear, SingleLinear
from server.models.flash_next.norms import FactorRMSNorm
from server.models.flash_next.selection import choose_mask, choose_tokens, score_blocks

MASK_ROWS = 128
"""Rows that are scored, masked and attended at once past the budget: bounds that memory at long contexts."""

Cache = list[mx.array]


class Indexer(nn.Module):
    """The weights that score blocks: queries of the row, and one raw key per token."""

    def __init__(self, config: FlashNextConfig) -> None:
        super().__init__()
        self.head_dim = config.indexer_head_dim
        self.index_qk_proj = nn.Linear(config.hidden_size, (config.indexer_n_heads + 1) * self.head_dim, bias=False)
        self.q_layernorm = FactorRMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_layernorm = FactorRMSNorm(self.head_dim, config.rms_norm_eps)


class RowPlan(msgspec.Struct, frozen=True):
    """What is known of a one-row step before it runs; each combination is traced once."""

    selects: bool
    """More blocks are complete than the budget holds, so the row must choose."""
    finishes: bool
    """The row completes a block whose key it needs."""


class Projected(msgspec.Struct, frozen=True):
    """A row's parts, heads before rows as attention wants them."""

    queries: mx.array
    """(1, H, T, D), normed and rotated."""
    keys: mx.array
    """(1, Hkv, T, D), normed and rotated."""
    values: mx.array
    """(1, Hkv, T, D)."""
    gate: mx.array
    """(T, H * D)."""
    index_queries: mx.array
    """(1, Hi, T, Di), normed and rotated."""
    index_keys: mx.array
    """(1, 1, T, Di), raw."""


class SparseAttention(nn.Module):
    """Cache: keys, values (1, Hkv, cap, D), raw indexer keys (1, 1, cap, Di), block keys (1, 1, cap / ratio, Di)."""

    def __init__(self, config: FlashNextConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.ratio = config.indexer_compress_ratio
        self.top = config.indexer_budget // self.ratio
        self.rope_dim, self.rope_theta = config.rope_dim, config.rope_parameters.rope_theta
        self.eps = config.rms_norm_eps
        hidden = config.hidden_size
        self.q_proj = nn.Linear(hidden, 2 * self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.q_norm = FactorRMSNorm(self.head_dim, self.eps)
        self.k_norm = FactorRMSNorm(self.head_dim, self.eps)
        self.indexer = Indexer(config)

    def prepare(self) -> None:
        """Lay out the loaded weights as the forward pass uses them; call once."""
        self.inputs = JoinedLinear(self.q_proj, self.k_proj, self.v_proj, self.indexer.index_qk_proj)
        self.output = SingleLinear(self.o_proj)
        # Queries and keys are normed and rotated together, each head with its own factors.
        factors = [self.q_norm.weight] * self.heads + [self.k_norm.weight] * self.kv_heads
        self.qk_factors = mx.stack(factors)[:, None]  # (H + Hkv, 1, D)
        del self.q_proj, self.k_proj, self.v_proj, self.o_proj, self.indexer.index_qk_proj, self.q_norm, self.k_norm

    def build_cache(self, dtype: mx.Dtype, capacity: int) -> Cache:
        """Empty buffers for `capacity` tokens."""
        pair = (1, self.kv_heads, capacity, self.head_dim)
        width = self.indexer.head_dim
        shapes = (pair, pair, (1, 1, capacity, width), (1, 1, capacity // self.ratio, width))
        return [mx.zeros(shape, dtype) for shape in shapes]

    def run_rows(self, x: mx.array, cache: Cache, offset: int, blocks_done: int) -> tuple[mx.array, Cache]:
        """Any number of rows (T, H) from position `offset` on; block keys below `blocks_done` are in the cache."""
        parts = self.project(x, offset)
        cache = _append(cache, parts, offset)
        end = offset + x.shape[0]
        complete = end // self.ratio
        cache[3] = self.fill_blocks(cache, blocks_done, complete)
        if complete <= self.top:
            attended = self._attend(parts.queries, cache[0][:, :, :end], cache[1][:, :, :end], "causal")
        else:
            attended = self._attend_chosen(parts, cache, offset)
        return self._close(attended, parts.gate), cache

    def run_row(self, x: mx.array, cache: Cache, offset: mx.array, plan: RowPlan) -> tuple[mx.array, Cache]:
        """One row (1, H) at the position in the scalar array `offset`; fit to be compiled."""
        parts = self.project(x, offset)
        cache = _append(cache, parts, offset)
        if plan.finishes:
            cache[3] = self._finish_block(cache, offset)
        visible = offset + 1
        if plan.selects:
            scores = score_blocks(parts.index_queries, cache[3])
            tokens, counts = choose_tokens(scores, visible, self.ratio, self.top)
            attended = self._attend(parts.queries, cache[0][:, :, tokens], cache[1][:, :, tokens], counts)
        else:
            attended = self._attend(parts.queries, cache[0], cache[1], mx.arange(cache[0].shape[2]) < visible)
        return self._close(attended, parts.gate), cache

    def fill_blocks(self, cache: Cache, first: int, end: int) -> mx.array:
        """The block keys with those of the complete blocks first..end-1 put in."""
        if end <= first:
            return cache[3]
        raw = cache[2][:, :, first * self.ratio : end * self.ratio]
        return _write(cache[3], self._block_keys(raw, first), first)

    def select_mask(self, index_queries: mx.array, block_keys: mx.array, offset: int) -> mx.array:
        """What rows of indexer queries (1, Hi, T, Di) from `offset` on may see: booleans (T, offset + T)."""
        rows = index_queries.shape[2]
        visible = mx.arange(offset + 1, offset + rows + 1)
        blocks = block_keys[:, :, : (offset + rows) // self.ratio]
        return choose_mask(score_blocks(index_queries, blocks), visible, offset + rows, self.ratio, self.top)

    def project(self, x: mx.array, offset: int | mx.array) -> Projected:
        """All parts of rows (T, H) that begin at position `offset`."""
        rows = x.shape[0]
        q_gate, k, v, index = self.inputs(x)
        q, gate = mx.split(q_gate.reshape(rows, self.heads, -1), 2, axis=-1)
        qk = mx.concatenate([q, k.reshape(rows, self.kv_heads, -1)], axis=1).swapaxes(0, 1)  # (H + Hkv, T, D)
        normed = (mx.fast.rms_norm(qk.astype(mx.float32), None, self.eps) * self.qk_factors).astype(x.dtype)
        queries, keys = mx.split(self._rotate(normed[None], offset), [self.heads], axis=1)
        index = index.reshape(rows, -1, self.indexer.head_dim).swapaxes(0, 1)  # (Hi + 1, T, Di)
        index_queries = self.indexer.q_layernorm(index[None, :-1])
        return Projected(
            queries=queries,
            keys=keys,
            values=v.reshape(rows, self.kv_heads, -1).swapaxes(0, 1)[None],
            gate=gate.flatten(1),
            index_queries=self._rotate(index_queries, offset),
            index_keys=index[None, -1:],
        )

    def _rotate(self, x: mx.array, offset: int | mx.array, step: float = 1.0) -> mx.array:
        return mx.fast.rope(x, self.rope_dim, traditional=False, base=self.rope_theta, scale=step, offset=offset)

    def _block_keys(self, raw: mx.array, first: int | mx.array) -> mx.array:
        """Raw keys (1, 1, n * ratio, Di) of whole blocks from block `first` on to their keys (1, 1, n, Di)."""
        # Pooled before norm and rotation; a block stands at the position of its first token.
        pooled = raw.reshape(1, 1, -1, self.ratio, raw.shape[-1]).astype(mx.float32).mean(axis=3)
        return self._rotate(self.indexer.k_layernorm(pooled).astype(raw.dtype), first, float(self.ratio))

    def _finish_block(self, cache: Cache, offset: mx.array) -> mx.array:
        block = offset // self.ratio
        raw = mx.slice(cache[2], block[None] * self.ratio, (2,), (1, 1, self.ratio, cache[2].shape[-1]))
        return _write(cache[3], self._block_keys(raw, block), block)

    def _attend(self, queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | str) -> mx.array:
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.head_dim**-0.5, mask=mask)

    def _attend_chosen(self, parts: Projected, cache: Cache, offset: int) -> mx.array:
        """Attention of many rows past the budget, a tile of rows at a time."""
        tiles: list[mx.array] = []
        for start in range(0, parts.queries.shape[2], MASK_ROWS):
            tile = slice(start, start + MASK_ROWS)
            mask = self.select_mask(parts.index_queries[:, :, tile], cache[3], offset + start)
            end = mask.shape[-1]
            tiles.append(self._attend(parts.queries[:, :, tile], cache[0][:, :, :end], cache[1][:, :, :end], mask))
        return mx.concatenate(tiles, axis=2)

    def _close(self, attended: mx.array, gate: mx.array) -> mx.array:
        rows = attended[0].swapaxes(0, 1).reshape(gate.shape)  # (T, H * D)
        return self.output(rows * mx.sigmoid(gate))


def _append(cache: Cache, parts: Projected, offset: int | mx.array) -> Cache:
    """The cache with the rows' keys, values and raw indexer keys put in; block keys are left as they are."""
    new = (parts.keys, parts.values, parts.index_keys)
    return [*(_write(buffer, rows, offset) for buffer, rows in zip(cache[:3], new, strict=True)), cache[3]]


def _write(buffer: mx.array, rows: mx.array, start: int | mx.array) -> mx.array:
    """The buffer with rows put in from `start` on along the token axis."""
    begin = start[None] if isinstance(start, mx.array) else mx.array([start])
    return mx.slice_update(buffer, rows, begin, (2,))
