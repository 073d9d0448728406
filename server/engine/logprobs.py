"""How likely the model held the tokens that were drawn: of its own softmax, whatever bent the scores for the draw."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import mlx.core as mx
import msgspec

from server.events import TokenLogprob


class Logprobs(msgspec.Struct, frozen=True):
    """Log-probabilities on their way: lazy, to be evaluated with the tokens that they are of."""

    chosen: mx.array
    """(rows,) of the tokens drawn."""
    top_ids: mx.array | None
    top: mx.array | None
    """(rows, K) ids and log-probabilities of the most likely tokens, in no order; None when K is 0."""

    def arrays(self) -> list[mx.array]:
        """What is to be evaluated."""
        return [array for array in (self.chosen, self.top_ids, self.top) if array is not None]

    def read(self) -> tuple[TokenLogprob, ...]:
        """One for each row; waits for them."""
        chosen = cast("list[float]", self.chosen.tolist())
        if self.top is None or self.top_ids is None:
            return tuple(TokenLogprob(logprob) for logprob in chosen)
        ids, values = cast("list[list[int]]", self.top_ids.tolist()), cast("list[list[float]]", self.top.tolist())
        pairs = (zip(*row, strict=True) for row in zip(ids, values, strict=True))
        return tuple(TokenLogprob(own, _order(row)) for own, row in zip(chosen, pairs, strict=True))


def measure_logprobs(logits: mx.array, tokens: mx.array, top: int) -> Logprobs:
    """Log-probabilities of `tokens` (rows,) and the `top` likeliest ones in the model's logits (rows, V) float32. Lazy.

    Each row's depend on that row alone, so that they are the same whether rows come singly or together.
    """
    whole = mx.logsumexp(logits, axis=-1, keepdims=True)  # (rows, 1)
    chosen = (mx.take_along_axis(logits, tokens[:, None], axis=-1) - whole)[:, 0]  # (rows,)
    wanted = min(top, logits.shape[1])
    if not wanted:
        return Logprobs(chosen, None, None)
    ids = mx.argpartition(-logits, kth=wanted - 1, axis=-1)[:, :wanted]  # (rows, K)
    return Logprobs(chosen, ids, mx.take_along_axis(logits, ids, axis=-1) - whole)


def _order(row: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Best first; of equals the lowest id."""
    return tuple(sorted(row, key=lambda pair: (-pair[1], pair[0])))
