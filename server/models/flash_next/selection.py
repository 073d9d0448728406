"""Which tokens a row of sparse attention may see: whole blocks that score highest, and the newest incomplete one.

Pure functions of scores and counts. A total order (score, then the newer block) makes the choice the same for one
row alone and for many at once: scores of exactly zero are common, since negative ones are cut off.
"""

from __future__ import annotations

import mlx.core as mx

INDEX_BITS = 21
"""Bits for the block's index in a rank: 2 million blocks; above them are the 31 of the score."""


def score_blocks(queries: mx.array, block_keys: mx.array) -> mx.array:
    """How much each row wants each block: queries (1, H, T, D), keys (1, 1, C, D), result (T, C) float32, >= 0."""
    _, heads, rows, width = queries.shape
    # All heads in one product, which then reads the keys once.
    products = queries.astype(mx.float32).reshape(-1, width) @ block_keys[0, 0].astype(mx.float32).T  # (H * T, C)
    return mx.maximum(products, 0).reshape(heads, rows, -1).sum(axis=0) * width**-0.5


def rank_blocks(scores: mx.array, complete: mx.array) -> mx.array:
    """Distinct integers (T, C) that order the blocks of each row; those not `complete` (T,) yet are -1."""
    index = mx.arange(scores.shape[-1], dtype=mx.int64)
    # The bits of a non-negative float, read as an integer, are ordered as the float is.
    bits = mx.abs(scores).view(mx.int32).astype(mx.int64)
    return mx.where(index < complete[:, None], (bits << INDEX_BITS) | index, -1)


def choose_mask(scores: mx.array, visible: mx.array, length: int, ratio: int, top: int) -> mx.array:
    """The tokens that each row keeps, as booleans (T, length).

    scores (T, C) for blocks of `ratio` tokens; visible (T,) counts the tokens up to and with the row's own.
    """
    complete = visible // ratio
    token = mx.arange(length)
    tail = (token >= (complete * ratio)[:, None]) & (token < visible[:, None])
    ranks = rank_blocks(scores, complete)
    blocks = ranks.shape[-1]
    if blocks > top:
        least = mx.partition(ranks, blocks - top, axis=-1)[:, blocks - top : blocks - top + 1]
        kept = (ranks >= least) & (ranks >= 0)
    else:
        kept = ranks >= 0
    by_token = mx.repeat(kept, ratio, axis=-1)[:, :length]  # (T, <= length)
    by_token = mx.pad(by_token, [(0, 0), (0, length - by_token.shape[-1])])
    return by_token | tail


def choose_blocks(scores: mx.array, visible: mx.array, ratio: int, top: int) -> tuple[mx.array, mx.array]:
    """The blocks that each row keeps (T, top + 1), its newest incomplete one last, and which of their tokens count.

    scores (T, C) with C > top; visible (T,). The second result is boolean (T, (top + 1) * ratio). A row with fewer
    than `top` complete blocks keeps them all, and none of the tokens of those that fill its place up.
    """
    complete = visible // ratio
    ranks = rank_blocks(scores, complete)
    blocks = ranks.shape[-1]
    best = mx.argpartition(ranks, blocks - top, axis=-1)[:, blocks - top :].astype(mx.int32)  # (T, top)
    chosen = mx.concatenate([best, complete[:, None].astype(mx.int32)], axis=-1)
    # A block that is not complete has no token before `visible` but those of the last place.
    token = (chosen[..., None] * ratio + mx.arange(ratio)).flatten(1)  # (T, (top + 1) * ratio)
    filled = mx.repeat(best < complete[:, None], ratio, axis=-1)
    counts = mx.concatenate([filled, token[:, top * ratio :] < visible[:, None]], axis=-1)
    # What does not count must be a real row too: MLX reads past the end of a full buffer, and a masked NaN stays NaN.
    return mx.minimum(chosen, blocks - 1), counts
