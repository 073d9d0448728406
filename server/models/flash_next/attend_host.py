"""Sparse attention of a prefill chunk on a CPU: MLX's buffers read in place by NumPy.

MLX's CPU backend takes 21 ns for each score of a masked softmax, so that 256 rows at 32k tokens of context cost 0.7 s a
layer; NumPy's exponential and partition are vectorised (2 x86 cores, MLX 0.32.4, 2026-11-30). Float32 alone.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Whole = npt.NDArray[Any]

TILE_SCORES = 1 << 19
"""Scores of one head group held at once, 2 MB. Source: the fastest of 2^17, 2^19, 2^21 on nano, as the next."""
TILE_GATHERED = 1 << 17
"""Numbers of keys gathered at once."""
GATHER_FROM = 8
"""Contexts of so many budgets on are gathered: copying a row's chosen blocks then costs less than scoring all. Source:
a row of nano's takes 105 and 113 us at 4 budgets, 154 and 212 at 8, 162 and 268 at 12, in a loop of its own; within a
whole model 4 was no gain over 12 (2 x86 cores, 2026-11-30)."""


class HostAttention:
    """One segment's rows against one layer's buffers; all arrays are read where MLX has put them."""

    def __init__(self, queries: mx.array, keys: mx.array, values: mx.array, offset: int, ratio: int) -> None:
        """Queries (1, H, T, D), rotated; keys and values (1, Hkv, cap, D) hold their rows already."""
        self.keys, self.values = _view(keys)[0], _view(values)[0]
        heads, width = self.keys.shape[0], self.keys.shape[2]
        self.queries = _view(queries)[0].reshape(heads, -1, queries.shape[2], width) * np.float32(width**-0.5)
        self.rows = queries.shape[2]
        self.offset, self.ratio = offset, ratio
        self.out = np.empty((self.rows, *self.queries.shape[:2], width), np.float32)  # (T, Hkv, G, D)

    def attend(self, index_queries: mx.array, block_keys: mx.array, top: int) -> mx.array:
        """Attended rows (T, H * D) for indexer queries (1, Hi, T, Di) and block keys (1, 1, C, Di)."""
        end = self.offset + self.rows
        if end // self.ratio <= top:
            for rows in self._tiles(end, TILE_SCORES // self.queries.shape[1]):
                self._attend_all(rows, None)
            return mx.array(self.out.reshape(self.rows, -1))
        wanting, blocks = _view(index_queries)[0], _view(block_keys)[0, 0, : end // self.ratio]
        gathers = end > GATHER_FROM * top * self.ratio
        for rows in self._tiles(end, TILE_SCORES):
            chosen, complete = self._choose(wanting[:, rows], blocks, top, rows)
            if gathers:
                self._attend_chosen(rows, chosen, complete)
            else:
                self._attend_all(rows, _mark(chosen, complete, end // self.ratio + 1))
        return mx.array(self.out.reshape(self.rows, -1))

    def _tiles(self, cost: int, room: int) -> list[slice]:
        size = max(1, room // cost)
        return [slice(start, min(start + size, self.rows)) for start in range(0, self.rows, size)]

    def _visible(self, rows: slice) -> Whole:
        """Tokens that each row may see, its own with them."""
        return np.arange(self.offset + rows.start + 1, self.offset + rows.stop + 1)

    def _choose(self, wanting: Floats, blocks: Floats, top: int, rows: slice) -> tuple[Whole, Whole]:
        """The blocks (t, top) that score highest, ascending, and how many (t,) are complete.

        Of equals the newer, as `selection` has it; all that are not complete score below every one that is.
        """
        products = wanting.reshape(-1, wanting.shape[2]) @ blocks.T
        np.maximum(products, 0, out=products)
        scores = products.reshape(len(wanting), -1, len(blocks)).sum(axis=0)
        complete = self._visible(rows) // self.ratio
        first = int(complete[0])
        scores[:, first:][np.arange(first, len(blocks)) >= complete[:, None]] = -1
        least = np.partition(scores, -top, axis=-1)[:, -top]
        kept = scores >= least[:, None]
        surplus = np.count_nonzero(kept, axis=-1) - top
        for row in np.flatnonzero(surplus):
            equals = np.flatnonzero(scores[row] == least[row])
            kept[row, equals[: surplus[row]]] = False
        return np.flatnonzero(kept).reshape(-1, top) % len(blocks), complete

    def _attend_all(self, rows: slice, kept: Whole | None) -> None:
        """Rows over every token up to them, or over those in the blocks (t, C) that are kept."""
        columns = self.offset + rows.stop if kept is None else kept.shape[1] * self.ratio
        bias = _bias(kept, self.ratio, self._visible(rows), columns)
        for head, queries in enumerate(self.queries[:, :, rows]):
            scores = (queries.reshape(-1, queries.shape[2]) @ self.keys[head, :columns].T).reshape(-1, *bias.shape)
            scores += bias
            weights = _exponentiate(scores)
            total = weights.sum(axis=-1, keepdims=True)
            mixed = weights.reshape(-1, columns) @ self.values[head, :columns]
            self.out[rows, head] = (mixed.reshape(queries.shape) / total).swapaxes(0, 1)

    def _attend_chosen(self, rows: slice, chosen: Whole, complete: Whole) -> None:
        """Rows over the tokens of their chosen blocks (t, top) and the newest incomplete one."""
        places = np.concatenate([chosen, complete[:, None]], axis=1)
        tokens = (places[..., None] * self.ratio + np.arange(self.ratio)).reshape(len(places), -1)
        bias = np.where(tokens < self._visible(rows)[:, None], np.float32(0), np.float32(-np.inf))[:, None]
        size = max(1, TILE_GATHERED // (tokens.shape[1] * self.keys.shape[2]))
        for start in range(0, len(places), size):
            part = slice(start, start + size)
            for head, queries in enumerate(self.queries[:, :, rows]):
                keys, values = (_gather(buffer[head], places[part], self.ratio) for buffer in (self.keys, self.values))
                # Few queries stand on the right: on the left they take BLAS twice the time.
                products = keys @ np.ascontiguousarray(queries[:, part].transpose(1, 2, 0))  # (t, S, G)
                weights = _exponentiate(np.add(products.swapaxes(1, 2), bias[part], order="C"))  # (t, G, S)
                self.out[rows][part, head] = weights @ values / weights.sum(axis=-1, keepdims=True)


def _view(array: mx.array) -> Floats:
    """An evaluated float32 array where it lies."""
    return np.asarray(array)


def _mark(chosen: Whole, complete: Whole, blocks: int) -> Whole:
    """Which of all blocks (t, C) each row keeps: the chosen, and its newest incomplete one."""
    kept = np.zeros((len(chosen), blocks), bool)
    np.put_along_axis(kept, chosen, chosen < complete[:, None], axis=1)
    np.put_along_axis(kept, complete[:, None], True, axis=1)
    return kept


def _bias(kept: Whole | None, ratio: int, visible: Whole, columns: int) -> Floats:
    """What is added to the scores (t, columns): 0 for a token that a row sees, minus infinity for the others."""
    bias = np.zeros((len(visible), columns), np.float32)
    if kept is not None:
        bias.reshape(len(visible), -1, ratio)[:] = np.where(kept, np.float32(0), np.float32(-np.inf))[..., None]
    first = int(visible[0])
    bias[:, first:][np.arange(first, columns) >= visible[:, None]] = -np.inf
    return bias


def _gather(buffer: Floats, places: Whole, ratio: int) -> Floats:
    """Blocks (t, n) of a buffer (cap, D), side by side: (t, n * ratio, D)."""
    width = buffer.shape[1]
    whole = buffer.reshape(-1, ratio * width)
    return whole.take(places, axis=0, mode="clip").reshape(len(places), -1, width)


def _exponentiate(scores: Floats) -> Floats:
    """What a softmax divides by its sum; in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    return np.exp(scores, out=scores)
