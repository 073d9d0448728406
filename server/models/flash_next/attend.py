"""What sparse attention does with one segment's projected rows: no weights in here but the block keys' norm.

All layers of a model, and its MTP head, have one geometry, and so share these functions and their traces.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import msgspec
import numpy as np

from server.models.flash_next.attend_host import HostAttention
from server.models.flash_next.config import FlashNextConfig
from server.models.flash_next.rotation import RotaryAngles, Rotation, rotate
from server.models.flash_next.selection import choose_blocks, choose_mask, score_blocks

MASK_ROWS = 128
"""Rows that are scored, masked and attended at once past the budget: bounds that memory at long contexts."""

Cache = list[mx.array]
"""Keys, values (1, Hkv, cap, D), raw indexer keys (1, 1, cap, Di), block keys (1, 1, cap / ratio, Di)."""
Parts = tuple[mx.array, mx.array, mx.array, mx.array]
"""Queries and keys side by side (T, H + Hkv, D), values (T, Hkv, D), indexer queries (T, Hi, Di) and raw indexer
keys (T, Di); all but values and raw keys normed and rotated."""


class Turned(msgspec.Struct, frozen=True):
    """A segment's rows, heads before rows as attention wants them."""

    queries: mx.array
    """(1, H, T, D)."""
    keys: mx.array
    """(1, Hkv, T, D)."""
    values: mx.array
    """(1, Hkv, T, D)."""
    index_queries: mx.array
    """(1, Hi, T, Di)."""
    index_keys: mx.array
    """(1, 1, T, Di), raw."""


class BlockAttention:
    """The geometry of a checkpoint's sparse attention, and what follows from it alone."""

    def __init__(self, config: FlashNextConfig) -> None:
        self.heads = config.num_attention_heads
        self.scale = config.head_dim**-0.5
        self.ratio = config.indexer_compress_ratio
        self.top = config.indexer_budget // self.ratio
        self.eps = config.rms_norm_eps
        self._angles = RotaryAngles(config)

    def selects(self, end: int) -> bool:
        """Whether rows that end before position `end` see more blocks than the budget holds."""
        return end // self.ratio > self.top

    def uses_host(self, dtype: mx.Dtype) -> bool:
        """Whether many rows attend by NumPy, which on a CPU is faster than MLX."""
        return mx.default_device() == mx.cpu and dtype == mx.float32

    def run_rows(
        self, parts: Parts, cache: Cache, offset: int, blocks_done: int, norm: mx.array
    ) -> tuple[mx.array, Cache]:
        """Any number of rows from position `offset` on: attended rows (T, H * D), and the cache with them put in.

        Block keys below `blocks_done` are in the cache; afterwards those of all complete blocks are.
        """
        turned = self.turn(parts)
        # In the caller's own list: buffers that anything else holds while they are written to are copied.
        cache[:3] = _append(cache, turned, offset)[:3]
        end = offset + turned.queries.shape[2]
        cache[3] = self.fill_blocks(cache, blocks_done, end // self.ratio, norm)
        if self.uses_host(cache[0].dtype):
            mx.eval(cache, turned.queries, turned.index_queries)
            host = HostAttention(turned.queries, cache[0], cache[1], offset, self.ratio)
            return host.attend(turned.index_queries, cache[3], self.top), cache
        if self.selects(end):
            attended = self._attend_masked(turned, cache, offset)
        else:
            attended = self._attend(turned.queries, cache[0][:, :, :end], cache[1][:, :, :end], "causal")
        return attended[0].swapaxes(0, 1).flatten(1), cache

    def run_few(
        self, parts: Parts, cache: Cache, offset: mx.array, rotation: Rotation, norm: mx.array, *, selects: bool
    ) -> tuple[mx.array, Cache]:
        """As `run_rows` for a few rows at the position in the scalar array `offset`; fit to be compiled.

        `rotation` is that of the blocks they touch, and empty unless rows select.

        Block keys are kept up only when rows select; those of all blocks before the first row's must be there.
        """
        turned = self.turn(parts)
        cache = _append(cache, turned, offset)
        rows = turned.queries.shape[2]
        visible = offset + mx.arange(1, rows + 1)
        if not selects:
            mask = mx.arange(cache[0].shape[2]) < visible[:, None]
            attended = self._attend(turned.queries, cache[0], cache[1], mask)
            return attended[0].swapaxes(0, 1).flatten(1), cache
        cache[3] = self._refresh_blocks(cache, offset, rows, rotation, norm)
        chosen, counts = choose_blocks(score_blocks(turned.index_queries, cache[3]), visible, self.ratio, self.top)
        keys, values = (self._gather(buffer, chosen) for buffer in cache[:2])
        attended = self._attend(turned.queries[0].swapaxes(0, 1)[:, :, None], keys, values, counts[:, None, None])
        return attended.flatten(1), cache

    def fill_blocks(self, cache: Cache, first: int, end: int, norm: mx.array) -> mx.array:
        """The block keys with those of the complete blocks first..end-1 put in."""
        if end <= first:
            return cache[3]
        raw = cache[2][:, :, first * self.ratio : end * self.ratio]
        return _write(cache[3], self._block_keys(raw, self.rotate_blocks(first, end), norm), first)

    def select_mask(self, index_queries: mx.array, block_keys: mx.array, offset: int) -> mx.array:
        """What rows of indexer queries (1, Hi, T, Di) from `offset` on may see: booleans (T, offset + T)."""
        rows = index_queries.shape[2]
        visible = mx.arange(offset + 1, offset + rows + 1)
        blocks = block_keys[:, :, : (offset + rows) // self.ratio]
        return choose_mask(score_blocks(index_queries, blocks), visible, offset + rows, self.ratio, self.top)

    def turn(self, parts: Parts) -> Turned:
        """Rows with heads first."""
        qk, values, index_queries, index_keys = parts
        queries, keys = mx.split(qk.swapaxes(0, 1)[None], [self.heads], axis=1)
        return Turned(
            queries=queries,
            keys=keys,
            values=values.swapaxes(0, 1)[None],
            index_queries=index_queries.swapaxes(0, 1)[None],
            index_keys=index_keys[None, None],
        )

    def rotate_rows(self, offsets: Sequence[int], lengths: Sequence[int]) -> Rotation:
        """What the rows of segments that begin at these offsets are turned by."""
        pairs = zip(offsets, lengths, strict=True)
        return self._angles.at(np.concatenate([np.arange(start, start + rows) for start, rows in pairs]))

    def rotate_blocks(self, first: int, end: int) -> Rotation:
        """What the keys of blocks first..end-1 are turned by: a block stands at the position of its first token."""
        return self._angles.at(np.arange(first, end) * self.ratio)

    def rotate_touched(self, offset: int, rows: int) -> Rotation:
        """The same for all blocks that `rows` from `offset` on can touch, wherever in a block they begin."""
        first = offset // self.ratio
        return self.rotate_blocks(first, first + self._touched(rows))

    def _touched(self, rows: int) -> int:
        return (rows + self.ratio - 2) // self.ratio + 1

    def _block_keys(self, raw: mx.array, rotation: Rotation, norm: mx.array) -> mx.array:
        """Raw keys (1, 1, n * ratio, Di) of whole blocks to their keys (1, 1, n, Di)."""
        # Pooled before norm and rotation.
        pooled = raw.reshape(-1, 1, self.ratio, raw.shape[-1]).astype(mx.float32).mean(axis=2)  # (n, 1, Di)
        return rotate(mx.fast.rms_norm(pooled, norm, self.eps).astype(raw.dtype), rotation).swapaxes(0, 1)[None]

    def _refresh_blocks(
        self, cache: Cache, offset: mx.array, rows: int, rotation: Rotation, norm: mx.array
    ) -> mx.array:
        """The block keys with those of every block that the newest rows touch.

        One that is not complete yet gets a key that nothing reads, and its own once it is.
        """
        block, width = offset // self.ratio, cache[2].shape[-1]
        raw = mx.slice(cache[2], block[None] * self.ratio, (2,), (1, 1, self._touched(rows) * self.ratio, width))
        return _write(cache[3], self._block_keys(raw, rotation, norm), block)

    def _gather(self, buffer: mx.array, chosen: mx.array) -> mx.array:
        """Blocks (T, n) of a buffer (1, Hkv, cap, D), for each row its own: (T, Hkv, n * ratio, D)."""
        _, heads, capacity, width = buffer.shape
        blocks = buffer.reshape(heads, capacity // self.ratio, self.ratio, width)[:, chosen]  # (Hkv, T, n, ratio, D)
        return blocks.reshape(heads, chosen.shape[0], -1, width).swapaxes(0, 1)

    def _attend(self, queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | str) -> mx.array:
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.scale, mask=mask)

    def _attend_masked(self, turned: Turned, cache: Cache, offset: int) -> mx.array:
        """Attention of many rows past the budget, a tile of rows at a time."""
        tiles: list[mx.array] = []
        for start in range(0, turned.queries.shape[2], MASK_ROWS):
            tile = slice(start, start + MASK_ROWS)
            mask = self.select_mask(turned.index_queries[:, :, tile], cache[3], offset + start)
            end = mask.shape[-1]
            tiles.append(self._attend(turned.queries[:, :, tile], cache[0][:, :, :end], cache[1][:, :, :end], mask))
        return mx.concatenate(tiles, axis=2)


def _append(cache: Cache, turned: Turned, offset: int | mx.array) -> Cache:
    """The cache with the rows' keys, values and raw indexer keys put in; block keys are left as they are."""
    new = (turned.keys, turned.values, turned.index_keys)
    return [*(_write(buffer, rows, offset) for buffer, rows in zip(cache[:3], new, strict=True)), cache[3]]


def _write(buffer: mx.array, rows: mx.array, start: int | mx.array) -> mx.array:
    """The buffer with rows put in from `start` on along the token axis."""
    begin = start[None] if isinstance(start, mx.array) else mx.array([start])
    return mx.slice_update(buffer, rows, begin, (2,))
